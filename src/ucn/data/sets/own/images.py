"""Your own images with named points: any two images of a class are a pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ucn.data.pairs import check_choice
from ucn.data.sets.own.files import Parts
from ucn.data.sets.own.labels import LabelledObject, Labels
from ucn.data.sets.semantic.keypoint_pairs import KeypointData
from ucn.data.sets.semantic.parts import Box, Example, Keypoints, mirror_by_names, object_window
from ucn.errors import DataError

LENGTHS = ("auto", "image", "points")
"""PCK's length: that of the file, its box or the image; the image; or the box of the points."""

_MARGIN = 0.25  # of the longer side of the box of the points, where a crop has no other box


class OwnImages(KeypointData):
    """Pairs of annotated images.

    Attributes:
        part_names: names of all parts.
    """

    def __init__(
        self,
        root: Path,
        labels: Labels,
        split: str,
        *,
        parts: Parts | None,
        pairing: str,
        crop: bool,
        length: str,
        mirror_names: bool,
    ) -> None:
        """Makes the pairs.

        Args:
            root: the folder.
            labels: its points.
            split: all, or one of the splits that the points assign.
            parts: the names of ``parts.csv``, if there is one.
            pairing: one of `ucn.data.sets.semantic.keypoint_pairs.PAIRINGS`.
            crop: crop to each object.
            length: one of `LENGTHS`.
            mirror_names: whether left and right in names mark mirror parts.

        Raises:
            DataError: there is no pair, and no problem that explains it.
        """
        if split != "all" and not labels.has_splits:
            file = labels.shared_file or root
            raise DataError(
                f"{file} does not assign images to split '{split}'; add a column split or use split all"
            )
        check_choice(length, LENGTHS, "length")
        self.part_names = labels.part_names
        self._crop, self._length = crop, length
        self._mirror = None if parts is None else parts.mirror
        if parts is None and mirror_names:
            self._mirror = mirror_by_names(labels.part_names)
        self._objects = labels.objects
        chosen = [row for row, each in enumerate(self._objects) if split in ("all", each.split)]
        notes = list(labels.notes)
        if not crop:
            chosen = _leave_out_crowds(self._objects, chosen, notes)
        self._has_boxes = all(self._objects[row].box is not None for row in chosen)
        is_shared = labels.shared_file is not None
        examples = [_make_example(self._objects[row], row, is_shared) for row in chosen]
        lists = () if labels.shared_file is None else (labels.shared_file,)
        super().__init__(root, examples, pairing, None, lists, labels.problems, notes)
        self.require_pairs(split, f"{self._explain_empty()}{''.join(f'; {note}' for note in notes)}")

    def keypoints(self, example: Example) -> Keypoints:
        """The parts of an object; those that it does not have are not visible."""
        labelled = self._objects[example.key]
        count = len(self.part_names)
        points, is_visible = np.full((count, 2), np.nan), np.zeros(count, np.bool_)
        places = [f"{labelled.annotation}"] * count
        points[labelled.parts], is_visible[labelled.parts] = labelled.points, True
        for part, place in zip(labelled.parts.tolist(), labelled.places, strict=True):
            places[part] = place
        box = labelled.box
        if self._crop and box is None:
            box = _enlarge(labelled.points)
        return Keypoints(
            points,
            is_visible,
            labelled.annotation,
            box=box,
            length=self._find_length(labelled),
            places=places,
        )

    def _find_length(self, labelled: LabelledObject) -> float | None:
        """The length of PCK, if the annotation determines it."""
        if self._length == "points":
            return max(1.0, float(np.ptp(labelled.points, axis=0).max())) if len(labelled.points) else None
        if self._length == "image":
            return None
        if labelled.length is None and labelled.box is not None and self._has_boxes:
            left, top, right, bottom = labelled.box
            return max(1.0, right - left, bottom - top)
        return labelled.length

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        """The length of the annotation, or the longer side of the image."""
        return float(max(size_hw)) if keypoints.length is None else keypoints.length

    def mirror_table(self, category: str) -> NDArray[np.int64] | None:
        """That of parts.csv, or by left and right in the names; None where neither is given."""
        return self._mirror

    def part_names_of(self, category: str) -> Sequence[str]:
        """The names of all parts, the same for all classes."""
        return self.part_names

    def window(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> tuple[int, int, int, int] | None:
        """The object, where `crop` is set."""
        return object_window(keypoints, size_hw) if self._crop else None

    def example_split(self, example: Example) -> str:
        """The cell of the column `split`; may be empty."""
        return self._objects[example.key].split

    def pair_split(self, index: int) -> str:
        """The split of both images; empty where these differ."""
        split0, split1 = map(self.example_split, self._pair(index))
        return split0 if split0 == split1 else ""

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images and their annotation files."""
        pair = self._pair(index)
        annotations = dict.fromkeys(example.annotation for example in pair)
        return *(example.image for example in pair), *annotations

    def list_splits(self) -> set[str]:
        """The splits that images are assigned to."""
        return set(map(self.example_split, self.examples)) - {""}

    def _explain_empty(self) -> str:
        """Why there is no pair."""
        if not self.examples:
            return f"{self.root} has no annotated image of it"
        return (
            f"no two of the {len(self.examples)} annotated images in {self.root} are of one class; use "
            "option pairing=any"
        )


def _make_example(labelled: LabelledObject, row: int, is_shared: bool) -> Example:
    return Example(labelled.name, labelled.category, labelled.image, labelled.annotation, is_shared, row)


def _leave_out_crowds(objects: Sequence[LabelledObject], rows: list[int], notes: list[str]) -> list[int]:
    """Leaves out images with several objects of one class, in which a part has several places."""
    counts = Counter((objects[row].image, objects[row].category) for row in rows)
    kept = [row for row in rows if counts[objects[row].image, objects[row].category] == 1]
    if len(kept) < len(rows):
        images = len({image for (image, _), count in counts.items() if count > 1})
        notes.append(
            f"{images:,} images show several objects of one class, which are left out; option crop=true cuts "
            "each out of its image"
        )
    return kept


def _enlarge(points: NDArray[np.float64]) -> Box | None:
    """The box of points with a margin; None where there are none."""
    if not len(points):
        return None
    low, high = points.min(axis=0), points.max(axis=0)
    margin = max(1.0, _MARGIN * float((high - low).max()))
    (left, top), (right, bottom) = (low - margin).tolist(), (high + margin).tolist()
    return left, top, right, bottom
