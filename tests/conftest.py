"""Shared fixtures: real sample data where `UCN_DATA` names its folder."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real samples; tests that need it are skipped elsewhere."""
    folder = os.environ.get("UCN_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("UCN_DATA does not name the folder of sample data, which is not part of the package")
    return Path(folder)
