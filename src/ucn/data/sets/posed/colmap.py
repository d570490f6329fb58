"""A sparse model of COLMAP: 3D points that two images have in common are their correspondences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import PIL.Image
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.catalogue import DataInfo
from ucn.data.headers import EXIF_ORIENTATION
from ucn.data.io import READ_FORMATS, read_image
from ucn.data.pairs import DataFile, PairData, check_choice, check_index
from ucn.data.sets.fault_list import FaultList
from ucn.data.sets.layout import find_root, resolve_inside
from ucn.data.sets.posed.colmap_model import ModelImage, read_model
from ucn.errors import DataError
from ucn.geometry.coords import flip_points, from_corner_origin, is_inside
from ucn.types import PairSample

INFO = DataInfo(
    name="colmap",
    title="A sparse model of COLMAP, from your own photographs",
    task="geometric",
    truth="triangulated: keypoints of one 3D point, as exact as the reconstruction",
    layout=(
        "images/: the photographs",
        "sparse/0/ (or the folder itself): cameras, images and points3D, all .bin or all .txt",
    ),
    splits=("all",),
    licence="yours",
    source="",
    markers=("points3D.bin", "points3D.txt"),
    inside=("sparse/0", "sparse"),
)

_MAX_WORK = 2e9  # products of the co-visibility matrix: some ten seconds
_BLOCK_ENTRIES = 2e7  # of it that are held at once


def open_folder(
    folder: Path, split: str, *, min_shared: int = 20, max_error: float = 2.0, image_folder: str = ""
) -> ColmapData:
    """Opens a sparse model.

    Args:
        folder: of the model, or one with ``sparse/0`` in it.
        split: all.
        min_shared: a pair is two images with at least so many 3D points in common.
        max_error: 3D points with a mean reprojection error above this, in pixels, are left out; 0 takes all.
        image_folder: where the photographs are, relative to `folder`; by default ``images`` beside or above
            the model. Smaller copies of the photographs will do.
    """
    check_choice(split, INFO.splits, "split")
    if min_shared < 1 or not max_error >= 0:
        got = f"{min_shared} and {max_error}"
        raise DataError(f"options of colmap: min_shared must be 1 or more, max_error 0 or more, got {got}")
    root = find_root(folder, INFO.markers, INFO.inside)
    places = [place / "images" for place in (root, root.parent, root.parent.parent)]
    if image_folder:
        places = [folder / image_folder]
    photographs = next((place for place in places if place.is_dir()), None)
    if photographs is None:
        looked = " or ".join(map(str, places))
        raise DataError(f"no folder of photographs {looked}; say where it is: --option image_folder=PATH")
    return ColmapData(root, photographs, min_shared, max_error)


class ColmapData(PairData):
    """Pairs of images that see enough of the same 3D points."""

    def __init__(self, root: Path, photographs: Path, min_shared: int, max_error: float) -> None:
        super().__init__(root)
        self._model = read_model(root)
        self.faults += self._model.faults
        is_good = self._model.point_errors <= (max_error or math.inf)
        self._images: list[ModelImage] = []
        self._paths: list[Path] = []
        seen: list[NDArray[np.int64]] = []
        faults = FaultList("export the model again")
        for image in self._model.images:
            path = self._find_photograph(photographs, image, faults)
            if path is not None:
                rows, points = self._find_points(image, faults)
                rows, points = rows[is_good[points]], points[is_good[points]]
                kept = replace(image, points=image.points[rows], point_ids=image.point_ids[rows])
                self._images.append(kept)
                self._paths.append(path)
                seen.append(points)
        self.faults += faults.finish()
        self._pairs = self._find_pairs(seen, min_shared)
        self._note_other_models()
        if len(self._pairs) == 0 and not self.faults:
            raise DataError(
                f"split 'all' is empty: no two of {len(self._images)} images in {root} have {min_shared} 3D "
                "points in common; ask for fewer: --option min_shared=N"
            )
        del self._model

    def __len__(self) -> int:
        return len(self._pairs)

    def pair_name(self, index: int) -> str:
        """The names of the two images in the model."""
        first, second = self._pair(index)
        return f"{self._images[first].name}--{self._images[second].name}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two photographs."""
        first, second = self._pair(index)
        return self._paths[first], self._paths[second]

    def relative_pose(self, index: int) -> tuple[Tensor, Tensor]:
        """How camera 1 of a pair stands to camera 0: x1 = R x0 + t, in the model's unit of length.

        Of the pixels as stored: where EXIF turns a photograph upright, the camera is not turned with it.

        Returns:
            R (3, 3) and t (3,), float64.
        """
        first, second = (self._images[image] for image in self._pair(index))
        rotation0, rotation1 = _rotation(first.quaternion), _rotation(second.quaternion)
        rotation = rotation1 @ rotation0.T
        translation = second.translation - rotation @ first.translation
        return torch.from_numpy(rotation), torch.from_numpy(translation)

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each 3D point that both images see."""
        pair = self._pair(index)
        first, second = (self._images[image] for image in pair)
        _, rows0, rows1 = np.intersect1d(
            first.point_ids, second.point_ids, assume_unique=True, return_indices=True
        )
        image0, points0 = _read_view(self._paths[pair[0]], first, rows0)
        image1, points1 = _read_view(self._paths[pair[1]], second, rows1)
        sample = PairSample(image0, image1, points0, points1, self.pair_name(index))
        # Rounding may push a point on the very edge over it.
        is_seen = is_inside(points0, (image0.shape[1], image0.shape[2]))
        return sample.select(is_seen & is_inside(points1, (image1.shape[1], image1.shape[2])))

    def files(self) -> Sequence[DataFile]:
        """Every photograph of a pair, once. The model itself was read when the folder was opened."""
        used = np.unique(self._pairs).tolist()
        nothing = np.zeros(0, np.int64)
        return [
            DataFile(
                self._paths[image],
                "image",
                partial(_read_view, self._paths[image], self._images[image], nothing),
            )
            for image in used
        ]

    def _pair(self, index: int) -> tuple[int, int]:
        check_index(index, len(self._pairs))
        first, second = self._pairs[index].tolist()
        return first, second

    def _find_photograph(self, photographs: Path, image: ModelImage, faults: FaultList) -> Path | None:
        try:
            path = resolve_inside(photographs, image.name)
            if not path.is_file():
                raise DataError(f"no photograph {image.name[:200]!r} in {photographs}; copy it there")
            return path
        except (DataError, OSError) as error:  # OSError: a name that is too long
            faults.add(self._model.list_path, str(error), image.line)
            return None

    def _find_points(
        self, image: ModelImage, faults: FaultList
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of an image's observations that are of points of the model, and which points those are."""
        known = self._model.point_ids
        places = np.searchsorted(known, image.point_ids)
        rows = np.flatnonzero(places < len(known))
        rows = rows[known[places[rows]] == image.point_ids[rows]]
        lost = len(places) - len(rows)
        if lost:
            message = f"{lost} observations of {image.name[:80]!r} are of 3D points that points3D lacks"
            faults.add(self._model.list_path, f"{message}; export the model again", image.line)
        return rows, places[rows]

    def _find_pairs(self, seen: Sequence[NDArray[np.int64]], min_shared: int) -> NDArray[np.int32]:
        pairs, share = find_covisible(seen, len(self._model.point_ids), min_shared)
        if share < 1:
            self.notes.append(
                f"the tracks are so many and long that only {share:.2g} of the points were counted to find "
                "which images have enough in common"
            )
        return pairs

    def _note_other_models(self) -> None:
        """COLMAP writes what it could not connect as further models, 1, 2, … beside 0."""
        beside = self.root.parent
        if beside.name == "sparse":
            others = [
                path.name
                for path in sorted(beside.iterdir())
                if path != self.root and any((path / marker).is_file() for marker in INFO.markers)
            ]
            if others:
                self.notes.append(
                    f"{beside} has other models, too ({', '.join(others[:20])}); give their folder to use one"
                )


