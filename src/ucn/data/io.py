"""Reads images and masks from files, PIL, numpy and torch, and writes image files.

Images leave this module as float32 (3, H, W) RGB in [0, 1]; uint8 (H, W, 3) exists only here and in `viz`.
Files are read with Pillow: it reports size and mode from the header, so that limits apply before anything is
decoded, and it supports EXIF, CMYK and 16-bit files. torch is imported where tensors are made: the command
line checks the headers of its images before that takes its seconds.
"""

from __future__ import annotations

import io
import re
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import PIL.Image
import PIL.ImageOps
from numpy.typing import NDArray

from ucn.data.image_formats import READ_FORMATS, choose_formats, find_orientation, is_png_cut
from ucn.errors import ImageReadError, OutputError
from ucn.files import explain_failure, write_bytes_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from ucn.types import ImageLike

    MaskLike = str | Path | PIL.Image.Image | NDArray[Any] | Tensor
    """A path, a PIL image, or an array (H, W)."""
else:
    MaskLike = Any

MAX_PIXELS = 160_000_000
"""Larger images are refused by their header; as float32 RGB, this many pixels take 1.9 GB."""
MAX_FILE_BYTES = 2**30
"""Larger image files are refused unread."""
WRITE_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Suffixes of the image files that can be written, with Pillow's names."""
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".ppm", ".webp", ".bmp", ".tif", ".tiff"),
    *(".avif", ".heic", ".heif"),
)
"""Suffixes of image files, in the order in which they are tried for a name without one."""
ROUNDING = 1e-3
"""How far values of a float image may lie outside [0, 1]; they are clamped. More than the rounding of float16
(5e-4 at 1), and a quarter of a grey level of 8 bits, so that no image of another range passes."""

_warning_filters = threading.Lock()  # warnings.catch_warnings swaps a list that all threads share


def read_image(path: str | Path) -> Tensor:
    """Reads an image file.

    EXIF orientation is applied, so points refer to the upright image. Grey is repeated to three channels;
    16-bit grey is scaled by 1/65535. Transparent pixels are composed over white. CMYK and other colour spaces
    are converted without their ICC profile. Of an animation, the first frame is read.

    Returns:
        (3, H, W) float32 RGB in [0, 1].

    Raises:
        ImageReadError: the file is missing, not readable, empty, not an image, damaged, has more than
            `MAX_FILE_BYTES` bytes or, by its header, more than `MAX_PIXELS` pixels.
    """
    return read_oriented_image(path)[0]


def read_oriented_image(path: str | Path) -> tuple[Tensor, int]:
    """Reads an image file as `read_image` does, and its EXIF orientation.

    Returns:
        (3, H, W) float32 RGB in [0, 1], upright, and the orientation with which the file stores it, 1 to 8;
        see `ucn.geometry.coords.apply_orientation`.

    Raises:
        ImageReadError: as `read_image`.
    """
    with _open_image(Path(path), f"image {path}") as (image, orientation):
        return _pixels_to_tensor(_rgb_pixels(image)), orientation


