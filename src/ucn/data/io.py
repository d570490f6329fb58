"""Reads images and masks from files, PIL, numpy and torch, and writes image files.

Images leave this module as float32 (3, H, W) RGB in [0, 1]; uint8 (H, W, 3) exists only here and in `viz`.
Files are read with Pillow: it reports size and mode from the header, so that limits apply before anything is
decoded (`ucn.data.image_limits`), and it supports EXIF, CMYK and 16-bit files. Pixels are converted in bands
of rows: beside the decoded image there is no other copy of its size than the one that is returned. torch is
imported where tensors are made: the command line checks the headers of its images before that takes its
seconds.
"""

from __future__ import annotations

import ctypes
import io
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from ucn.data.decoding import PixelArray, choose_decoder, load_frugally
from ucn.data.image_formats import READ_FORMATS, choose_formats, find_orientation, is_png_cut
from ucn.data.image_limits import (
    MAX_FILE_BYTES,
    MAX_PIXELS,
    TooManyPixelsError,
    check_sides,
    check_structure,
)
from ucn.errors import ImageReadError, OutputError
from ucn.files.reading import NotRegularError, explain_failure, open_regular
from ucn.files.writing import write_bytes_atomically

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ucn.types import ImageLike

    MaskLike = str | Path | PIL.Image.Image | NDArray[Any] | Tensor
    """A path, a PIL image, or an array (H, W)."""
else:
    MaskLike = Any

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

_BAND_PIXELS = 2**19  # that are converted together
_WHOLE_PIXELS = 2**22  # images up to this size are reduced at once
_DRAFT_FACTOR = 2  # a JPEG is decoded at no less than this times the size that it will be reduced to
_Decoded = PIL.Image.Image | PixelArray
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
    found = read_reduced_image(path, None)
    return found.pixels, found.orientation


@dataclass(frozen=True)
class ReducedImage:
    """An image file, reduced while it was read.

    Attributes:
        pixels: (3, h, w) float32 RGB in [0, 1], upright.
        image_hw: (H, W) of the file, upright.
        orientation: with which EXIF stores it in the file, 1 to 8.
    """

    pixels: Tensor
    image_hw: tuple[int, int]
    orientation: int


def read_reduced_image(path: str | Path, max_side: int | None) -> ReducedImage:
    """Reads an image file and reduces it to a longest side, without a float copy of its full size.

    Up to rounding, `pixels` is `ucn.nn.tiling.reduce_image` of `read_image`; but a large JPEG whose sides are
    over four times as long as those that it is reduced to is decoded at a half, a quarter or an eighth of its
    size.

    Args:
        path: the file.
        max_side: the longest side in pixels, where no side gets below `ucn.config.MIN_SIDE`; None keeps it.

    Raises:
        ImageReadError: as `read_image`.
    """
    with _open_image(Path(path), f"image {path}") as opened:
        return _reduce(opened, max_side)


def decode_reduced_image(content: bytes, max_side: int | None, max_pixels: int = MAX_PIXELS) -> ReducedImage:
    """Decodes the bytes of an image file, as `read_reduced_image` does.

    Raises:
        ImageReadError: as `read_image`, with `max_pixels` as the limit.
    """
    with _open_image(io.BytesIO(content), "the image", max_pixels) as opened:
        return _reduce(opened, max_side)


def decode_image(content: bytes, max_pixels: int = MAX_PIXELS) -> Tensor:
    """Decodes the bytes of an image file, as `read_image` does.

    Raises:
        ImageReadError: as `read_image`, with `max_pixels` as the limit.
    """
    return decode_reduced_image(content, None, max_pixels).pixels


