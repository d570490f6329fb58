"""A sparse reconstruction of COLMAP: keypoints of common 3D points are the correspondences of a pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import Tensor

from ucn.data.descriptions import COLMAP as INFO
from ucn.data.io import image_hw, read_oriented_image
from ucn.data.pairs import DataFile, PairData, ProblemList, check_index
from ucn.data.sets.layout import find_root, resolve_inside
from ucn.data.sets.posed.colmap_model import ModelImage, read_model
from ucn.errors import DataError
from ucn.geometry.coords import apply_orientation, from_corner_origin, is_inside, orient_size
from ucn.types import PairSample

_MAX_WORK = 2e9  # products of the co-visibility matrix: about ten seconds
_BLOCK_ENTRIES = 2e7  # entries of it that are held at once


def open_folder(
    folder: Path, split: str, *, min_shared: int = 20, max_error: float = 2.0, image_folder: str = ""
) -> ColmapData:
    """Opens a sparse reconstruction.

    Args:
        folder: the folder of the reconstruction, or one that contains ``sparse/0``.
        split: all.
        min_shared: the least number of common 3D points of a pair.
        max_error: 3D points with a mean reprojection error above this, in pixels, are excluded; 0 keeps all.
        image_folder: the folder of the images, relative to `folder`; by default ``images`` beside or above
            the reconstruction. Smaller copies of the images may be used.
    """
    if min_shared < 1 or not max_error >= 0:
        got = f"{min_shared} and {max_error}"
        raise DataError(f"options of colmap: min_shared must be 1 or more, max_error 0 or more, got {got}")
    root = find_root(folder, INFO.markers, INFO.inside)
    places = [place / "images" for place in (root, root.parent, root.parent.parent)]
    if image_folder:
        places = [folder / image_folder]
    images = next((place for place in places if place.is_dir()), None)
    if images is None:
        looked = " or ".join(map(str, places))
        raise DataError(f"no folder of images {looked}; set the option image_folder to its path")
    return ColmapData(root, images, min_shared, max_error)


class ColmapData(PairData):
    """Pairs of images that observe enough common 3D points."""

    def __init__(self, root: Path, image_folder: Path, min_shared: int, max_error: float) -> None:
        super().__init__(root)
        self._model = read_model(root)
        self.problems += self._model.problems
        is_good = self._model.point_errors <= (max_error or math.inf)
        self._images: list[ModelImage] = []
        self._paths: list[Path] = []
        observed: list[NDArray[np.int64]] = []
        problems = ProblemList("export the reconstruction again")
        for image in self._model.images:
            path = self._find_image(image_folder, image, problems)
            if path is not None:
                rows, points = self._find_points(image, problems)
                rows, points = rows[is_good[points]], points[is_good[points]]
                kept = replace(image, points=image.points[rows], point_ids=image.point_ids[rows])
                self._images.append(kept)
                self._paths.append(path)
                observed.append(points)
        self.problems += problems.finish()
        self._pairs = self._find_pairs(observed, min_shared)
        self._note_other_models()
        self.require_pairs(
            "all",
            f"no two of {len(self._images)} images in {root} have {min_shared} 3D points in common; lower "
            "the option min_shared",
        )
        self._point_ids, self._positions = self._model.point_ids, self._model.point_positions
        del self._model

    def __len__(self) -> int:
        return len(self._pairs)

    def pair_name(self, index: int) -> str:
        """The names of the two images in the reconstruction."""
        first, second = self._pair(index)
        return f"{self._images[first].name}--{self._images[second].name}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two image files."""
        first, second = self._pair(index)
        return self._paths[first], self._paths[second]

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images, and the files of the reconstruction that has their points."""
        suffix = "bin" if (self.root / "images.bin").is_file() else "txt"
        return *self.image_paths(index), self.root / f"images.{suffix}", self.root / f"points3D.{suffix}"

    def triangulation_angles(self, index: int) -> Tensor:
        """Angles at the common 3D points of a pair between the rays to the two camera centres.

        Returns:
            (K,) degrees in [0, 180], float64; NaN where a point coincides with a camera or is not finite.
        """
        first, second = (self._images[image] for image in self._pair(index))
        shared = np.intersect1d(first.point_ids, second.point_ids, assume_unique=True)
        points = torch.from_numpy(self._positions[np.searchsorted(self._point_ids, shared)])
        rays = []
        for image in (first, second):
            centre = torch.from_numpy(-_rotation(image.quaternion).T @ image.translation)
            rays.append(centre - points)
        # Unlike the arc cosine, exact at small angles, too.
        sines, cosines = torch.linalg.cross(*rays).norm(dim=1), (rays[0] * rays[1]).sum(dim=1)
        is_defined = (rays[0].norm(dim=1) > 0) & (rays[1].norm(dim=1) > 0)
        return torch.atan2(sines, cosines).rad2deg().where(is_defined, torch.nan)

    def relative_pose(self, index: int) -> tuple[Tensor, Tensor]:
        """The relative pose from camera 0 to camera 1: X1 = R X0 + t, in the reconstruction's unit of length.

        It holds for the pixels as stored: EXIF rotation of an image does not rotate its camera.

        Returns:
            R (3, 3) and t (3,), float64.
        """
        first, second = (self._images[image] for image in self._pair(index))
        rotation0, rotation1 = _rotation(first.quaternion), _rotation(second.quaternion)
        rotation = rotation1 @ rotation0.T
        translation = second.translation - rotation @ first.translation
        return torch.from_numpy(rotation), torch.from_numpy(translation)

    def read(self, index: int) -> PairSample:
        """Reads a pair with a correspondence for each 3D point that both images observe."""
        pair = self._pair(index)
        first, second = (self._images[image] for image in pair)
        _, rows0, rows1 = np.intersect1d(
            first.point_ids, second.point_ids, assume_unique=True, return_indices=True
        )
        image0, points0 = _read_view(self._paths[pair[0]], first, rows0)
        image1, points1 = _read_view(self._paths[pair[1]], second, rows1)
        sample = PairSample(image0, image1, points0, points1, self.pair_name(index))
        # Rounding may push a point on the border outside.
        rows = is_inside(points0, image_hw(image0)) & is_inside(points1, image_hw(image1))
        return sample.select(rows)

    def files(self) -> Sequence[DataFile]:
        """Every image of a pair, once. The reconstruction itself was read when the folder was opened."""
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

    def _find_image(self, image_folder: Path, image: ModelImage, problems: ProblemList) -> Path | None:
        try:
            path = resolve_inside(image_folder, image.name)
            if not path.is_file():
                raise DataError(f"no image {image.name[:80]!r} in {image_folder}; copy it there")
            return path
        except (DataError, OSError) as error:  # OSError: a name that is too long
            problems.add(self._model.list_path, str(error), image.line)
            return None

    def _find_points(
        self, image: ModelImage, problems: ProblemList
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows of an image's observations whose 3D point exists, and the indices of these points."""
        known = self._model.point_ids
        places = np.searchsorted(known, image.point_ids)
        rows = np.flatnonzero(places < len(known))
        rows = rows[known[places[rows]] == image.point_ids[rows]]
        lost = len(places) - len(rows)
        if lost:
            message = (
                f"{lost} observations of {image.name[:80]!r} are of 3D points that points3D does not have"
            )
            problems.add(self._model.list_path, f"{message}; export the reconstruction again", image.line)
        return rows, places[rows]

    def _find_pairs(self, observed: Sequence[NDArray[np.int64]], min_shared: int) -> NDArray[np.int32]:
        pairs, share = find_covisible(observed, len(self._model.point_ids), min_shared)
        if share < 1:
            self.notes.append(
                f"for speed, only {share:.2g} of the points were counted to find co-visible images"
            )
        return pairs

    def _note_other_models(self) -> None:
        """COLMAP writes unconnected reconstructions as further folders 1, 2, … beside 0."""
        beside = self.root.parent
        if beside.name == "sparse":
            others = [
                path.name
                for path in sorted(beside.iterdir())
                if path != self.root and any((path / marker).is_file() for marker in INFO.markers)
            ]
            if others:
                self.notes.append(
                    f"{beside} has other reconstructions, too: {', '.join(others[:20])}; give the folder of "
                    "one to use it"
                )


