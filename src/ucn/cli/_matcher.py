"""The one place where verbs get their matcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ucn.config import MatchConfig
    from ucn.matching.matcher import Matcher


def load_matcher(weights: str, config: MatchConfig | None = None, device: str | None = None) -> Matcher:
    """Loads weights onto a device.

    Raises:
        WeightsError: the weights are unknown or damaged.
        ValueError: there is no such device.
    """
    from ucn.matching.matcher import Matcher

    return Matcher.from_pretrained(weights, config=config, device=device)
