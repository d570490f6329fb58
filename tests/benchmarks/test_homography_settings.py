"""The script that compares matches and estimators: its pairs have the homography they claim."""

import json
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("homography_settings")


def test_views_have_their_homography(script: ModuleType) -> None:
    # A plane of smooth colours, so that interpolation hardly matters: red is x, green is y.
    height, width = 240, 320
    y, x = np.mgrid[:height, :width]
    source = np.stack([x * 200 / width + 20, y * 200 / height + 20, 0 * x], axis=-1).astype(np.uint8)
    size = np.array([160.0, 120.0])
    to_view0 = script.sample_homography(size, np.random.default_rng(3))
    to_source = np.array([[0.8, 0, 90], [0, 0.8, 70], [0, 0, 1]])
    views = [script.render(source, to_source @ move, (160, 120)) for move in (np.eye(3), to_view0)]
    points0 = np.array([[60.0, 50.0], [80.0, 60.0], [100.0, 70.0]])
    moved = np.column_stack([points0, np.ones(3)]) @ np.linalg.inv(to_view0).T
    points1 = moved[:, :2] / moved[:, 2:]
    assert np.abs(points1 - points0).max() > 5
    for (x0, y0), (x1, y1) in zip(points0.round().astype(int), points1.round().astype(int), strict=True):
        assert 0 <= x1 < 160 and 0 <= y1 < 120
        difference = views[0][y0, x0].astype(int) - views[1][y1, x1]
        assert np.abs(difference).max() <= 3


def test_deviating_views_nearly_have_their_homography(script: ModuleType) -> None:
    photo = (make_photo(240, 320) * 255).byte().permute(1, 2, 0).numpy()
    pairs = [script.make_deviating_pair(photo, number, np.random.default_rng(1)) for number in (0, 2)]
    assert [pair.group for pair in pairs] == ["viewpoint", "illumination"]
    first = pairs[0]
    height, width = first.image0.shape[:2]
    warped = cv2.warpPerspective(first.image0, first.H_0to1, (width, height))
    is_seen = cv2.warpPerspective(np.ones((height, width), np.uint8), first.H_0to1, (width, height)) == 1
    shades = [image.mean(axis=-1)[is_seen] for image in (warped, first.image1)]
    assert np.corrcoef(shades)[0, 1] > 0.9
    # Lens and relief change only what moves.
    assert np.abs(pairs[1].H_0to1[:, :2] - np.eye(3)[:, :2]).max() < 1e-6


def test_rows_of_all_estimators(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = (make_photo(240, 320) * 255).byte().permute(1, 2, 0).numpy()
    for name in [f"multiview/scene/images/{number}.webp" for number in range(3)] + [
        f"photos/{number:02}.jpg" for number in range(20)
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), photo[:, :, ::-1])
    monkeypatch.setenv("UCN_DATA", str(tmp_path))
    run_script(script, "--pairs", "2", "--weights", "geometric-lite", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert {row["group"] for row in rows} == {"viewpoint", "illumination"}
    assert {row["estimator"] for row in rows} == {*script.ESTIMATORS}
    assert len(rows) == 2 * 7 * 4
    best = {row["matches"]: row["median"] for row in rows if row["estimator"] == "ucn"}
    assert best["geometric-lite, 1,000 corners, refined"] < 3
