"""The page in a real browser: what a visitor does, and what they then see.

Needs Chromium (`make test` with UCN_INSTALL_BROWSER=1 installs Debian's).
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")
pytest.importorskip("playwright", reason="playwright, of the extra 'dev', is not installed")

from support.browser_cases import (
    CONTRASTS,
    DESKTOP,
    POINTS,
    QUICK_MS,
    SLOW_MS,
    accept_screenshot,
    click,
    markers,
    visit,
)
from support.serve_cases import make_image
from ucn.data.example import disparity_errors, example_pair

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ViewportSize

    from ucn.serve.service import MatchService

pytestmark = pytest.mark.slow

PHONE: ViewportSize = {"width": 390, "height": 844}


def test_clicked_points_are_marked_where_they_truly_lie(browser: Browser, url: str) -> None:
    with visit(browser, url) as page:
        for x, y in POINTS:
            click(page, x, y)
        page.mouse.move(2, 2)
        points0, points1 = markers(page, 0), markers(page, 1)
        assert np.abs(points0 - np.asarray(POINTS)).max() < 1.5  # where the mouse was
        errors = disparity_errors(points0, points1, example_pair().disparity)
        assert np.isfinite(errors).sum() >= 4
        assert (errors <= 4).sum() >= np.isfinite(errors).sum() - 1
        assert errors[0] <= 4
        assert page.locator("#heat-map").is_visible()
        assert "score" in page.locator("#status").inner_text()
        assert page.locator(".match").count() == len(POINTS)
        accept_screenshot(page, "web-points")


def test_hovering_previews_and_leaving_ends_it(browser: Browser, url: str) -> None:
    from playwright.sync_api import expect

    with visit(browser, url) as page:
        assert page.locator("#heat-map").is_hidden()
        page.locator("#view0").hover(position={"x": 200, "y": 150})
        expect(page.locator(".marker.ghost[data-side='1']")).to_have_count(1, timeout=QUICK_MS)
        expect(page.locator("#heat-map")).to_be_visible()
        assert page.locator("#rows tr").count() == 0
        page.mouse.move(2, 2)
        expect(page.locator(".marker.ghost")).to_have_count(0)
        expect(page.locator("#heat-map")).to_be_hidden()


def test_brush_undo_remove_and_clear(browser: Browser, url: str) -> None:
    from playwright.sync_api import expect

    with visit(browser, url) as page:
        page.get_by_role("button", name="Brush").click()
        box = page.locator("#view0").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 100, box["y"] + 150)
        page.mouse.down()
        page.mouse.move(box["x"] + 300, box["y"] + 200, steps=40)
        page.mouse.up()
        rows = page.locator("#rows tr")
        expect(rows.nth(9)).to_be_attached(timeout=QUICK_MS)
        count = rows.count()
        assert 10 <= count <= 16
        page.get_by_role("button", name="Undo").click()
        expect(rows).to_have_count(count - 1)
        page.get_by_role("button", name="Remove point 2", exact=True).click()
        expect(rows).to_have_count(count - 2)
        page.get_by_role("button", name="Clear").click()
        expect(rows).to_have_count(0)
        assert page.get_by_role("button", name="CSV").is_disabled()
        assert page.locator("#heat-map").is_hidden()


def test_keyboard_alone(browser: Browser, url: str) -> None:
    from playwright.sync_api import expect

    with visit(browser, url) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to image A"
        page.locator("#view0").focus()
        page.keyboard.press("Shift+ArrowLeft")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        row = page.locator("#rows tr").first
        expect(row).to_contain_text("360.0, 251.0", timeout=QUICK_MS)
        expect(page.locator("#status")).to_contain_text("Point 1: (360.0, 251.0) is")
        page.keyboard.press("Backspace")
        expect(page.locator("#rows tr")).to_have_count(0)
        page.keyboard.press("Escape")
        expect(page.locator(".marker")).to_have_count(0)


def test_mutual_matches_are_lines_and_can_be_taken_away(browser: Browser, url: str, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    with visit(browser, url, color_scheme="dark") as page:
        page.get_by_role("button", name="Mutual matches").click()
        expect(page.locator("#download-label")).to_contain_text("matches", timeout=SLOW_MS)
        expect(page.locator(".match")).to_have_count(100)
        page.locator("#count").fill("250")
        expect(page.locator(".match")).to_have_count(250)
        page.locator("#count").fill("60")
        accept_screenshot(page, "web-mutual")
        page.get_by_role("button", name="Lines").click()
        expect(page.locator(".match")).to_have_count(0)
        with page.expect_download(timeout=QUICK_MS) as download:
            page.get_by_role("button", name="CSV").click()
        download.value.save_as(tmp_path / "matches.csv")
        lines = (tmp_path / "matches.csv").read_text().splitlines()
        assert lines[0] == "x0,y0,x1,y1,score,is_mutual"
        count = int(re.sub(r"\D", "", page.locator("#download-label").inner_text()))
        assert len(lines) == count + 1 > 500


def test_points_are_downloaded_as_csv_and_json(browser: Browser, url: str, tmp_path: Path) -> None:
    with visit(browser, url) as page:
        for x, y in POINTS[:2]:
            click(page, x, y)
        for kind in ("csv", "json"):
            with page.expect_download(timeout=QUICK_MS) as download:
                page.get_by_role("button", name=kind.upper()).click()
            assert download.value.suggested_filename == f"ucn-points.{kind}"
            download.value.save_as(tmp_path / kind)
        rows = (tmp_path / "csv").read_text().splitlines()[1:]
        content = json.loads((tmp_path / "json").read_text())
        assert len(rows) == len(content["matches"]) == 2
        assert content["weights"] == "geometric"
        assert content["image0"]["width"] == 741
        for row, match in zip(rows, content["matches"], strict=True):
            values = [float(value) for value in row.split(",")[:4]]
            assert values == pytest.approx([match[name] for name in ("x0", "y0", "x1", "y1")], abs=0.01)


def test_own_images_and_other_weights(browser: Browser, url: str, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    files = [tmp_path / "one.png", tmp_path / "two.jpg"]
    files[0].write_bytes(make_image(200, 160, 1))
    files[1].write_bytes(make_image(220, 120, 2, "JPEG"))
    with visit(browser, url) as page:
        page.locator("#file0").set_input_files(files[0])
        expect(page.locator("#name0")).to_have_text("one.png, 200 × 160", timeout=QUICK_MS)
        page.locator("#file1").set_input_files(files[1])
        expect(page.locator("#name1")).to_have_text("two.jpg, 220 × 120", timeout=QUICK_MS)
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=SLOW_MS)
        page.locator("#view0").click(position={"x": 120, "y": 120})
        expect(page.locator("#rows tr")).to_have_count(1, timeout=QUICK_MS)
        first = page.locator("#rows tr").inner_text()
        page.get_by_label("Weights").select_option("birds")
        expect(page.locator("#weights-note")).to_contain_text("another bird")
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=SLOW_MS)
        expect(page.locator("#rows tr")).to_have_count(1)
        assert page.locator("#rows tr").inner_text() != first
        page.get_by_role("button", name="Swap").click()
        expect(page.locator("#name0")).to_have_text("two.jpg, 220 × 120")


def test_a_file_that_is_no_image_is_explained(browser: Browser, url: str, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    path = tmp_path / "text.png"
    path.write_bytes(b"this is no image")
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    page.goto(url)
    page.locator("#sample option").nth(1).wait_for(state="attached")
    page.locator("#file1").set_input_files(path)
    expect(page.get_by_role("alert")).to_contain_text("not an image of a known format", timeout=QUICK_MS)
    page.get_by_role("button", name="Close this message").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    context.close()


def test_two_files_can_be_dropped_at_once(browser: Browser, url: str) -> None:
    from playwright.sync_api import expect

    with visit(browser, url) as page:
        files = [list(make_image(120, 100, seed)) for seed in (1, 2)]
        transfer = page.evaluate_handle(
            """contents => {
                const transfer = new DataTransfer();
                contents.forEach((bytes, index) => transfer.items.add(
                    new File([new Uint8Array(bytes)], `dropped${index}.png`, { type: "image/png" })));
                return transfer;
            }""",
            files,
        )
        page.locator(".panel").nth(1).dispatch_event("drop", {"dataTransfer": transfer})
        for side in (0, 1):
            expect(page.locator(f"#name{side}")).to_have_text(f"dropped{side}.png, 120 × 100")
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=SLOW_MS)


def test_of_two_files_one_that_is_refused_changes_nothing(browser: Browser, url: str, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    (tmp_path / "good.png").write_bytes(make_image(120, 100, 1))
    (tmp_path / "bad.png").write_bytes(b"no image")
    context = browser.new_context()
    page = context.new_page()  # not through `visit`, which fails where the server refuses something
    page.goto(url)
    expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=SLOW_MS)
    titles = [page.locator(f"#name{side}").text_content() for side in (0, 1)]
    page.evaluate("document.getElementById('file0').multiple = true")
    page.locator("#file0").set_input_files([tmp_path / "good.png", tmp_path / "bad.png"])
    expect(page.get_by_role("alert")).to_contain_text("cannot read the image", timeout=QUICK_MS)
    assert [page.locator(f"#name{side}").text_content() for side in (0, 1)] == titles
    assert page.locator("#sample").input_value() == "0"
    context.close()


def test_a_file_without_the_images_does_not_replace_the_page(browser: Browser, url: str) -> None:
    with visit(browser, url) as page:
        for kind in ("dragover", "drop"):
            is_stopped = page.evaluate(
                """kind => !document.querySelector("header").dispatchEvent(
                    new DragEvent(kind, { bubbles: true, cancelable: true }))""",
                kind,
            )
            assert is_stopped


def test_images_are_forgotten_when_the_page_is_left(
    browser: Browser, url: str, service: MatchService, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    path = tmp_path / "one.png"
    path.write_bytes(make_image(100, 100, 5))
    with visit(browser, url) as page:
        page.locator("#file0").set_input_files(path)
        expect(page.locator("#name0")).to_have_text("one.png, 100 × 100")
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=SLOW_MS)
        source = page.locator("#image0").get_attribute("src")
        assert page.request.get(f"{url}{source}").status == 200
        page.goto(f"{url}/docs")
        deadline = time.monotonic() + 60
        while page.request.get(f"{url}{source}").status == 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert page.request.get(f"{url}{source}").status == 404


def test_phone(browser: Browser, url: str) -> None:
    from playwright.sync_api import expect

    with visit(browser, url, viewport=PHONE, has_touch=True, is_mobile=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        boxes = [page.locator(f"#view{side}").bounding_box() for side in (0, 1)]
        assert boxes[0] is not None
        assert boxes[1] is not None
        assert boxes[1]["y"] > boxes[0]["y"] + boxes[0]["height"]  # one below the other
        for x, y in POINTS[:3]:
            count = page.locator("#rows tr").count()
            scale = boxes[0]["width"] / 741
            page.locator("#view0").tap(position={"x": (x + 0.5) * scale, "y": (y + 0.5) * scale})
            expect(page.locator("#rows tr")).to_have_count(count + 1, timeout=QUICK_MS)
        errors = disparity_errors(markers(page, 0), markers(page, 1), example_pair().disparity)
        assert np.sum(errors <= 4) >= 2
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        for name in ("Brush", "Undo", "Heat-map", "Mutual matches", "CSV"):
            button = page.get_by_role("button", name=name).bounding_box()
            assert button is not None
            assert button["height"] >= 44
        accept_screenshot(page, "web-phone")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_everything_has_a_name(browser: Browser, url: str, scheme: Any) -> None:
    with visit(browser, url, color_scheme=scheme) as page:
        click(page, *POINTS[0])
        page.mouse.move(2, 2)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 30
        assert [text for ratio, text in contrasts if ratio < 4.5] == []
        for element in page.locator("button, select, input, a, [tabindex='0']").all():
            name = element.evaluate(
                "e => e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent"
                " || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent"
            )
            assert name and name.strip(), element.evaluate("e => e.outerHTML")


def test_theme_is_chosen_and_remembered(browser: Browser, url: str) -> None:
    with visit(browser, url, color_scheme="light") as page:
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        for _ in range(2):
            page.locator("#theme").click()
        assert page.locator("#theme").inner_text() == "Theme: dark"
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        assert page.evaluate(ground) == dark


def test_interface_page_shows_every_operation(browser: Browser, url: str) -> None:
    context = browser.new_context(viewport=DESKTOP)
    page = context.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(f"{url}/docs")
    page.locator(".operation").first.wait_for()
    assert page.locator(".operation").count() == 7
    assert "/api/match" in page.locator("#operations").inner_text()
    assert page.locator(".schema").count() >= 10
    assert problems == []
    accept_screenshot(page, "web-api")
    context.close()
