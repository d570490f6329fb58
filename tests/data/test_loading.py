"""Batches of a data set: the same whatever the workers, with errors as they were raised."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import pin_memory as pinning

from support.numbered_data import NumberedData
from ucn.data import loading
from ucn.data.catalogue import open_data
from ucn.data.loading import (
    PairAugmentation,
    PairLoader,
    WorkerExitedError,
    augment_pair,
    collate,
    derive_seed,
    make_generator,
)
from ucn.data.pairs import PairData
from ucn.data.transforms import PADDING_RGB
from ucn.errors import DataError, ImageReadError, UcnError
from ucn.geometry.coords import is_inside
from ucn.types import PairBatch, PairSample


class BrokenData(NumberedData):
    """Pair 2 cannot be read."""

    def read(self, index: int) -> PairSample:
        if index == 2:
            raise ImageReadError("cannot read image numbered/2.png: the file is empty (0 bytes)")
        return super().read(index)


class DyingData(NumberedData):
    """Reading ends the process that reads."""

    def read(self, index: int) -> PairSample:
        os._exit(9)


IS_FORKING = torch.multiprocessing.get_start_method() == "fork"

FITTING = PairAugmentation((32, 32), min_points=1)
VARIED = PairAugmentation((32, 32), min_points=4, mirror=0.5, rotation=40.0, scale=1.5)


def make_loader(
    data: PairData, augmentation: PairAugmentation = VARIED, seed: int = 5, workers: int = 0
) -> PairLoader:
    return PairLoader(data, augmentation, batch=2, points=8, seed=seed, workers=workers)


def take(loader: PairLoader, count: int, start: int = 0) -> list[PairBatch]:
    batches = loader.batches(start)
    found = list(islice(batches, count))
    batches.close()
    return found


def assert_equal(first: Sequence[PairBatch], second: Sequence[PairBatch]) -> None:
    assert len(first) == len(second) > 0
    for mine, theirs in zip(first, second, strict=True):
        assert mine.names == theirs.names
        for name in ("image0", "image1", "points0", "points1", "is_valid", "pck_length"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), name


def make_sample(rows: int, size_hw: tuple[int, int] = (4, 6), name: str = "a") -> PairSample:
    points = torch.arange(2.0 * rows).view(-1, 2)
    return PairSample(torch.zeros(3, *size_hw), torch.ones(3, *size_hw), points, points + 100, name)


def test_collate_pads_and_chooses() -> None:
    batch = collate(
        [make_sample(2), make_sample(9, name="b"), make_sample(0, name="c")], 4, make_generator(0)
    )
    assert batch.image0.shape == batch.image1.shape == (3, 3, 4, 6)
    assert batch.points0.shape == batch.points1.shape == (3, 4, 2)
    assert batch.is_valid.tolist() == [[True, True, False, False], [True] * 4, [False] * 4]
    assert batch.points0[0].tolist() == [[0, 1], [2, 3], [0, 0], [0, 0]]
    assert torch.equal(batch.points1[1], batch.points0[1] + 100)  # rows stay together
    assert len(set(batch.points0[1, :, 0].tolist())) == 4  # none is drawn twice
    assert batch.names == ("a", "b", "c") and batch.pck_length is None


def test_collate_samples_by_the_generator() -> None:
    first, again, other = (collate([make_sample(50)], 10, make_generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.points0, again.points0)
    assert not torch.equal(first.points0, other.points0)


def test_collate_keeps_lengths_where_every_pair_has_one() -> None:
    samples = [replace(make_sample(1), pck_length=3.0), replace(make_sample(1), pck_length=4.5)]
    found = collate(samples, 2, make_generator(0)).pck_length
    assert found is not None and found.tolist() == [3.0, 4.5]
    assert collate([*samples, make_sample(1)], 2, make_generator(0)).pck_length is None


def test_collate_refuses_other_sizes_and_nothing() -> None:
    wrong = make_sample(1, (4, 7), "wide")
    with pytest.raises(ValueError, match=r"must all be \(4, 6\), got \(4, 7\) in wide; crop or resize"):
        collate([make_sample(1), wrong], 2, make_generator(0))
    with pytest.raises(ValueError, match="at least one sample, got none"):
        collate([], 2, make_generator(0))


@pytest.mark.parametrize("fit", ["crop", "resize"])
@pytest.mark.parametrize("size_hw", [(32, 32), (64, 48), (20, 90)])
def test_pairs_become_one_size(fit: str, size_hw: tuple[int, int]) -> None:
    sample = NumberedData(3, parts=True).read(1)
    for seed in range(10):
        fitting = PairAugmentation(size_hw, fit=fit, mirror=0.5, mirror_view=0.5, rotation=60.0, scale=2.0)  # type: ignore[arg-type]
        found = augment_pair(sample, fitting, make_generator(seed))
        assert found.image0.shape == found.image1.shape == (3, *size_hw)
        assert is_inside(found.points0, size_hw).all() and is_inside(found.points1, size_hw).all()
        assert found.parts is not None and len(found.parts) == len(found)


def test_a_window_as_it_stands() -> None:
    # Without changes a crop of the image's own size is the image, and views stay as they are.
    sample = NumberedData(3).read(1)
    found = augment_pair(sample, PairAugmentation((40, 60)), make_generator(0))
    assert torch.equal(found.image0, sample.image0) and torch.equal(found.points0, sample.points0)
    assert found.pck_length == 11.0


def test_images_that_fit_are_padded() -> None:
    found = augment_pair(NumberedData(3).read(1), PairAugmentation((60, 60), fit="resize"), make_generator(0))
    assert torch.allclose(found.image0[:, 0, 30], torch.tensor(PADDING_RGB))
    assert found.image0[:, 10, 0].tolist() == found.image0[:, 49, 59].tolist() == [1 / 256] * 3
    assert torch.allclose(found.points0, NumberedData(3).read(1).points0 + torch.tensor([0.0, 10.0]))


def test_scales_and_turns_are_sampled_for_each_view() -> None:
    sample = NumberedData(3).read(1)
    for fit in ("crop", "resize"):
        fitting = PairAugmentation((40, 40), fit=fit, rotation=0.0, scale=2.0)
        found = augment_pair(sample, fitting, make_generator(4))
        spans = [(points.amax(0) - points.amin(0)).norm().item() for points in (found.points0, found.points1)]
        assert abs(spans[0] / spans[1] - 1) > 0.05
        assert found.pck_length is not None and 5.0 * 0.6 < found.pck_length < 22.1
        assert found.pck_length != 11.0


def test_one_view_is_mirrored_for_parts_only() -> None:
    fitting = PairAugmentation((40, 60), mirror_view=1.0)
    found = [augment_pair(NumberedData(3, parts=True).read(1), fitting, make_generator(s)) for s in range(12)]
    for pair in found:
        assert torch.allclose(pair.points0[:, 0], 59 - pair.points1[:, 0], atol=1e-4)
    with pytest.raises(DataError, match="pair-1 has no named parts: set mirror_view to 0"):
        augment_pair(NumberedData(3).read(1), fitting, make_generator(0))


def test_seeds_are_mixed() -> None:
    assert len({derive_seed(a, b) for a in range(30) for b in range(30)}) == 900
    assert derive_seed(1, 23) != derive_seed(12, 3)
    assert derive_seed(1, "a", 2) != derive_seed(1, "b", 2)
    assert all(0 <= derive_seed(2**63 - 1, n) < 2**63 for n in range(100))


def test_batches_depend_on_seed_and_number_alone() -> None:
    data = NumberedData(5)
    first = take(make_loader(data), 7)
    assert_equal(first, take(make_loader(data), 7))
    assert_equal(first[4:], take(make_loader(data), 3, start=4))
    other = take(make_loader(data, seed=6), 7)
    assert [batch.names for batch in first] != [batch.names for batch in other]
    # The same pair in two epochs is cut and changed anew.
    again = [
        (batch.image0[i], batch.points0[i])
        for batch in first
        for i, name in enumerate(batch.names)
        if name == "pair-3"
    ]
    assert len(again) >= 2 and not torch.equal(again[0][1], again[1][1])


def test_workers_change_nothing() -> None:
    data = NumberedData(5, points=(30, 0, 2))
    alone = take(make_loader(data), 6, start=2)
    assert_equal(alone, take(make_loader(data, workers=1), 6, start=2))
    assert_equal(alone, take(make_loader(data, workers=2), 6, start=2))


@pytest.mark.slow
def test_workers_that_are_spawned_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on macOS and Windows, where a worker gets the data set pickled.
    alone = take(make_loader(NumberedData(5)), 3)
    monkeypatch.setattr(loading, "DataLoader", partial(DataLoader, multiprocessing_context="spawn"))
    assert_equal(alone, take(make_loader(NumberedData(5), workers=1), 3))


def test_every_pair_comes_once_an_epoch() -> None:
    names = [name for batch in take(make_loader(NumberedData(6), FITTING), 9) for name in batch.names]
    for epoch in (names[:6], names[6:12], names[12:]):
        assert sorted(epoch) == [f"pair-{i}" for i in range(6)]
    assert names[:6] != names[6:12]


def test_very_many_pairs_are_sampled_without_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_MAX_PERMUTED", 100)
    data = NumberedData(10**12)
    first = take(make_loader(data, FITTING), 3)
    assert_equal(first, take(make_loader(data, FITTING), 3))
    assert len({name for batch in first for name in batch.names}) == 6


def test_pairs_with_few_points_are_replaced() -> None:
    data = NumberedData(4, points=(30, 3))  # every other pair has 3
    plenty = take(make_loader(data, PairAugmentation((40, 60), min_points=10)), 6)
    assert {name for batch in plenty for name in batch.names} == {"pair-0", "pair-2"}
    few = take(make_loader(data, PairAugmentation((40, 60), min_points=3)), 6)
    assert {name for batch in few for name in batch.names} == {f"pair-{i}" for i in range(4)}


def test_where_no_pair_has_enough_the_fullest_is_taken() -> None:
    data = NumberedData(2, points=(2, 5))
    for batch in take(make_loader(data, PairAugmentation((40, 60), min_points=10)), 5):
        assert batch.names == ("pair-1", "pair-1")
        assert batch.is_valid.sum(1).tolist() == [5, 5]


def test_a_set_without_any_correspondence_is_refused() -> None:
    loader = make_loader(NumberedData(3, points=(0,)), FITTING)
    with pytest.raises(
        DataError, match=r"no correspondence is left in any of 100 pairs of numbered .*32 × 32.*: .*pair-1"
    ):
        next(loader.batches())
    with pytest.raises(DataError, match="numbered has no pairs to make batches of"):
        make_loader(NumberedData(0))


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_arrive_as_they_were_raised(workers: int) -> None:
    with pytest.raises(ImageReadError) as caught:
        take(make_loader(BrokenData(3), workers=workers), 3)
    assert str(caught.value) == "cannot read image numbered/2.png: the file is empty (0 bytes)"
    assert torch.multiprocessing.active_children() == []  # though the traceback is still there


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_pairs_that_cannot_be_read_are_replaced_and_noted(workers: int) -> None:
    skipped: dict[str, str] = {}
    loader = PairLoader(BrokenData(4), FITTING, batch=2, points=8, seed=5, workers=workers, skipped=skipped)
    batches = take(loader, 6)
    assert {name for batch in batches for name in batch.names} == {"pair-0", "pair-1", "pair-3"}
    assert skipped == {"pair-2": "cannot read image numbered/2.png: the file is empty (0 bytes)"}
    assert_equal(take(loader, 3, start=3), batches[3:])
    # The pairs that can be read are where they would be without the bad one.
    whole = take(make_loader(NumberedData(4), FITTING), 6)
    for batch, expected in zip(batches, whole, strict=True):
        for name, wanted in zip(batch.names, expected.names, strict=True):
            assert name == wanted or wanted == "pair-2"


def test_batches_are_pinned_with_their_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor + 1)  # CUDA alone can pin
    batch = collate([make_sample(3)], 3, torch.Generator())
    pin: Callable[[object], loading._PackedBatch] = pinning.pin_memory
    pinned, skipped = pin(loading._PackedBatch.pack(batch, {"b": "wrong"})).unpack()
    assert pinned is not None and torch.equal(pinned.image0, batch.image0 + 1)
    assert (pinned.names, pinned.pck_length, skipped) == (("a",), None, {"b": "wrong"})
    assert pin(loading._PackedBatch.pack(None, {})).unpack() == (None, {})


class UnreadableData(NumberedData):
    """No pair can be read."""

    def read(self, index: int) -> PairSample:
        raise DataError(f"pair {index} is wrong")


def test_a_set_of_which_nothing_can_be_read_is_refused() -> None:
    loader = PairLoader(UnreadableData(3), FITTING, batch=2, points=8, seed=5, skipped={})
    with pytest.raises(
        DataError, match=r"none of 100 pairs sampled from numbered can be read.*pair \d is wrong"
    ):
        take(loader, 1)


def test_a_pass_in_order_leaves_out_pairs_that_cannot_be_read() -> None:
    skipped: dict[str, str] = {}
    loader = PairLoader(BrokenData(5), FITTING, batch=2, points=8, seed=0, skipped=skipped)
    batches = loader.in_order([2, 0, 1, 2, 2, 2])
    assert [batch.names for batch in batches] == [("pair-0",), ("pair-1",)]
    assert list(skipped) == ["pair-2"]
    with pytest.raises(ImageReadError, match="the file is empty"):
        list(make_loader(BrokenData(5), FITTING).in_order([0, 2]))


@pytest.mark.slow
def test_a_worker_that_dies_is_reported() -> None:
    with pytest.raises(
        UcnError, match=r"a worker process that reads data exited \(DataLoader worker.*fewer workers"
    ):
        take(make_loader(DyingData(3), workers=1), 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize("is_dead", [True, False])
def test_the_end_of_a_worker_is_noticed_where_pairs_are_read(is_dead: bool) -> None:
    others = set(torch.multiprocessing.active_children())
    answer = signal.getsignal(signal.SIGCHLD)
    batches = make_loader(NumberedData(5), workers=1).batches()
    next(batches)
    assert signal.getsignal(signal.SIGCHLD) is answer
    (worker,) = set(torch.multiprocessing.active_children()) - others
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGTERM)
    until = time.monotonic() + 60
    while is_dead and worker.is_alive() and time.monotonic() < until:  # in a step nothing is raised
        time.sleep(0.01)
    with pytest.raises(WorkerExitedError, match="a worker process that reads data exited"):
        list(islice(batches, 10))  # some lay ready


@pytest.mark.parametrize(
    ("error", "workers", "told"),
    [
        (RuntimeError("DataLoader worker (pid 7) is killed"), 1, WorkerExitedError),
        (RuntimeError("Pin memory thread exited unexpectedly"), 1, WorkerExitedError),
        (ConnectionResetError("reset"), 1, WorkerExitedError),
        (FileNotFoundError("no socket"), 1, WorkerExitedError),
        (EOFError(), 1, WorkerExitedError),
        (EOFError("of a file"), 0, EOFError),
        (FileNotFoundError("Caught FileNotFoundError in DataLoader worker process 0."), 1, FileNotFoundError),
        (RuntimeError("shapes differ"), 1, RuntimeError),
    ],
)
def test_which_errors_mean_that_a_worker_ended(
    error: Exception, workers: int, told: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Iterator[object]:
        yield from ()
        raise error

    monkeypatch.setattr(DataLoader, "__iter__", lambda _: fail())
    with pytest.raises(told) as caught:
        take(make_loader(NumberedData(5), workers=workers), 1)
    assert type(caught.value) is told and (str(error) or "EOFError") in str(caught.value)


def test_other_errors_of_starting_workers_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> Iterator[object]:
        raise AttributeError("cannot pickle that")

    monkeypatch.setattr(DataLoader, "__iter__", fail)
    with pytest.raises(AttributeError, match="cannot pickle that"):
        take(make_loader(NumberedData(5), workers=1), 1)


def test_a_batch_is_handed_over_whole_or_not_at_all() -> None:
    batch = collate([NumberedData(5, parts=True).read(0)] * 64, 8, torch.Generator())
    names = tuple(f"training/final/alley_1/{number:035d}" for number in range(64))
    skipped = {name: "no file at " + name for name in names}
    sent = loading._PackedBatch.pack(replace(batch, names=names), skipped)
    assert sent.share() is sent
    assert all(part.untyped_storage().is_shared() for part in (*sent.tensors.values(), sent.text))
    assert len(ForkingPickler.dumps((7, sent))) < 4096 - 64  # `select.PIPE_BUF` of Linux, less a header
    got, got_skipped = pickle.loads(pickle.dumps(sent)).unpack()
    assert got_skipped == skipped
    assert_equal([got], [replace(batch, names=names)])
    assert loading._PackedBatch.pack(None, skipped).unpack() == (None, skipped)


@pytest.mark.skipif(not IS_FORKING, reason="a worker that is not forked does not see what is changed here")
def test_too_little_shared_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("unable to allocate shared memory(shm)\nat some line")

    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)
    said = r"cannot put a batch of 0\.0 MiB into shared memory \(unable to allocate shared memory\(shm\)\); "
    with pytest.raises(UcnError, match=said + ".*fewer workers"):
        take(make_loader(NumberedData(5), workers=1), 1)
    take(make_loader(NumberedData(5)), 1)  # which needs none


@pytest.mark.skipif(not IS_FORKING, reason="workers are not forked")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what torch half made
def test_workers_that_did_start_end_when_another_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(torch.multiprocessing.active_children())
    begun: list[int] = []

    def fork(make: Callable[[], int] = os.fork) -> int:
        if len(begun) == 2:
            raise BlockingIOError("no more processes")
        begun.append(make())
        return begun[-1]

    monkeypatch.setattr(os, "fork", fork)
    gc.disable()
    try:
        with pytest.raises(UcnError, match=r"cannot start .* \(no more processes\); .*fewer workers"):
            take(make_loader(NumberedData(5), workers=3), 1)
        until = time.monotonic() + 60
        while set(torch.multiprocessing.active_children()) - others and time.monotonic() < until:
            time.sleep(0.01)
        assert not set(torch.multiprocessing.active_children()) - others
    finally:
        gc.enable()


def test_closing_ends_the_workers() -> None:
    before = set(torch.multiprocessing.active_children())
    batches = make_loader(NumberedData(5), workers=2).batches()
    next(batches)
    workers = set(torch.multiprocessing.active_children()) - before
    assert len(workers) == 2
    batches.close()
    until = time.monotonic() + 60
    while any(worker.is_alive() for worker in workers) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(worker.is_alive() for worker in workers)


STUCK_READERS = """
import multiprocessing
import time

