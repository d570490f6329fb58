"""Small photographs."""

from pathlib import Path

import pytest

from support.photo_cases import write_photos


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos", [(90, 120), (100, 80)])
    return tmp_path / "photos"
