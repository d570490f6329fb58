"""KITTI raw: drives with laser scans and a GPS/IMU unit; scanned points are projected into two frames.

Pixels are used as published: KITTI counts them from 0, with centres at integers, as here.

Pairs are all frames t and t + g of a drive, with g from min_gap to max_gap. The points of scan t are
projected into both images with the calibration and the unit's poses. Excluded are points that a nearer point
occludes in either image, points that scan t + g shows to be gone, and moving objects: by labels where a drive
has them (tracklet_labels.xml, or masks of your own), otherwise by comparing neighbouring scans.

A drive without oxts has no poses. They are then estimated by aligning its scans, for frames at most
`MAX_ALIGNED_GAP` apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ucn.data.descriptions import KITTI_RAW as INFO
from ucn.data.io import image_hw, read_header_hw, read_image, read_mask
from ucn.data.pairs import DataFile, check_choice
from ucn.data.sets.kitti.drives import Drive, DriveMotion
from ucn.data.sets.kitti.rig import (
    CAMERA_FILE,
    SCANNER_FILE,
    UNIT_FILE,
    read_packet,
    read_rectified_camera,
    read_scanner,
    read_unit,
)
from ucn.data.sets.kitti.tracklets import read_tracklets
from ucn.data.sets.kitti.velodyne import read_scan
from ucn.data.sets.layout import find_root, list_numbered
from ucn.data.sets.posed.posed_pairs import (
    Array,
    SequenceData,
    check_gaps,
    make_sample,
    move,
    to_batch,
)
from ucn.errors import DataError
from ucn.geometry.coords import is_inside
from ucn.geometry.warp import is_hidden, is_seen_through, nearest_depths, project
from ucn.types import PairSample

MAX_ALIGNED_GAP = 5
"""Frames; alignments of scans further apart are not reliable."""

EXCLUDED_DRIVES = {
    17: "its scenes are mostly static",
    18: "its scenes are mostly static",
    60: "its scenes are mostly static",
    93: "its GPS/IMU data are too noisy",
}
"""Drives of 2011_09_26 that the paper excludes, with its reasons; split all has them, with a note."""

_DAY = "2011_09_26"  # of all drives of the paper
# Table "KITTI Correspondence Dataset" of the paper: city, road, residential. 79 and 84 are in both.
_PAPER_TRAIN = frozenset(
    {
        *(1, 2, 5, 9, 11, 13, 14, 27, 28, 29, 48, 51, 56, 57, 59, 84),
        *(15, 32),
        *(19, 20, 22, 23, 35, 36, 39, 46, 61, 64, 79),
    }
)
_PAPER_TEST = frozenset({*(84, 91), *(52, 70), *(79, 86, 87)})
_SPLITS = {
    "train": _PAPER_TRAIN - _PAPER_TEST,
    "test": _PAPER_TEST,
    "paper-train": _PAPER_TRAIN,
    "paper-test": _PAPER_TEST,
}
_FRAME = "([0-9]{{10}})\\.(?:{})"  # to be formatted with the suffixes
_NAME = re.compile(r"([0-9]{4}_[0-9]{2}_[0-9]{2})_drive_(\w+)_sync")
_TOLERANCE = 0.08  # relative difference of depth that separates two surfaces


def open_folder(
    folder: Path,
    split: str,
    *,
    min_gap: int = 1,
    max_gap: int = 30,
    poses: str = "auto",
    moving: str = "auto",
    mask_folder: str = "",
    camera: int = 2,
) -> KittiRaw:
    """Opens KITTI raw.

    Args:
        folder: holds the folders of the days.
        split: train and test without a common drive (train includes recordings without an official number);
            all drives, including those that the paper excludes (`EXCLUDED_DRIVES`); or paper-train and
            paper-test as printed, which share drives 79 and 84.
        min_gap: the second frame of a pair comes at least this many frames after the first.
        max_gap: the second frame of a pair comes at most this many frames after the first.
        poses: oxts (GPS/IMU unit), icp (scans aligned), or auto: oxts where a drive has it, else icp.
        moving: how moving objects are found: labels, scans, auto (labels where present, else scans), or keep
            to include them.
        mask_folder: a folder of your own masks, DRIVE/NNNNNNNNNN.png for each frame, non-zero where something
            moves; relative to the data folder or absolute; replaces the labels.
        camera: the camera whose images are used, 0 to 3; 2 is the left colour camera.
    """
    check_gaps(min_gap, max_gap, INFO.name)
    check_choice(poses, ("auto", "oxts", "icp"), f"option poses of {INFO.name}")
    check_choice(moving, ("auto", "labels", "scans", "keep"), f"option moving of {INFO.name}")
    check_choice(str(camera), "0123", f"option camera of {INFO.name}")
    root = find_root(folder, INFO.markers, INFO.inside)
    masks = root / mask_folder if mask_folder else None
    if masks is not None and not masks.is_dir():
        raise DataError(f"no folder {masks}: option mask_folder of {INFO.name} needs it")
    return KittiRaw(root, split, _Settings((min_gap, max_gap), poses, moving, masks, camera))


@dataclass(frozen=True)
class _Settings:
    gaps: tuple[int, int]
    poses: str
    moving: str
    masks: Path | None
    camera: int


class KittiRaw(SequenceData[Drive]):
    """Frames of one drive, of which the first has a scan."""

    digits = 10

    def __init__(self, root: Path, split: str, settings: _Settings) -> None:
        super().__init__(root)
        self._settings = settings
        self._poses = DriveMotion(settings.camera)
        for folder in sorted(root.glob("*/*_drive_*_sync")):
            # Folders of masks contain drives, too.
            if folder.name.startswith(f"{folder.parent.name}_drive_") and _is_in_split(folder.name, split):
                self._index(folder)
        low, high = settings.gaps
        self.require_pairs(
            split,
            f"no drive of it in {root} has two frames {low} to {high} apart; try split all, or change "
            "min_gap and max_gap",
        )

    def _index(self, folder: Path) -> None:
        """Adds a drive, or records why it is excluded."""
        settings = self._settings
        images = folder / f"image_{settings.camera:02d}" / "data"
        has_oxts = settings.poses == "oxts" or (settings.poses == "auto" and (folder / "oxts").is_dir())
        files = [folder.parent / name for name in (CAMERA_FILE, SCANNER_FILE)]
        files += [folder.parent / UNIT_FILE, folder / "oxts" / "data"] if has_oxts else []
        for path in (*files, images, folder / "velodyne_points" / "data"):
            if not (path.is_file() if path.suffix else path.is_dir()):
                message = f"missing, so that drive {folder.name} is excluded; unpack it beside the others"
                self.add_problem(path, message)
                return
        frames = list_numbered(images, _FRAME.format("png|jpe?g"))
        masks = None if settings.masks is None else settings.masks / folder.name
        labels = folder / "tracklet_labels.xml"
        use_labels = settings.moving in ("auto", "labels") and masks is None and labels.is_file()
        drive = Drive(
            name=folder.name,
            folder=folder,
            images=self._keep_complete(frames, folder, has_oxts, masks),
            scans=frozenset(list_numbered(folder / "velodyne_points" / "data", _FRAME.format("bin"))),
            has_oxts=has_oxts,
            labels=labels if use_labels else None,
            masks=masks if settings.moving != "keep" else None,
            use_scans=settings.moving == "scans" or (settings.moving == "auto" and masks is None),
        )
        if settings.moving == "labels" and masks is None and not use_labels:
            message = f"missing, so that {folder.name} is excluded; unpack it there, or use moving=scans"
            self.add_problem(labels, message)
            return
        self._add(drive)

    def _keep_complete(
        self, frames: dict[int, Path], folder: Path, has_oxts: bool, masks: Path | None
    ) -> dict[int, Path]:
        """The frames with a pose, where poses are measured, and with a mask, where masks are used."""
        places = [(folder / "oxts" / "data", "txt", "GPS/IMU packet")] if has_oxts else []
        places += [(masks, "png", "mask")] if masks is not None else []
        for place, suffix, what in places:
            present = list_numbered(place, _FRAME.format(suffix))
            missing = sorted(frames.keys() - present.keys())
            if missing:
                message = (
                    f"no {what}, as for {len(missing)} of {len(frames)} frames of {folder.name}; they are "
                    "excluded; unpack it again"
                )
                path = place / f"{missing[0]:010d}.{suffix}"
                self.add_problem(path, message)
            frames = {number: path for number, path in frames.items() if number in present}
        return frames

    def _add(self, drive: Drive) -> None:
        min_gap, max_gap = self._settings.gaps
        missing = sorted(drive.images.keys() - drive.scans)
        if missing:
            message = (
                f"no scan, as for {len(missing)} of {len(drive.images)} frames of {drive.name}; they are not "
                "used as the first of a pair; unpack it again (of drive 0009 four were never published)"
            )
            self.add_problem(drive.scan(missing[0]), message)
        seconds = set(drive.images)
        if not drive.has_oxts:
            seconds &= drive.scans
            max_gap = min(max_gap, MAX_ALIGNED_GAP)
            self.notes.append(
                f"{drive.name}: poses from aligned scans, for pairs at most {MAX_ALIGNED_GAP} frames apart"
                + ("" if self._settings.poses == "icp" else ", since it has no oxts")
            )
        if (number := _official_number(drive.name)) in EXCLUDED_DRIVES:
            reason = EXCLUDED_DRIVES[number]
            self.notes.append(f"{drive.name}: the paper excludes this drive, since {reason}")
        self.add_sequence(drive, drive.images.keys() & drive.scans, seconds, min_gap, max_gap)

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two images."""
        drive, first, second = self.locate(index)
        return drive.images[first], drive.images[second]

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """Images, calibration, poses, labels or masks, and scans, that of the first frame last."""
        drive, first, second = self.locate(index)
        files = [*self.image_paths(index), drive.day / CAMERA_FILE, drive.day / SCANNER_FILE]
        if drive.has_oxts:
            files += [drive.day / UNIT_FILE, drive.oxts(first), drive.oxts(second)]
        files += [path for path in (drive.labels, drive.mask(first), drive.mask(second)) if path is not None]
        neighbour = drive.neighbour(first)
        scans = {second, first if neighbour is None else neighbour} & drive.scans
        scans |= set() if drive.has_oxts else set(drive.scans_between(first, second))
        return *files, *(drive.scan(number) for number in sorted(scans - {first})), drive.scan(first)

    def motion(self, sequence: Drive, first: int, second: int) -> Array:
        """T_0to1 (4, 4) of the rectified camera."""
        return self._poses.of_camera(sequence, first, second)

    def camera_matrix(self, sequence: Drive) -> Array:
        """K (3, 3) of the rectified camera."""
        return self._poses.rig(sequence).K

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each point of the first scan that both images show."""
        drive, first, second = self.locate(index)
        image0, image1 = (read_image(path) for path in self.image_paths(index))
        rig = self._poses.rig(drive)
        K, T_0to1 = to_batch(rig.K), to_batch(self.motion(drive, first, second))
        space0 = to_batch(move(rig.T_scan_to_camera, read_scan(drive.scan(first))))
        is_kept = ~torch.from_numpy(self._poses.moving(drive, first))
        points0, depth0 = project(space0, K)
        is_kept &= ~_is_hidden_among(points0, depth0, points0, depth0, image_hw(image0))
        points1, depth1 = project(space0, K, T_0to1)
        others1, other_depth1 = points1[:, is_kept], depth1[:, is_kept]
        hw1 = image_hw(image1)
        if second in drive.scans:
            space1 = to_batch(move(rig.T_scan_to_camera, read_scan(drive.scan(second))))
            own1, own_depth1 = project(space1, K)
            nearest = nearest_depths(own1, own_depth1, hw1)
            is_kept &= ~is_seen_through(points1, depth1, nearest, tolerance=_TOLERANCE)[0]
            others1 = torch.cat([others1, own1], dim=1)
            other_depth1 = torch.cat([other_depth1, own_depth1], dim=1)
        is_kept &= ~_is_hidden_among(points1, depth1, others1, other_depth1, hw1)
        for number, points, image in ((first, points0, image0), (second, points1, image1)):
            if (mask := drive.mask(number)) is not None:
                is_kept &= ~_is_on_mask(points[0], mask, image_hw(image))
        return make_sample(image0, image1, points0[0, is_kept], points1[0, is_kept], self.pair_name(index))

    def files(self) -> Sequence[DataFile]:
        """Images, scans, poses, calibrations, labels and masks."""
        found: dict[Path, DataFile] = {}

        def add(path: Path, kind: str, check: Callable[[], object]) -> None:
            found.setdefault(path, DataFile(path, kind, check))

        for drive in self.sequences:
            camera = partial(read_rectified_camera, drive.day, self._settings.camera)
            add(drive.day / CAMERA_FILE, "calibration", camera)
            add(drive.day / SCANNER_FILE, "calibration", partial(read_scanner, drive.day))
            if drive.has_oxts:
                add(drive.day / UNIT_FILE, "calibration", partial(read_unit, drive.day))
            if drive.labels is not None:
                add(drive.labels, "labels", partial(read_tracklets, drive.labels))
            for number, image in drive.images.items():
                found.setdefault(image, DataFile.image(image))
                if drive.has_oxts:
                    add(drive.oxts(number), "pose", partial(read_packet, drive.oxts(number)))
                if (mask := drive.mask(number)) is not None:
                    add(mask, "mask", partial(_check_mask, mask, image))
                if number in drive.scans:
                    add(drive.scan(number), "scan", partial(read_scan, drive.scan(number)))
        return list(found.values())


def _is_hidden_among(
    points: Tensor, depth: Tensor, others: Tensor, other_depth: Tensor, hw: tuple[int, int]
) -> Tensor:
    """Bool (N,): which points are occluded by others."""
    nearest = nearest_depths(others, other_depth, hw)
    return is_hidden(points, depth, nearest, tolerance=_TOLERANCE)[0]


def _is_on_mask(points: Tensor, mask: Path, hw: tuple[int, int]) -> Tensor:
    """Bool (N,): which points lie on a non-zero pixel of a mask."""
    is_masked = read_mask(mask, hw)
    is_on_image = is_inside(points, hw)
    pixels = points.where(is_on_image[:, None], 0).round().long()
    columns, rows = pixels[:, 0].clamp(0, hw[1] - 1), pixels[:, 1].clamp(0, hw[0] - 1)
    return is_on_image & is_masked[rows, columns]


def _check_mask(mask: Path, image: Path) -> object:
    hw = read_header_hw(image)
    return read_image(mask) if hw is None else read_mask(mask, hw)


def _is_in_split(name: str, split: str) -> bool:
    match = _NAME.fullmatch(name)
    if match is None or split == "all":
        return match is not None
    if not re.fullmatch("[0-9]+", match[2]):  # not KITTI's: a recording of somebody else
        return split == "train"
    return _official_number(name) in _SPLITS[split]


def _official_number(name: str) -> int:
    """The number of a drive of the day that the paper uses; -1 for others."""
    match = re.fullmatch(rf"{_DAY}_drive_([0-9]+)_sync", name)
    return -1 if match is None else int(match[1])