def find_covisible(
    seen: Sequence[NDArray[np.int64]], point_count: int, min_shared: int
) -> tuple[NDArray[np.int32], float]:
    """Which images see enough of the same points.

    Args:
        seen: for each image the points it sees, as numbers below `point_count`, none twice.
        point_count: how many points there are.
        min_shared: at least so many points in common make a pair.

    Returns:
        (K, 2) pairs of images i < j, sorted; and the share of the points that was counted. It is 1 unless the
        squares of all tracks' lengths add up to hours of work: then every so many-th point is counted.
    """
    points = np.concatenate([*seen, np.zeros(0, np.int64)])
    images = np.repeat(np.arange(len(seen)), [len(points) for points in seen])
    work = float((np.bincount(points).astype(np.float64) ** 2).sum())
    step = max(1, math.ceil(work / _MAX_WORK))
    is_counted = points % step == 0
    shape = (len(seen), point_count)
    ones = np.ones(int(is_counted.sum()), np.int32)
    sees = scipy.sparse.csr_matrix((ones, (images[is_counted], points[is_counted])), shape)
    seen_by = sees.T.tocsr()
    block = max(1, int(_BLOCK_ENTRIES / max(1, len(seen))))
    found = [np.zeros((0, 2), np.int32)]
    for start in range(0, len(seen), block):
        shared = (sees[start : start + block] @ seen_by).tocoo()
        is_pair = (shared.data * step >= min_shared) & (shared.col > shared.row + start)
        pairs = np.stack([shared.row[is_pair] + start, shared.col[is_pair]], axis=-1).astype(np.int32)
        found.append(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])
    return np.concatenate(found), 1 / step


