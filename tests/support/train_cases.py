"""Tiny training runs on the CPU, for tests of the loop and of all that surrounds it."""

from collections.abc import Callable
from pathlib import Path

import torch

from ucn.config import ModelConfig, TrainConfig
from ucn.nn import CorrespondenceNetwork
from ucn.train.log import Progress
from ucn.train.loop import Trained, train
from ucn.train.sources.batches import open_sources

CPU = torch.device("cpu")
MODEL = ModelConfig(dim=8, transformer="none")


def make_config(**changes: object) -> TrainConfig:
    """A run of two steps of two pairs of 64 px."""
    base = {
        "name": "tiny",
        "steps": 2,
        "batch": 2,
        "warmup_steps": 0,
        "head_learning_rate": 1e-3,
        "trunk_learning_rate": 1e-3,
        "model": MODEL,
        "synthetic": {"side": 64, "points": 50},
    }
    return TrainConfig.from_dict(base | changes)


def ignore(_: object) -> None:
    """Takes reports and networks that a test does not look at."""


def train_on(
    photos: Path | None,
    config: TrainConfig,
    report: Callable[[Progress], None] = ignore,
    keep: Callable[[Trained], None] = ignore,
) -> Trained:
    """Opens what the run trains on, as the command does, and trains."""
    with open_sources(config, photos, CPU) as mixture:
        return train(config, mixture, CPU, report, keep)


def assert_equal(first: CorrespondenceNetwork, second: CorrespondenceNetwork) -> None:
    """Checks that all weights and statistics are the same, bit for bit."""
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
