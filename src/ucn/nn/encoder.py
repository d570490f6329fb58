"""Chooses how a network runs, and checks each fast engine against the reference.

    reference   CorrespondenceNetwork   nn/model.py          float32, any device; plain torch in every layer
    CPU bands   CpuEncoder              nn/cpu/encoder.py    folded, float32, in bands of rows
    CUDA graph  CudaEncoder             nn/cuda/encoder.py   folded, bfloat16, one CUDA graph per image size
    folded      FoldedEncoder           nn/folding.py        folded, float32, on any other device

The fast engines reimplement the network. So each is compared with the reference, in plain torch, on a small
image when it is made. Where they differ, where the engine fails, or where it would ignore a change of the
network (an overridden method, a hook, a module of another class), the reference runs instead and a warning
is logged. Single layers of the network have fused CUDA kernels of their own, in nn/triton/, for training.
`ReferenceEncoder` switches them off.
"""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import Tensor

from ucn.nn.folding import FoldedEncoder
from ucn.nn.model import CorrespondenceNetwork, Encoder
from ucn.runtime.kernels import has_bfloat16_units, without_fused
from ucn.runtime.threads import share
from ucn.types import FeatureMap

Engine = Literal["auto", "fast", "plain"]
"""How a network runs; see `choose_encoder`."""

# Odd sides; 9 × 161 cells, which the CPU engine cuts into three bands with one row in the last.
_CHECK_HW = (35, 645)
# Largest distance between unit descriptors; 0.14 is a cosine of 0.99. The shipped weights have 1e-5 on a CPU
# and 0.03 in bfloat16.
_CPU_TOLERANCE, _TOLERANCE = 1e-3, 0.14
_METHODS = ("encode", "forward", "prepare", "describe")
_LOGGER = logging.getLogger(__name__)


class ReferenceEncoder:
    """Runs a network on a CUDA device with every layer in plain torch.

    Attributes:
        network: the network itself; changes of its weights have an effect.
        stride: pixels between neighbouring cells.
        offset: pixel coordinate of cell 0.
        reach: radius in pixels of a cell's receptive field.
        semantic_dim: dimensions of the semantic level.
    """

    def __init__(self, network: CorrespondenceNetwork) -> None:
        self.network = network
        self.stride, self.offset, self.reach = network.stride, network.offset, network.reach
        self.semantic_dim = network.semantic_dim

    def encode(self, images: Tensor) -> FeatureMap:
        """As `CorrespondenceNetwork.encode`."""
        with without_fused():
            return self.network.encode(images)

    def prepare(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.prepare`."""
        with without_fused():
            return self.network.prepare(images)

    def describe(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.describe`."""
        with without_fused():
            return self.network.describe(images)


def choose_encoder(
    model: CorrespondenceNetwork, engine: Engine, *, use_compiler: bool | None = None
) -> Encoder:
    """The encoder for an engine, on the device of the model.

    - plain: the reference: the network itself, in float32; on a CUDA device, a `ReferenceEncoder` of it.
    - auto: the fastest encoder that needs no preparation. On a CPU, `CpuEncoder`, with the reference's
      descriptors to rounding. On an NVIDIA GPU since Ampere, `CudaEncoder` in bfloat16: not compiled, with
      graphs as `LAZY_CAPTURE` says. Elsewhere, where nobody has measured it, the reference.
    - fast: a fast encoder on every device. On a CUDA device it is compiled (a minute or so for each new
      size, and for the comparison) and captured at the first pass of a size: for many images of few sizes.

    A fast encoder copies the weights: changes of the model after this call have no effect on it.

    Args:
        model: in evaluation mode, on its device.
        engine: auto, fast or plain.
        use_compiler: False keeps 'fast' from compiling.
    """
    device = next(model.parameters()).device
    is_measured = device.type == "cpu" or has_bfloat16_units(device)
    reference = ReferenceEncoder(model) if device.type == "cuda" else model
    if engine == "plain" or (engine == "auto" and not is_measured):
        return reference
    try:
        obstacle = _find_change(model)
        if obstacle is None:
            encoder = _make_fast_encoder(model, engine, use_compiler)
            obstacle = _find_difference(encoder, model)
    except Exception as error:  # a changed network, a driver or a compiler may raise anything
        obstacle = f"its fast engine fails: {error}"
    if obstacle is None:
        return encoder
    _LOGGER.warning(
        "the network runs in plain torch, which is slower: %s; engine='plain' silences this", obstacle
    )
    return reference


def choose_exact_engine(device: str | torch.device) -> Engine:
    """The fastest engine that agrees with the reference to float32 rounding, for results to publish."""
    return "auto" if torch.device(device).type == "cpu" else "plain"


def _make_fast_encoder(
    model: CorrespondenceNetwork, engine: Engine, use_compiler: bool | None
) -> FoldedEncoder:
    device = next(model.parameters()).device
    if device.type == "cpu":
        from ucn.nn.cpu.encoder import CpuEncoder

        return CpuEncoder(model)
    if device.type != "cuda":
        return FoldedEncoder(model)
    from ucn.nn.cuda.encoder import CudaEncoder
    from ucn.nn.cuda.graphs import LAZY_CAPTURE

    if engine == "auto":
        return CudaEncoder(model, use_compiler=False, policy=LAZY_CAPTURE)
    return CudaEncoder(model, use_compiler=use_compiler)


def _find_change(model: CorrespondenceNetwork) -> str | None:
    """An overridden method, a hook or a module of another class: one small image need not show it."""
    for name in _METHODS:
        is_inherited = getattr(type(model), name) is getattr(CorrespondenceNetwork, name)
        if not is_inherited or name in vars(model):
            return f"its method '{name}' is overridden"
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return f"its module '{name}' has forward hooks or another forward"
        if name and not type(module).__module__.startswith(("ucn.nn.", "torch.nn.")):
            return f"its module '{name}' is of the class {type(module).__name__}, which they do not know"
    return None


@torch.no_grad()
def _find_difference(encoder: FoldedEncoder, model: CorrespondenceNetwork) -> str | None:
    """How the descriptors of a small image of noise differ from the reference's; None if they agree."""
    like = next(model.parameters())
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, *_CHECK_HW, generator=generator, dtype=like.dtype).to(like.device)
    tolerance = _CPU_TOLERANCE if like.device.type == "cpu" else _TOLERANCE

    def describe_plainly(image: Tensor) -> Tensor:
        with torch.autocast(like.device.type, enabled=False), without_fused():
            return model(image)  # type: ignore[no-any-return]

    runs = [describe_plainly, *encoder.list_code_paths()]
    found: dict[int, Tensor] = {}

    def describe(number: int) -> None:
        found[number] = runs[number](image)

    if like.device.type == "cpu":  # side by side: each is too small for several threads
        share(describe, range(len(runs)))
    else:
        for number in range(len(runs)):
            describe(number)
    expected = found.pop(0)
    for descriptors in found.values():
        if descriptors.shape != expected.shape:
            return (
                f"its fast engine's descriptors are {tuple(descriptors.shape)}, not {tuple(expected.shape)}"
            )
        distance = torch.linalg.vector_norm(descriptors - expected, dim=1).max().item()
        if not distance <= tolerance:  # also where it is NaN
            return f"its fast engine's descriptors differ by {distance:.2g}, expected at most {tolerance:g}"
    return None
