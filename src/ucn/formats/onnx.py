"""Networks as ONNX files, kept only when onnxruntime gives what torch gives.

Two graphs: `network` takes images (B, 3, H, W) to unit descriptors (B, D, h, w), all of B, H and W free;
`pair` takes two images to k matches. Everything that a reader must know stands in the file's metadata.
"""

from __future__ import annotations

import importlib.util
import io
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ucn.config import MatchConfig
from ucn.data.io import check_output, write_bytes_atomically
from ucn.data.points import check_suffix
from ucn.errors import OutputError
from ucn.formats.onnx_graphs import PairGraph
from ucn.formats.onnx_parity import Parity, check_network, check_pair
from ucn.nn import MIN_SIDE
from ucn.weights import LoadedWeights

FORMAT = "ucn-onnx-1"
"""Stands in the metadata of every file that is written here."""
OPSET = 17
"""GridSample came with 16; 17 is what onnxruntime 1.12 and later run."""
DEFAULT_K = 1024
"""Rows of the graph `pair`."""
MAX_K = 8192
"""Each row is compared with every cell of the other image at once."""

Kind = Literal["network", "pair"]
Report = Callable[[str], None]

_EXAMPLE_HW = (75, 102)  # the graph is recorded on it and holds for every size
_SIZES = {0: "batch", 2: "height", 3: "width"}
_CELLS = {0: "batch", 2: "cell_rows", 3: "cell_columns"}


@dataclass(frozen=True)
class Export:
    """A file that was written.

    Attributes:
        path: where.
        kind: which graph.
        file_bytes: its size.
        parity: how far onnxruntime and torch agree, one entry per size that was tried.
        metadata: what stands in the file.
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
    overwrite: bool = False,
    progress: Report | None = None,
) -> Export:
    """Writes a network as an ONNX file, after onnxruntime has agreed with torch on three sizes.

    Args:
        loaded: the weights, as `load_weights` gives them.
        path: ends in .onnx.
        kind: network: images to descriptors; pair: two images to matches.
        k: how many matches the graph `pair` gives, 1 to `MAX_K`.
        overwrite: replace an existing file.
        progress: called at each stage.

    Raises:
        OutputError: a package is missing, the file cannot be written, or the two do not agree; nothing is
            kept then.
        ValueError: the kind or k is wrong.
    """
    path, report = Path(path), progress or (lambda _: None)
    if kind not in ("network", "pair"):
        raise ValueError(f"kind must be network or pair, got '{kind}'")
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k must be in 1..{MAX_K}, got {k}")
    check_suffix(path, (".onnx",), "a network")
    check_output(path, overwrite)
    check_packages()
    model = loaded.model.eval()
    report("recording the graph")
    if kind == "network":
        content = _record(model, 1, ["images"], {"features": _CELLS})
    else:
        outputs = ("points0", "points1", "scores", "is_mutual")
        pair = PairGraph(model, loaded.calibration, k).eval()
        content = _record(pair, 2, ["image0", "image1"], {name: {} for name in outputs})
    metadata = describe(loaded, kind, k)
    content = _complete(content, metadata, loaded, rows=k if kind == "pair" else None)
    report("comparing with torch")
    check = check_network if kind == "network" else check_pair
    parity = tuple(check(content, loaded, k))
    report("writing")
    write_bytes_atomically(path, content, overwrite)
    return Export(path, kind, len(content), parity, metadata)


def check_packages() -> None:
    """Raises `OutputError` where a package that exporting needs is not installed."""
    missing = [name for name in ("onnx", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise OutputError(f"export needs {' and '.join(missing)}: pip install 'ucn[export]'")


def describe(loaded: LoadedWeights, kind: Kind, k: int) -> dict[str, str]:
    """What a reader of the file must know; every value is text, lists and mappings are JSON."""
    model, info = loaded.model, loaded.info
    dimension = model.config.dim or model.trunk.channels_out
    facts: dict[str, Any] = {
        "format": FORMAT,
        "kind": kind,
        "preprocessing": "RGB in [0, 1], float32, (B, 3, H, W); everything else is inside the graph",
        "min_side": MIN_SIDE,
        "max_side": loaded.max_side,
        "stride": model.stride,
        "offset": model.offset,
        "dimension": dimension,
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
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in facts.items()
    }


def _record(
    module: nn.Module, inputs: int, input_names: list[str], outputs: dict[str, dict[int, str]]
) -> bytes:
    """The ONNX file of a module that takes so many images, for images of every size."""
    generator = torch.Generator().manual_seed(0)
    batch = 2 if inputs == 1 else 1
    example = tuple(torch.rand(batch, 3, *_EXAMPLE_HW, generator=generator) for _ in range(inputs))
    axes: dict[str, dict[int, str]] = {
        name: _SIZES if inputs == 1 else {axis: f"{size}{view}" for axis, size in list(_SIZES.items())[1:]}
        for view, name in enumerate(input_names)
    }
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # The recorder warns wherever Python looks at a size, and that it is not the newest one. Whether a
        # size was frozen is what the comparison at three sizes finds out.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            example,
            buffer,  # type: ignore[arg-type]  # that it takes a file is not annotated
            dynamo=False,
            opset_version=OPSET,
            input_names=input_names,
            output_names=list(outputs),
            dynamic_axes=axes | outputs,
        )
    return buffer.getvalue()


def _complete(content: bytes, metadata: dict[str, str], loaded: LoadedWeights, rows: int | None) -> bytes:
    """The file with its metadata and, where outputs have a fixed number of rows, with that number."""
    import onnx

    model = onnx.load_from_string(content)
    if rows is not None:
        for output in model.graph.output:  # the recorder knows no size that went through TopK
            output.type.tensor_type.shape.dim[0].dim_value = rows
    onnx.helper.set_model_props(model, metadata)
    model.producer_name = "ucn"
    model.doc_string = loaded.info.description
    onnx.checker.check_model(model)
    found: bytes = model.SerializeToString(deterministic=True)
    return found
