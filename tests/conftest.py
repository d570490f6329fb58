"""How the suite runs, and shared fixtures: sample data where `UCN_DATA` names its folder, and a browser.

Workers of pytest-xdist (`make test` starts one per core) compute with one torch thread each. Slow tests come
first, so that no worker is left with one at the end. Tests marked `gpu` are skipped without a CUDA device.
"""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch; subprocesses inherit it
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares what pyproject.toml sets for pytest-timeout, where that plugin is not installed."""
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds after which a test fails; needs pytest-timeout")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips GPU tests without a GPU, puts slow tests first, and selects a part of a file run in parts."""
    part, parts = (int(number) for number in os.environ.get("UCN_TEST_PART", "0/1").split("/"))
    items[:] = items[part::parts]
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            for item in items:
                if item.get_closest_marker("gpu"):
                    item.add_marker(pytest.mark.skip(reason="needs a CUDA device; `make test-gpu` runs it"))
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real samples; tests that need it are skipped elsewhere."""
    folder = os.environ.get("UCN_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("UCN_DATA does not name the folder of sample data, which is not part of the package")
    return Path(folder)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of torch's threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pairs to validate and calibrate a trained network on."""
    from ucn.train import loop
    from ucn.train.sources import batches

    monkeypatch.setattr(batches, "_VALIDATION_PAIRS", 4)
    monkeypatch.setattr(loop, "_CALIBRATION_PAIRS", 2)


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
