"""The site builds without warnings, is complete, loads nothing from other hosts, and can be searched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
pytest.importorskip("material", reason="the extra 'docs' is not installed")
pytest.importorskip("mkdocstrings_handlers", reason="the extra 'docs' is not installed")

import ucn
from support.docs_cases import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

# Elements whose address a browser fetches by itself; links (`a`) are followed on a click only.
FETCHED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "track": "src",
    "video": "src",
}


@dataclass
class _Page(HTMLParser):
    """Addresses that a page fetches, its links, and its anchors."""

    fetched: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if values.get(FETCHED.get(tag, "")):
            self.fetched.append(values[FETCHED[tag]])
        self.fetched += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.names |= {values[name] for name in ("id", "name") if name in values}

    @property
    def external(self) -> list[str]:
        """Fetched addresses outside the site."""
        parts = [urlsplit(url) for url in self.fetched]
        return [part.geturl() for part in parts if part.netloc or part.scheme not in ("", "data")]


def test_external_addresses_are_found() -> None:
    page = _Page()
    page.feed(
        '<link rel="stylesheet" href="//cdn.example/a.css"><script src="https://example.org/b.js"></script>'
        '<img src="c.png" srcset="d.png 1x, http://example.org/e.png 2x"><a id="here" href="https://f.example">'
    )
    expected = ["//cdn.example/a.css", "https://example.org/b.js", "http://example.org/e.png"]
    assert page.external == expected  # a link is not fetched
    assert page.links == ["https://f.example"]
    assert page.names == {"here"}


@dataclass(frozen=True)
class _Build:
    """The site, and the log of mkdocs."""

    folder: Path
    log: str


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> _Build:
    """Not `--strict`: a broken link fails one test, not all of them."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return _Build(folder, result.stdout + result.stderr)


@pytest.fixture(scope="module")
def site(build: _Build) -> Path:
    """The folder of the site."""
    return build.folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, _Page]:
    """Every page of the site, by its path."""
    found = {}
    for path in sorted(site.rglob("*.html")):
        found[path.relative_to(site).as_posix()] = page = _Page()
        page.feed(path.read_text(encoding="utf-8"))
    return found


def test_mkdocs_warns_of_nothing(build: _Build) -> None:
    assert "Building documentation" in build.log
    assert not re.findall(r"^(?:WARNING|ERROR).*", build.log, flags=re.MULTILINE)  # as --strict has it


def test_every_document_is_a_page(site: Path, pages: dict[str, _Page]) -> None:
    documents = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert documents <= pages.keys()
    expected = {"index", "start", "matching", "own-data", "training", "evaluation", "reconstruction"}
    expected |= {"export", "web", "align_and_track", "scale", "conventions", "peers", "comparison"}
    expected |= {"architecture", "api/index", "models/index", "results/index", "development/index"}
    expected |= {"source/examples/tour.ipynb", "CHANGELOG", "CONTRIBUTING"}
    assert {f"{name}.html" for name in expected} <= pages.keys()
    assert not list(site.rglob("*.py"))  # hooks are not part of the site


@pytest.mark.parametrize("folder", ["development", "models", "results"])
def test_index_of_folder_links_every_page(pages: dict[str, _Page], folder: str) -> None:
    names = {path.stem for path in (ROOT / "docs" / folder).glob("*.md")} - {"index"}
    assert {f"{name}.html" for name in names} <= set(pages[f"{folder}/index.html"].links)


def test_nothing_is_loaded_from_other_hosts(site: Path, pages: dict[str, _Page]) -> None:
    for name, page in pages.items():
        assert not page.external, f"{name} loads {page.external}"
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        external = re.findall(r"(?:@import\s*|url\()\s*['\"]?((?:https?:)?//[^'\")]+)", text)
        assert not external, f"{sheet.name} loads {external}"


def test_links_resolve_to_pages_and_headings(site: Path, pages: dict[str, _Page]) -> None:
    for name, page in pages.items():
        if name == "404.html":  # its addresses are relative to a server's root
            continue
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = ((site / name).parent / unquote(parts.path)).resolve() if parts.path else site / name
            assert target.is_file(), f"{name}: {link} does not exist"
            if parts.fragment and target.suffix == ".html":
                names = pages[target.relative_to(site).as_posix()].names
                assert unquote(parts.fragment) in names, f"{name}: {link} names no heading"


def test_reference_documents_every_public_name(pages: dict[str, _Page]) -> None:
    documented = {name for path, page in pages.items() if path.startswith("api/") for name in page.names}
    for name in set(ucn.__all__) - {"__version__"}:
        value = getattr(ucn, name)
        assert f"{value.__module__}.{name}" in documented, f"docs/api does not document ucn.{name}"
    for method in ("match", "extract", "match_features", "flow", "from_pretrained"):
        assert f"ucn.matching.matcher.Matcher.{method}" in documented


def test_pages_show_the_files_they_link_to(site: Path) -> None:
    shown = (site / "source" / "src" / "ucn" / "geometry" / "coords.py.html").read_text(encoding="utf-8")
    assert "resize_points" in shown
    architecture = (site / "architecture.html").read_text(encoding="utf-8")
    assert 'href="source/src/ucn/matching/matcher.py.html"' in architecture


def test_search_knows_the_pages_and_not_the_sources(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"].split("#")[0] for entry in entries}
    assert {"conventions.html", "api/matching.html", "models/geometric.html"} <= places
    assert not [place for place in places if place.startswith("source/src/")]


def test_search_works_from_a_disk(site: Path, browser: Browser) -> None:
    from playwright.sync_api import expect

    errors: list[str] = []
    requests: list[str] = []
    page = browser.new_page()
    try:
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda text: errors.append(text.text) if text.type == "error" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.locator("[data-md-component=search-query]").click()
        page.locator("[data-md-component=search-query]").press_sequentially("colmap half pixel")
        first = page.locator(".md-search-result__link").first
        expect(first).to_be_visible(timeout=30_000)
        first.click()
        expect(page.locator("article")).to_contain_text("COLMAP")
    finally:
        page.close()
    assert errors == []
    assert requests
    assert {urlsplit(url).scheme for url in requests} <= {"file", "data", "about", "blob"}, requests