def find_covisible(
    observed: Sequence[NDArray[np.int64]], point_count: int, min_shared: int
) -> tuple[NDArray[np.int32], float]:
    """Finds pairs of images that observe enough common points.

    Args:
        observed: for each image the indices, below `point_count`, of the points it observes, without repeats.
        point_count: the number of points.
        min_shared: the least number of common points of a pair.

    Returns:
        (K, 2) pairs of images i < j, sorted; and the fraction of the points that was counted. It is 1 unless
        the squared track lengths add up to hours of work: then every n-th point is counted.
    """
    points = np.concatenate([*observed, np.zeros(0, np.int64)])
    images = np.repeat(np.arange(len(observed)), [len(points) for points in observed])
    work = float((np.bincount(points).astype(np.float64) ** 2).sum())
    step = max(1, math.ceil(work / _MAX_WORK))
    is_counted = points % step == 0
    shape = (len(observed), point_count)
    ones = np.ones(int(is_counted.sum()), np.int32)
    observes = scipy.sparse.csr_matrix((ones, (images[is_counted], points[is_counted])), shape)
    observed_by = observes.T.tocsr()
    block = max(1, int(_BLOCK_ENTRIES / max(1, len(observed))))
    found = [np.zeros((0, 2), np.int32)]
    for start in range(0, len(observed), block):
        shared = (observes[start : start + block] @ observed_by).tocoo()
        is_pair = (shared.data * step >= min_shared) & (shared.col > shared.row + start)
        pairs = np.stack([shared.row[is_pair] + start, shared.col[is_pair]], axis=-1).astype(np.int32)
        found.append(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])
    return np.concatenate(found), 1 / step


