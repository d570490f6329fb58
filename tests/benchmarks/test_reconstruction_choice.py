"""Choosing a detector: the truth of RGB-D frames by hand, and a tiny run of the whole script."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import PIL.Image
import pytest

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo
from ucn.config import ModelConfig
from ucn.data.io import to_pixels
from ucn.nn import build_model
from ucn.weights import save_weights

HW = (96, 128)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
    return load_script("reconstruction_choice")


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Five frames of a camera that looks to its right and moves ahead by 0.1 m each."""
    folder = tmp_path / "frames"
    folder.mkdir()
    pose = np.array([[0, 0, 1, 0], [0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1]], np.float64)
    for number in range(5):
        pose[0, 3] = 0.1 * number
        picture = to_pixels(make_photo(*HW, seed=number, grain=8))
        PIL.Image.fromarray(picture).save(folder / f"frame-{number:06d}.color.png")
        PIL.Image.fromarray(np.full(HW, 2000, np.uint16)).save(folder / f"frame-{number:06d}.depth.png")
        np.savetxt(folder / f"frame-{number:06d}.pose.txt", pose)
    return folder


def test_frames_and_where_their_cameras_stand(script: ModuleType, frames: Path, tmp_path: Path) -> None:
    scene = script.copy_rgbd(frames, tmp_path / "copied")
    assert sorted(scene.centres) == ["frame-000000.color.png", "frame-000004.color.png"]
    assert sorted(path.name for path in scene.folder.iterdir()) == sorted(scene.centres)
    # The colour camera stands 2 cm along the depth camera's x, which is the world's -z.
    np.testing.assert_allclose(scene.centres["frame-000004.color.png"], [0.4, 0, -0.02], atol=1e-12)
    assert scene.K[0, 0] == 525


@pytest.mark.slow
def test_what_makes_no_model_is_a_row_without_figures(
    script: ModuleType, frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_weights(tmp_path / "w.safetensors", build_model(ModelConfig(dim=8)))
    options = ("--rgbd", str(frames), "--detectors", "corners", "--weights", str(tmp_path / "w.safetensors"))
    run_script(script, *options)
    lines = capsys.readouterr().out.splitlines()
    assert "RGB-D frames: 2 images" in lines
    names = ("corners", "corners, adjusted", "colmap-sift", "colmap-sift, stricter")
    assert lines[-4:] == [f"| {name} | 0 | – | – | – | – |" for name in names]
    run_script(script, *options, "--json")
    assert json.loads(capsys.readouterr().out)["RGB-D frames"]["corners"] == {"registered": 0}
