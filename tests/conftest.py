"""Shared fixtures: real sample data where `UCN_DATA` names its folder, and a browser where there is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real samples; tests that need it are skipped elsewhere."""
    folder = os.environ.get("UCN_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("UCN_DATA does not name the folder of sample data, which is not part of the package")
    return Path(folder)


def _find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return os.environ.get("UCN_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Headless Chromium; tests that need it are skipped where there is none."""
    pytest.importorskip("playwright", reason="playwright, of the extra 'dev', is not installed")
    from playwright.sync_api import sync_playwright

    path = _find_chromium()
    if path is None:
        pytest.skip("there is no Chromium; UCN_INSTALL_BROWSER=1 make test installs one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-dev-shm-usage"])
        yield browser
        browser.close()
