"""Sparse reconstruction with COLMAP's own SIFT: the baseline of other methods."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ucn.formats.colmap import (
    CameraSettings,
    DatabaseImage,
    MappingSettings,
    SparseModel,
    build_cameras,
    load_pycolmap,
    map_incrementally,
)


def make_sift_model(
    output: Path,
    folder: Path,
    names: Sequence[str],
    cameras: CameraSettings,
    settings: MappingSettings,
    max_keypoints: int | None = None,
) -> SparseModel:
    """Reconstructs a sparse model with COLMAP's SIFT and exhaustive matching, on the CPU.

    Args:
        output: folder for ``database.db`` and ``sparse/``, existing.
        folder: of the images.
        names: of the images; they share one camera.
        cameras: what is known of it.
        settings: seed, threads, inlier threshold and mapper options.
        max_keypoints: of an image; COLMAP's 8,192 when None.

    Raises:
        DataError: no model could be reconstructed.
    """
    colmap = load_pycolmap()
    reader = colmap.ImageReaderOptions()
    reader.camera_model = cameras.model
    if cameras.intrinsics is not None:
        image = DatabaseImage(names[0], np.zeros((0, 2), np.float32), (1, 1))
        known = build_cameras([image], folder, cameras)[0]
        reader.camera_model, reader.camera_params = "PINHOLE", known.params_to_string()
    extraction, matching = colmap.FeatureExtractionOptions(), colmap.FeatureMatchingOptions()
    extraction.num_threads = matching.num_threads = settings.threads
    if max_keypoints is not None:
        extraction.sift.max_num_features = max_keypoints
    extraction.use_gpu = matching.use_gpu = False
    verification = colmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = settings.seed
    verification.ransac.max_error = settings.max_error
    database = output / "database.db"
    colmap.extract_features(
        database,
        folder,
        image_names=list(names),
        camera_mode=colmap.CameraMode.SINGLE,
        reader_options=reader,
        extraction_options=extraction,
    )
    colmap.match_exhaustive(database, matching, verification_options=verification)
    return map_incrementally(database, folder, output / "sparse", settings, cameras.intrinsics is not None)
