"""ONNX export, kept only where onnxruntime agrees with torch.

There are two graphs: `network` maps images (B, 3, H, W) to unit descriptors (B, D, h, w), with dynamic B, H
and W; `pair` maps two images to k matches. With a fixed image size, everything that depends on it alone is
computed once, and few operators remain, which OpenCV's dnn knows, too. The file's metadata documents
preprocessing and coordinates.
"""

from __future__ import annotations

import importlib.util
import io
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ucn.config import MatchConfig
from ucn.data.points import check_suffix
from ucn.errors import OutputError
from ucn.files.writing import check_output, write_bytes_atomically
from ucn.formats.onnx_graphs import PairGraph
from ucn.formats.onnx_parity import Parity, check_network, check_pair
from ucn.nn import MIN_SIDE
from ucn.nn.model import drop_semantic
from ucn.weights import LoadedWeights

FORMAT = "ucn-onnx-1"
"""Format name in the metadata of every exported file."""
OPSET = 17
"""GridSample needs 16; onnxruntime supports 17 since 1.12."""
DEFAULT_K = 1024
"""Matches of the graph `pair`."""
MAX_K = 8192
"""Each keypoint is compared with every cell of the other image at once, which takes memory."""
MAX_AREA = 2**24
"""Pixels of the largest fixed image size."""

Kind = Literal["network", "pair"]
Report = Callable[[str], None]

_EXAMPLE_HW = (75, 102)  # for tracing; the graph is valid for every size
_SIZES = {0: "batch", 2: "height", 3: "width"}
_CELLS = {0: "batch", 2: "cell_rows", 3: "cell_columns"}


@dataclass(frozen=True)
class Export:
    """An exported file.

    Attributes:
        path: the file.
        kind: which graph.
        file_bytes: its size.
        parity: agreement of onnxruntime and torch, one entry per tested image size.
        metadata: of the file.
    """

    path: Path
    kind: Kind
    file_bytes: int
    parity: tuple[Parity, ...]
    metadata: dict[str, str]


def export_onnx(
    loaded: LoadedWeights,
    path: str | Path,
    *,
    kind: Kind = "network",
    k: int = DEFAULT_K,
    size_hw: tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Report | None = None,
) -> Export:
    """Exports a network to ONNX, after onnxruntime has agreed with torch on several image sizes.

    Of a network with a semantic level the fine one is exported, which is complete by itself.

    Args:
        loaded: the weights, as `load_weights` returns them.
        path: ends in .onnx.
        kind: network: images to descriptors; pair: two images to matches.
        k: matches of the graph `pair`, 1 to `MAX_K`.
        size_hw: (H, W) of the only images, one at a time, that the graph takes; None takes any.
        overwrite: replace an existing file.
        progress: called at each stage.

    Raises:
        OutputError: a package is missing, the file cannot be written, or onnxruntime and torch disagree; no
            file is left then.
        ValueError: the kind, k or size is wrong.
    """
    path, report = Path(path), progress or (lambda _: None)
    if kind not in ("network", "pair"):
        raise ValueError(f"kind must be network or pair, got '{kind}'")
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k must be in 1..{MAX_K}, got {k}")
    if size_hw is not None and not (min(size_hw) >= MIN_SIDE and size_hw[0] * size_hw[1] <= MAX_AREA):
        raise ValueError(
            f"size_hw must have sides of at least {MIN_SIDE} and at most {MAX_AREA:,} pixels, got {size_hw}"
        )
    check_suffix(path, (".onnx",), "a network")
    check_output(path, overwrite)
    check_packages()
    loaded = replace(loaded, model=drop_semantic(loaded.model).eval())
    model = loaded.model
    report("tracing the graph")
    if kind == "network":
        content = _trace(model, 1, ["images"], {"features": _CELLS}, size_hw)
    else:
        outputs = ("points0", "points1", "scores", "is_mutual")
        pair = PairGraph(model, loaded.calibration, k).eval()
        content = _trace(pair, 2, ["image0", "image1"], {name: {} for name in outputs}, size_hw)
    if size_hw is not None:
        content = _fold_constants(content)
    metadata = build_metadata(loaded, kind, k, size_hw)
    content = _add_metadata(content, metadata, loaded, rows=k if kind == "pair" else None)
    report("comparing with torch")
    check = check_network if kind == "network" else check_pair
    parity = tuple(check(content, loaded, k, size_hw))
    report("writing")
    write_bytes_atomically(path, content, overwrite)
    return Export(path, kind, len(content), parity, metadata)


