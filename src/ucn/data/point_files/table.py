"""`PointTable`: the points of a file, with everything else that the file says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ucn.errors import PointsError
from ucn.files.suggestions import suggest
from ucn.types import BoolArray

ROLES: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "file_name", "filename"),
    "part": ("part", "keypoint", "name", "label"),
    "class": ("class", "category"),
    "object": ("object", "annotation", "group"),
    "visible": ("visible", "visibility"),
    "box": ("box", "bbox"),
    "split": ("split",),
    "pck_length": ("pck_length",),
}
"""What some columns mean, and the names under which they are found, in any case."""

OnError = Callable[[PointsError], None]
"""Called with the error of a row that is left out."""


@dataclass(frozen=True, eq=False)
class PointTable:
    """Points with their names, and all other columns of their file.

    Attributes:
        points: (N, 2) float64 x, y in pixels, the centre of the top-left pixel at (0, 0); NaN where the file
            says that the point is missing.
        columns: every other column as text, by name, in the order of the file.
        places: file and line of each row, for errors.
        header: the names of all columns, those of x and y included, in the order of the file.
        point_names: the names of the columns of x and y.
        notes: what the reader left out.
        kinds: float or bool for columns that JSON holds as numbers, or as true and false for 1 and 0; the
            others are text.
    """

    points: NDArray[np.float64]
    columns: Mapping[str, tuple[str, ...]]
    places: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    point_names: tuple[str, str] = ("x", "y")
    notes: tuple[str, ...] = ()
    kinds: Mapping[str, type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or self.points.shape[1] != 2:
            raise ValueError(f"points must be (N, 2), got {self.points.shape}")
        count = len(self.points)
        for name, cells in self.columns.items():
            if len(cells) != count:
                raise ValueError(f"column {name!r} must have {count} cells, one per point, got {len(cells)}")
        if not self.places:
            object.__setattr__(self, "places", tuple(f"row {row}" for row in range(count)))
        if not self.header:
            object.__setattr__(self, "header", (*self.columns, *self.point_names))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def is_missing(self) -> BoolArray:
        """(N,) bool: the file says that the point is not there."""
        found: BoolArray = np.asarray(np.isnan(self.points).any(axis=1))
        return found

    def column_of(self, role: str) -> str | None:
        """The name of the column with a meaning of `ROLES`; None where there is none."""
        names = {name.lower(): name for name in reversed(list(self.columns))}
        return next((names[name] for name in ROLES[role] if name in names), None)

    def cells_of(self, role: str) -> tuple[str, ...] | None:
        """The cells of the column with a meaning of `ROLES`; None where there is none."""
        name = self.column_of(role)
        return None if name is None else self.columns[name]

    def list_values(self, name: str) -> list[Any]:
        """The cells of a column, as JSON holds them."""
        kind, cells = self.kinds.get(name, str), self.columns[name]
        return [cell == "1" for cell in cells] if kind is bool else [kind(cell) for cell in cells]

    @property
    def images(self) -> tuple[str, ...] | None:
        """The image of each row, as the file names it; None where it names none."""
        return self.cells_of("image")

    @property
    def parts(self) -> tuple[str, ...] | None:
        """The name of each point; None where the file names none."""
        return self.cells_of("part")

    def select(self, rows: Iterable[int] | NDArray[np.bool_]) -> PointTable:
        """The rows with these indices, or where a mask (N,) is True."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
            rows = np.flatnonzero(rows).tolist()
        chosen = [int(row) for row in rows]
        return replace(
            self,
            points=self.points[chosen],
            columns={name: tuple(cells[row] for row in chosen) for name, cells in self.columns.items()},
            places=tuple(self.places[row] for row in chosen),
        )

    def with_points(self, points: NDArray[np.floating[Any]]) -> PointTable:
        """The same rows at other places (N, 2)."""
        return replace(self, points=np.asarray(points, np.float64))

    def with_column(self, name: str, cells: Sequence[str]) -> PointTable:
        """With another column, at the end; one of that name is replaced."""
        header = self.header if name in self.header else (*self.header, name)
        return replace(self, columns={**self.columns, name: tuple(cells)}, header=header)

    def of_image(self, image: str | Path) -> PointTable:
        """The rows of one image.

        All rows where the file names no image, or one only. Otherwise those whose image has the longest path
        that `image` ends with, or the same file name.

        Raises:
            PointsError: the file has points of several images, and none, or more than one, is this one.
        """
        images = self.images
        if images is None or len(set(images)) < 2:
            return self
        name = _choose_name(set(images), Path(image))
        return self.select(np.array([each == name for each in images], np.bool_))


def rename_columns(
    columns: Mapping[str, Sequence[str]] | None, taken: Iterable[str]
) -> dict[str, Sequence[str]]:
    """Columns of an input that stand beside those of an output: a name that is taken gets ``input_``."""
    names, renamed = set(taken), dict[str, Sequence[str]]()
    for name, cells in (columns or {}).items():
        while name in names:
            name = f"input_{name}"
        names.add(name)
        renamed[name] = cells
    return renamed


def _choose_name(names: set[str], image: Path) -> str:
    """The name that means an image."""
    parts = image.parts
    split = {name: PurePosixPath(name.replace("\\", "/")).parts for name in names}
    ends = [name for name, own in split.items() if own and parts[-len(own) :] == own]
    if ends:
        return max(ends, key=lambda name: (len(split[name]), name))
    same = sorted(name for name, own in split.items() if own and own[-1] == image.name)
    if len(same) == 1:
        return same[0]
    if same:
        raise PointsError(
            f"the points have {len(same)} images named {image.name!r}, such as {same[0][:80]!r} and "
            f"{same[1][:80]!r}; give a file with the points of one"
        )
    hint = suggest(image.name, (own[-1] for own in split.values() if own))
    raise PointsError(
        f"the points are of {len(names)} images, and none is {image.name!r}"
        f"{hint or '; give the file with the points of this image'}"
    )