def _read_view(path: Path, image: ModelImage, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Reads an image and some of its observations, in its pixels.

    COLMAP has (0.5, 0.5) at the centre of the top-left pixel, and uses the pixels as stored. `read_image`
    applies the EXIF rotation, so that the points are rotated, too. A camera with the shape of the rotated
    image shows that the reconstruction used rotated images.
    """
    pixels, orientation = read_oriented_image(path)
    upright_hw = image_hw(pixels)
    stored_hw = orient_size(upright_hw, orientation)
    points = torch.from_numpy(image.points[rows])
    if _is_scaled(image.camera_hw, stored_hw):
        points = _scale_corner_points(points, image.camera_hw, stored_hw)
        return pixels, apply_orientation(from_corner_origin(points), stored_hw, orientation)
    if _is_scaled(image.camera_hw, upright_hw):
        return pixels, from_corner_origin(_scale_corner_points(points, image.camera_hw, upright_hw))
    width, height = image.camera_hw[::-1]
    raise DataError(
        f"{path} has {upright_hw[1]} × {upright_hw[0]} pixels, its camera {width} × {height}; set the option "
        "image_folder to the images of the reconstruction, or to smaller copies"
    )


def _is_scaled(camera_hw: tuple[int, int], image_hw: tuple[int, int]) -> bool:
    """Whether an image is a rescaled copy of a camera's image, up to a pixel of rounding."""
    scale = math.sqrt(image_hw[0] * image_hw[1] / (camera_hw[0] * camera_hw[1]))
    return all(abs(scale * side - got) <= 1 for side, got in zip(camera_hw, image_hw, strict=True))


def _scale_corner_points(points: Tensor, from_hw: tuple[int, int], to_hw: tuple[int, int]) -> Tensor:
    """Scales points whose origin is the corner of the image, not the centre of a pixel."""
    return points * points.new_tensor([to_hw[1] / from_hw[1], to_hw[0] / from_hw[0]])


def _rotation(quaternion: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rotation matrix of a unit quaternion (w, x, y, z), Hamilton convention."""
    w, x, y, z = quaternion
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    matrix: NDArray[np.float64] = np.eye(3) + 2 * w * cross + 2 * cross @ cross
    return matrix
