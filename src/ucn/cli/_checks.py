"""Checks of input that take milliseconds: made before torch, which takes seconds, is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def check_images(paths: Iterable[Path | None]) -> list[tuple[int, int]]:
    """Checks the headers of image files and returns their (H, W), upright; raises `ImageReadError`."""
    from ucn.config import MIN_SIDE
    from ucn.data.io import check_image_file

    return [check_image_file(path, MIN_SIDE) for path in paths if path is not None]


def check_masks(paths: Iterable[Path | None], sizes_hw: Iterable[tuple[int, int]]) -> None:
    """Checks the headers of the mask files of images of these sizes; raises `ImageReadError`."""
    from ucn.data.io import check_mask_file

    for path, size_hw in zip(paths, sizes_hw, strict=False):  # a command may have no masks
        if path is not None:
            check_mask_file(path, size_hw)


def check_file(path: Path | None, what: str) -> None:
    """Checks that a file, if it is given, is there; raises `DataError`."""
    from ucn.files.reading import check_readable

    if path is not None:
        check_readable(path, what)


def check_image_folder(path: Path | None) -> None:
    """Checks that a folder of images, if it is given, is there; raises `DataError`."""
    from ucn.data.sets.layout import check_folder

    if path is not None:
        check_folder(path, "a folder of images")


def check_features(method: str | None, weights: str) -> None:
    """Checks the method or the weights whose features are requested.

    Raises:
        ConfigError: there is no such method, or it has no features of single images.
        WeightsError: there are no such weights.
    """
    from ucn.paper.names import METHOD_NAMES
    from ucn.weights import check_weights

    if method is not None or METHOD_NAMES.has_name(weights):
        METHOD_NAMES.check_name(method or weights, needs_features=True)
    else:
        check_weights(weights)


def check_methods(names: Iterable[str], weights_files: Sequence[Path]) -> None:
    """Checks weights files, and that each name is one of a method of any kind.

    Whether a benchmark takes this kind is checked when the benchmark is opened.

    Raises:
        ConfigError: a name is unknown.
        WeightsError: a file is missing, or a PyTorch pickle.
    """
    from ucn.features.names import COLMAP_SIFT
    from ucn.paper.names import METHOD_NAMES
    from ucn.weights import check_weights

    others = [COLMAP_SIFT, *(path.stem for path in weights_files)]
    for name in names:
        if not METHOD_NAMES.has_name(name, kind="sparse", others=others):
            sparse = [other for other in METHOD_NAMES.sparse if other not in METHOD_NAMES.baselines]
            METHOD_NAMES.check_name(name, others=[*sparse, *others])
    for path in weights_files:
        check_weights(path)
