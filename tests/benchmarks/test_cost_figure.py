"""The cost figure: passes counted by hand, times extrapolated by hand, and a tiny run of the whole."""

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo
from ucn.config import ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.paper.siamese import SiameseConfig, SiameseNetwork, build_siamese
from ucn.types import PairSample


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("cost_figure")


@pytest.fixture(scope="module")
def siamese() -> SiameseNetwork:
    return build_siamese(SiameseConfig(patch=32, cell_channels=4, dim=6, hidden=(5, 3))).eval()


@pytest.fixture(scope="module")
def ucn_model() -> CorrespondenceNetwork:
    return build_model(ModelConfig(dim=8, head_norm="none", transformer="none")).eval()


def make_sample(n: int = 3) -> PairSample:
    """An image and itself: every match should be the keypoint itself."""
    image = make_photo(64, 80, seed=0, grain=4)
    points = torch.tensor([[10.0, 12.0], [60.0, 15.0], [33.0, 50.0], [70.0, 55.0]])[:n]
    return PairSample(image, image, points, points, "itself")


@pytest.mark.parametrize("n", [1, 3])
def test_forward_passes_by_hand(
    script: ModuleType, siamese: SiameseNetwork, ucn_model: CorrespondenceNetwork, n: int
) -> None:
    counter, sample = script.PassCounter(ucn_model, siamese), make_sample(n)
    # Three keypoints: 2 images; or 6 patches and 9 pairs; or 9 pairs of 2 patches each.
    expected = {
        "UCN": {1: (2, 0, 0), 3: (2, 0, 0)},
        "Siamese, branches cached": {1: (0, 2, 1), 3: (0, 6, 9)},
        "Siamese, without a cache": {1: (0, 2, 1), 3: (0, 18, 9)},
    }
    methods: dict[str, Callable[[], Iterator[Tensor]]] = {
        "UCN": lambda: script.match_with_ucn(ucn_model, sample),
        "Siamese, branches cached": lambda: script.match_with_cache(siamese, sample),
        "Siamese, without a cache": lambda: script.match_pair_by_pair(siamese, sample),
    }
    for name, method in methods.items():
        counter.reset()
        assert len(torch.cat(list(method()))) == n
        found = counter.read()
        assert (found.images, found.patches, found.pairs) == expected[name][n]
        assert script.count_passes(name, n) == found


def test_both_siamese_methods_agree_with_single_pairs(script: ModuleType, siamese: SiameseNetwork) -> None:
    sample = make_sample(4)
    answers = [
        torch.cat(list(way(siamese, sample))).tolist()
        for way in (script.match_with_cache, script.match_pair_by_pair)
    ]
    slow = []
    for own in sample.points0:
        similarities = []
        for other in sample.points1:
            patches = [script.cut_patches(sample.image0[None], p[None, None], 32)[0] for p in (own, other)]
            with torch.no_grad():
                similarities.append(siamese(*patches).item())
        slow.append(similarities.index(max(similarities)))
    assert answers == [slow, slow]


def test_ucn_finds_each_keypoint_of_an_image_in_itself(
    script: ModuleType, ucn_model: CorrespondenceNetwork
) -> None:
    assert torch.cat(list(script.match_with_ucn(ucn_model, make_sample(4)))).tolist() == [0, 1, 2, 3]


def test_accuracy_and_the_limit(
    script: ModuleType, siamese: SiameseNetwork, ucn_model: CorrespondenceNetwork
) -> None:
    counter, sample = script.PassCounter(ucn_model, siamese), make_sample(4)

    def match(_sample: PairSample) -> Iterator[Tensor]:
        ucn_model.encode(torch.rand(2, 3, 32, 32))
        yield script.NOTHING
        yield torch.tensor([0, 1])
        yield torch.tensor([1, 3])

    run = script.run_method("UCN", match, sample, counter, limit=60.0)
    assert run.accuracy == 0.75 and run.is_measured and run.n == 4

    def wait(_sample: PairSample) -> Iterator[Tensor]:
        yield script.NOTHING
        time.sleep(0.02)
        yield torch.tensor([0])
        raise AssertionError("it should have been stopped")

    assert script.run_method("UCN", wait, sample, counter, limit=0.01) is None

    def miscount(_sample: PairSample) -> Iterator[Tensor]:
        ucn_model.encode(torch.rand(3, 3, 32, 32))
        yield torch.arange(4)

    with pytest.raises(SystemExit, match="images=3"):
        script.run_method("UCN", miscount, sample, counter, limit=60.0)


