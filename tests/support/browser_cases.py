"""Shared by browser tests of the web page: a visit, a click, and the positions of markers.

UCN_ACCEPT_SCREENSHOTS=1 takes the screenshots of docs/web.md again.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL.Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
SLOW_MS = 120_000  # encoding two images on a busy machine
QUICK_MS = 20_000
POINTS = [(370.0, 250.0), (457.0, 273.0), (258.0, 355.0), (560.0, 100.0), (390.0, 120.0)]
"""Of the sample's left view."""

# Contrast by WCAG 2: relative luminances of the text's colour and of the nearest ground behind it.
CONTRASTS = """() => {
    const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const read = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const ground = (element) => {
        for (; element; element = element.parentElement) {
            const colour = read(getComputedStyle(element).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll("h1,h2,p,small,strong,span,label,button,a,th,td,select")];
    return texts
        .filter((element) => element.checkVisibility() && !element.closest("svg") && !element.disabled
            && [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
            && !element.classList.contains("busy") && !element.classList.contains("skip"))
        .map((element) => {
            const [a, b] = [read(getComputedStyle(element).color), ground(element)].map(luminance);
            const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
            return [ratio, `${element.tagName} ${element.textContent.trim().slice(0, 30)}`];
        });
}"""


@contextmanager
def visit(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """The page with its sample encoded; any error in the browser's console fails the test."""
    from playwright.sync_api import expect

    errors: list[str] = []
    context = browser.new_context(**{"viewport": DESKTOP, **options})
    page = context.new_page()
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    try:
        page.goto(url)
        expect(page.locator("#status")).to_have_text(re.compile("^Ready"), timeout=SLOW_MS)
        yield page
        assert errors == []
        assert all(address.startswith((url, "blob:")) for address in requests), requests
    finally:
        context.close()


def click(page: Page, x: float, y: float) -> None:
    """Clicks the pixel (x, y) of image A and waits for its row in the table."""
    from playwright.sync_api import expect

    count = page.locator("#rows tr").count()
    box = page.locator("#view0").bounding_box()
    assert box is not None
    page.locator("#view0").click(
        position={"x": (x + 0.5) * box["width"] / 741, "y": (y + 0.5) * box["height"] / 500}
    )
    expect(page.locator("#rows tr")).to_have_count(count + 1, timeout=QUICK_MS)


def markers(page: Page, side: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Where the markers on an image are, as seen on the screen, in pixels of the sample image."""
    image = page.locator(f"#image{side}").bounding_box()
    assert image is not None
    found = []
    for marker in page.locator(f".marker[data-side='{side}']:not(.ghost) .centre").all():
        box = marker.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2 - image["x"], box["y"] + box["height"] / 2 - image["y"]
        found.append((x * 741 / image["width"] - 0.5, y * 500 / image["height"] - 0.5))
    return np.asarray(found, np.float32).reshape(-1, 2)


def accept_screenshot(page: Page, name: str) -> None:
    """Saves a screenshot for the documentation, if requested."""
    if os.environ.get("UCN_ACCEPT_SCREENSHOTS") == "1":
        image = PIL.Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        image.save(IMAGES / f"{name}.png", optimize=True)
