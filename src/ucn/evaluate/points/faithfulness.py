"""Is a rebuilt system as far ahead of dense SIFT as its authors' was? Measured in the run that shows it.

The systems that optimise are written from their papers. In the UCN paper's Table 3 they are 17 to 21 points
of PCK@10 ahead of nearest neighbours of SIFT on Sintel, and 9 to 37 on KITTI. One that is ahead by less than
`MARGINS` on any of these sets is marked 'not faithful' in tables, whatever the reason; a note says of each
set whether the margin was met, missed though possible, or impossible, since nothing can be 10 points ahead of
95.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ucn.evaluate.core.methods import OPTIMISERS
from ucn.evaluate.points.scoring import Figure

REFERENCE = "sift"
"""The method that rebuilt systems are compared with."""
LIMIT = 10.0
"""Pixels within which a point counts."""
MARGINS: Mapping[str, float] = {
    "Middlebury flow": 10.0,
    "Middlebury stereo": 10.0,
    "Sintel clean": 10.0,
    "Sintel final": 10.0,
    "KITTI flow": 5.0,
}
"""Points of PCK that are asked on a group of pairs."""


@dataclass(frozen=True)
class Margin:
    """How far a system is ahead of dense SIFT on a group of pairs, in points of PCK.

    Attributes:
        group: of pairs.
        points: ahead.
        asked: at least.
        room: what dense SIFT leaves to be gained.
    """

    group: str
    points: float
    asked: float
    room: float

    @property
    def gained(self) -> float:
        """Share of the room that it gains; negative where it is behind, 0 where there is no room."""
        return self.points / self.room if self.room > 0 else 0.0

    @property
    def is_enough(self) -> bool:
        """Whether it is as far ahead as asked."""
        return self.points >= self.asked

    @property
    def is_possible(self) -> bool:
        """Whether dense SIFT leaves as much as is asked."""
        return self.room >= self.asked

    def __str__(self) -> str:
        begin = f"{self.group}: {self.points:+.1f}, asked {self.asked:g}"
        if self.is_enough:
            return f"{begin}: met"
        if self.is_possible:
            return f"{begin}, and {self.room:.1f} were left: missed"
        if self.room <= 0:
            return f"{begin}, but {REFERENCE} leaves nothing"
        share = "none" if self.points <= 0 else "all" if round(self.gained, 2) >= 1 else f"{self.gained:.0%}"
        return f"{begin}, but {REFERENCE} leaves only {self.room:.1f} ({share} of it gained)"


@dataclass(frozen=True)
class Verdict:
    """What was measured of a rebuilt system."""

    name: str
    margins: tuple[Margin, ...]

    @property
    def is_faithful(self) -> bool:
        """Whether it is far enough ahead everywhere."""
        return all(margin.is_enough for margin in self.margins)

    def describe(self) -> str:
        """Whether each margin was met, missed though possible, or impossible."""
        mark = "faithful" if self.is_faithful else "not faithful"
        measured = "; ".join(map(str, self.margins))
        return (
            f"`{self.name}` is {mark} by the rule of docs/evaluation.md; points of PCK@{LIMIT:g} ahead of "
            f"`{REFERENCE}`: {measured}"
        )


def judge_systems(figures: Sequence[Figure]) -> dict[str, Verdict]:
    """Verdicts on the rebuilt systems of a run, by name.

    Args:
        figures: of the run; without dense SIFT, or without a set that has a margin, there are no verdicts.
    """
    use = {figure.use_refinement for figure in figures if figure.method == REFERENCE}
    shares = {
        (figure.method, figure.group): 100 * figure.per_point
        for figure in figures
        if figure.limit == LIMIT and use and figure.use_refinement == max(use)
    }
    verdicts = {}
    for name in OPTIMISERS:
        margins = tuple(
            Margin(
                group,
                shares[name, group] - shares[REFERENCE, group],
                asked,
                100 - shares[REFERENCE, group],
            )
            for group, asked in MARGINS.items()
            if {(name, group), (REFERENCE, group)} <= shares.keys()
        )
        if margins:
            verdicts[name] = Verdict(name, margins)
    return verdicts


def mark_name(name: str, verdicts: Mapping[str, Verdict]) -> str:
    """A method's name for the first column of a table."""
    verdict = verdicts.get(name)
    return name if verdict is None or verdict.is_faithful else f"{name} (not faithful)"
