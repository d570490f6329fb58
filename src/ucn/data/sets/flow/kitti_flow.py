"""KITTI optical flow 2012 and 2015: sparse flow of street scenes from a laser scanner, as 16-bit PNG.

Only the training parts have public ground truth. In the development kit, "noc" means that the target lies
inside image 1, and "occ" that it may lie outside; neither marks occlusion by other objects.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.descriptions import KITTI_FLOW as INFO
from ucn.data.image_limits import MAX_PIXELS
from ucn.data.io import read_header_hw
from ucn.data.pairs import check_choice
from ucn.data.sets.flow.dense_pairs import DensePair, FilePairs, GroundTruthFile, SizeHW, check_size
from ucn.data.sets.layout import find_root, list_numbered
from ucn.errors import DataError
from ucn.files.reading import read_binary

# The first 80 % by number, of 200 pairs in 2015 and 194 in 2012. Neighbouring numbers often come from one
# drive, so that a random choice would put almost the same street in both splits.
_TRAIN_COUNTS = {"image_2": 160, "colored_0": 155, "image_0": 155}
_FRAME_10 = r"([0-9]{6})_10\.[a-z]+"
_REMEDY = "unpack it again"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def open_folder(folder: Path, split: str, *, ground_truth: str = "auto") -> KittiFlow:
    """Opens KITTI flow.

    Args:
        folder: holds ``training``.
        split: training (all pairs), or train and val (its first 80 % by number, and the rest).
        ground_truth: which one: noc (targets inside image 1), occ (all; targets outside are dropped here,
            so that the two are almost equal), or auto: noc where that folder exists, else occ.
    """
    check_choice(ground_truth, ("auto", "noc", "occ"), "option ground_truth of kitti-flow")
    if (folder / "testing").is_dir() and not (folder / "training").is_dir():
        raise DataError(
            f"{folder} holds only KITTI's testing images, whose ground truth is not public; get training"
        )
    return KittiFlow(find_root(folder, INFO.markers, INFO.inside), split, ground_truth)


class KittiFlow(FilePairs):
    """Frames 10 and 11 of each scene, with flow where the scanner measured."""

    def __init__(self, root: Path, split: str, ground_truth: str) -> None:
        super().__init__(root)
        training = root / "training"
        images = next((training / name for name in _TRAIN_COUNTS if (training / name).is_dir()), None)
        if images is None:
            expected = " or ".join(_TRAIN_COUNTS)
            raise DataError(f"{training} has no images: expected the folder {expected} in it")
        if ground_truth == "auto":
            ground_truth = "noc" if (training / "flow_noc").is_dir() else "occ"
        flows = training / f"flow_{ground_truth}"
        if not flows.is_dir():
            raise DataError(
                f"no folder {flows}: option ground_truth={ground_truth} needs it; unpack it, or use auto"
            )
        train_count = _TRAIN_COUNTS[images.name]
        # Frame 10 only: the multi-view extension has others.
        numbers = {*list_numbered(images, _FRAME_10), *list_numbered(flows, _FRAME_10)}
        for number in sorted(numbers):
            if split == "training" or (split == "train") == (number < train_count):
                name = f"{number:06d}"
                files = (GroundTruthFile(flows / f"{name}_10.png", "flow"),)
                self.add_pair(name, images / f"{name}_10", images / f"{name}_11", files, f"scene {name}")
        self.require_pairs(split, f"no {images.name}/NNNNNN_10.png with a number of that split in {root}")

    def read_correspondences(
        self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """The measured pixels and their targets; about one pixel in six was measured."""
        channels = read_channels(pair.ground_truth[-1].path, pair.image0, image0_hw)
        known = np.flatnonzero(channels[..., 0])
        points0 = np.stack(np.divmod(known, channels.shape[1])[::-1], axis=-1).astype(np.float32)
        points1 = points0 + _to_vectors(channels.reshape(-1, 3)[known])
        return torch.from_numpy(points0), torch.from_numpy(points1)

    def check_ground_truth(self, pair: DensePair, file: GroundTruthFile) -> object:
        """Reads the flow."""
        return read_channels(file.path, pair.image0, read_header_hw(pair.image0))


def _to_vectors(channels: NDArray[np.uint16]) -> NDArray[np.float32]:
    vectors: NDArray[np.float32] = (channels[..., :0:-1].astype(np.float32) - 2**15) / np.float32(64)
    return vectors


def read_channels(path: Path, image: Path, image_hw: SizeHW | None) -> NDArray[np.uint16]:
    """Reads KITTI's flow: 16-bit RGB, u = (R - 2^15) / 64, v = (G - 2^15) / 64, known where B is not 0.

    That is the definition of the development kit; the centre of the top-left pixel is at (0, 0), as here.

    Args:
        path: the file.
        image: its image, for errors.
        image_hw: the size of the image; None skips the check.

    Returns:
        (H, W, 3), channels in the order B, G, R.

    Raises:
        DataError: the file is missing, truncated, damaged, not 16-bit RGB, or not of the image's size.
    """
    content = read_binary(path, "flow")
    check_size(path, _check_png(content, path), image, image_hw)
    try:
        # OpenCV, since Pillow reduces 16-bit colour to 8 bits; its channels are B, G, R.
        channels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        channels = None
    if channels is None or channels.dtype != np.uint16 or channels.shape[2:] != (3,):
        raise DataError(f"{path}: expected a 16-bit RGB PNG, got one that cannot be decoded; {_REMEDY}")
    return np.asarray(channels)


def _check_png(content: bytes, path: Path) -> SizeHW:
    """(H, W) of a complete 16-bit RGB PNG. Decoders accept truncated files and fill them with zeros."""
    if not content.startswith(_PNG_SIGNATURE) or content[12:16] != b"IHDR" or len(content) < 33:
        raise DataError(
            f"{path}: expected a 16-bit RGB PNG, got a file that is not PNG or has no header; {_REMEDY}"
        )
    width, height, depth, colour = struct.unpack(">IIBB", content[16:26])
    if (depth, colour) != (16, 2):
        raise DataError(
            f"{path}: expected a 16-bit RGB PNG, got {depth} bits and colour type {colour}; {_REMEDY}"
        )
    if not 0 < width * height <= MAX_PIXELS:
        raise DataError(
            f"{path}: it has {width:,} × {height:,} pixels, expected at most {MAX_PIXELS:,}; {_REMEDY}"
        )
    place, kind = len(_PNG_SIGNATURE), b""
    while kind != b"IEND":
        length = int.from_bytes(content[place : place + 4], "big")
        end = place + 12 + length
        if end > len(content):
            raise DataError(f"{path}: the file is truncated after {len(content):,} bytes; {_REMEDY}")
        kind = content[place + 4 : place + 8]
        if zlib.crc32(content[place + 4 : end - 4]) != int.from_bytes(content[end - 4 : end], "big"):
            raise DataError(f"{path}: damaged at byte {place:,} (a checksum is wrong); {_REMEDY}")
        place = end
    return height, width
