"""A KITTI drive: its files, how it moved between two scans, and what in a scan moved by itself."""

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
from ucn.data.sets.posed.views import Array, RecentCache, invert, move
from ucn.errors import DataError

_MIN_TRAVEL = 1.0  # metres that a labelled vehicle's box travels before it counts as moving
_TRAVEL_SAMPLES = 8  # places of a box at which that is looked at


@dataclass(frozen=True)
class Drive:
    """The files of a drive.

    Attributes:
        name: of its folder.
        folder: where it lies.
        images: the image of each frame.
        scans: the frames that have a scan.
        has_oxts: poses come from the GPS/IMU unit, not from the scans.
        labels: the file of labelled boxes in use.
        masks: the folder of masks in use.
        use_scans: moving things are found by comparing scans.
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
        """The frames with a scan from one frame to another, in that order; alignment goes through them."""
        step = 1 if first <= second else -1
        return [number for number in range(first, second + step, step) if number in self.scans]

    def neighbour(self, number: int) -> int | None:
        """The frame whose scan a frame's is compared with to find what moves, where that is done."""
        if self.labels is not None or not self.use_scans:
            return None
        return next((other for other in (number + 1, number - 1) if other in self.scans), None)

    def mask(self, number: int) -> Path | None:
        """The mask of a frame, where masks are in use."""
        return None if self.masks is None else self.masks / f"{number:010d}.png"


class DriveMotion:
    """Motions of cars and of things, computed when first asked for and kept for a while."""

    def __init__(self, camera: int) -> None:
        self._camera = camera
        self._rigs: RecentCache[Path, Rig] = RecentCache(8)
        self._units: RecentCache[Path, Array] = RecentCache(8)
        self._latitudes: RecentCache[str, float] = RecentCache(256)
        self._surfaces: RecentCache[Path, Surface] = RecentCache(4)
        self._alignments: RecentCache[tuple[str, int, int], Array] = RecentCache(256)
        self._flags: RecentCache[tuple[str, int], Flags] = RecentCache(16)
        self._boxes: RecentCache[str, list[Tracklet]] = RecentCache(4)

    def rig(self, drive: Drive) -> Rig:
        """The calibration of the day."""
        return self._rigs.get(drive.day, partial(read_rig, drive.day, self._camera))

    def of_camera(self, drive: Drive, first: int, second: int) -> Array:
        """T_0to1 (4, 4) of the camera."""
        mount = self.rig(drive).T_scan_to_camera
        T: Array = mount @ self.of_scanner(drive, first, second) @ invert(mount)
        return T

    def of_scanner(self, drive: Drive, first: int, second: int) -> Array:
        """The motion (4, 4) that takes points of one frame's scan to another frame's scanner."""
        if drive.has_oxts:
            T: Array = invert(self._pose(drive, second)) @ self._pose(drive, first)
            return T
        key = drive.name, first, second
        return self._alignments.get(key, partial(self._align, drive, first, second))

    def moving(self, drive: Drive, number: int) -> Flags:
        """Which points of a frame's scan are on something that moves, by labelled boxes or by scans."""
        return self._flags.get((drive.name, number), partial(self._find_moving, drive, number))

    def _find_moving(self, drive: Drive, number: int) -> Flags:
        scan = read_scan(drive.scan(number))
        is_moving = np.zeros(len(scan), np.bool_)
        if drive.labels is not None:
            for box in self._boxes.get(drive.name, partial(self._find_boxes, drive)):
                is_moving |= box.contains(scan, number)
        elif (other := drive.neighbour(number)) is not None:
            surface, T = self._surface(drive.scan(other)), self.of_scanner(drive, number, other)
            if drive.has_oxts:  # an error of 0.1 degrees is 5 cm at 30 m
                with suppress(DataError):  # scans too bare to align: the unit must do
                    T = self._align_from(drive, number, other, [T])
            is_moving = find_moving(scan, surface, T)
        return is_moving

    def _find_boxes(self, drive: Drive) -> list[Tracklet]:
        """The labelled boxes of things that move: people, and vehicles that travel."""
        boxes = [] if drive.labels is None else read_tracklets(drive.labels)
        return [box for box in boxes if box.kind in PEOPLE or self._travels(drive, box)]

    def _travels(self, drive: Drive, box: Tracklet) -> bool:
        """Whether a box changes its place in the world; without poses of the unit, that is not known."""
        if not drive.has_oxts:
            return True
        rows = np.unique(np.linspace(0, len(box.places) - 1, _TRAVEL_SAMPLES).astype(np.int64))
        places: list[Array] = []
        for row in rows.tolist() if len(box.places) else []:
            if box.first_frame + row in drive.images:
                with suppress(DataError):  # a bad packet of another frame is its own pairs' fault
                    T = self._pose(drive, box.first_frame + row)
                    places.append(move(T, box.places[row : row + 1, :3])[0])
        return any(float(np.linalg.norm(place - places[0])) > _MIN_TRAVEL for place in places)

    def _pose(self, drive: Drive, number: int) -> Array:
        """The scanner's pose (4, 4), scanner to world."""
        unit = self._units.get(drive.day, partial(read_unit, drive.day))
        first = min(drive.images)
        latitude = self._latitudes.get(drive.name, lambda: read_packet(drive.oxts(first))[0])
        T: Array = pose_of(read_packet(drive.oxts(number)), latitude) @ invert(unit)
        return T

    def _align(self, drive: Drive, first: int, second: int) -> Array:
        """The motion between two scans, begun from the steps between them."""
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
            raise DataError(f"{paths[0]}: cannot be aligned with {paths[1].name}: too few surfaces") from None
        except DataError as error:
            if str(error).startswith(str(drive.folder)):
                raise
            raise DataError(f"{paths[0]}: cannot be aligned with {paths[1].name}: {error}") from error

    def _surface(self, path: Path) -> Surface:
        return self._surfaces.get(path, lambda: Surface.of(read_scan(path)))
