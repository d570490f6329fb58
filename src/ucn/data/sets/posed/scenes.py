"""A folder of scenes, each a sparse reconstruction of COLMAP: pairs of real views, with wide baselines."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from ucn.data.checking import spread
from ucn.data.descriptions import COLMAP
from ucn.data.pairs import DataFile, PairData, Selection, check_index
from ucn.data.sets.layout import check_folder, find_root
from ucn.data.sets.posed import colmap
from ucn.data.sets.posed.colmap import ColmapData
from ucn.errors import DataError
from ucn.files.suggestions import suggest
from ucn.types import PairSample

_ANGLES = (10.0, 20.0, 35.0, 60.0)
"""Bounds between groups of angles, which balanced pairs have in equal shares."""
_BALANCED = 400
"""Balanced pairs of a scene."""


def open_folder(
    folder: Path,
    split: str,
    *,
    scenes: str = "",
    min_shared: int = 30,
    max_error: float = 2.0,
    balanced: bool = False,
) -> ScenesData:
    """Opens the scenes of a folder.

    Args:
        folder: holds a folder for each scene.
        split: all.
        scenes: names of the scenes to use, separated by commas; all where empty.
        min_shared: the least number of common 3D points of a pair.
        max_error: 3D points with a mean reprojection error above this, in pixels, are excluded; 0 keeps all.
        balanced: choose or repeat pairs, so that all scenes, and in each all angles between the views, are
            equally frequent; for training.
    """
    names = [name.strip() for name in scenes.split(",") if name.strip()]
    return ScenesData(folder, find_scenes(folder, names), min_shared, max_error, balanced)


class ScenesData(PairData):
    """The pairs of several sparse reconstructions."""

    def __init__(
        self, root: Path, places: Sequence[Path], min_shared: int, max_error: float, balanced: bool
    ) -> None:
        super().__init__(root)
        self._names = [place.name for place in places]
        self._scenes: list[PairData] = []
        for place in places:
            scene = colmap.open_folder(place, "all", min_shared=min_shared, max_error=max_error)
            self.problems += scene.problems
            self.notes += scene.notes
            self._scenes.append(Selection(scene, _balance(scene)) if balanced else scene)
        self._ends = list(accumulate(len(scene) for scene in self._scenes))

    def __len__(self) -> int:
        return self._ends[-1]

    def pair_name(self, index: int) -> str:
        """The scene, and the names of the two images in its reconstruction."""
        scene, row = self._find(index)
        return f"{self._names[scene]}/{self._scenes[scene].pair_name(row)}"

    def pair_class(self, index: int) -> str:
        """The scene."""
        return self._names[self._find(index)[0]]

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files."""
        scene, row = self._find(index)
        return self._scenes[scene].image_paths(row)

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images, and the files of the reconstruction."""
        scene, row = self._find(index)
        return self._scenes[scene].pair_files(row)

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each 3D point that both images observe."""
        scene, row = self._find(index)
        return replace(self._scenes[scene].read(row), name=self.pair_name(index))

    def files(self) -> Sequence[DataFile]:
        """The images of all scenes."""
        return [file for scene in self._scenes for file in scene.files()]

    def _find(self, index: int) -> tuple[int, int]:
        check_index(index, len(self))
        scene = bisect_right(self._ends, index)
        return scene, index - (self._ends[scene - 1] if scene else 0)


def find_scenes(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """The scenes of a folder, or the folder itself where it is one.

    Args:
        folder: holds a folder for each scene.
        names: of the scenes to use; all where empty.

    Raises:
        DataError: there is none, or none of a given name.
    """
    check_folder(folder, "the folder of the scenes")
    places = [folder] if _is_scene(folder) else sorted(p for p in folder.iterdir() if p.is_dir())
    found = {place.name: place for place in places if _is_scene(place)}
    if not found:
        raise DataError(
            f"{folder} does not have the expected layout: no scene in it; expected folders with images/ and "
            "sparse/, of COLMAP; give their folder"
        )
    for name in names:
        if name not in found:
            listed = ", ".join(found)
            raise DataError(f"no scene '{name[:80]}' in {folder}{suggest(name, found)} (there are {listed})")
    return [place for name, place in found.items() if not names or name in names]


def _is_scene(folder: Path) -> bool:
    try:
        find_root(folder, COLMAP.markers, COLMAP.inside)
    except DataError:
        return False
    return True


def _balance(scene: ColmapData) -> list[int]:
    """Indices of `_BALANCED` pairs, of each group of angles in turn; none where the scene has no pair.

    Of a group with more pairs than that, they are evenly spaced.
    """
    groups: dict[int, list[int]] = {}
    for index in range(len(scene)):
        median = float(scene.triangulation_angles(index).nanmedian())
        if math.isnan(median):
            continue
        groups.setdefault(bisect_right(_ANGLES, median), []).append(index)
    share = -(-_BALANCED // max(1, len(groups)))
    queues = [_repeat(groups[key], share) for key in sorted(groups)]
    return [index for turn in zip(*queues, strict=True) for index in turn][:_BALANCED]


def _repeat(indices: Sequence[int], count: int) -> list[int]:
    """`count` of the indices: evenly spaced, or repeated where there are fewer."""
    if len(indices) > count:
        return [indices[row] for row in spread(len(indices), count)]
    return [indices[row % len(indices)] for row in range(count)]
