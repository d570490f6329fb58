"""Small photographs, and few pairs to validate and calibrate on."""

from pathlib import Path

import pytest

from support.photo_cases import write_photos
from ucn.train import loop
from ucn.train.sources import batches


@pytest.fixture
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_VALIDATION_PAIRS", 4)
    monkeypatch.setattr(loop, "_CALIBRATION_PAIRS", 2)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)])
    return tmp_path / "photos"