def decode_image(content: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decodes the bytes of an image file, as `read_image` does.

    Raises:
        ImageReadError: as `read_image`, with `max_pixels` as the limit.
    """
    return _pixels_to_tensor(decode_pixels(content, max_pixels))


def decode_pixels(content: bytes, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Decodes the bytes of an image file as `decode_image`, without torch.

    Returns:
        (H, W, 3) RGB or (H, W) grey: uint8, or float32 in [0, 1] from files with more than 8 bits.

    Raises:
        ImageReadError: as `decode_image`.
    """
    with _open_image(io.BytesIO(content), "the image", max_pixels) as (image, _):
        return _rgb_pixels(image)


def count_pixels(content: bytes, max_pixels: int = MAX_PIXELS) -> int:
    """Pixels of an image by its header; raises `ImageReadError` as `decode_image`."""
    with _open_image(io.BytesIO(content), "the image", max_pixels, is_loaded=False) as (image, _):
        return image.width * image.height


def to_tensor(image: ImageLike) -> Tensor:
    """Converts any supported image to the form that the library works on.

    Args:
        image: a path; a `PIL.Image.Image` (EXIF orientation is applied to files only, so that points refer
            to the pixels of the given object); numpy uint8 (H, W, 3) RGB or (H, W) grey; or torch float
            (3, H, W) RGB in [0, 1], whose rounding errors are clamped.

    Returns:
        (3, H, W) float32 RGB in [0, 1]; a tensor stays on its device.

    Raises:
        ImageReadError: as `read_image`.
        TypeError: not one of these types, or the wrong dtype.
        ValueError: wrong shape, no pixels, or values outside [0, 1].
    """
    import torch

    if isinstance(image, (str, Path)):
        return read_image(image)
    if isinstance(image, PIL.Image.Image):
        return _pixels_to_tensor(_rgb_pixels(image))
    if isinstance(image, np.ndarray):
        return _pixels_to_tensor(check_pixels(image))
    if isinstance(image, torch.Tensor):
        return check_image_tensor(image).to(torch.float32)
    raise TypeError(
        "image must be a path, a PIL.Image, a numpy uint8 array (H, W, 3) or (H, W), or a torch float tensor "
        f"(3, H, W), got {type(image).__name__}"
    )


def to_pixels(image: ImageLike) -> NDArray[np.uint8]:
    """Converts any image that `to_tensor` takes to uint8 (H, W, 3) RGB, for drawing."""
    import torch

    values = to_tensor(image).mul(255).round().to(torch.uint8)
    return np.ascontiguousarray(values.permute(1, 2, 0).cpu().numpy())


def image_hw(image: Tensor) -> tuple[int, int]:
    """(H, W) of an image or map (..., H, W)."""
    return image.shape[-2], image.shape[-1]


def read_header_hw(path: Path) -> tuple[int, int] | None:
    """(H, W) of an image file by its header, with EXIF orientation applied; None where it is unreadable."""
    from ucn.geometry.coords import is_sideways

    try:
        with PIL.Image.open(path, formats=choose_formats(path)) as image:
            # Of a TIFF, Pillow gives the upright size.
            is_swapped = is_sideways(find_orientation(image)) and image.format != "TIFF"
            return (image.width, image.height) if is_swapped else (image.height, image.width)
    except Exception:  # Pillow raises many kinds; reading the image itself reports what is wrong
        return None


def read_exif(path: Path) -> PIL.Image.Exif:
    """The EXIF data of an image file, without its pixels; empty where it has none.

    Raises:
        ImageReadError: as `read_image`.
    """
    with _open_image(path, f"image {path}", is_loaded=False) as (image, _):
        return image.getexif()


def read_orientation(path: Path) -> int:
    """The EXIF orientation of an image file, 1 to 8; raises `ImageReadError`."""
    with _open_image(path, f"image {path}", is_loaded=False) as (_, orientation):
        return orientation


def check_image_file(path: str | Path, min_side: int = 1, kind: str = "image") -> None:
    """Checks an image file by its header: nothing is decoded, and torch is not imported.

    Args:
        path: the file.
        min_side: the shortest side that it may have, in pixels.
        kind: what errors call it.

    Raises:
        ImageReadError: as `read_image`, but for damage behind the header; or a side is too short.
    """
    with _open_image(Path(path), f"{kind} {path}", is_loaded=False) as (image, _):
        width, height = image.size
    if min(width, height) < min_side:
        raise ImageReadError(
            f"{kind} {path} must be at least {min_side} px a side, got {width} × {height} (width × height); "
            "enlarge it first",
            path=Path(path),
        )


def read_mask(path: str | Path, image_hw: tuple[int, int]) -> Tensor:
    """Reads a mask file: True where any colour channel is non-zero and the pixel is not transparent.

    EXIF orientation is applied, as for images.

    Args:
        path: an image file.
        image_hw: (H, W) of the image it belongs to.

    Returns:
        (H, W) bool; True = use.

    Raises:
        ImageReadError: as `read_image`, or the mask's size is not the image's.
    """
    import torch

    with _open_image(Path(path), f"mask {path}") as (image, _):
        mask = _is_used(image)
    if mask.shape != tuple(image_hw):
        raise ImageReadError(
            f"mask {path} must be as large as its image, {_size(image_hw)}, got {_size(mask.shape)} "
            "(width × height)",
            path=Path(path),
        )
    return torch.from_numpy(mask)


def to_mask(mask: MaskLike, image_hw: tuple[int, int]) -> Tensor:
    """Converts any supported mask to bool (H, W), True = use.

    Args:
        mask: a path or `PIL.Image.Image`, as `read_mask`; or a numpy or torch array (H, W) of bools or
            numbers, True where it is not zero.
        image_hw: (H, W) of the image it belongs to.

    Raises:
        ImageReadError: as `read_mask`.
        TypeError: not one of these types.
        ValueError: the mask's shape is not the image's.
    """
    import torch

    if isinstance(mask, (str, Path)):
        return read_mask(mask, image_hw)
    if isinstance(mask, PIL.Image.Image):
        is_used = torch.from_numpy(_is_used(mask))
    elif isinstance(mask, np.ndarray):
        is_used = torch.from_numpy(np.asarray(mask != 0))
    elif isinstance(mask, torch.Tensor):
        check_dense(mask, "a mask must be an array (H, W)")
        is_used = mask != 0
    else:
        raise TypeError(f"mask must be a path, a PIL.Image or an array (H, W), got {type(mask).__name__}")
    if tuple(is_used.shape) != tuple(image_hw):
        raise ValueError(f"mask must be (H, W) = {tuple(image_hw)} as its image, got {tuple(is_used.shape)}")
    return is_used


def check_image_suffix(path: str | Path) -> None:
    """Raises `OutputError` where the suffix of an image file to write is not in `WRITE_FORMATS`."""
    if Path(path).suffix.lower() not in WRITE_FORMATS:
        raise OutputError(f"cannot write image {path}: its name must end in {', '.join(WRITE_FORMATS)}")


def write_image(path: str | Path, pixels: NDArray[np.uint8], overwrite: bool = False) -> None:
    """Writes an image file in the format of its suffix, one of `WRITE_FORMATS`.

    Args:
        path: the file to write.
        pixels: (H, W, 3) RGB or (H, W) grey.
        overwrite: replace an existing file.

    Raises:
        OutputError: as `write_bytes_atomically`, or the suffix is unknown.
        TypeError: not uint8.
        ValueError: another shape.
    """
    check_image_suffix(path)
    image = PIL.Image.fromarray(check_pixels(pixels))
    image_format = WRITE_FORMATS[Path(path).suffix.lower()]
    settings = {"quality": 92, "subsampling": 0} if image_format == "JPEG" else {}
    write_bytes_atomically(path, lambda file: image.save(file, image_format, **settings), overwrite)


@contextmanager
def _open_image(
    source: Path | BinaryIO, name: str, max_pixels: int = MAX_PIXELS, *, is_loaded: bool = True
) -> Iterator[tuple[PIL.Image.Image, int]]:
    """Opens an image within the size limits; every failure is raised as `ImageReadError`.

    Yields the image, upright where it is loaded, and the orientation with which it is stored.
    """
    path = source if isinstance(source, Path) else None
    try:
        if path is not None:
            _check_file(path)
        with _open_quietly(source, max_pixels) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise _TooLargeError(f"{width:,} × {height:,} pixels", max_pixels)
            orientation = find_orientation(image)
            if is_loaded:
                if is_png_cut(image, source):
                    raise ImageReadError("it is cut: rows are missing; get it again or remove it")
                PIL.ImageOps.exif_transpose(image, in_place=True)
            yield image, orientation
    except Exception as error:  # on damaged files Pillow's decoders raise SyntaxError, struct.error and more
        cause = error.__cause__ if isinstance(error, ImageReadError) else error
        raise ImageReadError(f"cannot read {name}: {_explain(error)}", path=path) from cause


def _explain(error: Exception) -> str:
    """The reason of a failure to read an image, and the remedy."""
    if isinstance(error, ImageReadError):
        return str(error)
    if isinstance(error, MemoryError):
        return "not enough memory; reduce the image"
    is_refused = isinstance(error, OSError) and error.strerror
    remedy = "check path and rights" if is_refused else "get it again or remove it"
    return f"{explain_failure(error)}; {remedy}"


class _TooLargeError(ImageReadError):
    def __init__(self, size: str, limit: int) -> None:
        super().__init__(f"it has {size}, the limit is {limit:,} pixels; reduce the image first")


def _check_file(path: Path) -> None:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise ImageReadError("it is a folder; give an image file")
    if not stat.S_ISREG(status.st_mode):
        raise ImageReadError("it is not a regular file; give an image file")
    if status.st_size == 0:
        raise ImageReadError("the file is empty (0 bytes); get it again or remove it")
    if status.st_size > MAX_FILE_BYTES:
        raise ImageReadError(
            f"it has {status.st_size:,} bytes, the limit is {MAX_FILE_BYTES:,} (MAX_FILE_BYTES); reduce it"
        )


def _open_quietly(source: Path | BinaryIO, max_pixels: int) -> PIL.Image.Image:
    """Reads the header only. Pillow's own limit may be stricter than ours if the user lowered it."""
    formats = choose_formats(source)
    try:
        with _warning_filters, warnings.catch_warnings():
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            return PIL.Image.open(source, formats=formats)
    except PIL.Image.DecompressionBombError as error:
        limit = min(max_pixels, 2 * (PIL.Image.MAX_IMAGE_PIXELS or max_pixels))
        count = re.search(r"\d+", str(error))
        raise _TooLargeError(f"{int(count[0]):,} pixels" if count else "too many pixels", limit) from error
    except PIL.UnidentifiedImageError as error:
        known = f"an image of a known format ({', '.join(READ_FORMATS)})"
        raise ImageReadError(f"it is damaged or not {known}; get it again or convert it") from error


def _rgb_pixels(image: PIL.Image.Image) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Pixels (H, W, 3) or, for grey, (H, W): uint8, or float32 in [0, 1] from files with more than 8 bits."""
    if image.width == 0 or image.height == 0:
        raise ValueError(f"image must have pixels, got {image.width} × {image.height}")
    if image.mode == "I" or image.mode.startswith("I;16"):
        return _scale(image, 65535.0)
    if image.mode == "F":
        return _scale(image, 1.0)
    if image.mode in ("1", "L") and "transparency" not in image.info:
        return np.asarray(image.convert("L"))
    if image.has_transparency_data:
        white = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(white, image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def _scale(image: PIL.Image.Image, white: float) -> NDArray[np.float32]:
    values = np.asarray(image).astype(np.float32)
    if not (values.min() >= 0 and values.max() <= white):
        raise ImageReadError(
            f"values of a mode {image.mode} image must be in [0, {white:g}], got {values.min():g} to "
            f"{values.max():g}; convert it to 8 or 16 bits"
        )
    return values / np.float32(white)


def _is_used(image: PIL.Image.Image) -> NDArray[np.bool_]:
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        return np.asarray(image).astype(np.bool_)
    pixels = np.asarray(image.convert("RGBA")).astype(np.bool_)
    is_used: NDArray[np.bool_] = pixels[..., :3].any(axis=-1) & pixels[..., 3]
    return is_used


def _pixels_to_tensor(pixels: NDArray[np.uint8] | NDArray[np.float32]) -> Tensor:
    """(H, W, 3) or (H, W) to (3, H, W) float32; uint8 is scaled."""
    import torch

    planes = np.broadcast_to(pixels, (3, *pixels.shape)) if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    tensor = torch.from_numpy(np.array(planes, order="C"))  # a copy: Pillow's arrays are read-only
    return tensor.to(torch.float32).div_(255) if tensor.dtype == torch.uint8 else tensor


def _size(size_hw: tuple[int, ...]) -> str:
    return f"{size_hw[1]} × {size_hw[0]}"


def check_pixels(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns an array that is uint8 (H, W, 3) or (H, W); raises `TypeError` or `ValueError` for others."""
    expected = "a numpy image must be uint8 (H, W, 3) RGB or (H, W) grey"
    if image.dtype != np.uint8:
        hint = (
            "give floats as a torch tensor (3, H, W) in [0, 1]"
            if np.issubdtype(image.dtype, np.floating)
            else "scale it to 0..255 first"
        )
        raise TypeError(f"{expected}, got {image.dtype}; {hint}")
    if image.ndim == 3 and image.shape[2] == 4:
        raise ValueError(f"{expected}, got {image.shape}; drop the fourth channel with image[..., :3]")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise ValueError(f"{expected}, got {image.shape}")
    if image.size == 0:
        raise ValueError(f"image must have pixels, got {image.shape}")
    return image


def check_image_tensor(image: Tensor) -> Tensor:
    """Returns, detached and clamped, a tensor that is float (3, H, W) in [0, 1]; raises for others.

    Interpolation leaves [0, 1] by rounding errors; values beyond `ROUNDING` are an error.
    """
    import torch

    expected = "a torch image must be float (3, H, W) RGB in [0, 1]"
    check_dense(image, expected)
    if not image.is_floating_point():
        raise TypeError(f"{expected}, got {image.dtype}; use image.float() / 255")
    if image.dtype not in (torch.float16, torch.float32, torch.float64):
        raise TypeError(
            f"{expected} of type float16, float32 or float64, got {image.dtype}; use image.float()"
        )
    shape = tuple(image.shape)
    if image.ndim == 4 and shape[0] == 1:
        raise ValueError(f"{expected}, got {shape}; give image[0]")
    if image.ndim == 2 or (image.ndim == 3 and shape[0] == 1):
        raise ValueError(f"{expected}, got {shape}; repeat grey with image.expand(3, -1, -1)")
    if image.ndim == 3 and shape[0] != 3 and shape[2] == 3:
        raise ValueError(f"{expected}, got {shape}; use image.permute(2, 0, 1)")
    if image.ndim != 3 or shape[0] != 3:
        raise ValueError(f"{expected}, got {shape}")
    if image.numel() == 0:
        raise ValueError(f"image must have pixels, got {shape}")
    low, high = (float(value) for value in image.detach().aminmax())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise ValueError(f"{expected}, got values {low:g} to {high:g}; scale or clamp it")
    return image.detach() if low >= 0 and high <= 1 else image.detach().clamp(0, 1)


def check_dense(tensor: Tensor, expected: str) -> None:
    """Raises a `TypeError` for a tensor without values (meta) or without a plain layout (sparse)."""
    import torch

    if tensor.is_meta:
        raise TypeError(f"{expected}, got a tensor on the meta device, which has no values; load them first")
    if tensor.layout != torch.strided:
        raise TypeError(f"{expected}, got a sparse tensor ({tensor.layout}); use to_dense()")