def _read_view(path: Path, image: ModelImage, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """A photograph and some of its observations, in its pixels.

    COLMAP puts (0.5, 0.5) at the centre of the top-left pixel, and looks at the pixels as they are stored, so
    that photographs of one camera have one shape; `read_image` turns them upright as EXIF says, and so the
    points turn, too. A model whose camera has the shape of the upright photograph was made of turned ones.
    """
    picture = read_image(path)
    upright_hw = (picture.shape[1], picture.shape[2])
    orientation = _read_orientation(path)
    stored_hw = upright_hw[::-1] if orientation >= 5 else upright_hw
    points = torch.from_numpy(image.points[rows])
    if _is_scaled(image.camera_hw, stored_hw):
        points = _scale_corner_points(points, image.camera_hw, stored_hw)
        return picture, turn_upright(from_corner_origin(points), stored_hw, orientation)
    if _is_scaled(image.camera_hw, upright_hw):
        return picture, from_corner_origin(_scale_corner_points(points, image.camera_hw, upright_hw))
    width, height = image.camera_hw[::-1]
    raise DataError(
        f"{path} has {upright_hw[1]} × {upright_hw[0]} pixels, and the model was made of {width} × {height}; "
        "give the photographs that it was made of, or smaller copies: --option image_folder=PATH"
    )


def _is_scaled(camera_hw: tuple[int, int], image_hw: tuple[int, int]) -> bool:
    """Whether an image is a smaller or larger copy of what a camera saw, up to a pixel of rounding."""
    scale = math.sqrt(image_hw[0] * image_hw[1] / (camera_hw[0] * camera_hw[1]))
    return all(abs(scale * side - got) <= 1 for side, got in zip(camera_hw, image_hw, strict=True))


def _scale_corner_points(points: Tensor, from_hw: tuple[int, int], to_hw: tuple[int, int]) -> Tensor:
    """With the origin at the corner of the image, not at the centre of a pixel, resizing only multiplies."""
    return points * points.new_tensor([to_hw[1] / from_hw[1], to_hw[0] / from_hw[0]])


def _read_orientation(path: Path) -> int:
    """EXIF's orientation, 1 … 8, of an image that has been read before."""
    with PIL.Image.open(path, formats=READ_FORMATS) as image:
        orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    return orientation if orientation in range(1, 9) else 1


def turn_upright(points: Tensor, stored_hw: tuple[int, int], orientation: int) -> Tensor:
    """Moves points (..., 2) with an image that is turned upright as EXIF says.

    Args:
        points: in pixels as stored.
        stored_hw: (H, W) as stored.
        orientation: 1 … 8: row 0 of the stored image is at the top (1, 2), at the bottom (3, 4), on the left
            (5, 8) or on the right (6, 7) of the upright one.
    """
    height, width = stored_hw
    if orientation in (2, 3, 7, 8):  # column 0 is on the right, or at the bottom
        points = flip_points(points, width)
    if orientation in (3, 4, 6, 7):  # row 0 is at the bottom, or on the right
        points = flip_points(points.flip(-1), height).flip(-1)
    return points.flip(-1) if orientation >= 5 else points


def _rotation(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rotation matrix of a unit quaternion (w, x, y, z), in Hamilton's convention."""
    w, x, y, z = quaternion
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    matrix: NDArray[np.float64] = np.eye(3) + 2 * w * cross + 2 * cross @ cross
    return matrix
