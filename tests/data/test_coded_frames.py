from __future__ import annotations

import contextlib
import io
from typing import Any

import PIL.features
import PIL.Image
import pytest

from ucn.data.coded_frames import find_av1_frames, find_hevc_kinds
from ucn.errors import ImageReadError

_COLOURS = (200, 100, 50, 128)


@pytest.mark.skipif(not PIL.features.check("avif"), reason="this Pillow was built without AVIF")
@pytest.mark.parametrize("name", ["grey", "opaque", "transparent", "animated", "full chroma", "grain"])
def test_frames_of_avif(name: str) -> None:
    mode = {"grey": "L", "transparent": "RGBA"}.get(name, "RGB")
    image, file = PIL.Image.new(mode, (200, 100), _COLOURS[: len(mode)] if mode != "L" else 9), io.BytesIO()
    choices: dict[str, dict[str, Any]] = {
        "animated": {"save_all": True, "append_images": [image.rotate(180)]},
        "full chroma": {"subsampling": "4:4:4"},
        "grain": {"codec": "aom", "advanced": {"film-grain-test": "1"}},
    }
    image.save(file, "AVIF", **choices.get(name, {}))
    expected = 20_000 * (2 if name == "transparent" else 1), 3 * (name == "grain")
    assert find_av1_frames(file) == expected
    for cut in range(0, len(file.getvalue()), 7):  # damaged: refused, or fewer frames are found
        with contextlib.suppress(ImageReadError):
            assert find_av1_frames(io.BytesIO(file.getvalue()[:cut]))[0] <= expected[0]


def test_endless_items_are_refused() -> None:
    """Extents of no bytes, of which two bytes stand for 65,535."""
    items = b"\0\1" + bytes(4) + b"\xff\xff"
    iloc = bytes(4) + b"\0\0" + b"\xff\xff" + items * 60_000
    box = bytes(4) + (8 + len(iloc)).to_bytes(4, "big") + b"iloc" + iloc
    file = io.BytesIO((8 + len(box)).to_bytes(4, "big") + b"meta" + box)
    for find in (find_av1_frames, find_hevc_kinds):
        with pytest.raises(ImageReadError, match="it is damaged"):
            find(file)


@pytest.mark.parametrize(("mode", "chroma"), [("RGB", 420), ("RGB", 422), ("RGBA", 444), ("L", 400)])
def test_kinds_of_heic(mode: str, chroma: int) -> None:
    pytest.importorskip("pillow_heif", reason="the extra 'heif' is not installed").register_heif_opener()
    file = io.BytesIO()
    noise = PIL.Image.effect_noise((96, 64), 30)
    noise.convert(mode).save(file, "HEIF", chroma=max(chroma, 420))
    expected = {(chroma, 8), *([(400, 8)] if mode == "RGBA" else [])}
    assert find_hevc_kinds(file) == expected
    # Another parameter set within the image itself, before its slices.
    if mode == "RGB":
        wanted = io.BytesIO()
        noise.convert("RGB").save(wanted, "HEIF", chroma=444)
        configured = wanted.getvalue()
        at = configured.index(b"\x42\1", configured.index(b"hvcC"))
        size = int.from_bytes(configured[at - 2 : at], "big")
        whole = bytearray(file.getvalue())
        place = whole.index(b"mdat") + 4
        whole[place : place + 4 + size] = bytes(2) + configured[at - 2 : at + size]
        assert find_hevc_kinds(io.BytesIO(whole)) == {*expected, (444, 8)}
