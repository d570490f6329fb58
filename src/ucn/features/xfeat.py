"""XFeat (Potje et al. 2024), a modern peer: its dense descriptors from an ONNX file, run by onnxruntime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ucn.errors import WeightsError
from ucn.features.extractor import read_pixels, resized_features
from ucn.types import Features, ImageLike

INPUT_HW = (480, 640)
"""The one size that the exported network takes."""
STRIDE, OFFSET = 8, 3.5
"""Training assigns pixel x to cell x // 8, so cell c covers the pixels 8c to 8c + 7."""

_DIM = 64
_MAX_FILE_BYTES = 256 * 2**20


class XFeat:
    """XFeat's dense descriptors, one per 8 pixels, 64 numbers.

    An image of another size than 640 × 480 is scaled to fit into it, and the rest of the input is filled with
    its mean grey; cells beyond the image are cut off.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        """Opens the network.

        Args:
            path: the ONNX file, with an input of 1 × 1 × 480 × 640, grey 0..255.
            threads: of the CPU; 0 takes as many as there are.

        Raises:
            WeightsError: onnxruntime is not installed, or the file is missing, damaged or another network.
        """
        reason = find_obstacle(path)
        if reason:
            raise WeightsError(reason)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that wait busily for the next image would take the cores from whoever works in between.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has an exception class of its own for each kind of damage
            raise WeightsError(f"{path} is not an ONNX network that onnxruntime can run: {error}") from error
        self._input, self._output = _find_ends(self._session, path)
        self._path, self._threads = path, threads

    def __reduce__(self) -> tuple[type[XFeat], tuple[Path, int]]:
        return XFeat, (self._path, self._threads)  # a session cannot be copied into another process

    @torch.no_grad()
    def extract(self, image: ImageLike) -> Features:
        """Describes an image at every cell."""
        pixels = read_pixels(image).cpu()
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        grey = pixels.mean(dim=0)[None, None] * 255
        scale = min(INPUT_HW[0] / image_hw[0], INPUT_HW[1] / image_hw[1])
        fitted_hw = (max(1, round(image_hw[0] * scale)), max(1, round(image_hw[1] * scale)))
        if fitted_hw != image_hw:
            grey = F.interpolate(grey, fitted_hw, mode="bilinear", antialias=True, align_corners=False)
        rest = (0, INPUT_HW[1] - fitted_hw[1], 0, INPUT_HW[0] - fitted_hw[0])
        canvas = F.pad(grey, rest, value=float(grey.mean()))
        found = self._session.run([self._output], {self._input: np.ascontiguousarray(canvas.numpy())})[0]
        h, w = (max(1, int((side - 1 - OFFSET) // STRIDE) + 1) for side in fitted_hw)
        descriptors = torch.from_numpy(np.asarray(found, np.float32))[0, :, :h, :w]
        return resized_features(descriptors, fitted_hw, image_hw, STRIDE, OFFSET)


def find_obstacle(path: Path) -> str:
    """Why XFeat cannot be run; empty where it can."""
    if importlib.util.find_spec("onnxruntime") is None:
        return "XFeat needs onnxruntime, which is not installed: pip install 'ucn[baselines]'"
    try:
        if not path.is_file():
            return f"no XFeat network at {path}: expected its ONNX file for 640 × 480"
        size = path.stat().st_size
    except OSError as error:
        return f"cannot read XFeat's network {path}: {error.strerror or error}"
    if size > _MAX_FILE_BYTES:
        return f"{path} has {size:,} bytes, the limit for XFeat's network is {_MAX_FILE_BYTES:,}"
    return ""


def _find_ends(session: Any, path: Path) -> tuple[str, str]:
    """Names of the input and of the output that holds the descriptors."""
    inputs = [node.name for node in session.get_inputs() if node.shape == [1, 1, *INPUT_HW]]
    wanted = [1, _DIM, INPUT_HW[0] // STRIDE, INPUT_HW[1] // STRIDE]
    outputs = [node.name for node in session.get_outputs() if node.shape == wanted]
    if len(session.get_inputs()) != 1 or not inputs or not outputs:
        raise WeightsError(
            f"{path} is not XFeat for 640 × 480: expected an input {[1, 1, *INPUT_HW]} and an output {wanted}"
        )
    return inputs[0], outputs[0]
