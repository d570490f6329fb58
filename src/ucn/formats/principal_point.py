"""The principal point of guessed cameras: refined after mapping where the images determine it.

COLMAP keeps a guessed principal point at the image centre. Where it is elsewhere, as in cropped images, this
bends the model; but a bundle adjustment that may move it also explains other errors with it, such as lens
distortion that the camera model lacks, most of all for few views or a camera that moves forward. How well it
is determined is measured by a jackknife: the adjustment is repeated without every fifth image, and the point
is refined only if it lies further from the centre than it varies. The covariance of the adjustment is no
measure: it knows only independent noise, and is up to ten times too small on real images.
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
MAX_SHARE = 0.2
"""The largest distance from the centre, relative to the longer side of the image."""

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
        reason: in words.
    """

    camera: int
    images: int
    is_refined: bool
    shift: tuple[float, float] | None
    deviation: float | None
    reason: str


def find_principal_points(reconstruction: pycolmap.Reconstruction, reason: str) -> list[PrincipalPoint]:
    """The principal points of all cameras of a model as they are."""
    found = []
    for camera, images in _group_images(reconstruction).items():
        shift = _find_shift(reconstruction, camera)
        found.append(
            PrincipalPoint(camera, len(images), bool(np.any(shift != 0)), _pair(shift), None, reason)
        )
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
    decisions = [
        PrincipalPoint(
            camera, len(images), False, None, None, f"{len(images)} images, {MIN_IMAGES} are needed"
        )
        for camera, images in groups.items()
        if camera not in tried
    ]
    if not tried:
        return reconstruction, decisions
    refined = _adjust(colmap, reconstruction, tried, threads)
    parts = []
    for group in range(_GROUPS):
        left_out = [image for camera in tried for image in groups[camera][group::_GROUPS]]
        parts.append(_adjust(colmap, reconstruction, tried, threads, left_out))
    for camera in tried:
        shift = _find_shift(refined, camera)
        samples = np.stack([_find_shift(part, camera) for part in parts])
        side = max(refined.camera(camera).width, refined.camera(camera).height)
        decisions.append(_decide(camera, len(groups[camera]), shift, samples, side))
    accepted = [decision.camera for decision in decisions if decision.is_refined]
    decisions.sort(key=lambda decision: decision.camera)
    if not accepted:
        return reconstruction, decisions
    if len(accepted) < len(tried):
        refined = _adjust(colmap, reconstruction, accepted, threads)
    return refined, decisions


def _decide(camera: int, images: int, shift: Values, samples: Values, side: int) -> PrincipalPoint:
    """Decides by the shift (2,) of all images and those (G, 2) without one group of them each.

    Deviations of x and y are pooled: of a few groups, each alone can be small by chance.
    """
    distance, deviation = float(np.linalg.norm(shift)), jackknife_deviation(samples)
    measured = f"{distance:.1f} px off the centre, with a standard deviation of {deviation:.1f} px"
    if not np.isfinite(distance + deviation):
        return PrincipalPoint(camera, images, False, None, None, "the bundle adjustment failed")
    if distance > MAX_SHARE * side:
        is_refined, reason = False, f"implausible: {measured}"
    elif distance < MIN_RATIO * deviation:
        is_refined, reason = False, f"undetermined: {measured}"
    else:
        is_refined, reason = True, measured
    return PrincipalPoint(camera, images, is_refined, _pair(shift), deviation, reason)


def jackknife_deviation(samples: Values) -> float:
    """The standard deviation of a point, pooled over x and y, by estimates (G, 2) without one group each."""
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
    left_out: Collection[int] = (),
) -> pycolmap.Reconstruction:
    """A copy after bundle adjustment; intrinsics of other cameras than these are constant."""
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
    options.refine_principal_point, options.print_summary = True, False
    options.ceres.solver_options.num_threads = threads
    colmap.create_default_bundle_adjuster(options, config, model).solve()
    model.update_point_3d_errors()
    return model
