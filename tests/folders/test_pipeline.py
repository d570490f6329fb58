"""Shards as a stream: in order, in the batches their names give, and nothing left changed or running."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from support.batch_cases import make_texture, write_images
from ucn.errors import OutputError
from ucn.features import DenseSift
from ucn.folders.image_features import ExtractSettings, ImageDescriber
from ucn.folders.images import Reduced, read_reduced
from ucn.folders.pipeline import ShardMaker, _run_ahead
from ucn.folders.shards import Shard
from ucn.formats.hloc import open_features, write_features
from ucn.geometry.sampling import sample_descriptors
from ucn.runtime.threads import start_threads
from ucn.types import FeatureMap, Features, ImageLike

SETTINGS = ExtractSettings(max_side=None, max_keypoints=30, batch=2)


class Noting:
    """Notes how many images came together, in which thread, and how many threads torch had there."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str, int]] = []

    def extract(self, image: ImageLike) -> Features:
        raise AssertionError("encode is to be called")

    def encode(self, images: Tensor) -> FeatureMap:
        self.calls.append((len(images), threading.current_thread().name, torch.get_num_threads()))
        found = [DenseSift().extract(image).map for image in images]
        return FeatureMap(
            torch.cat([item.features for item in found]),
            found[0].stride,
            found[0].offset,
            found[0].image_hw,
        )


def make_shards(folder: Path, names: list[str], size: int) -> list[Shard]:
    starts = range(0, len(names), size)
    return [Shard(folder / f"{start}.h5", tuple(names[start : start + size])) for start in starts]


@pytest.mark.parametrize("threads", [1, 3])
def test_files_are_those_of_one_image_after_another(tmp_path: Path, threads: int) -> None:
    names = write_images(tmp_path / "images", 7)
    (tmp_path / "images" / names[1]).write_bytes(b"no image")
    noting = Noting()
    maker = ShardMaker(tmp_path / "images", ImageDescriber(noting, SETTINGS), threads)
    shards = make_shards(tmp_path, names, 4)
    assert list(maker.make(shards)) == shards
    # Three readable images of the first shard, then three of the second: no batch crosses shards.
    assert [count for count, _, _ in noting.calls] == [2, 1, 2, 1]
    assert {(name, count) for _, name, count in noting.calls} == {
        (threading.current_thread().name, torch.get_num_threads())
    }
    alone = ImageDescriber(Noting(), SETTINGS)
    for shard in shards:
        good = [name for name in shard.names if name != names[1]]
        found = alone.describe([read_reduced(tmp_path / "images" / name, None) for name in good])
        with open_features(shard.path) as file:
            failures = file.meta["failures"]
        write_features(
            tmp_path / "alone.h5", dict(zip(good, found, strict=True)), {"failures": failures}, True
        )
        assert shard.path.read_bytes() == (tmp_path / "alone.h5").read_bytes()
        assert list(failures) == [name for name in shard.names if name == names[1]]


def test_images_of_another_size_begin_a_batch(tmp_path: Path) -> None:
    first = write_images(tmp_path / "images", 2)
    write_images(tmp_path / "images" / "z", 2, (64, 48))
    noting = Noting()
    settings = ExtractSettings(max_side=None, max_keypoints=30, batch=9)
    maker = ShardMaker(tmp_path / "images", ImageDescriber(noting, settings), 2)
    (shard,) = make_shards(tmp_path, [*first, "z/000.png", "z/001.png"], 9)
    assert [item.path for item in maker.make([shard])] == [shard.path]
    assert [count for count, _, _ in noting.calls] == [2, 2]


def test_no_shards_and_a_shard_without_readable_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no image")
    maker = ShardMaker(tmp_path, ImageDescriber(DenseSift(), SETTINGS), 2)
    assert list(maker.make([])) == []
    (shard,) = make_shards(tmp_path, ["a.png"], 1)
    assert list(maker.make([shard])) == [shard]
    with open_features(shard.path) as file:
        assert (len(file), list(file.meta["failures"])) == (0, ["a.png"])


def test_threads_compute_alone_and_torch_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_images(tmp_path / "images", 4)
    seen: set[int] = set()

    def note(path: Path, max_side: int | None) -> Reduced:
        seen.add(torch.get_num_threads())
        return read_reduced(path, max_side)

    monkeypatch.setattr("ucn.folders.pipeline.read_reduced", note)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        maker = ShardMaker(tmp_path / "images", ImageDescriber(DenseSift(), SETTINGS), 2)
        shards = make_shards(tmp_path, names, 2)
        assert list(maker.make(shards)) == shards
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (seen, torch.get_num_threads(), later) == ({1}, 3, [3])
    finally:
        torch.set_num_threads(before)


def test_threads_end_with_the_work_and_with_an_error(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images", 6)
    before = threading.active_count()
    maker = ShardMaker(tmp_path / "images", ImageDescriber(DenseSift(), SETTINGS), 3)
    shards = make_shards(tmp_path, names, 2)
    stream = maker.make(shards)
    next(stream)
    stream.close()
    assert threading.active_count() == before
    (tmp_path / "2.h5").unlink(missing_ok=True)
    (tmp_path / "2.h5").mkdir()
    with pytest.raises(OutputError, match=r"2\.h5"):
        list(maker.make(shards))
    assert threading.active_count() == before


def test_only_so_many_are_worked_on_ahead() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return item * item

    with start_threads(2) as pool:
        stream = _run_ahead(pool, work, range(20), 5)
        assert next(stream) == 0
        time.sleep(0.05)
        assert len(begun) <= 6
        assert list(stream) == [item * item for item in range(1, 20)]


def test_a_gpu_gives_what_it_gives_step_by_step(tmp_path: Path) -> None:
    """Copies that nobody waits for must be complete when they are read."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    from ucn.matching.matcher import Matcher

    matcher = Matcher.from_pretrained("geometric-lite", device="cuda")
    images = [
        Reduced(torch.from_numpy(make_texture((96, 128), seed)).permute(2, 0, 1) / 255, (96, 128))
        for seed in range(4)
    ]
    describer = ImageDescriber(matcher, ExtractSettings(max_side=None, max_keypoints=200, batch=4))
    found = describer.describe(images)
    together = matcher.encode(torch.stack([image.pixels for image in images]))
    for row, item in enumerate(found):
        points = torch.from_numpy(item.keypoints).cuda()
        expected = sample_descriptors(together[row], points[None])[0].cpu().numpy()
        np.testing.assert_allclose(item.descriptors, expected, atol=1e-6)