def check_packages() -> None:
    """Raises `OutputError` where a package that exporting needs is not installed."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise OutputError(f"export needs {' and '.join(missing)}: pip install 'ucn[export]'")


def build_metadata(
    loaded: LoadedWeights, kind: Kind, k: int, size_hw: tuple[int, int] | None = None
) -> dict[str, str]:
    """Metadata of the file; all values are text, lists and mappings are JSON."""
    model, info = loaded.model, loaded.info
    facts: dict[str, Any] = {
        "format": FORMAT,
        "kind": kind,
        "preprocessing": "RGB in [0, 1], float32, (B, 3, H, W); everything else is inside the graph",
        "min_side": MIN_SIDE,
        "max_side": loaded.max_side,
        "stride": model.stride,
        "offset": model.offset,
        "dimension": model.config.dimensions,
        "coordinates": "(x, y) in pixels, the centre of the top-left pixel is (0, 0); "
        "cell c lies at stride * c + offset",
        "weights": Path(info.name).name,
        "weights_sha256": info.sha256,
        "licence": info.licence,
        "restrictions": info.restrictions,
        "model": model.config.to_dict(),
        "calibration": loaded.calibration.to_dict(),
        "opset": OPSET,
    }
    if kind == "pair":
        facts["k"] = k
        facts["mutual_tolerance"] = MatchConfig().mutual_tolerance
    if size_hw is not None:
        facts["height"], facts["width"] = size_hw
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in facts.items()
    }


def _trace(
    module: nn.Module,
    inputs: int,
    input_names: list[str],
    outputs: dict[str, dict[int, str]],
    size_hw: tuple[int, int] | None = None,
) -> bytes:
    """Traces a module with `inputs` image inputs to ONNX, with dynamic image sizes unless one is given."""
    generator = torch.Generator().manual_seed(0)
    batch = 2 if inputs == 1 and size_hw is None else 1
    side_hw = size_hw or _EXAMPLE_HW
    example = tuple(torch.rand(batch, 3, *side_hw, generator=generator) for _ in range(inputs))
    axes: dict[str, dict[int, str]] = {
        name: _SIZES if inputs == 1 else {axis: f"{size}{view}" for axis, size in list(_SIZES.items())[1:]}
        for view, name in enumerate(input_names)
    }
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The tracer warns wherever Python reads a size, and that it is deprecated. The comparison at several
        # sizes detects a size that was frozen.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            buffer,  # type: ignore[arg-type]  # the annotation lacks files
            dynamo=False,
            opset_version=OPSET,
            input_names=input_names,
            output_names=list(outputs),
            dynamic_axes=axes | outputs if size_hw is None else None,
        )
    return buffer.getvalue()


def _fold_constants(content: bytes) -> bytes:
    """Computes what depends on no pixels, by onnxruntime, which then removes it."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    # Basic: higher levels use operators of onnxruntime's own.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory(prefix="ucn-") as folder:
        path = Path(folder) / "folded.onnx"
        options.optimized_model_filepath = str(path)
        try:
            onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            model = onnx.load(path)
        except Exception as error:  # onnxruntime raises many exception classes of its own
            raise OutputError(f"onnxruntime cannot run the graph; no file was written: {error}") from error
    used = [item for item in model.opset_import if item.domain in {node.domain for node in model.graph.node}]
    del model.opset_import[:]
    model.opset_import.extend(used)
    found: bytes = model.SerializeToString(deterministic=True)
    return found


def _add_metadata(content: bytes, metadata: dict[str, str], loaded: LoadedWeights, rows: int | None) -> bytes:
    """Adds metadata and, where outputs have a fixed number of rows, that number."""
    import onnx

    model = onnx.load_from_string(content)
    if rows is not None:
        for output in model.graph.output:  # the tracer loses it at TopK
            output.type.tensor_type.shape.dim[0].dim_value = rows
    onnx.helper.set_model_props(model, metadata)
    model.producer_name = "ucn"
    model.doc_string = loaded.info.description
    onnx.checker.check_model(model)
    found: bytes = model.SerializeToString(deterministic=True)
    return found
