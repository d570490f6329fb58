"""The script that measures the test for the same surface: which pairs it reads, and what it says of two."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import ucn
from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo
from ucn.data.io import write_image
from ucn.types import PairSample


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("same_surface")


def test_a_shifted_image_is_accepted_and_another_one_refused(script: ModuleType) -> None:
    whole = make_photo(160, 200)
    first, second = whole[:, :150, :180], whole[:, 3:153, 2:182]
    points = torch.tensor([[60.0, 60.0], [100.0, 80.0], [120.0, 50.0]])
    matcher = ucn.Matcher.from_pretrained("geometric-lite", device="cpu")
    moved = points - torch.tensor([2.0, 3.0])
    same = script.judge(matcher, PairSample(first, second, points, moved, "same"))
    assert (same.in_match, same.of_points, same.is_usable, same.is_worse) == (True, True, True, False)
    wrong = script.judge(matcher, PairSample(first, second, points, points.flip(0), "wrong ground truth"))
    assert not wrong.is_usable
    other = torch.rand(3, 150, 180, generator=torch.Generator().manual_seed(0))
    refused = script.judge(matcher, PairSample(first, other, script.NO_POINTS, script.NO_POINTS, "other"))
    assert not refused.in_match and not refused.of_points and not refused.is_worse


def test_pairs_of_a_table_agree_in_its_column(script: ModuleType, tmp_path: Path) -> None:
    lines = ["file,breed"]
    for number, (breed, height) in enumerate(
        [("a", 70), ("b", 80), ("a", 71), ("b", 81), ("a", 20), ("c", 90)]
    ):
        write_image(tmp_path / f"{number}.png", np.full((height, 100, 3), number, np.uint8))
        lines.append(f"{number}.png,{breed}")
    (tmp_path / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    pairs = list(script.read_table(tmp_path / "table.csv", "breed", 6))
    sizes = [{pair.image0.shape[1], pair.image1.shape[1]} for pair in pairs]
    assert sizes == [{70, 71}, {80, 81}, {70, 71}, {80, 81}]  # one of c has no partner, one of a is too small


def test_the_data_folder_is_required(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)
    with pytest.raises(SystemExit, match="UCN_DATA"):
        run_script(script)
    monkeypatch.setenv("UCN_DATA", "nowhere")
    with pytest.raises(SystemExit, match="error: no folder nowhere"):
        run_script(script, "--weights", "geometric-lite")
