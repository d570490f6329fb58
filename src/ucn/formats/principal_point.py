"""The principal point of guessed cameras: refined after mapping where the images determine it.

COLMAP keeps a guessed principal point at the image centre. Where it is elsewhere, as in cropped images, this
bends the model; but a bundle adjustment that may move it also explains other errors with it, such as lens
distortion that the camera model lacks, most of all for few views or a camera that moves forward. So it is
refined only under two conditions. It lies further from the centre than it varies: a jackknife repeats the
adjustment without every fifth image, as the covariance of one adjustment knows only independent noise and is
up to ten times too small on real images. And the residuals fall clearly, the more the further it moves: a
camera that moves forward, or looks down on a plane, moves it far for little.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pycolmap

PRINCIPAL_POINT = ("auto", "always", "never")
"""When principal points are refined: auto refines them after mapping, always during it too."""
MIN_IMAGES = 6
"""Images that a camera needs."""
MIN_RATIO = 3.0
"""Standard deviations by which a principal point must lie off the centre."""
MIN_FALL = 0.01
"""By how much the sum of squared reprojection errors must fall, relative to that with the image centre."""
DOUBLING_SHARE = 0.5
"""Share of the longer side of the image by which a wrong principal point must at least double the sum of
squared reprojection errors: a shift by s of it must lower them by (s / DOUBLING_SHARE)²."""

_GROUPS = 5  # of images, of which one is left out at a time
Values = NDArray[np.float64]


@dataclass(frozen=True)
class PrincipalPoint:
    """The principal point of a camera, and why it was refined or kept at the image centre.

    Attributes:
        camera: its number in the model.
        images: number of registered images that share it.
        is_refined: whether it is off the image centre.
        shift: (x, y) from the image centre in pixels, as a bundle adjustment finds it; None if not tried.
        deviation: its standard deviation in pixels, pooled over x and y; None if not estimated.
        fall: by how much the squared reprojection errors fall, from 0 to 1; None if not tried.
        reason: in words.
    """

    camera: int
    images: int
    is_refined: bool
    shift: tuple[float, float] | None
    deviation: float | None
    fall: float | None
    reason: str


def find_principal_points(reconstruction: pycolmap.Reconstruction, reason: str) -> list[PrincipalPoint]:
    """The principal points of all cameras of a model as they are."""
    found = []
    for camera, images in _group_images(reconstruction).items():
        shift = _find_shift(reconstruction, camera)
        is_refined = bool(np.any(shift != 0))
        found.append(PrincipalPoint(camera, len(images), is_refined, _pair(shift), None, None, reason))
    return found


def refine_principal_points(
    colmap: Any, reconstruction: pycolmap.Reconstruction, threads: int = 1
) -> tuple[pycolmap.Reconstruction, list[PrincipalPoint]]:
    """Refines a model with the principal points of those cameras whose images determine them.

    Args:
        colmap: the module pycolmap.
        reconstruction: with principal points at the image centres; it is not changed.
        threads: of bundle adjustment; with more than one the last digits vary.

    Returns:
        The refined model, or the given one where no camera is refined, and the decision for each camera.
    """
    groups = _group_images(reconstruction)
    tried = [camera for camera, images in groups.items() if len(images) >= MIN_IMAGES]
    decisions = {
        camera: PrincipalPoint(
            camera, len(images), False, None, None, None, f"{len(images)} images, {MIN_IMAGES} are needed"
        )
        for camera, images in groups.items()
    }
    if not tried:
        return reconstruction, list(decisions.values())
    _, before = _adjust(colmap, reconstruction, tried, threads, use_centre=True)
    refined, after = _adjust(colmap, reconstruction, tried, threads)
    parts = []
    for group in range(_GROUPS):
        left_out = [image for camera in tried for image in groups[camera][group::_GROUPS]]
        parts.append(_adjust(colmap, reconstruction, tried, threads, left_out=left_out)[0])
    for camera in tried:
        shift = _find_shift(refined, camera)
        deviation = jackknife_deviation(np.stack([_find_shift(part, camera) for part in parts]))
        side = max(refined.camera(camera).width, refined.camera(camera).height)
        fall = 1 - after / before if before != 0 else 0.0  # NaN where an adjustment failed
        is_refined, reason = judge(shift, deviation, fall, side)
        decisions[camera] = PrincipalPoint(
            camera, len(groups[camera]), is_refined, _pair(shift), deviation, fall, reason
        )
    accepted = [camera for camera in tried if decisions[camera].is_refined]
    if accepted and len(accepted) < len(tried):
        refined, _ = _adjust(colmap, reconstruction, accepted, threads)
    return refined if accepted else reconstruction, list(decisions.values())


def judge(shift: Values, deviation: float, fall: float, side: int) -> tuple[bool, str]:
    """Whether a principal point is refined, and why.

    Args:
        shift: (2,) from the image centre, in pixels.
        deviation: standard deviation of x and of y, in pixels.
        fall: of the squared reprojection errors, from 0 to 1.
        side: longer side of the image.
    """
    distance = float(np.linalg.norm(shift))
    if not np.isfinite(distance + deviation + fall):
        return False, "the bundle adjustment failed"
    measured = (
        f"{distance:.1f} px off the centre, standard deviation {deviation:.1f} px, squared errors fall by "
        f"{100 * fall:.1f} %"
    )
    needed_fall = max(MIN_FALL, (distance / (DOUBLING_SHARE * side)) ** 2)
    if distance < MIN_RATIO * deviation or fall < needed_fall:
        return False, f"undetermined: {measured}"
    return True, measured


def jackknife_deviation(samples: Values) -> float:
    """The standard deviation of a point by estimates (G, 2), each without one of G groups.

    It is pooled over x and y: of a few groups, that of one alone can be small by chance.
    """
    groups = len(samples)
    variances = (groups - 1) / groups * ((samples - samples.mean(axis=0)) ** 2).sum(axis=0)
    return float(np.sqrt(variances.mean()))


def _group_images(reconstruction: pycolmap.Reconstruction) -> dict[int, list[int]]:
    """The ids of registered images, in order of their names, by camera id."""
    groups: dict[int, list[int]] = {}
    images = [reconstruction.image(image_id) for image_id in reconstruction.reg_image_ids()]
    for image in sorted(images, key=lambda image: str(image.name)):
        groups.setdefault(image.camera_id, []).append(image.image_id)
    return dict(sorted(groups.items()))


def _find_shift(reconstruction: pycolmap.Reconstruction, camera_id: int) -> Values:
    camera = reconstruction.camera(camera_id)
    point = np.array([camera.principal_point_x, camera.principal_point_y])
    return point - np.array([camera.width, camera.height]) / 2


def _pair(shift: Values) -> tuple[float, float]:
    return float(shift[0]), float(shift[1])


def _adjust(
    colmap: Any,
    reconstruction: pycolmap.Reconstruction,
    cameras: Collection[int],
    threads: int,
    *,
    use_centre: bool = False,
    left_out: Collection[int] = (),
) -> tuple[pycolmap.Reconstruction, float]:
    """A copy after bundle adjustment, and its cost; NaN where that failed.

    Args:
        colmap: the module pycolmap.
        reconstruction: it is not changed.
        cameras: whose intrinsics are refined.
        threads: of the solver.
        use_centre: keep principal points where they are.
        left_out: images without which it is done.
    """
    model = copy.deepcopy(reconstruction)
    for image in left_out:
        model.deregister_frame(model.image(image).frame_id)
    config = colmap.BundleAdjustmentConfig()
    for image_id in model.reg_image_ids():
        config.add_image(image_id)
        if model.image(image_id).camera_id not in cameras:
            config.set_constant_cam_intrinsics(model.image(image_id).camera_id)
    config.fix_gauge(colmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    options = colmap.BundleAdjustmentOptions()
    options.refine_principal_point, options.print_summary = not use_centre, False
    options.ceres.solver_options.num_threads = threads
    summary = colmap.create_default_bundle_adjuster(options, config, model).solve()
    model.update_point_3d_errors()
    return model, float(summary.ceres_summary.final_cost) if summary.is_solution_usable() else np.nan
