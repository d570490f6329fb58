"""Descriptors at the speed of the device, from a folded network.

On a CUDA device it runs in bfloat16, compiled, as one CUDA graph per size: for many images of few sizes, as
every new size is compiled and captured once. Descriptors differ from those of the network itself by the
rounding of bfloat16; `ucn bench encode` prints by how much. On a processor it runs in bands of rows, in
float32, for images of any size; descriptors are those of the network, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ucn.nn.banded_network import BandedNetwork, can_band
from ucn.nn.folding import fold
from ucn.nn.model import CorrespondenceNetwork, check_images
from ucn.types import FeatureMap

# Passes before a capture, in which libraries choose their programs and get their memory.
_WARM_UPS = 3


@dataclass(frozen=True)
class _Captured:
    graph: Any
    images: Tensor
    descriptors: Tensor


class FastEncoder:
    """Encodes images as a network does, for use alone.

    Attributes:
        network: the folded copy whose weights are used.
        dtype: of its products.
        stride: pixels between neighbouring cells.
        offset: pixel coordinate of cell 0.
        reach: pixels from a cell's centre within which the image matters to its descriptor.
    """

    def __init__(
        self,
        model: CorrespondenceNetwork,
        *,
        dtype: torch.dtype | None = None,
        use_compiler: bool | None = None,
        compile_mode: str | None = None,
        max_sizes: int = 8,
    ) -> None:
        """Prepares a network where it is.

        Args:
            model: stays as it is; later changes of it have no effect here.
            dtype: bfloat16 on a CUDA device and float32 elsewhere where None.
            use_compiler: whether torch.compile makes the programs; on a CUDA device where None.
            compile_mode: of torch.compile; "max-autotune-no-cudagraphs" takes minutes a size.
            max_sizes: how many image sizes are kept captured; the oldest makes room.

        Raises:
            ValueError: `max_sizes` is not positive.
        """
        if max_sizes < 1:
            raise ValueError(f"max_sizes must be at least 1, got {max_sizes}")
        device = next(model.parameters()).device
        is_cuda = device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if is_cuda else torch.float32)
        self.network = fold(model, self.dtype, for_tensor_cores=is_cuda)
        self.stride, self.offset, self.reach = model.stride, model.offset, model.reach
        self._run: Callable[[Tensor], Tensor] = self.network
        self._describe: Callable[[Tensor], Tensor] = self.network.describe
        self._is_captured = is_cuda
        if is_cuda if use_compiler is None else use_compiler:
            self._run = torch.compile(self.network, dynamic=False, mode=compile_mode)
        elif device.type == "cpu" and self.dtype == torch.float32 and can_band(self.network):
            banded = BandedNetwork(self.network)
            self._run, self._describe = banded, banded.describe
        self._max_sizes = max_sizes
        self._captured: dict[tuple[int, ...], _Captured] = {}

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to unit descriptors (B, D, h, w) in float32."""
        if not (self._is_captured and images.is_cuda) or images.shape[0] == 0:
            return self._run(images)
        captured = self.capture(images)
        captured.images.copy_(images)
        captured.graph.replay()
        return captured.descriptors.clone()

    def encode(self, images: Tensor) -> FeatureMap:
        """Descriptors together with where their cells lie, as `CorrespondenceNetwork.encode`."""
        check_images(images)
        return FeatureMap(self(images), self.stride, self.offset, (images.shape[-2], images.shape[-1]))

    def prepare(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.prepare`."""
        return self.network.prepare(images)

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.describe`: for tiles, whose sizes are too many to capture."""
        return self._describe(images)

    @torch.no_grad()
    def capture(self, images: Tensor) -> _Captured:
        """The graph for images of this shape, made when first asked for; its buffers belong to it."""
        shape = tuple(images.shape)
        if shape not in self._captured:
            while len(self._captured) >= self._max_sizes:
                del self._captured[next(iter(self._captured))]
            with torch.cuda.device(images.device):
                self._captured[shape] = self._record(images)
        return self._captured[shape]

    def _record(self, images: Tensor) -> _Captured:
        static = images.detach().clone()
        settings = torch.backends.cudnn
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with settings.flags(
            enabled=True, benchmark=True, deterministic=False, allow_tf32=settings.allow_tf32
        ):
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    self._run(static)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                descriptors = self._run(static)
        return _Captured(graph, static, descriptors)
