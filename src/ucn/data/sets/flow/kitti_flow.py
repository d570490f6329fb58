"""KITTI optical flow of 2012 and 2015: sparse flow of street scenes from a laser scanner, as 16-bit PNG.

Only the training parts have public truth. The development kit's "noc" means that the place lies inside image
1, "occ" that it may lie outside too; neither says whether another object hides it there.
"""

from __future__ import annotations

import re
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.catalogue import DataInfo
from ucn.data.io import MAX_PIXELS
from ucn.data.pairs import check_choice
from ucn.data.sets.flow.dense import (
    DensePair,
    FilePairs,
    SizeHW,
    TruthFile,
    check_size,
    read_header_hw,
)
from ucn.data.sets.layout import find_image, find_root, read_binary
from ucn.errors import DataError

INFO = DataInfo(
    name="kitti-flow",
    title="KITTI optical flow 2012 and 2015",
    task="geometric",
    truth="sparse flow from a laser scanner, in 2015 with car models; the testing part has no public truth",
    layout=(
        "training/image_2/NNNNNN_10.png, NNNNNN_11.png (2015)",
        "training/colored_0/ or image_0/, the same (2012)",
        "training/flow_noc/NNNNNN_10.png and/or training/flow_occ/NNNNNN_10.png",
    ),
    splits=("training", "train", "val"),
    licence="CC BY-NC-SA 3.0: not for commercial use",
    source="https://www.cvlibs.net/datasets/kitti/eval_scene_flow.php?benchmark=flow",
    markers=("training/flow_noc", "training/flow_occ"),
    inside=("data_scene_flow", "data_stereo_flow"),
)

# The first four fifths by number: of 200 pairs in 2015 and 194 in 2012. Neighbours in number often come from
# one drive, so that a random choice would put almost the same street on both sides.
_TRAIN_COUNTS = {"image_2": 160, "colored_0": 155, "image_0": 155}
_REMEDY = "unpack it again"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def open_folder(folder: Path, split: str, *, truth: str = "auto") -> KittiFlow:
    """Opens KITTI flow.

    Args:
        folder: holds ``training``.
        split: training (all pairs), or train and val (its first 80 % by number, and the rest).
        truth: noc (places inside image 1), occ (all; those outside are dropped here, so the two give almost
            the same), or auto: noc where that folder exists, else occ.
    """
    check_choice(split, INFO.splits, "split")
    check_choice(truth, ("auto", "noc", "occ"), "option truth of kitti-flow")
    if (folder / "testing").is_dir() and not (folder / "training").is_dir():
        raise DataError(
            f"{folder} holds only KITTI's testing images, whose truth is not public; get training"
        )
    return KittiFlow(find_root(folder, INFO.markers, INFO.inside), split, truth)


class KittiFlow(FilePairs):
    """Frames 10 and 11 of each scene, with flow where the scanner measured."""

    def __init__(self, root: Path, split: str, truth: str) -> None:
        super().__init__(root)
        training = root / "training"
        images = next((training / name for name in _TRAIN_COUNTS if (training / name).is_dir()), None)
        if images is None:
            expected = " or ".join(_TRAIN_COUNTS)
            raise DataError(f"{training} has no images: expected the folder {expected} in it")
        if truth == "auto":
            truth = "noc" if (training / "flow_noc").is_dir() else "occ"
        flows = training / f"flow_{truth}"
        if not flows.is_dir():
            raise DataError(f"no folder {flows}: option truth={truth} needs it")
        train_count = _TRAIN_COUNTS[images.name]
        for number in sorted(_list_numbers(images) | _list_numbers(flows)):
            if split == "training" or (split == "train") == (int(number) < train_count):
                self._add(number, images, flows)
        self.require_pairs(split, f"{images.name}/NNNNNN_10.png with its number in it")

    def _add(self, number: str, images: Path, flows: Path) -> None:
        image0, image1 = find_image(images / f"{number}_10"), find_image(images / f"{number}_11")
        flow = flows / f"{number}_10.png"
        if image0 is None or image1 is None:
            frame = 10 if image0 is None else 11
            path = images / f"{number}_{frame}.png"
            self.add_fault(path, f"no such file, though scene {number} has others; unpack the images again")
        elif not flow.is_file():
            self.add_fault(flow, f"no such file, though scene {number} has images; unpack the flow again")
        else:
            self.pairs.append(DensePair(number, image0, image1, (TruthFile(flow, "flow"),)))

    def read_correspondences(
        self, pair: DensePair, image0_hw: SizeHW, image1_hw: SizeHW
    ) -> tuple[Tensor, Tensor]:
        """The measured pixels and where they go; about one in six was measured."""
        channels = read_channels(pair.truth[-1].path, pair.image0, image0_hw)
        known = np.flatnonzero(channels[..., 0])
        points0 = np.stack(np.divmod(known, channels.shape[1])[::-1], axis=-1).astype(np.float32)
        points1 = points0 + _to_vectors(channels.reshape(-1, 3)[known])
        return torch.from_numpy(points0), torch.from_numpy(points1)

    def check_truth(self, pair: DensePair, file: TruthFile) -> object:
        """Reads the flow."""
        return read_channels(file.path, pair.image0, read_header_hw(pair.image0))


def _to_vectors(channels: NDArray[np.uint16]) -> NDArray[np.float32]:
    vectors: NDArray[np.float32] = (channels[..., :0:-1].astype(np.float32) - 2**15) / np.float32(64)
    return vectors


def read_channels(path: Path, image: Path, image_hw: SizeHW | None) -> NDArray[np.uint16]:
    """Reads KITTI's flow: 16-bit RGB, u = (R - 2^15) / 64, v = (G - 2^15) / 64, known where B is not 0.

    That is the development kit's own description; vectors lead from pixel centre to place, with the centre of
    the top-left pixel at (0, 0), as here.

    Args:
        path: the file.
        image: the image it belongs to, for errors.
        image_hw: its size; None leaves that unchecked.

    Returns:
        (H, W, 3), channels in the order B, G, R.

    Raises:
        DataError: missing, truncated, damaged, not 16-bit RGB, or not as large as the image.
    """
    content = read_binary(path, "flow")
    check_size(path, _check_png(content, path), image, image_hw)
    try:
        # OpenCV, since Pillow cuts 16-bit colour to 8 bits; it gives the channels as B, G, R.
        channels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        channels = None
    if channels is None or channels.dtype != np.uint16 or channels.shape[2:] != (3,):
        raise DataError(f"{path}: expected a 16-bit RGB PNG, got one that cannot be decoded; {_REMEDY}")
    return np.asarray(channels)


def _list_numbers(folder: Path) -> set[str]:
    """The scenes whose frame 10 is in a folder; the multi-view extension's other frames are not needed."""
    found = (re.fullmatch(r"([0-9]{6})_10\.[a-z]+", path.name) for path in folder.iterdir())
    return {match[1] for match in found if match}


def _check_png(content: bytes, path: Path) -> SizeHW:
    """(H, W) of a whole 16-bit RGB PNG. Decoders forgive a missing end, and fill it with zeros."""
    if not content.startswith(_PNG_SIGNATURE) or content[12:16] != b"IHDR" or len(content) < 33:
        raise DataError(
            f"{path}: expected a 16-bit RGB PNG, got a file that is no PNG or has no header; {_REMEDY}"
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