from support.numbered_data import NumberedData
from ucn.data.loading import PairAugmentation, PairLoader


class Stuck(NumberedData):
    reads = 0

    def read(self, index):
        self.reads += 1
        if self.reads > 2:
            time.sleep(600)
        return super().read(index)


batches = PairLoader(Stuck(5), PairAugmentation((16, 16)), batch=2, points=8, seed=0, workers=4).batches()
next(batches)
print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells there who is alive")
def test_workers_end_when_the_run_is_killed() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", STUCK_READERS]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        workers = [int(pid) for pid in run.stdout.readline().split()]
        run.kill()
    assert len(workers) == 4
    until = time.monotonic() + 60
    while any(map(is_running, workers)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(is_running, workers))


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_more_workers_than_cores_are_nothing_to_warn_of(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    take(make_loader(NumberedData(5), workers=2), 1)
    assert not [warning for warning in recwarn if "DataLoader" in str(warning.message)]


def test_loading_does_not_touch_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    take(make_loader(NumberedData(5), workers=1), 2)
    take(make_loader(NumberedData(5)), 2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_pass_in_order() -> None:
    data = NumberedData(9, points=(30, 0))
    found, again, with_workers = (
        list(make_loader(data, FITTING, workers=workers).in_order([0, 3, 4, 6, 8])) for workers in (0, 0, 2)
    )
    assert [batch.names for batch in found] == [("pair-0", "pair-3"), ("pair-4", "pair-6"), ("pair-8",)]
    assert found[0].is_valid.sum(1).tolist() == [8, 0]  # a pair without points is not replaced
    assert_equal(found, again)
    assert_equal(found, with_workers)
    assert list(make_loader(data, FITTING).in_order([])) == []


def test_validation_knows_no_random_changes() -> None:
    fitting = replace(VARIED, mirror_view=0.5, fit="resize").for_validation()
    assert fitting == PairAugmentation((32, 32), fit="resize", min_points=4)


@pytest.mark.parametrize(
    ("name", "folder", "size_hw", "points"),
    [("kitti-flow", "kitti_flow_2015", (321, 769), 1000), ("sintel", "sintel", (256, 512), 1000)],
)
def test_real_pairs_keep_their_ground_truth(
    data_folder: Path, name: str, folder: str, size_hw: tuple[int, int], points: int
) -> None:
    data = open_data(name, data_folder / folder)
    loader = PairLoader(data, PairAugmentation(size_hw, min_points=points), batch=2, points=points, seed=0)
    (batch,) = take(loader, 1)
    assert batch.is_valid.all()
    for pair in batch:
        nearest0, nearest1 = (
            points[0].round().long().clamp_min(0) for points in (pair.points0, pair.points1)
        )
        limit = torch.tensor([size_hw[1] - 1, size_hw[0] - 1])
        (x0, y0), (x1, y1) = torch.minimum(nearest0, limit).T, torch.minimum(nearest1, limit).T
        colours0, there, stays = (
            pair.image0[0][:, y0, x0],
            pair.image1[0][:, y1, x1],
            pair.image1[0][:, y0, x0],
        )
        assert (colours0 - there).abs().mean() < 0.6 * (colours0 - stays).abs().mean()


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("kitti-flow", "kitti_flow_2015"),
        ("hpatches", "hpatches"),
        ("kitti-odometry", "kitti_odometry"),
        ("kitti-raw", "kitti_raw"),
        ("seven-scenes", "rgbd_7scenes"),
        ("cub", "cub"),
        ("faces", "helen_faces"),
        ("pf-willow", "pf_willow"),
        ("flowweb", "flowweb_toy"),
    ],
)
def test_data_sets_can_be_sent_to_spawned_workers(data_folder: Path, name: str, folder: str) -> None:
    data = open_data(name, data_folder / folder)
    again = pickle.loads(pickle.dumps(data))
    assert len(again) == len(data) and again.pair_name(0) == data.pair_name(0)
