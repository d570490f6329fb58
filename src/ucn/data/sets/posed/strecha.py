"""Strecha's multi-view stereo scenes (fountain-P11, Herz-Jesu-P8, castle-P30, ...): cameras, but no depth.

The cameras were measured with a laser scanner. Correspondences are computed with their help: a SIFT feature
of image 0 and one of image 1 count where they match mutually, both match the same feature of a third image,
and the point triangulated from the three projects within half a pixel of each feature. The projections of
that point are returned. A wrong match would have to lie at the right position of two epipolar lines; but
textureless areas have no correspondences, and features that SIFT cannot match, over a wide baseline for
example, are missing.

The camera files hold the matrix for the original size, 3072 × 2048; pixel centres are assumed at integers.
The matrix is scaled to the size of an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ucn.data.checking import to_problem
from ucn.data.descriptions import STRECHA as INFO
from ucn.data.io import IMAGE_SUFFIXES, image_hw, read_header_hw, read_image
from ucn.data.pairs import DataFile, Problem, check_index
from ucn.data.sets.layout import find_root
from ucn.data.sets.posed.posed_pairs import (
    Array,
    PosedData,
    check_rotation,
    invert,
    make_sample,
    require_intrinsics,
    rigid,
)
from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_lines
from ucn.files.recent import RecentItems
from ucn.types import PairSample

_RATIO = 0.85  # largest ratio of the distances to the best and the second-best feature
_MAX_ERROR = 0.5  # reprojection error in pixels of an image 1024 pixels wide
_MIN_ANGLE = 2.0  # degrees between the rays; below it a third view confirms little
_THIRD_VIEWS = 4  # images that may confirm a match
_REMEDY = "get the file again"
_CAMERA_LINES = (3, 3, 3, 3, 3, 3, 3, 3, 2)  # numbers: K, distortion, R, C, width and height


def open_folder(folder: Path, split: str, *, max_angle: float = 60.0, max_features: int = 4000) -> Strecha:
    """Opens the scenes, or one of them.

    Args:
        folder: the folder of all scenes, or of one.
        split: all.
        max_angle: largest angle between the viewing directions of a pair, in degrees.
        max_features: the most SIFT features of an image, the strongest.
    """
    if not (max_angle > 0 and max_features > 0):
        raise DataError(
            f"{INFO.name} needs max_angle and max_features above 0, got {max_angle:g} and {max_features}"
        )
    return Strecha(find_root(folder, INFO.markers, INFO.inside), max_angle, max_features)


@dataclass(frozen=True)
class View:
    """A camera.

    Attributes:
        K: (3, 3) for an image of size `file_hw`.
        T_world_to_camera: (4, 4).
        file_hw: (H, W) in the camera file.
    """

    K: Array
    T_world_to_camera: Array
    file_hw: tuple[int, int]

    def matrix(self, hw: tuple[int, int]) -> Array:
        """K for an image of another size, as `geometry.coords.resize_points` scales points."""
        scale = np.array([hw[1] / self.file_hw[1], hw[0] / self.file_hw[0]])
        K = self.K.copy()
        K[:2, :2] *= scale[:, None]
        K[:2, 2] = (K[:2, 2] + 0.5) * scale - 0.5
        return K


@dataclass(frozen=True)
class _PosedImage:
    name: str
    path: Path
    camera: Path
    view: View


@dataclass(frozen=True)
class _Features:
    """SIFT features of an image: points (N, 2), descriptors (N, 128), P (3, 4) and width of the image."""

    points: Array
    descriptors: NDArray[np.float32]
    P: Array
    width: int


class Strecha(PosedData):
    """Pairs of images of a scene with similar viewing directions."""

    def __init__(self, root: Path, max_angle: float, max_features: int) -> None:
        super().__init__(root)
        self._max_features = max_features
        self._scenes: list[list[_PosedImage]] = []
        self._pairs: list[tuple[int, int, int]] = []
        self._features: RecentItems[Path, _Features] = RecentItems(32)
        self._matches: RecentItems[tuple[Path, Path], NDArray[np.int64]] = RecentItems(1024)
        folders = [root] if (root / "gt_dense_cameras").is_dir() else sorted(root.glob("*/gt_dense_cameras"))
        for folder in folders:
            self._index(folder if folder == root else folder.parent, max_angle)
        got = f"no two images in {root} have viewing directions within {max_angle:g} degrees"
        self.require_pairs("all", f"{got}; increase max_angle")

    def _index(self, scene: Path, max_angle: float) -> None:
        images: list[_PosedImage] = []
        paths = (scene / "images").glob("*.*")
        for path in sorted(path for path in paths if path.suffix.lower() in IMAGE_SUFFIXES):
            camera = _find_camera(scene / "gt_dense_cameras", path)
            try:
                view = read_camera_file(camera)
            except DataError as error:
                problem = to_problem(error, camera)
                message = f"image {path.name} excluded: {problem.message}"
                self.problems.append(replace(problem, message=message, is_excluded=True))
                continue
            prefix = "" if scene == self.root else f"{scene.name}/"
            images.append(_PosedImage(f"{prefix}{path.stem}", path, camera, view))
        if len(images) < 3:
            message = (
                f"expected at least 3 images with cameras, to confirm matches, got {len(images)}; "
                "add images with cameras"
            )
            self.problems.append(Problem(scene / "images", message))
            return
        for i, j in combinations(range(len(images)), 2):
            if _angle(images[i].view, images[j].view) <= max_angle:
                self._pairs.append((len(self._scenes), i, j))
        self._scenes.append(images)

    def __len__(self) -> int:
        return len(self._pairs)

    def _pair(self, index: int) -> tuple[_PosedImage, _PosedImage]:
        check_index(index, len(self._pairs))
        scene, i, j = self._pairs[index]
        return self._scenes[scene][i], self._scenes[scene][j]

    def _third_views(self, index: int) -> list[_PosedImage]:
        """The images with the viewing directions most similar to both of a pair."""
        pair = self._pair(index)
        others = [image for image in self._scenes[self._pairs[index][0]] if image not in pair]
        return sorted(others, key=lambda image: max(_angle(image.view, one.view) for one in pair))[
            :_THIRD_VIEWS
        ]

    def pair_name(self, index: int) -> str:
        """Scene and images."""
        first, second = self._pair(index)
        return f"{first.name}-{second.name.rsplit('/', 1)[-1]}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two images."""
        first, second = self._pair(index)
        return first.path, second.path

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The images, those that confirm their matches, and all their camera files."""
        images = [*self._pair(index), *self._third_views(index)]
        return *(image.path for image in images), *(image.camera for image in images)

    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """The relative pose of the cameras; the scenes are in metres."""
        view0, view1 = (image.view for image in self._pair(index))
        T = view1.T_world_to_camera @ invert(view0.T_world_to_camera)
        return T[:3, :3], T[:3, 3]

    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """The matrices of the two cameras, for the actual sizes of the images."""
        first, second = self._pair(index)
        return _intrinsics(first), _intrinsics(second)

    def read(self, index: int) -> PairSample:
        """Reads a pair with the matches that a third image confirms."""
        first, second = self._pair(index)
        image0, image1 = read_image(first.path), read_image(second.path)
        found: list[tuple[Array, Array]] = []
        is_free = np.ones(len(self._find(first).points), np.bool_)
        for third in self._third_views(index):
            rows, points0, points1 = self._confirm(first, second, third)
            fresh = is_free[rows]
            found.append((points0[fresh], points1[fresh]))
            is_free[rows] = False
        points0, points1 = (np.concatenate(points) for points in zip(*found, strict=True))
        return make_sample(
            image0, image1, torch.from_numpy(points0), torch.from_numpy(points1), self.pair_name(index)
        )

    def files(self) -> Sequence[DataFile]:
        """Images and camera files."""
        found: list[DataFile] = []
        for image in (image for scene in self._scenes for image in scene):
            found.append(DataFile.image(image.path))
            found.append(DataFile(image.camera, "camera", partial(_intrinsics, image)))
        return found

    def _find(self, image: _PosedImage) -> _Features:
        return self._features.get_or_make(image.path, partial(_find_features, image, self._max_features))

    def _match(self, first: _PosedImage, second: _PosedImage) -> NDArray[np.int64]:
        key = first.path, second.path
        return self._matches.get_or_make(key, lambda: _match(self._find(first), self._find(second)))

    def _confirm(
        self, first: _PosedImage, second: _PosedImage, third: _PosedImage
    ) -> tuple[NDArray[np.int64], Array, Array]:
        """Features of image 0 that a third image confirms, and the projections into images 0 and 1."""
        to_one, to_third, third_of_one = (
            self._match(a, b) for a, b in ((first, second), (first, third), (second, third))
        )
        rows = np.flatnonzero((to_one >= 0) & (to_third >= 0))
        rows = rows[third_of_one[to_one[rows]] == to_third[rows]]
        views = [self._find(image) for image in (first, second, third)]
        seen = [views[0].points[rows], views[1].points[to_one[rows]], views[2].points[to_third[rows]]]
        points3d = _triangulate([view.P for view in views], seen)
        is_good = np.asarray(_ray_angles(points3d, first.view, second.view) >= _MIN_ANGLE)
        projections = []
        for view, points in zip(views, seen, strict=True):
            projected, depth = _project(view.P, points3d)
            limit = _MAX_ERROR * max(1.0, view.width / 1024)
            is_good &= (depth > 0) & (np.abs(projected - points).max(axis=1, initial=0.0) <= limit)
            projections.append(projected)
        return rows[is_good], projections[0][is_good], projections[1][is_good]


def read_camera_file(path: Path) -> View:
    """Reads a camera file: K, distortion, R and C with X_camera = Rᵀ (X - C), then width and height.

    Raises:
        DataError: the file is missing, or malformed; distortion must be 0, since the images are undistorted.
    """
    lines = list(read_lines(path, "camera"))
    if len(lines) != len(_CAMERA_LINES):
        raise DataError(
            f"{path}: expected {len(_CAMERA_LINES)} lines of numbers, got {len(lines)}; {_REMEDY}"
        )
    rows = [
        parse_numbers(text, count, f"{path}:{number}")
        for (number, text), count in zip(lines, _CAMERA_LINES, strict=True)
    ]
    K, R, C = np.array(rows[:3]), np.array(rows[4:7]), np.array(rows[7])
    require_intrinsics(K, str(path))
    check_rotation(R, str(path))
    if any(rows[3]):
        raise DataError(
            f"{path}:{lines[3][0]}: expected a distortion of 0 0 0, got {lines[3][1][:60]!r}; {_REMEDY}"
        )
    width, height = rows[8]
    if not (width >= 1 and height >= 1 and width == int(width) and height == int(height)):
        raise DataError(
            f"{path}:{lines[8][0]}: expected width and height in pixels, got {lines[8][1][:60]!r}; {_REMEDY}"
        )
    return View(K, rigid(R.T, -R.T @ C), (int(height), int(width)))


def _find_camera(folder: Path, image: Path) -> Path:
    """The camera file of an image; images converted to .png may have a camera file named .jpg.camera."""
    names = [f"{image.name}.camera", *(f"{image.stem}{suffix}.camera" for suffix in (".jpg", ".png"))]
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _angle(view0: View, view1: View) -> float:
    """Degrees between two viewing directions."""
    cosine = view0.T_world_to_camera[2, :3] @ view1.T_world_to_camera[2, :3]
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def _intrinsics(image: _PosedImage, hw: tuple[int, int] | None = None) -> Array:
    """K of an image at its actual size."""
    hw = read_header_hw(image.path) if hw is None else hw
    if hw is None:
        raise DataError(
            f"{image.path}: expected an image, got a file whose size cannot be read; {_REMEDY}",
            path=image.path,
        )
    height, width = image.view.file_hw
    if abs(hw[0] - height * hw[1] / width) > 1:
        raise DataError(
            f"{image.camera}: expected a camera for {hw[1]} × {hw[0]} pixels, as {image.path.name} has, or "
            f"a multiple, got {width} × {height}; get the whole image"
        )
    return image.view.matrix(hw)


def _find_features(view: _PosedImage, max_features: int) -> _Features:
    image = read_image(view.path)
    grey = (image.mean(dim=0) * 255).round().byte().numpy()
    # Without precise upscaling, OpenCV's features are a quarter of a pixel off.
    detector = cv2.SIFT.create(nfeatures=max_features, enable_precise_upscale=True)
    keypoints, descriptors = detector.detectAndCompute(grey, None)
    points = np.array([keypoint.pt for keypoint in keypoints], np.float64).reshape(-1, 2)
    vectors = np.zeros((0, 128), np.float32) if descriptors is None else np.asarray(descriptors, np.float32)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    P = _intrinsics(view, image_hw(image)) @ view.view.T_world_to_camera[:3]
    return _Features(points, vectors.astype(np.float32), P, image.shape[2])


def _match(features0: _Features, features1: _Features) -> NDArray[np.int64]:
    """For each feature of image 0 its mutual nearest neighbour that passes the ratio test, or -1."""
    found = np.full(len(features0.points), -1, np.int64)
    if min(len(features0.points), len(features1.points)) < 2:
        return found
    similarity = features0.descriptors @ features1.descriptors.T
    best = similarity.argmax(axis=1)
    back = similarity.argmax(axis=0)
    two = -np.partition(-similarity, 1, axis=1)[:, :2]
    near, next_near = np.sqrt(np.maximum(2 - 2 * two, 0)).T
    is_good = (near <= _RATIO * next_near) & (back[best] == np.arange(len(best)))
    found[is_good] = best[is_good]
    return found


def _triangulate(matrices: list[Array], points: list[Array]) -> Array:
    """Triangulates homogeneous 3D points (N, 4) from points (N, 2) in cameras (3, 4).

    The linear method (Hartley and Zisserman, section 12.2) is repeated with each equation divided by the
    depth in its camera, so that errors are in pixels.
    """
    depths = [np.ones(len(points[0])) for _ in matrices]
    points3d: Array = np.zeros((len(points[0]), 4))
    for _ in range(3):
        rows = []
        for P, seen, depth in zip(matrices, points, depths, strict=True):
            rows += [(seen[:, k : k + 1] * P[2] - P[k]) / depth[:, None] for k in (0, 1)]
        points3d = np.linalg.svd(np.stack(rows, axis=1))[2][:, -1]
        points3d = points3d / np.where(np.abs(points3d[:, 3:]) > 1e-12, points3d[:, 3:], 1e-12)
        depths = [np.maximum(np.abs(points3d @ P[2]), 1e-6) for P in matrices]
    return points3d


def _project(P: Array, points3d: Array) -> tuple[Array, Array]:
    """Projects points (N, 4) with a camera (3, 4): (N, 2) and depths (N,)."""
    image = points3d @ P.T
    depth = image[:, 2]
    return image[:, :2] / np.where(np.abs(depth) > 1e-9, depth, 1e-9)[:, None], depth


def _ray_angles(points3d: Array, view0: View, view1: View) -> Array:
    """Angles (N,) in degrees between the rays from two cameras to points (N, 4)."""
    rays = [points3d[:, :3] - invert(view.T_world_to_camera)[:3, 3] for view in (view0, view1)]
    lengths = [np.maximum(np.sqrt((ray**2).sum(axis=1)), 1e-12) for ray in rays]
    cosines = (rays[0] * rays[1]).sum(axis=1) / (lengths[0] * lengths[1])
    return np.asarray(np.degrees(np.arccos(np.clip(cosines, -1, 1))))
