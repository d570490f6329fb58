"""The page of a reconstruction: what it contains, and what it does in a browser."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL.Image
import pytest

from support.sparse_scene_cases import make_sparse_scene
from ucn.errors import OutputError
from ucn.viz.scene_page import write_scene_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = (
    "</script><script>window.broken = true</script><img src=x onerror='window.broken = true'>&{{SCRIPT}}"
)
THREE_SHA256 = "08fd7545d13d2c7fb65ab691530a802dafefd638596501854f267d0fb13c39e7"


def read_scene(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="scene">(.*?)</script>', page)
    return dict(json.loads(text))


def decode(text: str, kind: str) -> Any:
    return np.frombuffer(base64.b64decode(text), kind)


def test_three_is_the_published_file_with_its_licence() -> None:
    folder = resources.files("ucn.viz") / "page"
    content = (folder / "three.module.min.js").read_bytes()
    assert hashlib.sha256(content).hexdigest() == THREE_SHA256
    assert len(content) < 800_000
    assert THREE_SHA256 in (folder / "ATTRIBUTION.txt").read_text(encoding="utf-8")
    assert "The MIT License" in (folder / "three.LICENSE.txt").read_text(encoding="utf-8")


def test_content(tmp_path: Path) -> None:
    scene = make_sparse_scene(100, ("a.jpg", HOSTILE, "ü\udcff.jpg"), shift=1e6)
    write_scene_page(tmp_path / "view.html", scene, title="my <b>photos</b>")
    page = (tmp_path / "view.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page and "{{" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "Copyright 2010-2024 Three.js Authors" in page
    assert not re.search(r"<(link|iframe|img)|\bsrc=|@import|url\(", page.split("<script")[0])
    found = read_scene(page)
    assert found["names"] == list(scene.names)
    assert found["title"] == "my <b>photos</b>"
    assert found["point_count"] == 100
    assert found["observations"] == [100, 101, 102]
    middle = scene.middle()
    np.testing.assert_allclose(
        decode(found["positions"], "<f4").reshape(-1, 3), scene.points - middle, atol=1e-5
    )
    np.testing.assert_array_equal(decode(found["colours"], "u1").reshape(-1, 3), scene.colours)
    np.testing.assert_allclose(decode(found["errors"], "<f4"), scene.errors, rtol=1e-6)
    rays = decode(found["rays"], "<f4").reshape(3, 5, 3)
    np.testing.assert_allclose(rays[:, 0], scene.centres - middle, atol=1e-5)
    np.testing.assert_allclose(rays[:, 1:], (scene.frusta() - scene.centres[:, None])[:, 1:], atol=1e-5)
    assert found["fields_of_view"] == pytest.approx([2 * np.degrees(np.arctan(0.45))] * 3)


def test_policy_allows_the_scripts_of_the_page_alone(tmp_path: Path) -> None:
    write_scene_page(tmp_path / "view.html", make_sparse_scene(5))
    page = (tmp_path / "view.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', page, flags=re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert policy.startswith("default-src 'none'; ")
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_many_points_are_thinned_evenly(tmp_path: Path) -> None:
    scene = make_sparse_scene(1000)
    write_scene_page(tmp_path / "view.html", scene, max_points=100)
    found = read_scene((tmp_path / "view.html").read_text(encoding="utf-8"))
    places = decode(found["positions"], "<f4").reshape(-1, 3)
    assert (len(places), found["point_count"]) == (100, 1000)
    np.testing.assert_allclose(places[[0, -1]], (scene.points - scene.middle())[[0, -1]], atol=1e-6)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="scene must have at least one camera, got none"):
        write_scene_page(tmp_path / "view.html", make_sparse_scene(5, ()))
    with pytest.raises(ValueError, match="max_points must be at least 1, got 0"):
        write_scene_page(tmp_path / "view.html", make_sparse_scene(5), max_points=0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "view.html").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        write_scene_page(tmp_path / "view.html", make_sparse_scene(5))


@contextmanager
def visit(browser: Browser, path: Path, **options: Any) -> Iterator[Page]:
    """The page from the disk; errors and requests of anything else fail the test."""
    context = browser.new_context(**{"viewport": {"width": 900, "height": 600}, "offline": True, **options})
    page = context.new_page()
    problems: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(path.as_uri())
        page.wait_for_function("window.viewer !== undefined")
        yield page
        assert problems == []
        assert requests == [path.as_uri()]
        assert page.evaluate("window.broken") is None
    finally:
        context.close()


def photograph(page: Page) -> Any:
    page.wait_for_timeout(200)  # until the next frame is drawn
    with PIL.Image.open(io.BytesIO(page.screenshot())) as image:
        return np.asarray(image.convert("RGB"))[:, 300:].astype(int)  # beside the panel


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "view.html"
    write_scene_page(path, make_sparse_scene(names=("a.jpg", HOSTILE, "c.jpg")), title="<i>scene</i>")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "ground"), [("light", (238, 241, 246)), ("dark", (15, 19, 32))])
def test_points_are_seen_and_turned(browser: Browser, page_path: Path, scheme: Any, ground: Any) -> None:
    with visit(browser, page_path, color_scheme=scheme) as page:
        assert page.locator("h1").inner_text() == "<i>scene</i>"
        assert page.locator("#counts").inner_text() == "3 images, 4,000 points"
        before = photograph(page)
        assert np.abs(before[5, -5] - ground).max() <= 1
        is_drawn = np.abs(before - ground).max(axis=2) > 20
        assert is_drawn.mean() > 0.03
        page.mouse.move(600, 300)
        page.mouse.down()
        page.mouse.move(700, 330, steps=5)
        page.mouse.up()
        page.mouse.move(890, 590)
        turned = photograph(page)
        assert (np.abs(turned - before).max(axis=2) > 20).mean() > 0.02
        page.locator("#reset").click()
        page.mouse.move(890, 590)
        assert (np.abs(photograph(page) - before).max(axis=2) > 20).mean() < 1e-3
        page.locator("#size").fill("10")
        assert (np.abs(photograph(page) - ground).max(axis=2) > 20).mean() > 1.5 * is_drawn.mean()
        page.locator("#error").fill("0")
        page.locator("#length").fill("0")
        assert (np.abs(photograph(page) - ground).max(axis=2) > 20).mean() < 1e-3


@pytest.mark.slow
def test_cameras_are_named_and_selected(browser: Browser, page_path: Path) -> None:
    from playwright.sync_api import expect

    with visit(browser, page_path) as page:
        for index, name in ((1, HOSTILE), (2, "c.jpg")):
            x, y = page.evaluate(f"viewer.findOnScreen({index})")
            page.mouse.move(x, y)
            expect(page.locator("#tip")).to_have_text(name)
            page.mouse.click(x, y)
            expect(page.locator("#name")).to_have_text(name)
            expect(page.locator("#seen")).to_have_text(f"{100 + index} points seen")
            assert page.locator("#image").input_value() == str(index)
        before = photograph(page)
        page.get_by_role("button", name="Look through this camera").click()
        assert (np.abs(photograph(page) - before).max(axis=2) > 20).mean() > 0.02
        page.locator("#view").focus()
        page.keyboard.press("r")
        page.keyboard.press("Escape")
        expect(page.locator("#card")).to_be_hidden()
        page.locator("#image").select_option(label="a.jpg")
        assert page.evaluate("viewer.findSelected()") == 0


@pytest.mark.slow
def test_theme_and_a_phone(browser: Browser, page_path: Path) -> None:
    with visit(browser, page_path, viewport={"width": 390, "height": 700}, has_touch=True) as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        before = page.evaluate(ground)
        page.locator("#theme").click()
        assert page.evaluate(ground) != before
        page.get_by_role("button", name="Hide").click()
        assert page.locator("#controls").is_hidden()
        x, y = page.evaluate("viewer.findOnScreen(2)")
        page.touchscreen.tap(x, y)
        assert page.evaluate("viewer.findSelected()") == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
