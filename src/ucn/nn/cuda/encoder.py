"""The CUDA engine: a folded network in bfloat16, as one CUDA graph per image size, compiled on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ucn.nn.cuda.graphs import CapturedGraph, CapturePolicy, GraphCache
from ucn.nn.folding import FoldedEncoder
from ucn.nn.model import CorrespondenceNetwork
from ucn.runtime.kernels import has_bfloat16_units, has_kernels

# Passes before a capture, in which libraries choose their kernels and allocate their workspaces.
_WARM_UPS = 3


class CudaEncoder(FoldedEncoder):
    """Computes the descriptors of a network, to the rounding of bfloat16, on a CUDA device.

    Devices without fast bfloat16 run in float32.
    """

    def __init__(
        self,
        model: CorrespondenceNetwork,
        *,
        use_compiler: bool | None = None,
        policy: CapturePolicy | None = None,
    ) -> None:
        """Folds a network on the device where it is.

        Args:
            model: stays as it is; later changes of its weights have no effect here.
            use_compiler: whether torch.compile generates the kernels; where it can, when None.
            policy: which sizes are captured; all of them, at their first pass, when None.
        """
        device = next(model.parameters()).device
        dtype = torch.bfloat16 if has_bfloat16_units(device) else torch.float32
        super().__init__(model, dtype, for_tensor_cores=True)
        self._graphs = GraphCache(self._capture, policy or CapturePolicy())
        # cuDNN's search for the fastest kernels takes long, and may choose others in the next process.
        self._use_search = policy is None
        self._run: Callable[[Tensor], Tensor] = self.network
        if has_kernels() if use_compiler is None else use_compiler:
            self._run = torch.compile(self.network, dynamic=False)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to unit descriptors (B, D, h, w) in float32."""
        descriptors = self._graphs.run(images) if images.shape[0] else None
        return self.run_eagerly(images) if descriptors is None else descriptors

    @torch.no_grad()
    def run_eagerly(self, images: Tensor) -> Tensor:
        """As a call, without a graph."""
        with self._fixed_settings():
            return self._run(images)

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.describe`: for tiles, which are large enough without a graph."""
        with self._fixed_settings():
            return self.network.describe(images)

    @torch.no_grad()
    def capture(self, images: Tensor) -> CapturedGraph:
        """The graph for images of this size, captured now where there is none.

        Raises:
            RuntimeError: the network is not on a CUDA device, or cannot be captured.
        """
        return self._graphs.get(images)

    def list_code_paths(self) -> list[Callable[[Tensor], Tensor]]:
        """As `FoldedEncoder.list_code_paths`; a graph replays the kernels of the eager path."""
        return [self.run_eagerly, lambda images: self.describe(self.prepare(images))]

    def _capture(self, images: Tensor) -> CapturedGraph:
        if images.device.type != "cuda":
            raise RuntimeError(f"CUDA graphs need images on a CUDA device, got {images.device}")
        stream = torch.cuda.current_stream(images.device)
        try:
            # Buffers made in inference mode could not be written to outside of it.
            with torch.cuda.device(images.device), torch.inference_mode(False), torch.no_grad():
                return self._capture_on_device(images)
        except RuntimeError:
            torch.cuda.set_stream(stream)  # torch stays in the capture's stream where the capture fails
            raise

    def _capture_on_device(self, images: Tensor) -> CapturedGraph:
        static = images.detach().clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with self._fixed_settings():
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    self._run(static)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as a server's, may allocate memory meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                descriptors = self._run(static)
        return CapturedGraph(graph, static, descriptors)

    @contextmanager
    def _fixed_settings(self) -> Iterator[None]:
        """Ignores the caller's autocast and cuDNN search, so that eager and captured passes agree."""
        cudnn = torch.backends.cudnn
        before = cudnn.benchmark
        cudnn.benchmark = self._use_search
        try:
            with torch.autocast("cuda", enabled=False):
                yield
        finally:
            cudnn.benchmark = before
