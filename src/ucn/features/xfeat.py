"""XFeat (Potje et al. 2024): its dense descriptors from an ONNX file, run by onnxruntime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ucn.errors import WeightsError
from ucn.features.extractor import make_features, read_pixels
from ucn.files.reading import open_regular, shorten
from ucn.types import Features, ImageLike

INPUT_HW = (480, 640)
"""The only input size of the exported network."""
_OFFSET = 3.5  # training assigns pixel x to cell x // 8, so cell c covers the pixels 8c to 8c + 7
_MAX_FILE_BYTES = 256 * 2**20


class XFeat:
    """XFeat's dense descriptors, one per 8 pixels.

    An image of another size than 640 × 480 is scaled to fit into it, and the input is padded with its mean
    grey; cells outside the image are dropped.
    """

    dim, stride = 64, 8
    title = (
        "XFeat's dense descriptors, one per 8 px, 64 dimensions; other sizes than 640 × 480 are fitted into "
        "it"
    )

    def __init__(self, path: Path, threads: int = 0) -> None:
        """Opens the network.

        Args:
            path: the ONNX file, with an input of 1 × 1 × 480 × 640, grey 0..255.
            threads: of the CPU; 0 uses all cores.

        Raises:
            WeightsError: onnxruntime is not installed, or the file is missing, damaged or another network.
        """
        reason = explain_unavailable(path)
        if reason:
            raise WeightsError(reason)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that spin while they wait for the next image slow down all other work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            with open_regular(path) as file:
                content = file.read()
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises many classes of its own
            raise WeightsError(
                f"{path} is not an ONNX network that onnxruntime can run: {shorten(error)}"
            ) from error
        self._input, self._output = _find_tensors(self._session, path)
        self._path, self._threads = path, threads

    def __reduce__(self) -> tuple[type[XFeat], tuple[Path, int]]:
        return XFeat, (self._path, self._threads)  # a session cannot be copied into another process

    @torch.no_grad()
    def extract(self, image: ImageLike) -> Features:
        """Computes the descriptors of an image at every cell."""
        pixels = read_pixels(image).cpu()
        image_hw = (pixels.shape[-2], pixels.shape[-1])
        grey = pixels.mean(dim=0)[None, None] * 255
        scale = min(INPUT_HW[0] / image_hw[0], INPUT_HW[1] / image_hw[1])
        fitted_hw = (max(1, round(image_hw[0] * scale)), max(1, round(image_hw[1] * scale)))
        if fitted_hw != image_hw:
            grey = F.interpolate(grey, fitted_hw, mode="bilinear", antialias=True, align_corners=False)
        padding = (0, INPUT_HW[1] - fitted_hw[1], 0, INPUT_HW[0] - fitted_hw[0])
        canvas = F.pad(grey, padding, value=float(grey.mean()))
        found = self._session.run([self._output], {self._input: np.ascontiguousarray(canvas.numpy())})[0]
        h, w = (max(1, int((side - 1 - _OFFSET) // self.stride) + 1) for side in fitted_hw)
        descriptors = torch.from_numpy(np.asarray(found, np.float32))[0, :, :h, :w]
        return make_features(descriptors, image_hw, self.stride, _OFFSET, encoded_hw=fitted_hw)


def explain_unavailable(path: Path) -> str:
    """Why XFeat cannot run here; empty where it can."""
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


def _find_tensors(session: Any, path: Path) -> tuple[str, str]:
    """Names of the input and of the output with the descriptors."""
    inputs = [node.name for node in session.get_inputs() if node.shape == [1, 1, *INPUT_HW]]
    shape = [1, XFeat.dim, INPUT_HW[0] // XFeat.stride, INPUT_HW[1] // XFeat.stride]
    outputs = [node.name for node in session.get_outputs() if node.shape == shape]
    if len(session.get_inputs()) != 1 or not inputs or not outputs:
        raise WeightsError(
            f"{path} is not XFeat for 640 × 480: expected an input {[1, 1, *INPUT_HW]} and an output {shape}"
        )
    return inputs[0], outputs[0]
