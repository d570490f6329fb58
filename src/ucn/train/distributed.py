"""Many processes that train one network: who they are, what they share, and what each draws.

Every process holds the whole network and trains on its share of each batch; gradients are averaged before the
update, so that the networks stay equal. They are started by ``torchrun`` (or ``accelerate launch``), and
accelerate makes the connection. A single process needs neither, and takes `ALONE`.
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
from ucn.data.loading import mix_seed
from ucn.errors import ConfigError, UcnError
from ucn.train.sources.batches import Mixture, open_sources

_PATIENCE = timedelta(hours=2)  # the others wait while the first process validates

_Told = TypeVar("_Told")


class Team:
    """The processes of a run; this class is a process alone.

    Attributes:
        rank: number of this process, from 0; process 0 validates, writes and reports.
        size: how many there are.
        device: where this process is to train; None leaves the choice to the caller.
    """

    rank = 0
    size = 1
    device: torch.device | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that validates, writes and reports."""
        return self.rank == 0

    def average(self, model: nn.Module, loss: Tensor, correspondences: Tensor) -> tuple[Tensor, Tensor]:
        """Gives the model the gradients of the whole batch, in place.

        Args:
            model: with the gradients of this process's share.
            loss: of that share, a scalar.
            correspondences: how many it has, by which its gradient and its loss weigh.

        Returns:
            The loss and the correspondences of the whole batch.
        """
        return loss, correspondences

    def agree(self, is_asked: bool) -> bool:
        """Whether any process says yes."""
        return is_asked

    def tell(self, value: _Told) -> _Told:
        """What the first process has; the others' is not looked at."""
        return value

    def gather(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names that all processes have."""
        return names

    def share(self, config: TrainConfig) -> TrainConfig:
        """The run as this process draws it: its share of each batch, from its own random numbers.

        Raises:
            ConfigError: a batch cannot be shared evenly.
        """
        if self.size == 1:
            return config
        sources = tuple(
            source if source.batch is None else replace(source, batch=self._divide(source.batch))
            for source in config.sources
        )
        seed = config.seed if self.is_first else mix_seed(config.seed, "process", self.rank)
        return replace(config, batch=self._divide(config.batch), sources=sources, seed=seed)

    def _divide(self, batch: int) -> int:
        if batch % self.size:
            raise ConfigError(f"batch must be a multiple of the {self.size} processes, got {batch}")
        return batch // self.size

    def close(self) -> None:
        """Ends the connection."""


ALONE = Team()
"""One process, as without torchrun."""


class _Processes(Team):
    """Processes that accelerate connected."""

    def __init__(self, use_cpu: bool) -> None:
        try:
            from accelerate import PartialState
        except ImportError as error:
            raise UcnError(
                f"training in {_count_processes()} processes needs the package accelerate: "
                "pip install 'ucn[train]'"
            ) from error
        self._state = PartialState(cpu=use_cpu, timeout=_PATIENCE)
        self.rank, self.size = int(self._state.process_index), int(self._state.num_processes)
        self.device = torch.device("cpu") if use_cpu else torch.device(self._state.device)
        # Flags and names travel beside the GPUs, which go on meanwhile.
        self._group = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def average(self, model: nn.Module, loss: Tensor, correspondences: Tensor) -> tuple[Tensor, Tensor]:
        """One sum over all processes; the running statistics of batch norms become their mean."""
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
        whole = flat[-1]
        weighed = sum(gradient.numel() for gradient in gradients) + 1
        flat[:weighed] /= whole.clamp(min=1)
        mean_loss = torch.empty_like(loss)
        changed = [*gradients, mean_loss, *statistics]
        with torch.no_grad():
            parts = torch.split(flat[:-1], [tensor.numel() for tensor in changed])
            for tensor, part in zip(changed, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))
        return mean_loss, whole

    def agree(self, is_asked: bool) -> bool:
        """Whether any process says yes; all learn it at the same step."""
        flag = torch.tensor([is_asked], dtype=torch.uint8)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def tell(self, value: _Told) -> _Told:
        """What the first process has, sent to the others."""
        box = [value if self.is_first else None]
        torch.distributed.broadcast_object_list(box, src=0, group=self._group)
        (told,) = box
        return told  # type: ignore[return-value]

    def gather(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of all processes, in their order."""
        boxes: list[tuple[str, ...]] = [()] * self.size
        torch.distributed.all_gather_object(boxes, names, group=self._group)
        return tuple(name for box in boxes for name in box)

    def close(self) -> None:
        """Ends the connection."""
        self._state.destroy_process_group()


def join_team(device: str | None) -> Team:
    """The processes that were started together; `ALONE` where there is one.

    Args:
        device: 'cpu' or 'cuda'; None takes GPUs where there are any.

    Raises:
        ConfigError: the device cannot be shared out.
        UcnError: there are several processes and accelerate is not installed.
    """
    size = _count_processes()
    if size == 1:
        return ALONE
    if device not in (None, "cpu", "cuda"):
        raise ConfigError(
            f"device must be cpu or cuda for {size} processes (each takes its own), got {device}"
        )
    use_cpu = device == "cpu" or not torch.cuda.is_available()
    if use_cpu and device == "cuda":
        raise ConfigError("device must be cpu here, got cuda: torch sees no GPU")
    return _Processes(use_cpu)


def _count_processes() -> int:
    """How many processes the launcher started: torchrun and accelerate say so in the environment."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"the environment variable WORLD_SIZE must be a number from 1, got '{text[:80]}'")
    return int(text)


def open_shared_sources(
    config: TrainConfig,
    images: Path | None,
    device: torch.device,
    team: Team,
    *,
    use_skipping: bool = False,
    watch: Callable[[str, int, int], None] | None = None,
) -> Mixture:
    """Opens what this process trains on, as `open_sources` does for a process alone.

    Each process draws its own pairs; which source a step takes is the same for all of them.
    """
    mixture = open_sources(team.share(config), images, device, use_skipping=use_skipping, watch=watch)
    return Mixture(mixture.sources, config.seed, mixture.skipped)