def test_extrapolation_by_hand(script: ModuleType) -> None:
    name = "Siamese, branches cached"
    runs = [
        script.Run(10, script.count_passes(name, 10), 1.0, 2.0, True),
        script.Run(50, script.count_passes(name, 50), 3.0, 5.0, True),
        script.Run(100, script.count_passes(name, 100), 6.0, 20.0, False),
    ]
    found = script.extrapolate(name, runs, 200)
    assert (found.encoding, found.comparing, found.is_measured) == (12.0, 80.0, False)
    assert (found.passes.patches, found.passes.pairs) == (400, 40_000)
    assert script.extrapolate("UCN", runs, 200).encoding == 3.0
    with pytest.raises(SystemExit, match="--limit"):
        script.extrapolate(name, [], 200)


def make_rows(seconds: list[float], kind: str) -> list[dict[str, Any]]:
    counts = [10, 100]
    passes = {
        "u": [{"images": 2, "patches": 0, "pairs": 0}] * 2,
        "c": [{"images": 0, "patches": 2 * n, "pairs": n * n} for n in counts],
        "w": [{"images": 0, "patches": 2 * n * n, "pairs": n * n} for n in counts],
    }[kind]
    return [
        {"n": n, "seconds": s, "passes": p, "is_measured": kind != "w" or n == 10, "accuracy": 0.5}
        for n, s, p in zip(counts, seconds, passes, strict=True)
    ]


def test_the_shipped_pairs_have_enough_keypoints(script: ModuleType) -> None:
    stereo, warped = script.read_sample("motorcycle", 0, 0), script.read_sample("mini", 0, 0)
    assert len(stereo) >= max(script.COUNTS) == 2000 and len(warped) == 500
    assert stereo.image0.shape == (3, 500, 741)
    few = script.select(stereo, 10)
    assert len(few) == 10 and torch.equal(few.points1, stereo.points1[:10])
    with pytest.raises(SystemExit, match="500 keypoints, 501 were requested"):
        script.select(warped, 501)


def test_the_page_gives_the_crossover() -> None:
    report = load_script("cost_report")
    rows = {
        report.UCN: make_rows([2.0, 2.0], "u"),
        report.CACHED: make_rows([0.5, 1.0], "c"),
        report.WHOLE: make_rows([1.0, 100.0], "w"),
    }
    lines = report.compare_methods({"runs": rows})
    assert lines[0].endswith("UCN is faster from n = 100 on; at n = 100 by a factor of 50.0")
    assert lines[1].endswith("UCN is never faster; at n = 100 by a factor of 0.5")
    table = report.make_table({"runs": rows})
    assert table[3].split(" | ")[:8] == ["| 100", "2", "2.00", "200", "10,000", "1.00", "10,000", "~100.00"]


@pytest.mark.slow
def test_a_tiny_run_writes_everything(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "read_sample", lambda *_: make_sample(4))
    threads = torch.get_num_threads()
    try:
        run_script(script, "--random", "--counts", "2", "4", "--limit", "30", "-o", str(tmp_path / "out"))
    finally:
        torch.set_num_threads(threads)
    folder = tmp_path / "out"
    results = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    assert {name: [row["n"] for row in rows] for name, rows in results["runs"].items()} == {
        "UCN": [2, 4],
        "Siamese, branches cached": [2, 4],
        "Siamese, without a cache": [2, 4],
    }
    rows = results["runs"]
    assert rows["Siamese, without a cache"][1]["passes"] == {"images": 0, "patches": 32, "pairs": 16}
    assert rows["Siamese, without a cache"][1]["accuracy"] == rows["Siamese, branches cached"][1]["accuracy"]
    assert all(row["is_measured"] and math.isfinite(row["seconds"]) for r in rows.values() for row in r)
    assert results["settings"]["patch"] == 64
    page = (folder / "cost.md").read_text(encoding="utf-8")
    assert "64 × 64 px" in page and "80 × 64" in page and "| 4 | 2 |" in page
    assert (folder / "cost.png").stat().st_size > 5000
    assert (folder / "cost.svg").read_bytes().startswith(b"<?xml")
