"""A KITTI drive: its files, the motion of the car between scans, and moving objects in a scan."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from ucn.data.sets.kitti.rig import Rig, pose_of, read_packet, read_rig, read_unit
from ucn.data.sets.kitti.tracklets import PEOPLE, Tracklet, read_tracklets
from ucn.data.sets.kitti.velodyne import Flags, Surface, align_scans, find_moving, guess_motions, read_scan
from ucn.data.sets.posed.posed_pairs import Array, invert, move
from ucn.errors import DataError
from ucn.files.recent import RecentItems

_MIN_TRAVEL = 1.0  # metres that the box of a vehicle must travel to count as moving
_TRAVEL_SAMPLES = 8  # positions of a box that are compared


@dataclass(frozen=True)
class Drive:
    """The files of a drive.

    Attributes:
        name: name of its folder.
        folder: its folder.
        images: the image of each frame.
        scans: the frames with a scan.
        has_oxts: poses come from the GPS/IMU unit, not from aligned scans.
        labels: the file of labelled boxes, where used.
        masks: the folder of masks, where used.
        use_scans: moving objects are found by comparing scans.
    """

    name: str
    folder: Path
    images: dict[int, Path]
    scans: frozenset[int]
    has_oxts: bool
    labels: Path | None
    masks: Path | None
    use_scans: bool

    @property
    def day(self) -> Path:
        """The folder with the day's calibration."""
        return self.folder.parent

    def scan(self, number: int) -> Path:
        """The scan of a frame."""
        return self.folder / "velodyne_points" / "data" / f"{number:010d}.bin"

    def oxts(self, number: int) -> Path:
        """The GPS/IMU packet of a frame."""
        return self.folder / "oxts" / "data" / f"{number:010d}.txt"

    def scans_between(self, first: int, second: int) -> list[int]:
        """The frames with a scan from one frame to another, in that order, for chained alignment."""
        step = 1 if first <= second else -1
        return [number for number in range(first, second + step, step) if number in self.scans]

    def neighbour(self, number: int) -> int | None:
        """The frame whose scan is compared with a frame's to find moving objects; None where unused."""
        if self.labels is not None or not self.use_scans:
            return None
        return next((other for other in (number + 1, number - 1) if other in self.scans), None)

    def mask(self, number: int) -> Path | None:
        """The mask of a frame, where masks are used."""
        return None if self.masks is None else self.masks / f"{number:010d}.png"


