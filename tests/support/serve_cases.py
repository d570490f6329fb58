"""Image files for tests of the web page, and the names of the sample pair."""

import io
from typing import Any

import numpy as np
import PIL.Image

MOTORCYCLE = {"image0": "sample-motorcycle-left", "image1": "sample-motorcycle-right"}


def make_image(width: int = 64, height: int = 48, seed: int = 0, image_format: str = "PNG") -> bytes:
    """The bytes of a small textured image file."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    image = PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, image_format)
    return file.getvalue()


def make_scope(path: str, client: str = "127.0.0.1") -> dict[str, Any]:
    """An upload as a server passes it to the application."""
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"localhost"), (b"content-type", b"image/png")],
        "client": (client, 50000),
        "server": ("localhost", 8000),
    }
