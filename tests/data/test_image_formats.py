"""HEIC, with pillow-heif and without it, AVIF, and PNG files that are cut."""

import io
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import PIL.features
import PIL.Image
import pytest
import torch

from ucn.data import image_formats
from ucn.data.image_formats import EXIF_ORIENTATION
from ucn.data.io import decode_image, read_exif, read_header_hw, read_image, read_orientation
from ucn.data.listing import list_images
from ucn.errors import ImageReadError


def make_pixels(height: int = 48, width: int = 64) -> PIL.Image.Image:
    """A ramp, which lossy formats keep."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([3 * x, 4 * y, 0 * x + 128], axis=-1)
    return PIL.Image.fromarray(pixels.astype(np.uint8))


def check_ramp(image: torch.Tensor) -> None:
    expected = torch.from_numpy(np.array(make_pixels())).permute(2, 0, 1) / 255
    torch.testing.assert_close(image, expected, atol=0.05, rtol=0)


def write_heic(path: Path) -> None:
    """What a file looks like from outside: a box `ftyp` of HEIC."""
    path.write_bytes(b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic" + b"\0" * 80)


class TestWithoutPillowHeif:
    @pytest.fixture(autouse=True)
    def without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(PIL.Image.OPEN, "HEIF", raising=False)
        monkeypatch.setitem(sys.modules, "pillow_heif", None)

    def test_the_error_names_heic_and_the_extra(self, tmp_path: Path) -> None:
        write_heic(tmp_path / "a.HEIC")
        message = (
            r"cannot read image .*a\.HEIC: it is HEIC, which needs pillow-heif: pip install 'ucn\[heif\]'"
        )
        with pytest.raises(ImageReadError, match=message) as caught:
            read_image(tmp_path / "a.HEIC")
        assert caught.value.path == tmp_path / "a.HEIC"
        assert read_header_hw(tmp_path / "a.HEIC") is None
        with pytest.raises(ImageReadError, match="cannot read the image: it is HEIC"):
            decode_image((tmp_path / "a.HEIC").read_bytes())

    def test_other_files_need_no_pillow_heif(self, tmp_path: Path) -> None:
        make_pixels().save(tmp_path / "a.jpg")
        assert read_image(tmp_path / "a.jpg").shape == (3, 48, 64)
        (tmp_path / "clip.png").write_bytes(b"\0\0\0\x18ftypisom\0\0\0\0isommp41" + b"\0" * 80)
        with pytest.raises(ImageReadError, match="it is damaged or not an image of a known format"):
            read_image(tmp_path / "clip.png")


class TestHeic:
    @pytest.fixture(autouse=True)
    def unregistered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("pillow_heif", reason="pillow-heif is not installed (extra heif)")
        for table in (PIL.Image.OPEN, PIL.Image.SAVE):
            monkeypatch.delitem(table, "HEIF", raising=False)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        import pillow_heif

        exif = PIL.Image.Exif()
        exif[EXIF_ORIENTATION] = 6
        stored = make_pixels().transpose(PIL.Image.Transpose.ROTATE_90)
        heif = pillow_heif.from_pillow(stored)
        heif.save(tmp_path / "a.heic", quality=95, exif=exif.tobytes())
        return tmp_path / "a.heic"

    def test_registered_when_such_a_file_is_met(self, path: Path) -> None:
        make_pixels().save(path.with_name("b.png"))
        read_image(path.with_name("b.png"))
        assert "HEIF" not in PIL.Image.OPEN
        check_ramp(read_image(path))
        assert "HEIF" in PIL.Image.OPEN
        check_ramp(decode_image(path.read_bytes()))
        assert list_images(path.parent) == ["a.heic", "b.png"]

    def test_it_is_turned_when_it_is_decoded(self, path: Path) -> None:
        assert read_header_hw(path) == (48, 64)
        assert read_orientation(path) == 1

    def test_size_limits(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ImageReadError, match="it has 64 × 48 pixels, the limit is 100 pixels"):
            decode_image(path.read_bytes(), max_pixels=100)
        monkeypatch.setattr("ucn.data.io.MAX_FILE_BYTES", 10)
        with pytest.raises(ImageReadError, match="the limit is 10 "):
            read_image(path)

    @pytest.mark.parametrize("share", [0.1, 0.9])
    def test_damaged(self, path: Path, share: float) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(ImageReadError, match=r"cannot read image .*a\.heic: .*get it again"):
            read_image(path)


@pytest.mark.skipif(not PIL.features.check("avif"), reason="this Pillow was built without AVIF")
class TestAvif:
    def test_pillow_reads_it(self, tmp_path: Path) -> None:
        make_pixels().save(tmp_path / "a.avif", quality=95)
        check_ramp(read_image(tmp_path / "a.avif"))
        assert read_header_hw(tmp_path / "a.avif") == (48, 64)
        with pytest.raises(ImageReadError, match="the limit is 100 pixels"):
            decode_image((tmp_path / "a.avif").read_bytes(), max_pixels=100)


def test_orientation_and_exif(tmp_path: Path) -> None:
    for orientation, expected in ((6, 6), (1, 1), (0, 1), (9, 1)):
        exif = PIL.Image.Exif()
        exif[EXIF_ORIENTATION] = orientation
        for name in ("a.jpg", "a.tif", "a.png", "a.webp"):
            make_pixels().save(tmp_path / name, exif=exif)
            assert read_orientation(tmp_path / name) == expected
            assert read_header_hw(tmp_path / name) == tuple(read_image(tmp_path / name).shape[1:])
    assert read_exif(tmp_path / "a.jpg")[EXIF_ORIENTATION] == 9
    make_pixels().save(tmp_path / "b.png")
    assert not read_exif(tmp_path / "b.png")
    with pytest.raises(ImageReadError, match=r"cannot read image .*c\.png: no such file"):
        read_orientation(tmp_path / "c.png")


@pytest.mark.parametrize(
    ("start", "is_heic"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", True),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", False),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomheic", True),
        (b"\0\0\0\x14ftypisom\0\0\0\0isomheic", False),
        (b"\xff\xd8\xff", False),
        (b"", False),
    ],
)
def test_what_a_file_is(start: bytes, is_heic: bool) -> None:
    file = io.BytesIO(start)
    assert image_formats._is_heic(file) is is_heic
    assert file.tell() == 0


def _write_png(
    path: Path, size: int, colours: int, depth: int, *, is_interlaced: bool, cut_bytes: int
) -> Path:
    """A white PNG without compression filters whose pixels end early."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colours]
    passes = [
        (0, 8, 0, 8),
        (0, 8, 4, 8),
        (4, 8, 0, 4),
        (0, 4, 2, 4),
        (2, 4, 0, 2),
        (0, 2, 1, 2),
        (1, 2, 0, 1),
    ]
    pixels = b""
    for y, dy, x, dx in passes if is_interlaced else [(0, 1, 0, 1)]:
        columns = len(range(x, size, dx))
        pixels += (b"\0" + b"\xff" * ((columns * channels * depth + 7) // 8)) * len(range(y, size, dy))

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packed = zlib.compress(pixels[: len(pixels) - cut_bytes])
    content = chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, depth, colours, 0, 0, is_interlaced))
    content += chunk(b"PLTE", b"\xff" * 768) if colours == 3 else b""
    content += chunk(b"IDAT", packed[:7]) + chunk(b"IDAT", packed[7:]) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return path


@pytest.mark.parametrize("is_interlaced", [False, True])
@pytest.mark.parametrize(
    ("colours", "depth"), [(0, 1), (0, 8), (0, 16), (2, 8), (2, 16), (3, 4), (3, 8), (4, 8), (6, 8)]
)
def test_a_png_that_ends_early_is_cut(tmp_path: Path, colours: int, depth: int, is_interlaced: bool) -> None:
    def write(cut_bytes: int) -> Path:
        return _write_png(
            tmp_path / "a.png", 40, colours, depth, is_interlaced=is_interlaced, cut_bytes=cut_bytes
        )

    assert read_image(write(0)).shape == (3, 40, 40)
    for cut_bytes in (45, 100):
        with pytest.raises(ImageReadError, match=r"(cut: rows are missing|is truncated).*; get it again"):
            read_image(write(cut_bytes))


@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA", "P", "I;16"])
def test_a_black_png_is_whole(tmp_path: Path, mode: str) -> None:
    PIL.Image.new(mode, (33, 20)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").shape == (3, 20, 33)
