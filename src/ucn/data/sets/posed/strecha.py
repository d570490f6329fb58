"""Strecha's multi-view stereo scenes (fountain-P11, Herz-Jesu-P8, castle-P30, ...): cameras, but no depth.

The cameras were measured with a laser scanner. Correspondences are made with their help and are therefore
semi-true: a SIFT feature of image 0 and one of image 1 count where they match mutually, both match the same
feature of a third image, and the point in space that the true cameras give for the three is seen within half
a pixel of each of them. What is returned is where the two cameras see that point. A wrong match would have to
lie on the right place of two epipolar lines; but places without texture have no correspondence, and features
that SIFT cannot match, for a wide baseline say, are missing.

The files hold the matrix for the original size, 3072 × 2048, with pixel centres taken to be at integers; it
is scaled to the size that an image has.
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

from ucn.data.catalogue import DataInfo
from ucn.data.checking import to_fault
from ucn.data.headers import IMAGE_SUFFIXES, read_header_hw
from ucn.data.io import read_image
from ucn.data.pairs import DataFile, Fault, check_choice, check_index
from ucn.data.sets.layout import find_root, parse_numbers, read_lines
from ucn.data.sets.posed.views import (
    Array,
    PosedData,
    RecentCache,
    check_intrinsics,
    check_rotation,
    image_hw,
    invert,
    make_sample,
    rigid,
)
from ucn.errors import DataError
from ucn.types import PairSample

INFO = DataInfo(
    name="strecha",
    title="Strecha et al., multi-view stereo for outdoor scenes (2008)",
    task="geometric",
    truth="SIFT features that three measured cameras agree on to half a pixel (semi-true, sparse)",
    layout=(
        "SCENE/images/NNNN.jpg (or .png)",
        "SCENE/gt_dense_cameras/NNNN.jpg.camera: K, distortion, R, C, width and height",
    ),
    splits=("all",),
    licence="published for research without an explicit licence",
    source="https://documents.epfl.ch/groups/c/cv/cvlab-unit/www/data/multiview/denseMVS.html",
    markers=("gt_dense_cameras", "*/gt_dense_cameras"),
)

_RATIO = 0.85  # of the distances to the best and the second-best feature
_MAX_ERROR = 0.5  # pixels from a feature, in an image 1024 pixels wide
_MIN_ANGLE = 2.0  # degrees between the rays; below it the third view proves little
_THIRD_VIEWS = 4  # images that are asked to confirm a match
_REMEDY = "get the file again"
_CAMERA_LINES = (3, 3, 3, 3, 3, 3, 3, 3, 2)  # numbers: K, distortion, R, C, width and height


def open_folder(folder: Path, split: str, *, max_angle: float = 60.0, max_features: int = 4000) -> Strecha:
    """Opens the scenes, or one of them.

    Args:
        folder: of all scenes, or of one.
        split: all.
        max_angle: the viewing directions of a pair are at most this many degrees apart.
        max_features: of each image at most so many SIFT features are matched, the strongest ones.
    """
    check_choice(split, INFO.splits, "split")
    if not (max_angle > 0 and max_features > 0):
        raise DataError(
            f"{INFO.name} needs max_angle and max_features above 0, got {max_angle:g} and {max_features}"
        )
    return Strecha(find_root(folder, INFO.markers, INFO.inside), max_angle, max_features)


@dataclass(frozen=True)
class View:
    """A camera as its file gives it.

    Attributes:
        K: (3, 3) for an image of the size in the file.
        T_world_to_camera: (4, 4).
        file_hw: (H, W) in the file.
    """

    K: Array
    T_world_to_camera: Array
    file_hw: tuple[int, int]

    def matrix(self, hw: tuple[int, int]) -> Array:
        """K for an image of another size, by the rule of `geometry.coords.resize_points`."""
        scale = np.array([hw[1] / self.file_hw[1], hw[0] / self.file_hw[0]])
        K = self.K.copy()
        K[:2, :2] *= scale[:, None]
        K[:2, 2] = (K[:2, 2] + 0.5) * scale - 0.5
        return K


@dataclass(frozen=True)
class _Photo:
    name: str
    image: Path
    camera: Path
    view: View


@dataclass(frozen=True)
class _Features:
    """Features of a photo: points (N, 2), unit descriptors (N, 128), the camera's P (3, 4), and its width."""

    points: Array
    descriptors: NDArray[np.float32]
    P: Array
    width: int