class DriveMotion:
    """Motion of the car, and moving objects; computed on demand and cached."""

    def __init__(self, camera: int) -> None:
        self._camera = camera
        self._rigs: RecentItems[Path, Rig] = RecentItems(8)
        self._units: RecentItems[Path, Array] = RecentItems(8)
        self._latitudes: RecentItems[str, float] = RecentItems(256)
        self._surfaces: RecentItems[Path, Surface] = RecentItems(4)
        self._alignments: RecentItems[tuple[str, int, int], Array] = RecentItems(256)
        self._flags: RecentItems[tuple[str, int], Flags] = RecentItems(16)
        self._boxes: RecentItems[str, list[Tracklet]] = RecentItems(4)

    def rig(self, drive: Drive) -> Rig:
        """The calibration of the day."""
        return self._rigs.get_or_make(drive.day, partial(read_rig, drive.day, self._camera))

    def of_camera(self, drive: Drive, first: int, second: int) -> Array:
        """T_0to1 (4, 4) of the camera."""
        mount = self.rig(drive).T_scan_to_camera
        T: Array = mount @ self.of_scanner(drive, first, second) @ invert(mount)
        return T

    def of_scanner(self, drive: Drive, first: int, second: int) -> Array:
        """The motion (4, 4) from the scanner at one frame to the scanner at another."""
        if drive.has_oxts:
            T: Array = invert(self._pose(drive, second)) @ self._pose(drive, first)
            return T
        key = drive.name, first, second
        return self._alignments.get_or_make(key, partial(self._align, drive, first, second))

    def moving(self, drive: Drive, number: int) -> Flags:
        """Which points of a frame's scan are on moving objects, by labelled boxes or by comparing scans."""
        return self._flags.get_or_make((drive.name, number), partial(self._find_moving, drive, number))

    def _find_moving(self, drive: Drive, number: int) -> Flags:
        scan = read_scan(drive.scan(number))
        is_moving = np.zeros(len(scan), np.bool_)
        if drive.labels is not None:
            for box in self._boxes.get_or_make(drive.name, partial(self._find_boxes, drive)):
                is_moving |= box.contains(scan, number)
        elif (other := drive.neighbour(number)) is not None:
            surface, T = self._surface(drive.scan(other)), self.of_scanner(drive, number, other)
            if drive.has_oxts:  # the unit's error of 0.1 degrees is 5 cm at 30 m
                with suppress(DataError):  # scans with too little structure to align: use the unit
                    T = self._align_from(drive, number, other, [T])
            is_moving = find_moving(scan, surface, T)
        return is_moving

    def _find_boxes(self, drive: Drive) -> list[Tracklet]:
        """The labelled boxes of moving objects: people, and vehicles that travel."""
        boxes = [] if drive.labels is None else read_tracklets(drive.labels)
        return [box for box in boxes if box.kind in PEOPLE or self._travels(drive, box)]

    def _travels(self, drive: Drive, box: Tracklet) -> bool:
        """Whether a box moves in the world; assumed where the unit gives no poses."""
        if not drive.has_oxts:
            return True
        rows = np.unique(np.linspace(0, len(box.places) - 1, _TRAVEL_SAMPLES).astype(np.int64))
        places: list[Array] = []
        for row in rows.tolist() if len(box.places) else []:
            if box.first_frame + row in drive.images:
                with suppress(
                    DataError
                ):  # a faulty packet of another frame is reported with that frame's pairs
                    T = self._pose(drive, box.first_frame + row)
                    places.append(move(T, box.places[row : row + 1, :3])[0])
        return any(float(np.linalg.norm(place - places[0])) > _MIN_TRAVEL for place in places)

    def _pose(self, drive: Drive, number: int) -> Array:
        """The pose (4, 4) of the scanner, scanner to world."""
        unit = self._units.get_or_make(drive.day, partial(read_unit, drive.day))
        first = min(drive.images)
        latitude = self._latitudes.get_or_make(drive.name, lambda: read_packet(drive.oxts(first))[0])
        T: Array = pose_of(read_packet(drive.oxts(number)), latitude) @ invert(unit)
        return T

    def _align(self, drive: Drive, first: int, second: int) -> Array:
        """The motion between two scans, initialised with the chain of motions between neighbours."""
        between = drive.scans_between(first, second)
        if len(between) <= 2:
            starts = guess_motions(abs(second - first))
            return self._align_from(
                drive, first, second, starts if first < second else [*map(invert, starts)]
            )
        chain = np.eye(4)
        for start, end in pairwise(between):
            chain = self.of_scanner(drive, start, end) @ chain
        return self._align_from(drive, first, second, [chain])

    def _align_from(self, drive: Drive, first: int, second: int, starts: list[Array]) -> Array:
        paths = drive.scan(first), drive.scan(second)
        try:
            return align_scans(read_scan(paths[0]), self._surface(paths[1]), starts)
        except np.linalg.LinAlgError:
            raise DataError(
                f"{paths[0]}: cannot be aligned with {paths[1].name}: too few surfaces; use other frames"
            ) from None
        except DataError as error:
            if str(error).startswith(str(drive.folder)):
                raise
            raise DataError(f"{paths[0]}: cannot be aligned with {paths[1].name}: {error}") from error

    def _surface(self, path: Path) -> Surface:
        return self._surfaces.get_or_make(path, lambda: Surface.of(read_scan(path)))
