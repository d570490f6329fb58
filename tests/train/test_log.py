"""The log for programs, TensorBoard, and pictures of matches."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.photo_cases import make_photo
from ucn.config import ModelConfig
from ucn.errors import OutputError, UcnError
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train import log
from ucn.train.log import Progress, RunLog, TensorBoardLog, check_tensorboard, draw_pair, first_pairs
from ucn.train.sources.batches import Source
from ucn.types import PairBatch
from ucn.viz import ImageArray, draw_matches

PROGRESS = Progress(
    step=2,
    loss=1.5,
    pairs_per_second=10.0,
    correspondences_per_second=1e4,
    seconds_per_step=0.5,
    gradient_norm=0.5,
    learning_rates={"trunk": 0.25, "head": 0.5},
    memory_bytes=2_000_000_000,
    pck={"a pck@5": 0.75, "b pck@0.1": float("nan")},
    score=0.75,
)


def make_batch(pairs: int, points: int = 20, length: float | None = None) -> PairBatch:
    """Pairs whose image 1 is their image 0."""
    images = torch.stack([make_photo(64, 64, seed=seed, grain=8) for seed in range(pairs)])
    drawn = torch.rand(pairs, points, 2, generator=torch.Generator().manual_seed(0)) * 63
    is_valid = torch.ones(pairs, points, dtype=torch.bool)
    lengths = None if length is None else torch.full((pairs,), length)
    names = tuple(f"pair-{index}" for index in range(pairs))
    return PairBatch(images, images, drawn, drawn, is_valid, names, lengths)


class FakeSource(Source):
    """Held-out batches of two pairs each, and how many of them were asked for."""

    def __init__(self, label: str, batches: int) -> None:
        super().__init__(label, 1.0)
        self.batches, self.read = batches, 0

    def sample_batch(self, number: int, generator: torch.Generator) -> PairBatch:
        raise NotImplementedError

    def validation_batches(self) -> Iterator[PairBatch]:
        for _ in range(self.batches):
            self.read += 1
            yield make_batch(2)

    def close(self) -> None:
        raise NotImplementedError


def read_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_figure_is_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as run_log:
        run_log.write("start", step=0, device="cpu")
        run_log(PROGRESS)
        assert len(read_lines(path)) == 2  # already there: a kill loses no line
    start, progress = read_lines(path)
    assert start == {"event": "start", "step": 0, "device": "cpu"}
    assert progress == {
        "event": "progress",
        "step": 2,
        "loss": 1.5,
        "pairs_per_second": 10.0,
        "correspondences_per_second": 1e4,
        "seconds_per_step": 0.5,
        "gradient_norm": 0.5,
        "learning_rates": {"trunk": 0.25, "head": 0.5},
        "memory_bytes": 2_000_000_000,
        "pck": {"a pck@5": 0.75, "b pck@0.1": None},  # JSON has no NaN
        "score": 0.75,
    }


def test_a_resumed_log_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RunLog(path) as run_log:
        for step in (1, 2, 3, 4):
            run_log(replace(PROGRESS, step=step))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 1}\n[1]\n"text"\n{"step": "2"}\n{"event": "progress", "st')  # cut off by a kill
    with RunLog(path, step=2) as run_log:
        run_log(replace(PROGRESS, step=3, loss=9.0))
    assert [(line.get("step"), line.get("loss")) for line in read_lines(path)] == [
        (1, 1.5),
        (2, 1.5),
        (1, None),
        (3, 9.0),
    ]
    with RunLog(path):  # a new run
        pass
    assert read_lines(path) == []


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        RunLog(tmp_path / "missing" / "log.jsonl")


def test_without_tensorboard_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for call in (check_tensorboard, lambda: TensorBoardLog(tmp_path)):
        with pytest.raises(UcnError, match=r"needs the package tensorboard: pip install 'ucn\[train\]'"):
            call()


def read_board(folder: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, list[int]]]:
    """The scalars and the steps of the pictures that TensorBoard would show."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags["scalars"]}
    return scalars, {tag: [event.step for event in events.Images(tag)] for tag in tags["images"]}


@pytest.fixture(scope="module")
def model() -> CorrespondenceNetwork:
    return build_model(ModelConfig(dim=8, transformer="none")).eval()


def test_tensorboard_gets_scalars_and_images(tmp_path: Path, model: CorrespondenceNetwork) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoardLog(tmp_path)
    board(PROGRESS)
    sources = [FakeSource("a", 3), FakeSource("b", 1)]
    board.draw_matches(2, model, sources)
    board.close()
    scalars, images = read_board(tmp_path)
    assert scalars == {
        "loss": [(2, 1.5)],
        "gradient norm": [(2, 0.5)],
        "speed/pairs per second": [(2, 10.0)],
        "speed/correspondences per second": [(2, 1e4)],
        "speed/GPU memory in GB": [(2, 2.0)],
        "validation/score": [(2, 0.75)],
        "learning rate/trunk": [(2, 0.25)],
        "learning rate/head": [(2, 0.5)],
        "validation/a pck@5": [(2, 0.75)],
    }
    assert images == {"a/0": [2], "a/1": [2], "b/0": [2], "b/1": [2]}
    assert [source.read for source in sources] == [1, 1]  # no more than is drawn


def test_a_resumed_board_hides_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoardLog(tmp_path)
    for step in (1, 2, 3):
        board(replace(PROGRESS, step=step))
    board.close()
    resumed = TensorBoardLog(tmp_path, step=2)
    resumed(replace(PROGRESS, step=3, loss=9.0))
    resumed.close()
    assert read_board(tmp_path)[0]["loss"] == [(1, 1.5), (2, 1.5), (3, 9.0)]


def test_first_pairs_may_be_fewer_than_requested() -> None:
    assert [pair.names for pair in first_pairs(FakeSource("a", 2), 3)] == [
        ("pair-0",),
        ("pair-1",),
        ("pair-0",),
    ]
    assert len(first_pairs(FakeSource("a", 1), 9)) == 2
    assert first_pairs(FakeSource("a", 0), 9) == []


@pytest.mark.parametrize("length", [None, 30.0])
@pytest.mark.parametrize("points", [0, 20])
def test_an_image_shows_errors_by_colour(
    model: CorrespondenceNetwork, length: float | None, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def draw(*arguments: Any, **options: Any) -> ImageArray:
        given.update(options)
        return draw_matches(*arguments, **options)

    monkeypatch.setattr(log, "draw_matches", draw)
    (pair,) = make_batch(1, points, length)
    picture = draw_pair(model, pair)
    assert picture.shape[1:] == (900, 3) and picture.dtype.name == "uint8"
    assert given["errors"].shape == (points,)
    assert (given["errors"] < 2.5).all()
    assert given["error_limit"] == (5.0 if length is None else 3.0)
