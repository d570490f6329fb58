import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from numpy.typing import NDArray

from ucn.data import io
from ucn.data.io import decode_image, read_image, read_mask, to_mask, to_pixels, to_tensor, write_image
from ucn.errors import ImageReadError, OutputError
from ucn.types import ImageLike


def make_pixels(height: int = 5, width: int = 7) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png_with_header(width: int, height: int) -> bytes:
    """A 1-bit grey PNG that claims any size and holds next to nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


class TestReadImage:
    def test_rgb_png_is_exact_channel_first(self, tmp_path: Path) -> None:
        pixels = make_pixels()
        PIL.Image.fromarray(pixels).save(tmp_path / "a.png")
        tensor = read_image(tmp_path / "a.png")
        assert tensor.shape == (3, 5, 7)
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert torch.equal(tensor, torch.from_numpy(pixels).permute(2, 0, 1) / 255)

    def test_grey_becomes_three_equal_channels(self, tmp_path: Path) -> None:
        grey = make_pixels()[..., 0]
        PIL.Image.fromarray(grey).save(tmp_path / "a.png")
        tensor = read_image(tmp_path / "a.png")
        assert torch.equal(tensor, (torch.from_numpy(grey) / 255).expand(3, -1, -1))

    def test_one_bit_is_black_and_white(self, tmp_path: Path) -> None:
        PIL.Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1").save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png")[0].tolist() == [[0.0, 1.0]]

    @pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
    def test_16_bit_grey_is_scaled_not_clipped(self, tmp_path: Path, suffix: str) -> None:
        values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
        PIL.Image.fromarray(values).save(tmp_path / f"a.{suffix}")
        tensor = read_image(tmp_path / f"a.{suffix}")
        np.testing.assert_allclose(tensor[1, 0].numpy(), values[0] / 65535, rtol=1e-6)

    def test_32_bit_grey_in_16_bit_range_is_scaled(self, tmp_path: Path) -> None:
        PIL.Image.fromarray(np.array([[0, 65535]], np.int32)).save(tmp_path / "a.tif")
        assert read_image(tmp_path / "a.tif")[0].tolist() == [[0.0, 1.0]]

    def test_32_bit_grey_beyond_is_refused(self, tmp_path: Path) -> None:
        PIL.Image.fromarray(np.array([[0, 70000]], np.int32)).save(tmp_path / "a.tif")
        with pytest.raises(ImageReadError, match=r"a\.tif: values of a mode I image must be in \[0, 65535\]"):
            read_image(tmp_path / "a.tif")

    def test_float_tiff_in_unit_range_is_kept(self, tmp_path: Path) -> None:
        PIL.Image.fromarray(np.array([[0, 0.25, 1]], np.float32)).save(tmp_path / "a.tif")
        assert read_image(tmp_path / "a.tif")[2].tolist() == [[0.0, 0.25, 1.0]]

    @pytest.mark.parametrize("bad", [2.0, -1.0, float("nan")])
    def test_float_tiff_beyond_is_refused(self, tmp_path: Path, bad: float) -> None:
        PIL.Image.fromarray(np.array([[0, bad]], np.float32)).save(tmp_path / "a.tif")
        with pytest.raises(ImageReadError, match=r"must be in \[0, 1\]"):
            read_image(tmp_path / "a.tif")

    @pytest.mark.parametrize("mode", ["RGBA", "LA"])
    def test_alpha_is_composed_over_white(self, tmp_path: Path, mode: str) -> None:
        image = PIL.Image.fromarray(np.array([[[0, 0, 0, 255], [0, 0, 0, 0], [0, 0, 0, 51]]], np.uint8))
        image.convert(mode).save(tmp_path / "a.png")
        expected = torch.tensor([0.0, 1.0, 0.8])
        torch.testing.assert_close(read_image(tmp_path / "a.png")[0, 0], expected, atol=1e-6, rtol=0)

    def test_palette_with_transparency_is_composed_over_white(self, tmp_path: Path) -> None:
        image = PIL.Image.fromarray(np.array([[0, 1, 2]], np.uint8), mode="P")
        image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
        image.save(tmp_path / "a.png", transparency=1)
        rows = read_image(tmp_path / "a.png")[:, 0].T.tolist()
        assert rows == [[1, 0, 0], [1, 1, 1], [0, 0, 1]]

    def test_cmyk_is_converted(self, tmp_path: Path) -> None:
        inks = np.array([[[0, 255, 255, 0], [255, 0, 0, 0], [0, 0, 0, 255]]], np.uint8)
        PIL.Image.fromarray(inks, mode="CMYK").save(tmp_path / "a.tif")
        assert read_image(tmp_path / "a.tif")[:, 0].T.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]

    def test_cmyk_jpeg_is_not_inverted(self, tmp_path: Path) -> None:
        PIL.Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
        red, green, blue = read_image(tmp_path / "a.jpg")[:, 8, 8].tolist()
        assert red > 0.95
        assert green < 0.05
        assert blue < 0.05

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_exif_orientation_is_applied(self, tmp_path: Path, orientation: int) -> None:
        upright = make_pixels()
        inverse = {  # what a camera held that way stores
            1: lambda p: p,
            2: lambda p: p[:, ::-1],
            3: lambda p: p[::-1, ::-1],
            4: lambda p: p[::-1],
            5: lambda p: p.transpose(1, 0, 2),
            6: lambda p: np.rot90(p, 1),
            7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
            8: lambda p: np.rot90(p, -1),
        }
        exif = PIL.Image.Exif()
        exif[0x0112] = orientation
        stored = PIL.Image.fromarray(np.ascontiguousarray(inverse[orientation](upright)))
        stored.save(tmp_path / "a.png", exif=exif)
        assert torch.equal(read_image(tmp_path / "a.png"), to_tensor(upright))

    def test_animated_gif_gives_its_first_frame(self, tmp_path: Path) -> None:
        frames = [PIL.Image.new("RGB", (8, 6), colour) for colour in ("red", "blue")]
        frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
        assert read_image(tmp_path / "a.gif")[:, 3, 3].tolist() == [1, 0, 0]

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(
            ImageReadError, match=r"cannot read image .*no\.png: no such file; check"
        ) as caught:
            read_image(tmp_path / "no.png")
        assert caught.value.path == tmp_path / "no.png"

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ImageReadError, match="it is a folder"):
            read_image(tmp_path)

    def test_zero_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").touch()
        with pytest.raises(ImageReadError, match=r"a\.jpg: the file is empty .*; get it again or remove it"):
            read_image(tmp_path / "a.jpg")

    def test_text_named_jpg(self, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_text("I am not a picture\n" * 9)
        with pytest.raises(ImageReadError, match=r"not an image of a known format.*JPEG.*; get it again"):
            read_image(tmp_path / "a.jpg")

    @pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
    @pytest.mark.parametrize("share", [0.02, 0.5])
    def test_truncated(self, tmp_path: Path, name: str, share: float) -> None:
        path = tmp_path / name
        PIL.Image.fromarray(make_pixels(64, 64)).save(path)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ImageReadError, match=f"cannot read image .*{name}: .*; get it again") as caught:
            read_image(path)
        assert caught.value.path == path

    def test_unreadable_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "a.png"
        PIL.Image.fromarray(make_pixels()).save(path)

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(PIL.Image, "open", refuse)  # as root, chmod would not keep us out
        with pytest.raises(ImageReadError, match=r"a\.png: permission denied"):
            read_image(path)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
    def test_named_pipe_does_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.png")
        with pytest.raises(ImageReadError, match="not a regular file; give an image file"):
            read_image(tmp_path / "pipe.png")

    @pytest.mark.parametrize(("width", "height"), [(30_000, 30_000), (13_000, 13_000)])
    def test_bomb_is_refused_from_its_header(self, tmp_path: Path, width: int, height: int) -> None:
        # Pillow itself refuses the first; the second is below its limit and above ours.
        (tmp_path / "a.png").write_bytes(png_with_header(width, height))
        with pytest.raises(ImageReadError, match="the limit is 160,000,000 pixels"):
            read_image(tmp_path / "a.png")

    def test_large_image_below_the_limit_makes_no_warning(self, tmp_path: Path) -> None:
        # Pillow warns from 89 million pixels on; what fails here is the missing data.
        (tmp_path / "a.png").write_bytes(png_with_header(9_500, 9_500))
        with pytest.raises(ImageReadError, match="truncated"):
            read_image(tmp_path / "a.png")

    def test_file_size_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(io, "MAX_FILE_BYTES", 10)
        PIL.Image.fromarray(make_pixels()).save(tmp_path / "a.png")
        with pytest.raises(ImageReadError, match="the limit is 10 "):
            read_image(tmp_path / "a.png")

    def test_leaves_pillows_settings_alone(self) -> None:
        assert PIL.Image.MAX_IMAGE_PIXELS == 89478485

    def test_threads(self, tmp_path: Path) -> None:
        PIL.Image.fromarray(make_pixels()).save(tmp_path / "a.png")
        results: list[torch.Tensor] = []
        threads = [
            threading.Thread(target=lambda: results.append(read_image(tmp_path / "a.png"))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(torch.equal(result, to_tensor(make_pixels())) for result in results)
        assert len(results) == 4


class TestToTensor:
    def test_all_kinds_agree(self, tmp_path: Path) -> None:
        pixels = make_pixels()
        PIL.Image.fromarray(pixels).save(tmp_path / "a.png")
        expected = torch.from_numpy(pixels).permute(2, 0, 1) / 255
        kinds: list[ImageLike] = [
            str(tmp_path / "a.png"),
            tmp_path / "a.png",
            PIL.Image.fromarray(pixels),
            pixels,
            expected,
        ]
        for image in kinds:
            assert torch.equal(to_tensor(image), expected)

    def test_pil_orientation_tag_is_not_applied(self) -> None:
        image = PIL.Image.fromarray(make_pixels())
        image.getexif()[0x0112] = 6
        assert torch.equal(to_tensor(image), to_tensor(make_pixels()))

    def test_grey_and_reversed_and_read_only_arrays(self) -> None:
        pixels = make_pixels()
        pixels.flags.writeable = False
        assert torch.equal(to_tensor(pixels[..., 0]), (torch.tensor(pixels[..., 0]) / 255).expand(3, -1, -1))
        assert torch.equal(to_tensor(pixels[..., ::-1]), to_tensor(pixels).flip(0))

    def test_copies(self) -> None:
        pixels = make_pixels()
        tensor = to_tensor(pixels)
        pixels[:] = 0
        assert tensor.max() > 0

    def test_half_tensor_becomes_float32(self) -> None:
        assert to_tensor(torch.zeros(3, 4, 4, dtype=torch.float16)).dtype == torch.float32

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (np.zeros((4, 4, 3), np.float32), r"uint8 .*got float32; give floats as a torch tensor"),
            (np.zeros((4, 4), np.uint16), r"got uint16; scale it to 0\.\.255"),
            (
                torch.zeros(3, 4, 4, dtype=torch.uint8),
                r"float .*got torch\.uint8; use image\.float\(\) / 255",
            ),
            (7, "got int"),
            (None, "got NoneType"),
        ],
    )
    def test_wrong_types(self, image: Any, message: str) -> None:
        with pytest.raises(TypeError, match=message):
            to_tensor(image)

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (np.zeros((4, 4, 4), np.uint8), r"got \(4, 4, 4\); drop the fourth channel"),
            (np.zeros((4, 4, 2), np.uint8), r"got \(4, 4, 2\)"),
            (np.zeros((1, 4, 4, 3), np.uint8), r"got \(1, 4, 4, 3\)"),
            (np.zeros((0, 4, 3), np.uint8), r"must have pixels, got \(0, 4, 3\)"),
            (torch.zeros(1, 3, 4, 4), r"got \(1, 3, 4, 4\); give image\[0\]"),
            (torch.zeros(4, 4), r"got \(4, 4\); repeat grey"),
            (torch.zeros(4, 4, 3), r"got \(4, 4, 3\); use image\.permute"),
            (torch.zeros(2, 4, 4), r"got \(2, 4, 4\)"),
            (torch.zeros(3, 0, 4), "must have pixels"),
            (torch.full((3, 4, 4), 255.0), "got values 255 to 255"),
            (torch.full((3, 4, 4), float("nan")), "got values nan"),
        ],
    )
    def test_wrong_shapes_and_values(self, image: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            to_tensor(image)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_rounding_errors_are_clamped(self, dtype: torch.dtype) -> None:
        image = torch.tensor([-9e-4, 0.25, 1 + 9e-4], dtype=dtype).expand(3, 1, 3)
        assert to_tensor(image)[0, 0].tolist() == [0, 0.25, 1]
        assert image.min() < 0  # the caller's own values stay
        inside = torch.rand(3, 4, 4)
        assert to_tensor(inside).data_ptr() == inside.data_ptr()

    @pytest.mark.parametrize("value", [-2e-3, 1 + 2e-3, 1.1, float("inf")])
    def test_what_is_no_rounding_error_is_refused(self, value: float) -> None:
        with pytest.raises(ValueError, match=r"got values .*; scale or clamp it"):
            to_tensor(torch.tensor([value, 0.5]).expand(3, 1, 2))

    def test_upsampling_of_other_libraries_passes(self) -> None:
        # Antialiased interpolation of white gives up to 1 + 2e-7.
        white = torch.ones(1, 3, 37, 53)
        resized = torch.nn.functional.interpolate(white, (29, 41), mode="bicubic", antialias=True)[0]
        assert to_tensor(resized * (1 + 1e-6)).max() == 1

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (
                torch.zeros(3, 4, 4, dtype=torch.bfloat16),
                r"of type float16, float32 or float64, got torch\.bfloat16; use image\.float\(\)",
            ),
            (torch.zeros(3, 4, 4).to_sparse(), r"got a sparse tensor \(torch\.sparse_coo\); use to_dense"),
            (torch.zeros(3, 4, 4, device="meta"), "got a tensor on the meta device, which has no values"),
        ],
    )
    def test_tensors_without_plain_values(self, image: torch.Tensor, message: str) -> None:
        with pytest.raises(TypeError, match=rf"a torch image must be float \(3, H, W\).*{message}"):
            to_tensor(image)

    def test_to_pixels_inverts(self) -> None:
        pixels = make_pixels()
        for image in (to_tensor(pixels), pixels, PIL.Image.fromarray(pixels)):
            np.testing.assert_array_equal(to_pixels(image), pixels)
        np.testing.assert_array_equal(to_pixels(pixels[..., 0]), np.stack([pixels[..., 0]] * 3, axis=-1))


class TestMasks:
    def test_non_zero_is_used(self, tmp_path: Path) -> None:
        values = np.array([[0, 1, 255], [0, 0, 9]], np.uint8)
        PIL.Image.fromarray(values).save(tmp_path / "m.png")
        assert read_mask(tmp_path / "m.png", (2, 3)).tolist() == (values != 0).tolist()

    def test_any_channel_counts_and_transparent_does_not(self, tmp_path: Path) -> None:
        rgba = np.array([[[0, 0, 3, 255], [255, 255, 255, 0], [0, 0, 0, 255]]], np.uint8)
        PIL.Image.fromarray(rgba).save(tmp_path / "m.png")
        assert read_mask(tmp_path / "m.png", (1, 3)).tolist() == [[True, False, False]]

    def test_16_bit(self, tmp_path: Path) -> None:
        PIL.Image.fromarray(np.array([[0, 1]], np.uint16)).save(tmp_path / "m.png")
        assert read_mask(tmp_path / "m.png", (1, 2)).tolist() == [[False, True]]

    def test_wrong_size_names_both(self, tmp_path: Path) -> None:
        PIL.Image.new("L", (3, 2)).save(tmp_path / "m.png")
        with pytest.raises(ImageReadError, match=r"m\.png must be as large as its image, 4 × 2, got 3 × 2"):
            read_mask(tmp_path / "m.png", (2, 4))

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(ImageReadError, match=r"cannot read mask .*m\.png: no such file"):
            read_mask(tmp_path / "m.png", (2, 4))

    def test_all_kinds_agree(self, tmp_path: Path) -> None:
        values = np.array([[0, 1, 255], [0, 0, 9]], np.uint8)
        PIL.Image.fromarray(values).save(tmp_path / "m.png")
        path = tmp_path / "m.png"
        for mask in (path, str(path), PIL.Image.fromarray(values), values, values != 0, torch.tensor(values)):
            result = to_mask(mask, (2, 3))
            assert result.dtype == torch.bool
            assert result.tolist() == (values != 0).tolist()

    def test_wrong_shape_and_type(self) -> None:
        with pytest.raises(ValueError, match=r"mask must be \(H, W\) = \(2, 3\) as its image, got \(3, 2\)"):
            to_mask(np.zeros((3, 2), bool), (2, 3))
        with pytest.raises(TypeError, match="got list"):
            to_mask([[1]], (1, 1))  # type: ignore[arg-type]
        for mask in (torch.ones(2, 3, device="meta"), torch.ones(2, 3).to_sparse()):
            with pytest.raises(TypeError, match=r"a mask must be an array \(H, W\), got a"):
                to_mask(mask, (2, 3))


class TestWriting:
    @pytest.mark.parametrize("suffix", [".png", ".webp", ".jpg", ".JPEG"])
    def test_write_image(self, tmp_path: Path, suffix: str) -> None:
        pixels = np.full((8, 8, 3), (200, 100, 50), np.uint8)
        write_image(tmp_path / f"a{suffix}", pixels)
        np.testing.assert_allclose(to_pixels(tmp_path / f"a{suffix}")[4, 4], (200, 100, 50), atol=3)

    def test_write_image_refuses_other_suffixes(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"must end in \.png, \.jpg"):
            write_image(tmp_path / "a.xyz", make_pixels())

    def test_write_image_too_large_for_its_format(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match=r"cannot write .*a\.jpg"):
            write_image(tmp_path / "a.jpg", np.zeros((1, 70_000, 3), np.uint8))
        assert list(tmp_path.iterdir()) == []


class TestDecode:
    def test_is_what_reading_the_file_gives(self, tmp_path: Path) -> None:
        path = tmp_path / "a.png"
        write_image(path, make_pixels())
        assert decode_image(path.read_bytes()).equal(read_image(path))

    def test_orientation_is_applied(self, tmp_path: Path) -> None:
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        PIL.Image.fromarray(make_pixels(5, 7)).save(tmp_path / "a.jpg", exif=exif)
        assert decode_image((tmp_path / "a.jpg").read_bytes()).shape == (3, 7, 5)

    @pytest.mark.parametrize("side", [101, 20_000, 2_000_000])
    def test_too_many_pixels(self, side: int) -> None:
        with pytest.raises(
            ImageReadError, match=r"cannot read the image: it has .* the limit is 10,000 pixels"
        ):
            decode_image(png_with_header(side, side), max_pixels=10_000)

    @pytest.mark.parametrize("content", [b"", b"hello", png_with_header(64, 64)])
    def test_damaged(self, content: bytes) -> None:
        with pytest.raises(ImageReadError, match=r"cannot read the image: .*get it again"):
            decode_image(content)