def decode_pixels(content: bytes, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Decodes the bytes of an image file as `decode_image`, without torch.

    Returns:
        (H, W, 3) RGB or (H, W) grey: uint8, or float32 in [0, 1] from files with more than 8 bits.

    Raises:
        ImageReadError: as `decode_image`.
    """
    with _open_image(io.BytesIO(content), "the image", max_pixels) as opened:
        bands = [band for _, _, band in _iterate_bands(opened.load())]
        pixels = np.concatenate(bands) if len(bands) > 1 else bands[0]
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        turned = _turn_planes(planes, opened.turn)
        return np.ascontiguousarray(turned[0] if pixels.ndim == 2 else turned.transpose(1, 2, 0))


def count_pixels(content: bytes, max_pixels: int = MAX_PIXELS) -> int:
    """Pixels of an image by its header; raises `ImageReadError` as `decode_image`."""
    with _open_image(io.BytesIO(content), "the image", max_pixels) as opened:
        return opened.image.width * opened.image.height


def to_tensor(image: ImageLike, device: torch.device | None = None) -> Tensor:
    """Converts any supported image to the form that the library works on.

    Args:
        image: a path; a `PIL.Image.Image` (EXIF orientation is applied to files only, so that points refer
            to the pixels of the given object); numpy uint8 (H, W, 3) RGB or (H, W) grey; or torch float
            (3, H, W) RGB in [0, 1], whose rounding errors are clamped.
        device: where an array is converted: a GPU is faster, and bytes get there faster; None: the CPU.

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
        return _to_floats(image)
    if isinstance(image, np.ndarray):
        pixels = check_pixels(image)
        if device is not None and device.type == "cuda":
            there = torch.from_numpy(np.array(pixels)).to(device)  # a copy: negative strides
            planes = there.expand(3, -1, -1) if there.ndim == 2 else there.permute(2, 0, 1)
            return planes.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return _pixels_to_tensor(pixels)
    if isinstance(image, torch.Tensor):
        return check_image_tensor(image).to(torch.float32)
    raise TypeError(
        "image must be a path, a PIL.Image, a numpy uint8 array (H, W, 3) or (H, W), or a torch float tensor "
        f"(3, H, W), got {type(image).__name__}"
    )


def to_pixels(image: ImageLike) -> NDArray[np.uint8]:
    """Converts any image that `to_tensor` takes to uint8 (H, W, 3) RGB; a file without floats."""
    import torch

    if isinstance(image, (str, Path)):
        with _open_image(Path(image), f"image {image}") as opened:
            return _to_bytes(opened.load(), opened.turn)
    if isinstance(image, PIL.Image.Image):
        return _to_bytes(image)
    if isinstance(image, np.ndarray) and image.ndim == 3:
        return np.array(check_pixels(image), order="C")
    planes = [plane.mul(255).round_().to(torch.uint8) for plane in to_tensor(image)]
    return np.ascontiguousarray(torch.stack(planes, dim=-1).cpu().numpy())


def image_hw(image: Tensor) -> tuple[int, int]:
    """(H, W) of an image or map (..., H, W)."""
    return image.shape[-2], image.shape[-1]


def read_header_hw(path: Path) -> tuple[int, int] | None:
    """(H, W) of an image file by its header, with EXIF orientation applied; None where it is unreadable."""
    try:
        with _open_image(path, f"image {path}") as opened:
            return opened.upright_hw
    except ImageReadError:  # reading the image itself reports what is wrong
        return None


def read_image_hw(path: Path) -> tuple[int, int]:
    """(H, W) of an image file, with EXIF orientation applied; raises `ImageReadError`, as `read_image`."""
    size_hw = read_header_hw(path)
    if size_hw is not None:
        return size_hw
    height, width = read_image(path).shape[-2:]
    return int(height), int(width)


def read_exif(path: Path, directory: int | None = None) -> dict[int, Any]:
    """The EXIF data of an image file by tag, without its pixels; empty where it has none.

    Args:
        path: the file.
        directory: the tag of one of its further directories; None for the first.

    Raises:
        ImageReadError: as `read_image`.
    """
    with _open_image(path, f"image {path}") as opened, _quietly():
        exif = opened.image.getexif()
        return dict(exif if directory is None else exif.get_ifd(directory))


def read_orientation(path: Path) -> int:
    """The EXIF orientation of an image file, 1 to 8; raises `ImageReadError`."""
    with _open_image(path, f"image {path}") as opened:
        return opened.orientation


def check_image_file(path: str | Path, min_side: int = 1, kind: str = "image") -> tuple[int, int]:
    """Checks an image file by its header: nothing is decoded, and torch is not imported.

    Args:
        path: the file.
        min_side: the shortest side that it may have, in pixels.
        kind: what errors call it.

    Returns:
        (H, W), with EXIF orientation applied.

    Raises:
        ImageReadError: as `read_image`, but for damage behind the header; or a side is too short.
    """
    with _open_image(Path(path), f"{kind} {path}") as opened:
        height, width = opened.upright_hw
    if min(width, height) < min_side:
        raise ImageReadError(
            f"{kind} {path} must be at least {min_side} px a side, got {width} × {height} (width × height); "
            "enlarge it first",
            path=Path(path),
        )
    return height, width


def check_mask_file(path: str | Path, image_hw: tuple[int, int]) -> None:
    """Checks a mask file as `check_image_file`, and that it is as large as its image (H, W)."""
    size_hw = check_image_file(path, kind="mask")
    if size_hw != tuple(image_hw):
        raise _mask_size_error(path, image_hw, size_hw)


def _mask_size_error(path: str | Path, image_hw: tuple[int, ...], size_hw: tuple[int, ...]) -> ImageReadError:
    expected = f"must be as large as its image, {_size(image_hw)}"
    return ImageReadError(
        f"mask {path} {expected}, got {_size(size_hw)} (width × height)",
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

    with _open_image(Path(path), f"mask {path}") as opened:
        mask = _find_used(opened.load(), opened.turn)
    if mask.shape != tuple(image_hw):
        raise _mask_size_error(path, image_hw, mask.shape)
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
        is_used = torch.from_numpy(_find_used(mask))
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


@dataclass(frozen=True)
class _OpenImage:
    """An image as its file stores it, not decoded yet.

    Attributes:
        image: the image.
        orientation: by EXIF, 1 to 8.
        turn: the orientation by which it must be turned once it is decoded; Pillow turns TIFF itself.
        file: its content.
        is_frugal: it is decoded by `load_frugally`.
    """

    image: PIL.Image.Image
    orientation: int
    turn: int
    file: BinaryIO
    is_frugal: bool

    @property
    def stored_hw(self) -> tuple[int, int]:
        """(H, W), not turned."""
        return self.image.height, self.image.width

    @property
    def upright_hw(self) -> tuple[int, int]:
        """(H, W), turned; as `ucn.geometry.coords.orient_size`, which imports torch."""
        height, width = self.stored_hw
        return (width, height) if self.turn >= 5 else (height, width)

    def load(self) -> _Decoded:
        """Decodes it. Of those about whose size Pillow warns, one is decoded at a time."""
        if self.is_frugal:
            return load_frugally(self.image, self.file)
        pixels = self.image.width * self.image.height
        is_large = pixels > (PIL.Image.MAX_IMAGE_PIXELS or MAX_PIXELS)
        with _quietly() if is_large else nullcontext():
            self.image.load()
        if is_png_cut(self.image, self.file):
            raise ImageReadError("it is cut: rows are missing; get it again or remove it")
        return self.image


@contextmanager
def _open_image(source: Path | BinaryIO, name: str, max_pixels: int = MAX_PIXELS) -> Iterator[_OpenImage]:
    """Opens an image within the limits; any failure, also of what is done with it, is an `ImageReadError`."""
    path = source if isinstance(source, Path) else None
    try:
        with _open_file(source) as file:
            has_late_tags = check_structure(file)
            _silence_decoders()
            with _open_quietly(file, max_pixels) as image:
                check_sides((image.height, image.width), max_pixels)
                with _quietly():
                    is_frugal = choose_decoder(image, file)
                    orientation = find_orientation(image, has_late_tags)
                turn = 1 if image.format == "TIFF" else orientation
                yield _OpenImage(image, orientation, turn, file, is_frugal)
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


@contextmanager
def _open_file(source: Path | BinaryIO) -> Iterator[BinaryIO]:
    """The content of an image file, after its kind and size were checked."""
    if not isinstance(source, Path):
        yield source
        return
    try:
        file = open_regular(source)
    except NotRegularError as error:
        kind = "a folder" if source.is_dir() else "not a regular file"
        raise ImageReadError(f"it is {kind}; give an image file") from error
    with file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if size == 0:
            raise ImageReadError("the file is empty (0 bytes); get it again or remove it")
        if size > MAX_FILE_BYTES:
            raise ImageReadError(
                f"it has {size:,} bytes, the limit is {MAX_FILE_BYTES:,} (MAX_FILE_BYTES); reduce it"
            )
        yield file


@contextmanager
def _quietly() -> Iterator[None]:
    """Keeps Pillow's warnings about damaged files from the terminal; for short work, since threads wait."""
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def _silence_decoders() -> None:
    """Stops Pillow and libtiff from printing their errors, which Pillow raises as well."""
    import PIL._imaging

    # Python prints the records of a logger without any handler.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    with suppress(OSError, AttributeError, TypeError):  # where Pillow is linked otherwise, it prints them
        ctypes.CDLL(PIL._imaging.__file__).TIFFSetErrorHandler(None)


def _open_quietly(file: BinaryIO, max_pixels: int) -> PIL.Image.Image:
    """Reads the header only. Pillow's own limit may be stricter than ours if the user lowered it."""
    formats = choose_formats(file)
    try:
        with _quietly():
            return PIL.Image.open(file, formats=formats)
    except PIL.Image.DecompressionBombError as error:
        limit = min(max_pixels, 2 * (PIL.Image.MAX_IMAGE_PIXELS or max_pixels))
        count = re.search(r"\d+", str(error))
        size = f"{int(count[0]):,} pixels" if count else "too many pixels"
        raise TooManyPixelsError(size, limit) from error
    except PIL.UnidentifiedImageError as error:
        known = f"an image of a known format ({', '.join(READ_FORMATS)})"
        raise ImageReadError(f"it is damaged or not {known}; get it again or convert it") from error


def _reduce(opened: _OpenImage, max_side: int | None) -> ReducedImage:
    """Decodes an image and reduces it; with its longest side within `max_side` it is only decoded."""
    import torch

    from ucn.geometry.coords import find_reduced_hw, orient_size

    image, turn, stored_hw = opened.image, opened.turn, opened.stored_hw
    image_hw, reduced_hw = orient_size(stored_hw, turn), find_reduced_hw(stored_hw, max_side)
    if reduced_hw == stored_hw or image.width * image.height <= _WHOLE_PIXELS:
        pixels = _to_floats(opened.load(), turn)
        if reduced_hw != stored_hw:
            pixels = _resize(pixels, orient_size(reduced_hw, turn), image_hw).clamp(0, 1)
        return ReducedImage(pixels, image_hw, opened.orientation)
    exact_hw: tuple[float, float] = stored_hw
    if image.format in ("JPEG", "MPO"):
        drafted = image.draft(None, (_DRAFT_FACTOR * reduced_hw[1], _DRAFT_FACTOR * reduced_hw[0]))
        if drafted is not None:  # a half, a quarter or an eighth, with sides rounded up
            exact_hw = drafted[1][3], drafted[1][2]
    decoded = opened.load()
    narrow = torch.empty(3, decoded.height, reduced_hw[1])
    for first, last, band in _iterate_bands(decoded):
        rows = last - first
        narrow[:, first:last] = _resize(_pixels_to_tensor(band), (rows, reduced_hw[1]), (rows, exact_hw[1]))
    pixels = _resize(narrow, reduced_hw, (exact_hw[0], reduced_hw[1])).clamp(0, 1)
    turned = np.ascontiguousarray(_turn_planes(pixels.numpy(), turn))
    return ReducedImage(torch.from_numpy(turned), image_hw, opened.orientation)


def _resize(pixels: Tensor, size_hw: tuple[int, int], exact_hw: tuple[float, float]) -> Tensor:
    """Resizes (C, H, W) by antialiased linear interpolation, as `ucn.nn.tiling.reduce_image`.

    `exact_hw` is the size that corresponds to `size_hw`: H and W, or up to a pixel less where the last row or
    column lies only partly in the image.
    """
    import torch.nn.functional as F

    settings: dict[str, Any] = {"mode": "bilinear", "antialias": True, "align_corners": False}
    if exact_hw == tuple(pixels.shape[-2:]):
        return F.interpolate(pixels[None], size_hw, **settings)[0]
    scale = size_hw[0] / exact_hw[0], size_hw[1] / exact_hw[1]
    resized = F.interpolate(pixels[None], scale_factor=scale, **settings)[0]
    return resized[:, : size_hw[0], : size_hw[1]]


def _iterate_bands(
    image: _Decoded,
) -> Iterator[tuple[int, int, NDArray[np.uint8] | NDArray[np.float32]]]:
    """Yields bands of rows of a decoded image: first row, row behind the last, and `_rgb_pixels`."""
    if image.width == 0 or image.height == 0:
        raise ValueError(f"image must have pixels, got {image.width} × {image.height}")
    white = _find_white(image)
    if white is not None:
        bounds = [(values.min(), values.max()) for _, _, values in _cut_bands(image, np.asarray)]
        low, high = min(bound[0] for bound in bounds), max(bound[1] for bound in bounds)
        if not (low >= 0 and high <= white):
            raise ImageReadError(
                f"values of a mode {image.mode} image must be in [0, {white:g}], got {low:g} to {high:g}; "
                "convert it to 8 or 16 bits"
            )
    yield from _cut_bands(image, _rgb_pixels)


def _cut_bands(
    image: _Decoded, convert: Callable[[PIL.Image.Image], NDArray[Any]]
) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """Yields bands of rows of a decoded image, converted to arrays."""
    rows = max(1, _BAND_PIXELS // image.width)
    if rows >= image.height and isinstance(image, PIL.Image.Image):
        yield 0, image.height, convert(image)
        return
    for first in range(0, image.height, rows):
        last = min(first + rows, image.height)
        yield first, last, convert(image.crop((0, first, image.width, last)))


def _find_white(image: _Decoded) -> float | None:
    """The value of white in an image with more than 8 bits; None for the others."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        return 65535.0
    return 1.0 if image.mode == "F" else None


def _rgb_pixels(image: PIL.Image.Image) -> NDArray[np.uint8] | NDArray[np.float32]:
    """Pixels (H, W, 3) or, for grey, (H, W): uint8, or float32 in [0, 1] from files with more than 8 bits."""
    white = _find_white(image)
    if white is not None:
        return np.asarray(image).astype(np.float32) / np.float32(white)
    if image.mode in ("1", "L") and "transparency" not in image.info:
        return np.asarray(image.convert("L"))
    if image.has_transparency_data:
        page = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(page, image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def _is_used(image: PIL.Image.Image) -> NDArray[np.bool_]:
    if _find_white(image) is not None:
        return np.asarray(image).astype(np.bool_)
    pixels = np.asarray(image.convert("RGBA")).astype(np.bool_)
    is_used: NDArray[np.bool_] = pixels[..., :3].any(axis=-1) & pixels[..., 3]
    return is_used


def _find_used(image: _Decoded, turn: int = 1) -> NDArray[np.bool_]:
    """(H, W) of a decoded image: where it is neither black nor transparent, turned upright."""
    is_used = np.empty((1, image.height, image.width), np.bool_)
    for first, last, band in _cut_bands(image, _is_used):
        is_used[0, first:last] = band
    return np.ascontiguousarray(_turn_planes(is_used, turn)[0])


def _to_floats(image: _Decoded, turn: int = 1) -> Tensor:
    """(3, H, W) float32 of a decoded image, turned upright; beside it, only bands are held."""
    import torch

    bands = _iterate_bands(image)
    if turn == 1 and image.width * image.height <= _BAND_PIXELS:
        return _pixels_to_tensor(next(bands)[2])
    is_sideways = turn >= 5
    height, width = (image.width, image.height) if is_sideways else (image.height, image.width)
    upright = np.empty((3, height, width), np.float32)
    stored = _turn_planes(upright, {6: 8, 8: 6}.get(turn, turn))  # a view: what is written into it is turned
    for first, last, band in bands:
        stored[:, first:last] = _pixels_to_tensor(band).numpy()
    return torch.from_numpy(upright)


def _to_bytes(image: _Decoded, turn: int = 1) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 of a decoded image, turned upright."""
    pixels = np.empty((3, image.height, image.width), np.uint8)
    for first, last, band in _iterate_bands(image):
        values = band if band.dtype == np.uint8 else (band * 255).round().astype(np.uint8)
        pixels[:, first:last] = values if values.ndim == 2 else values.transpose(2, 0, 1)
    return np.ascontiguousarray(_turn_planes(pixels, turn).transpose(1, 2, 0))


def _turn_planes(planes: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Planes (C, H, W) as stored, turned upright by an EXIF orientation; a view."""
    if orientation in (5, 6, 7, 8):
        planes = planes.transpose(0, 2, 1)
    if orientation in (2, 3, 6, 7):
        planes = planes[:, :, ::-1]
    if orientation in (3, 4, 7, 8):
        planes = planes[:, ::-1]
    return planes


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
