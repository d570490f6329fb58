"""Descriptors at the speed of the device, from a folded network; `choose_encoder` says where it is used.

On a CUDA device it runs in bfloat16, as one CUDA graph for each size that comes often, and compiled where
asked for. Descriptors differ from those of the network itself by the rounding of bfloat16; `ucn bench encode`
prints by how much. On a processor it runs in bands of rows, in float32, for images of any size; descriptors
are those of the network, to rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from ucn.nn.cpu.lite import BandedLite, can_band_lite
from ucn.nn.cpu.network import BandedNetwork, can_band
from ucn.nn.cuda.graphs import Captured, CapturePolicy, Captures
from ucn.nn.folding import fold
from ucn.nn.model import CorrespondenceNetwork, check_images
from ucn.runtime.kernels import has_bfloat16_units, has_kernels
from ucn.types import FeatureMap

Engine = Literal["auto", "fast", "plain"]
"""What encodes images: the network as it stands (plain), a `FastEncoder` with all it can do (fast), or one
with what pays at once (auto); see `choose_encoder`."""

PATIENT = CapturePolicy(after=2, max_sizes=8, rest=64, max_pixels=2**21)
"""For images of whatever sizes: both of a pair run as they are, a third of their size is captured."""

# Passes before a capture, in which libraries choose their programs and get their memory.
_WARM_UPS = 3
# Of descriptors of both encoders; rounding to bfloat16 leaves 0.9998 on photographs.
_LEAST_COSINE = 0.99
_LOGGER = logging.getLogger(__name__)


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
        policy: CapturePolicy | None = None,
    ) -> None:
        """Prepares a network where it is.

        Args:
            model: stays as it is; later changes of it have no effect here.
            dtype: bfloat16 on a CUDA device that has units for it, and float32 elsewhere, where None.
            use_compiler: whether torch.compile makes the programs; on a CUDA device where it can, where None.
            compile_mode: of torch.compile; "max-autotune-no-cudagraphs" takes minutes a size.
            policy: which sizes are captured on a CUDA device; all, at once, where None.
        """
        device = next(model.parameters()).device
        is_cuda = device.type == "cuda"
        self.dtype = dtype or (torch.bfloat16 if has_bfloat16_units(device) else torch.float32)
        self.network = fold(model, self.dtype, for_tensor_cores=is_cuda)
        self.stride, self.offset, self.reach = model.stride, model.offset, model.reach
        self._run: Callable[[Tensor], Tensor] = self.network
        self._describe: Callable[[Tensor], Tensor] = self.network.describe
        self._captures = Captures(self._record, policy or CapturePolicy()) if is_cuda else None
        # To search for the quickest programs takes long and may end differently in the next process.
        self._use_search = policy is None
        if use_compiler is None:
            use_compiler = is_cuda and has_kernels()
        if use_compiler:
            self._run = torch.compile(self.network, dynamic=False, mode=compile_mode)
        elif device.type == "cpu" and self.dtype == torch.float32:
            self._take_bands()

    def _take_bands(self) -> None:
        if can_band(self.network):
            banded: BandedNetwork | BandedLite = BandedNetwork(self.network)
        elif can_band_lite(self.network):
            banded = BandedLite(self.network)
        else:
            return
        self._run, self._describe = banded, banded.describe

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) RGB in [0, 1] to unit descriptors (B, D, h, w) in float32."""
        if self._captures is None:
            return self._run(images)
        found = self._captures.run(images) if images.shape[0] else None
        if found is not None:
            return found
        with _fixed_settings(self._use_search):
            return self._run(images)

    def encode(self, images: Tensor) -> FeatureMap:
        """Descriptors together with where their cells lie, as `CorrespondenceNetwork.encode`."""
        check_images(images)
        return FeatureMap(self(images), self.stride, self.offset, (images.shape[-2], images.shape[-1]))

    def prepare(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.prepare`."""
        return self.network.prepare(images)

    @torch.no_grad()
    def describe(self, images: Tensor) -> Tensor:
        """As `CorrespondenceNetwork.describe`: for tiles, which are large enough without a graph."""
        if self._captures is None:
            return self._describe(images)
        with _fixed_settings(self._use_search):
            return self._describe(images)

    @torch.no_grad()
    def capture(self, images: Tensor) -> Captured:
        """The graph for images of this size, made when first asked for; its memory belongs to it.

        Raises:
            RuntimeError: the network is on no CUDA device, or cannot be captured.
        """
        if self._captures is None:
            raise RuntimeError("only a network on a CUDA device can be captured")
        return self._captures.get(images)

    def _record(self, images: Tensor) -> Captured:
        before = torch.cuda.current_stream(images.device)
        try:
            # Buffers made in inference mode could not be written to outside of it.
            with torch.cuda.device(images.device), torch.inference_mode(False), torch.no_grad():
                return self._record_here(images)
        except RuntimeError:
            torch.cuda.set_stream(before)  # torch stays in the capture's stream where the capture fails
            raise

    def _record_here(self, images: Tensor) -> Captured:
        static = images.detach().clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with _fixed_settings(self._use_search):
            with torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    self._run(static)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as a server's, may ask for memory meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                descriptors = self._run(static)
        return Captured(graph, static, descriptors)


def choose_encoder(model: CorrespondenceNetwork, engine: Engine) -> CorrespondenceNetwork | FastEncoder:
    """What encodes for an engine, where the model is.

    - plain: the network, in float32, everywhere: the reference.
    - fast: a `FastEncoder` everywhere. On a CUDA device it compiles for a minute or so, and captures, at each
      new size: for many images of few sizes.
    - auto: a `FastEncoder` where it costs nothing first. On a processor that is always so. On a CUDA device
      with units for bfloat16 it is folded and in bfloat16, but not compiled, and captures as `PATIENT` says.
      A small picture is encoded both ways first; where they differ, or the fast one fails, the network
      itself is taken, with a warning. Elsewhere (older devices, where bfloat16 is slow, and other makers',
      where no one has measured) it is the network itself.
    """
    device = next(model.parameters()).device
    if engine == "plain":
        return model
    if engine == "fast" or device.type == "cpu":
        return FastEncoder(model)
    if has_bfloat16_units(device):
        encoder = FastEncoder(model, use_compiler=False, policy=PATIENT)
        if _agrees(encoder, model):
            return encoder
    return model


@torch.no_grad()
def _agrees(encoder: FastEncoder, model: CorrespondenceNetwork) -> bool:
    """Whether a small picture of noise gets the descriptors of the network itself, to bfloat16's rounding.

    Nobody asked for the fast encoder where it is taken by itself, so a device, driver or library that cannot
    run it must cost a warning and not the result.
    """
    device = next(model.parameters()).device
    noise = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0)).to(device)
    try:
        least = (encoder(noise) * model(noise)).sum(dim=1).min().item()
    except Exception as error:  # whatever a driver or a compiler of kernels raises
        _LOGGER.warning("images are encoded by the network as it stands: the fast encoder fails: %s", error)
        return False
    if not least > _LEAST_COSINE:
        _LOGGER.warning(
            "images are encoded by the network as it stands: descriptors of the fast encoder have a cosine "
            "of only %.4f to its own, expected above %.2f",
            least,
            _LEAST_COSINE,
        )
        return False
    return True


def choose_exact_engine(device: str | torch.device) -> Engine:
    """The quickest engine whose descriptors are the network's to float32's rounding: for figures to quote.

    They then hang on the device no more than float32 does.
    """
    return "auto" if torch.device(device).type == "cpu" else "plain"


@contextmanager
def _fixed_settings(use_search: bool) -> Iterator[None]:
    """Neither the caller's autocast nor its way to choose programs matters inside.

    So a captured pass runs the programs of one that is not, and gives the same numbers.
    """
    settings = torch.backends.cudnn
    before = settings.benchmark
    settings.benchmark = use_search
    try:
        with torch.autocast("cuda", enabled=False):
            yield
    finally:
        settings.benchmark = before
