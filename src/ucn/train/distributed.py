"""Data-parallel training in several processes.

Every process holds the whole network and trains on its share of each batch. Gradients are averaged before the
update, so that the networks stay equal. ``torchrun`` or ``accelerate launch`` starts the processes, and
accelerate connects them. A run in one process needs neither, and uses `SINGLE_PROCESS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from ucn.config import TrainConfig
from ucn.data.loading import derive_seed
from ucn.errors import ConfigError, UcnError
from ucn.train.sources.batches import Mixture, open_sources

_TIMEOUT = timedelta(hours=2)  # the other processes wait while process 0 validates

_Value = TypeVar("_Value")


class ProcessGroup:
    """The processes of a run; this base class is a single process.

    Attributes:
        rank: index of this process, from 0; process 0 validates, writes and reports.
        size: number of processes.
        device: where this process trains; None leaves the choice to the caller.
    """

    rank = 0
    size = 1
    device: torch.device | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process validates, writes and reports."""
        return self.rank == 0

    def average_gradients(
        self, model: nn.Module, loss: Tensor, correspondences: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Averages the gradients of all processes, in place.

        Args:
            model: with the gradients of this process's share of the batch.
            loss: of that share, a scalar.
            correspondences: number of valid correspondences in it, the weight of its gradient and loss.

        Returns:
            The loss and the number of correspondences of the whole batch.
        """
        return loss, correspondences

    def any(self, value: bool) -> bool:
        """Whether `value` is true in any process."""
        return value

    def broadcast(self, value: _Value) -> _Value:
        """The value of process 0."""
        return value

    def gather(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of all processes, in order of rank."""
        return names

    def localise(self, config: TrainConfig) -> TrainConfig:
        """The run's config for this process: its share of each batch, and its own seed.

        Raises:
            ConfigError: a batch size is not a multiple of the number of processes.
        """
        if self.size == 1:
            return config
        sources = tuple(
            source if source.batch is None else replace(source, batch=self._divide(source.batch))
            for source in config.sources
        )
        seed = config.seed if self.is_first else derive_seed(config.seed, "process", self.rank)
        return replace(config, batch=self._divide(config.batch), sources=sources, seed=seed)

    def _divide(self, batch: int) -> int:
        if batch % self.size:
            raise ConfigError(f"batch must be a multiple of the {self.size} processes, got {batch}")
        return batch // self.size

    def close(self) -> None:
        """Ends the connection."""


SINGLE_PROCESS = ProcessGroup()
"""A run without torchrun."""


class _ConnectedProcesses(ProcessGroup):
    """Processes that accelerate connected."""

    def __init__(self, use_cpu: bool) -> None:
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise UcnError(
                f"training in {_count_processes()} processes needs the package accelerate: "
                "pip install 'ucn[train]'"
            ) from error
        self._state = PartialState(cpu=use_cpu, timeout=_TIMEOUT)
        self.rank, self.size = int(self._state.process_index), int(self._state.num_processes)
        self.device = torch.device("cpu") if use_cpu else torch.device(self._state.device)
        # Objects are exchanged over gloo, on the CPU, so that the GPUs need not wait.
        self._group = torch.distributed.new_group(backend="gloo", timeout=_TIMEOUT)

    def average_gradients(
        self, model: nn.Module, loss: Tensor, correspondences: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One all-reduce; running statistics of batch norms are averaged too."""
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        count = correspondences.to(loss.dtype)
        flat = torch.cat(
            [(tensor * count).flatten() for tensor in (*gradients, loss)]
            + [(buffer / self.size).flatten() for buffer in statistics]
            + [count.flatten()]
        )
        torch.distributed.all_reduce(flat)
        total = flat[-1]
        weighted = sum(gradient.numel() for gradient in gradients) + 1
        flat[:weighted] /= total.clamp(min=1)
        mean_loss = torch.empty_like(loss)
        changed = [*gradients, mean_loss, *statistics]
        with torch.no_grad():
            parts = torch.split(flat[:-1], [tensor.numel() for tensor in changed])
            for tensor, part in zip(changed, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))
        return mean_loss, total

    def any(self, value: bool) -> bool:
        """Whether `value` is true in any process; all processes learn it at the same step."""
        flag = torch.tensor([value], dtype=torch.uint8)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def broadcast(self, value: _Value) -> _Value:
        """The value of process 0, sent to the others."""
        values: list[_Value] = [value]
        torch.distributed.broadcast_object_list(values, src=0, group=self._group)
        return values[0]

    def gather(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of all processes, in order of rank."""
        gathered: list[tuple[str, ...]] = [()] * self.size
        torch.distributed.all_gather_object(gathered, names, group=self._group)
        return tuple(name for part in gathered for name in part)

    def close(self) -> None:
        """Ends the connection."""
        self._state.destroy_process_group()


def join_process_group(device: str | None) -> ProcessGroup:
    """The processes that were launched together; `SINGLE_PROCESS` where there is one.

    Args:
        device: 'cpu' or 'cuda'; None uses GPUs where there are any.

    Raises:
        ConfigError: the device cannot be divided among processes.
        UcnError: there are several processes and accelerate is not installed.
    """
    size = _count_processes()
    if size == 1:
        return SINGLE_PROCESS
    if device not in (None, "cpu", "cuda"):
        raise ConfigError(
            f"device must be cpu or cuda for {size} processes (each takes its own), got {device}"
        )
    use_cpu = device == "cpu" or not torch.cuda.is_available()
    if use_cpu and device == "cuda":
        raise ConfigError("device must be cpu here, got cuda: torch finds no GPU")
    return _ConnectedProcesses(use_cpu)


def _count_processes() -> int:
    """The number of processes, which torchrun and accelerate set in the environment."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"the environment variable WORLD_SIZE must be an integer of at least 1, got '{text[:80]}'"
        )
    return int(text)


def open_shared_sources(
    config: TrainConfig,
    images: Path | None,
    device: torch.device,
    group: ProcessGroup,
    *,
    use_skipping: bool = False,
    is_small: bool = False,
    watch: Callable[[str, int, int], None] | None = None,
) -> Mixture:
    """Opens the training data of this process, as `open_sources` does for a single process.

    Each process samples its own pairs; all processes take a step's batch from the same source.
    """
    mixture = open_sources(
        group.localise(config), images, device, use_skipping=use_skipping, is_small=is_small, watch=watch
    )
    return Mixture(mixture.sources, config.seed, mixture.skipped)
