"""Tiny training runs on the CPU, for tests of the loop and of all that surrounds it."""

from collections.abc import Callable
from pathlib import Path

import torch

from ucn.config import ModelConfig, TrainConfig
from ucn.nn import CorrespondenceNetwork
from ucn.train.checkpoint import load_run
from ucn.train.log import Progress
from ucn.train.loop import Trained, train
from ucn.train.signals import StoppedError
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


def continue_run(
    config: TrainConfig, photos: Path, folder: Path, asked_before: int = 10**6
) -> tuple[Trained | None, list[Progress]]:
    """Trains in a folder, from its checkpoint where it has one, until the end or until asked to stop.

    The loop asks once a step, and a run that was stopped before a validation once before that.
    """
    reports: list[Progress] = []
    answers = iter([False] * asked_before)
    with open_sources(config, photos, CPU) as mixture:
        resume = load_run(folder, config, [source.label for source in mixture.sources])
        try:
            trained = train(
                config,
                mixture,
                CPU,
                reports.append,
                ignore,
                folder=folder,
                resume=resume,
                should_stop=lambda: next(answers, True),
            )
        except StoppedError:
            return None, reports
    return trained, reports


def assert_equal(first: CorrespondenceNetwork, second: CorrespondenceNetwork) -> None:
    """Checks that all weights and statistics are the same, bit for bit."""
    one, other = first.state_dict(), second.state_dict()
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name
