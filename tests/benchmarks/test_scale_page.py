"""The page of scale agrees with a calculation by hand, and with the measurements."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.benchmark_scripts import load_script, run_script
from ucn.config import ModelConfig
from ucn.errors import DataError
from ucn.nn import build_model
from ucn.weights import save_weights

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
CPU = {
    "core_seconds_per_image": {
        "all": 3.6,
        "encoding": 3.5,
        "reading, one thread": 0.01,
        "keypoints, one thread": 0.027,
        "packing, one thread": 0.001,
        "writing, one thread": 0.0015,
        "merging, one thread": 0.0005,
    },
    "core_seconds_per_pair": 0.18,
    "kilobytes_per_image": 1000.0,
    "keypoints": 4000,
    "size": "800x600",
}
GPU: dict[str, Any] = {
    "images_per_second": {"all": 125.0, "encoding": 300.0, "all but encoding": 160.0},
    "pairs_per_second": 400.0,
    "core_seconds_per_image": {"all": 0.04},
    "device": "Fine GPU",
    "cores": 16,
    "batch": 8,
    "size": "800x600",
}
BLOCKS = "".join(
    f"<!-- scale:{name} -->\nold\n<!-- /scale -->\n" for name in ("measured", "million", "billion")
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("scale_page")


def test_a_million_and_a_billion_by_hand(script: ModuleType) -> None:
    filled = script.fill_page(BLOCKS, script.read_speed(CPU, GPU))
    page = " ".join(filled.split())  # without line breaks
    assert "old" not in page
    assert max(map(len, filled.splitlines())) <= 100
    assert page.count("<!-- /scale -->") == 3
    # 10^6 images of 3.6 core-seconds are 1,000 core-hours; 2 * 10^7 pairs of 0.18 are 1,000 too.
    assert "- **extraction, CPU**: 1,000 core-hours: 10 hours on 100 cores -" in page
    assert ": at most 2 × 10⁷ pairs: 1,000 core-hours, or 14 hours of a GPU (28 €) -" in page
    # 10^6 / 125 / 3600 = 2.2 hours, of which 4.4 euros; 0.04 core-seconds an image keep 5 cores busy.
    gpu = "2.2 hours on one GPU; each keeps 5 CPU cores busy; 4.4 € at 2 € a GPU-hour"
    assert f"- **extraction, GPU**: {gpu} -" in page
    assert "1.00 TB with 4,000 keypoints, 0.27 TB with `--max-keypoints 1024`" in page
    assert "so one core feeds at most about 25 images a second" in page
    # Two significant digits, as accurate as the measurement.
    gpu = "One GPU (Fine GPU, 16 CPU cores, `--batch 8`), the whole command: **120 images a second**"
    assert gpu in page
    assert "The network alone reaches 300, everything else 160. It matches 400 pairs" in page
    # All pairs: 5 * 10^11 * 0.18 / (3600 * 24 * 365) = 2,854 years.
    assert "All pairs would be 5 × 10¹¹, and 2,900 core-years" in page
    assert "- **extraction, CPU**: 1.00 million core-hours: 42 days on 1,000 cores -" in page
    assert "2,200 hours of GPU time, 22 hours on 100 GPUs; each keeps 5 CPU cores busy" in page
    assert script.fill_page(filled, script.read_speed(CPU, GPU)) == filled


def test_without_a_gpu_nothing_is_invented(script: ModuleType) -> None:
    page = script.fill_page(BLOCKS, script.read_speed(CPU, None))
    assert page.count("- **extraction, GPU**: not measured yet\n") == 2
    assert "A GPU was not measured yet." in page


def test_what_does_not_fit_is_refused(script: ModuleType) -> None:
    with pytest.raises(DataError, match="one size, got 800x600 and 640x480"):
        script.read_speed(CPU, {**GPU, "size": "640x480"})
    with pytest.raises(DataError, match="block 'scale:trillion': expected one of measured, million, billion"):
        script.fill_page("<!-- scale:trillion --><!-- /scale -->", script.read_speed(CPU, None))


def test_results_of_the_measurement_are_understood(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_weights(tmp_path / "w.safetensors", build_model(ModelConfig(dim=8)))
    options = (
        "--images",
        "3",
        "--size",
        "96x64",
        "--batch",
        "2",
        "--weights",
        str(tmp_path / "w.safetensors"),
    )
    run_script(load_script("extract_speed"), *options, "--json")
    measured = json.loads(capsys.readouterr().out)
    speed = script.read_speed(measured, measured)
    assert 0 < speed.reading < speed.beside < speed.image
    assert speed.gpu is not None
    assert (speed.gpu.all, speed.gpu.name) == (measured["images_per_second"]["all"], measured["device"])
    assert speed.gpu.rest is not None
    assert speed.gpu.encoding > 0
    assert "Images of 96 × 64" in script.fill_page(BLOCKS, speed)


def test_page_shows_the_results(script: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count("<!-- scale:") == 3
    assert script.fill_page(page, script.read_results()) == page, "run `python benchmarks/scale_page.py`"