class Strecha(PosedData):
    """Pairs of photos of a scene that look in similar directions."""

    def __init__(self, root: Path, max_angle: float, max_features: int) -> None:
        super().__init__(root)
        self._max_features = max_features
        self._scenes: list[list[_Photo]] = []
        self._pairs: list[tuple[int, int, int]] = []
        self._features: RecentCache[Path, _Features] = RecentCache(32)
        self._matches: RecentCache[tuple[Path, Path], NDArray[np.int64]] = RecentCache(1024)
        folders = [root] if (root / "gt_dense_cameras").is_dir() else sorted(root.glob("*/gt_dense_cameras"))
        for folder in folders:
            self._index(folder if folder == root else folder.parent, max_angle)
        if not self._pairs and not self.faults:
            raise DataError(
                f"split 'all' is empty: no two photos in {root} look within {max_angle:g} degrees"
            )

    def _index(self, scene: Path, max_angle: float) -> None:
        photos: list[_Photo] = []
        for image in sorted(
            path for path in (scene / "images").glob("*.*") if path.suffix.lower() in IMAGE_SUFFIXES
        ):
            camera = _find_camera(scene / "gt_dense_cameras", image)
            try:
                view = read_camera(camera)
            except DataError as error:
                fault = to_fault(error, camera)
                message = f"photo {image.name} left out: {fault.message}"
                self.faults.append(replace(fault, message=message, is_left_out=True))
                continue
            prefix = "" if scene == self.root else f"{scene.name}/"
            photos.append(_Photo(f"{prefix}{image.stem}", image, camera, view))
        if len(photos) < 3:
            message = (
                f"expected at least 3 photos with cameras, since matches need a third, got {len(photos)}; "
                "add photos with cameras"
            )
            self.faults.append(Fault(scene / "images", message))
            return
        for i, j in combinations(range(len(photos)), 2):
            if _angle(photos[i].view, photos[j].view) <= max_angle:
                self._pairs.append((len(self._scenes), i, j))
        self._scenes.append(photos)

    def __len__(self) -> int:
        return len(self._pairs)

    def _photos(self, index: int) -> tuple[_Photo, _Photo]:
        check_index(index, len(self._pairs))
        scene, i, j = self._pairs[index]
        return self._scenes[scene][i], self._scenes[scene][j]

    def _third_photos(self, index: int) -> list[_Photo]:
        """The photos that look most like both of a pair."""
        pair = self._photos(index)
        others = [photo for photo in self._scenes[self._pairs[index][0]] if photo not in pair]
        return sorted(others, key=lambda photo: max(_angle(photo.view, one.view) for one in pair))[
            :_THIRD_VIEWS
        ]

    def pair_name(self, index: int) -> str:
        """Scene and photos."""
        photo0, photo1 = self._photos(index)
        return f"{photo0.name}-{photo1.name.rsplit('/', 1)[-1]}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        """The two photos."""
        photo0, photo1 = self._photos(index)
        return photo0.image, photo1.image

    def pair_files(self, index: int) -> tuple[Path, ...]:
        """The photos, those that confirm their matches, and all their cameras."""
        photos = [*self._photos(index), *self._third_photos(index)]
        return *(photo.image for photo in photos), *(photo.camera for photo in photos)

    def relative_pose(self, index: int) -> tuple[Array, Array]:
        """The motion from camera to camera; the scenes are in metres."""
        view0, view1 = (photo.view for photo in self._photos(index))
        T = view1.T_world_to_camera @ invert(view0.T_world_to_camera)
        return T[:3, :3], T[:3, 3]

    def intrinsics(self, index: int) -> tuple[Array, Array]:
        """Of the two cameras, for the sizes that the images have."""
        photo0, photo1 = self._photos(index)
        return _intrinsics(photo0), _intrinsics(photo1)

    def read(self, index: int) -> PairSample:
        """Reads a pair with the features that a third photo confirms."""
        photo0, photo1 = self._photos(index)
        image0, image1 = read_image(photo0.image), read_image(photo1.image)
        found: list[tuple[Array, Array]] = []
        is_free = np.ones(len(self._find(photo0).points), np.bool_)
        for third in self._third_photos(index):
            rows, points0, points1 = self._confirm(photo0, photo1, third)
            fresh = is_free[rows]
            found.append((points0[fresh], points1[fresh]))
            is_free[rows] = False
        points0, points1 = (np.concatenate(points) for points in zip(*found, strict=True))
        return make_sample(
            image0, image1, torch.from_numpy(points0), torch.from_numpy(points1), self.pair_name(index)
        )

    def files(self) -> Sequence[DataFile]:
        """Photos and cameras."""
        found: list[DataFile] = []
        for photo in (photo for scene in self._scenes for photo in scene):
            found.append(DataFile(photo.image, "image", partial(read_image, photo.image)))
            found.append(DataFile(photo.camera, "camera", partial(_intrinsics, photo)))
        return found

    def _find(self, photo: _Photo) -> _Features:
        return self._features.get(photo.image, partial(_find_features, photo, self._max_features))

    def _match(self, photo0: _Photo, photo1: _Photo) -> NDArray[np.int64]:
        key = photo0.image, photo1.image
        return self._matches.get(key, lambda: _match(self._find(photo0), self._find(photo1)))

    def _confirm(
        self, photo0: _Photo, photo1: _Photo, third: _Photo
    ) -> tuple[NDArray[np.int64], Array, Array]:
        """Features of photo 0 that a third photo confirms, and where cameras 0 and 1 see their points."""
        to_one, to_third, third_of_one = (
            self._match(a, b) for a, b in ((photo0, photo1), (photo0, third), (photo1, third))
        )
        rows = np.flatnonzero((to_one >= 0) & (to_third >= 0))
        rows = rows[third_of_one[to_one[rows]] == to_third[rows]]
        views = [self._find(photo) for photo in (photo0, photo1, third)]
        seen = [views[0].points[rows], views[1].points[to_one[rows]], views[2].points[to_third[rows]]]
        space = _triangulate([view.P for view in views], seen)
        is_good = np.asarray(_ray_angles(space, photo0.view, photo1.view) >= _MIN_ANGLE)
        places = []
        for view, points in zip(views, seen, strict=True):
            place, depth = _see(view.P, space)
            limit = _MAX_ERROR * max(1.0, view.width / 1024)
            is_good &= (depth > 0) & (np.abs(place - points).max(axis=1, initial=0.0) <= limit)
            places.append(place)
        return rows[is_good], places[0][is_good], places[1][is_good]


def read_camera(path: Path) -> View:
    """Reads a camera file: K, distortion, R and C with X_camera = Rᵀ (X - C), then width and height.

    Raises:
        DataError: missing, or not these nine lines; distortion must be 0, since the photos have none.
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
    check_intrinsics(K, str(path))
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
    """The camera file of a photo; photos converted to .png keep cameras called .jpg.camera."""
    names = [f"{image.name}.camera", *(f"{image.stem}{suffix}.camera" for suffix in (".jpg", ".png"))]
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def _angle(view0: View, view1: View) -> float:
    """Degrees between two viewing directions."""
    cosine = view0.T_world_to_camera[2, :3] @ view1.T_world_to_camera[2, :3]
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def _intrinsics(photo: _Photo, hw: tuple[int, int] | None = None) -> Array:
    """K of a photo at the size it has."""
    hw = read_header_hw(photo.image) if hw is None else hw
    if hw is None:
        raise DataError(
            f"{photo.image}: expected an image, got a file whose size cannot be read; {_REMEDY}",
            path=photo.image,
        )
    height, width = photo.view.file_hw
    if abs(hw[0] - height * hw[1] / width) > 1:
        raise DataError(
            f"{photo.camera}: expected a camera for {hw[1]} × {hw[0]} pixels, as {photo.image.name} has, or "
            f"a multiple, got {width} × {height}; get the whole photo"
        )
    return photo.view.matrix(hw)


