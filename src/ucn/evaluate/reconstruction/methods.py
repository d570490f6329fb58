"""Methods by name for folders of images: shipped weights, weights of the user's, and every baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ucn.errors import ConfigError
from ucn.evaluate.core.method_types import hint_at
from ucn.evaluate.core.methods import OPTIMISERS, MethodFiles, list_features, list_methods, load_methods
from ucn.evaluate.core.methods import Method as MeasuredMethod
from ucn.features.extractor import Extractor
from ucn.folders.extraction import Method
from ucn.nn.encoder import Engine
from ucn.runtime.device import choose_device
from ucn.weights import list_weights, load_weights
from ucn.weights.store import DEFAULT_MAX_SIDE


@dataclass(frozen=True)
class FolderMethod:
    """A method for folders of images.

    Attributes:
        method: what engines take.
        title: what it is, with its settings.
        max_side: the longest side of images in pixels that it was made for.
    """

    method: Method
    title: str
    max_side: int


def load_folder_method(
    name_or_path: str, files: MethodFiles | None = None, engine: Engine | None = None
) -> FolderMethod:
    """Finds a method that describes single images.

    Args:
        name_or_path: shipped weights, a .safetensors file of `ucn train`, or a baseline (`sift`, `daisy`, …).
        files: that baselines need beside the package.
        engine: of a `Matcher`; None takes one that computes in float32, whatever the device.

    Raises:
        ConfigError: the name is unknown, the method matches whole images, or it cannot run here.
        WeightsError: a file is damaged or of something else.
    """
    files = files or MethodFiles()
    check_folder_name(name_or_path, list_features())
    measured = _load(name_or_path, files, "cpu", engine)
    is_weights = _is_file(name_or_path) or name_or_path in {info.name for info in list_weights()}
    side = load_weights(name_or_path).max_side if is_weights else DEFAULT_MAX_SIDE
    method = Method(measured.name, measured.key, partial(_make, name_or_path, files, engine))
    return FolderMethod(method, measured.title, side)


def check_folder_name(name_or_path: str, legal: Sequence[str]) -> None:
    """Raises `ConfigError`, naming the legal ones, for what is neither one of them nor a file."""
    if name_or_path in legal or _is_file(name_or_path):
        return
    shown, plus, optimiser = name_or_path[:80], *name_or_path.partition("+")[1:]
    offer = f"(there are {', '.join(legal)}; or give a .safetensors file of `ucn train`)"
    if name_or_path in list_methods() or (plus and optimiser in OPTIMISERS):
        raise ConfigError(
            f"method '{shown}' matches whole images and has no descriptors of keypoints; choose another "
            f"{offer}"
        )
    raise ConfigError(f"no method '{shown}'{hint_at(name_or_path, legal)} {offer}")


def _is_file(name_or_path: str) -> bool:
    return name_or_path.endswith(".safetensors") or (
        name_or_path not in list_methods() and Path(name_or_path).is_file()
    )


def _make(name_or_path: str, files: MethodFiles, engine: Engine | None, device: str | None) -> Extractor:
    return _load(name_or_path, files, str(choose_device(device)), engine).extractor


def _load(name_or_path: str, files: MethodFiles, device: str, engine: Engine | None) -> MeasuredMethod:
    if _is_file(name_or_path):
        loaded = load_methods([], replace(files, weights=(Path(name_or_path),)), device, engine)
    else:
        loaded = load_methods([name_or_path], replace(files, weights=()), device, engine)
    for name, reason in loaded.skipped.items():
        raise ConfigError(f"method '{name}' cannot run here: {reason}")
    return loaded.methods[0]