def _find_features(photo: _Photo, max_features: int) -> _Features:
    image = read_image(photo.image)
    grey = (image.mean(dim=0) * 255).round().byte().numpy()
    # Without precise upscaling OpenCV's features lie a quarter of a pixel off.
    detector = cv2.SIFT.create(nfeatures=max_features, enable_precise_upscale=True)
    keypoints, descriptors = detector.detectAndCompute(grey, None)
    points = np.array([keypoint.pt for keypoint in keypoints], np.float64).reshape(-1, 2)
    vectors = np.zeros((0, 128), np.float32) if descriptors is None else np.asarray(descriptors, np.float32)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    P = _intrinsics(photo, image_hw(image)) @ photo.view.T_world_to_camera[:3]
    return _Features(points, vectors.astype(np.float32), P, image.shape[2])


def _match(features0: _Features, features1: _Features) -> NDArray[np.int64]:
    """For each feature of 0 that of 1 which is mutually nearest and clearly so, or -1."""
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
    """Points in space (N, 4), homogeneous, that cameras (3, 4) see at points (N, 2) each.

    By the linear method (Hartley and Zisserman, section 12.2), repeated with each equation divided by the
    depth in its camera, so that errors count in pixels.
    """
    depths = [np.ones(len(points[0])) for _ in matrices]
    space: Array = np.zeros((len(points[0]), 4))
    for _ in range(3):
        rows = []
        for P, seen, depth in zip(matrices, points, depths, strict=True):
            rows += [(seen[:, k : k + 1] * P[2] - P[k]) / depth[:, None] for k in (0, 1)]
        space = np.linalg.svd(np.stack(rows, axis=1))[2][:, -1]
        space = space / np.where(np.abs(space[:, 3:]) > 1e-12, space[:, 3:], 1e-12)
        depths = [np.maximum(np.abs(space @ P[2]), 1e-6) for P in matrices]
    return space


def _see(P: Array, space: Array) -> tuple[Array, Array]:
    """Where a camera (3, 4) sees points (N, 4), (N, 2), and their depths (N,)."""
    image = space @ P.T
    depth = image[:, 2]
    return image[:, :2] / np.where(np.abs(depth) > 1e-9, depth, 1e-9)[:, None], depth


def _ray_angles(space: Array, view0: View, view1: View) -> Array:
    """Degrees (N,) between the rays from two cameras to points (N, 4)."""
    rays = [space[:, :3] - invert(view.T_world_to_camera)[:3, 3] for view in (view0, view1)]
    lengths = [np.maximum(np.sqrt((ray**2).sum(axis=1)), 1e-12) for ray in rays]
    cosines = (rays[0] * rays[1]).sum(axis=1) / (lengths[0] * lengths[1])
    return np.asarray(np.degrees(np.arccos(np.clip(cosines, -1, 1))))
