"""Checkpoints: all that a run needs to go on, in safetensors files, which run no code when they are read.

Batches, rates and random draws follow from the seed and the step, so neither a generator nor a schedule has a
state to keep. Tensors are kept in full precision, so that a run goes on bit for bit on a CPU.
"""

from __future__ import annotations

import json
import math
import os
import platform
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from ucn.config import TrainConfig
from ucn.data.io import write_bytes_atomically
from ucn.errors import ConfigError, UcnError, WeightsError
from ucn.nn import CorrespondenceNetwork
from ucn.train.validation import Validation

FORMAT = "ucn-checkpoint-1"
LAST = "last.safetensors"
"""The newest checkpoint of a run folder."""
BEST = "best.safetensors"
"""The checkpoint of the validation with the highest score."""
_MAX_FILE_BYTES = 8 * 2**30
_HARMLESS = frozenset({"validate_every", "checkpoint_every", "use_compile"})
_HARMLESS_OF_A_SOURCE = frozenset({"workers"})
_NAMED_DIFFERENCES = 5


@dataclass(frozen=True)
class Validated:
    """A validation and the number of steps after which it was made."""

    step: int
    found: Validation


@dataclass
class TrainingState:
    """What a run is made of; a checkpoint holds it.

    Attributes:
        model: the network that is trained.
        average: the moving average of its weights.
        optimiser: of the model's parameters.
        step: how many steps are done.
        validations: all that were made, in their order.
        losses: of the steps since the last report, on the device.
        gradient_norms: of the same steps.
    """

    model: CorrespondenceNetwork
    average: CorrespondenceNetwork
    optimiser: Optimizer
    step: int = 0
    validations: list[Validated] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    gradient_norms: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """A run as it was after a step.

    Attributes:
        path: of the file.
        step: how many steps were done.
        config: the run's settings, as `record_config` gives them.
        sources: labels of what it trained on.
        validations: all that were made, in their order.
        tensors: by name, on the CPU.
        best_average: the weights of the validation with the highest score; None before the first.
    """

    path: Path
    step: int
    config: dict[str, Any]
    sources: tuple[str, ...]
    validations: tuple[Validated, ...]
    tensors: dict[str, Tensor]
    best_average: dict[str, Tensor] | None = None


def find_best(validations: Sequence[Validated]) -> Validated | None:
    """The validation with the highest score, the first of equals; None where there is none."""
    return max(validations, key=lambda validated: validated.found.score, default=None)


def record_config(config: TrainConfig) -> dict[str, Any]:
    """The settings with file and folder names only: where they lay on one machine tells nobody anything."""
    record = config.to_dict()
    record["init"] = Path(config.init).name
    if config.teacher is not None:
        record["teacher"]["weights"] = Path(config.teacher.weights).name
    for source in record["sources"]:
        source["folder"] = Path(source["folder"]).name
    return record


def find_versions() -> dict[str, str]:
    """What a run was made with."""
    try:
        own = version("ucn")
    except PackageNotFoundError:
        own = "unknown (not installed)"
    return {"ucn": own, "torch": str(torch.__version__), "python": platform.python_version()}


def save_run(folder: Path, state: TrainingState, config: TrainConfig, sources: Sequence[str]) -> None:
    """Writes the checkpoint of a step, and where that step's validation is the best also the best one.

    `LAST` comes first: whenever the process is killed, either it is itself the best, or `BEST` is the one
    that it names.

    Args:
        folder: of the run.
        state: of the run after a step.
        config: the run.
        sources: labels of what it trains on.

    Raises:
        OutputError: a file cannot be written; the one before is kept.
    """
    header = {
        "format": FORMAT,
        "step": str(state.step),
        "config": json.dumps(record_config(config), sort_keys=True),
        "sources": json.dumps(list(sources)),
        "validations": json.dumps([_to_plain(validated) for validated in state.validations]),
        "versions": json.dumps(find_versions(), sort_keys=True),
    }
    content = safetensors.torch.save(_collect(state), header)
    best = find_best(state.validations)
    names = [LAST, BEST] if best is not None and best.step == state.step else [LAST]
    for name in names:
        write_bytes_atomically(folder / name, lambda file: _write_through(file, content), overwrite=True)


def _write_through(file: BinaryIO, content: bytes) -> None:
    """Writes to the disk itself, so that a machine that fails does not leave an empty file of that name."""
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _collect(state: TrainingState) -> dict[str, Tensor]:
    tensors = {f"model.{name}": value for name, value in state.model.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in state.average.state_dict().items()}
    for name, parameter in state.model.named_parameters():
        for key, value in state.optimiser.state[parameter].items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{key}.{name}"] = value
    for name, values in (("loss", state.losses), ("gradient_norm", state.gradient_norms)):
        tensors[f"window.{name}"] = torch.stack(values) if values else torch.zeros(0)
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def load_run(folder: Path, config: TrainConfig, sources: Sequence[str]) -> Checkpoint | None:
    """The newest checkpoint of a run folder, with its best weights; None where there is none.

    Args:
        folder: of the run.
        config: the run that is to go on.
        sources: labels of what it trains on.

    Raises:
        WeightsError: a file is damaged, or not a checkpoint.
        ConfigError: it is the checkpoint of another run; the keys that differ are named.
        OutputError: the best checkpoint is missing and cannot be written.
    """
    path = folder / LAST
    if not path.exists():
        return None
    last = _read(path)
    _check_same_run(last, config, sources)
    best = find_best(last.validations)
    if best is None:
        return last
    holder = last
    if best.step == last.step:  # a kill may have come before the second file was written
        write_bytes_atomically(folder / BEST, path.read_bytes(), overwrite=True)
    else:
        holder = _read(folder / BEST)
    if holder.step != best.step:
        raise WeightsError(
            f"{holder.path} is of step {holder.step}, but {path} says that step {best.step} was the best: "
            "the two are not of one run; begin anew with --overwrite"
        )
    return replace(last, best_average=dict(_strip(holder.tensors, "average.")))


def _read(path: Path) -> Checkpoint:
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise WeightsError(f"{path} has {size} bytes; checkpoints have at most {_MAX_FILE_BYTES}")
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise WeightsError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, UcnError):
            raise
        raise WeightsError(f"{path} is not a readable checkpoint: {error}; remove it") from error
    if header.get("format") != FORMAT:
        raise WeightsError(
            f"{path} is not a checkpoint of ucn: expected format '{FORMAT}' in its header, "
            f"got {reprlib.repr(header.get('format'))}"
        )
    try:
        step = int(header["step"])
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        return Checkpoint(
            path,
            step,
            TrainConfig.from_dict(json.loads(header["config"])).to_dict(),
            tuple(map(str, json.loads(header["sources"]))),
            tuple(map(_to_validated, json.loads(header["validations"]))),
            tensors,
        )
    except ConfigError as error:
        raise WeightsError(f"the settings in {path} are not of this version of ucn: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise WeightsError(f"the header of {path} is damaged: {error}; remove the file") from error


def _to_plain(validated: Validated) -> dict[str, Any]:
    """One validation for JSON, which knows no NaN."""
    pck = {name: None if math.isnan(value) else value for name, value in validated.found.pck.items()}
    return {"step": validated.step, "score": validated.found.score, "pck": pck}


def _to_validated(plain: Mapping[str, Any]) -> Validated:
    pck = {str(name): math.nan if value is None else float(value) for name, value in plain["pck"].items()}
    return Validated(int(plain["step"]), Validation(pck, float(plain["score"])))


def _check_same_run(checkpoint: Checkpoint, config: TrainConfig, sources: Sequence[str]) -> None:
    there = dict(_flatten(checkpoint.config)) | {"what it trains on": ", ".join(checkpoint.sources)}
    here = dict(_flatten(record_config(config))) | {"what it trains on": ", ".join(sources)}
    differing = [
        f"{key} (there {reprlib.repr(there.get(key))}, here {reprlib.repr(here.get(key))})"
        for key in dict.fromkeys([*here, *there])
        if there.get(key) != here.get(key) and not _is_harmless(key, config)
    ]
    if differing:
        named = ", ".join(differing[:_NAMED_DIFFERENCES])
        more = (
            f" and {len(differing) - _NAMED_DIFFERENCES} more" if len(differing) > _NAMED_DIFFERENCES else ""
        )
        raise ConfigError(
            f"{checkpoint.path} is of another run; these differ: {named}{more}. Give the recipe and options "
            "it began with, or begin anew with --overwrite"
        )


def _is_harmless(key: str, config: TrainConfig) -> bool:
    """Whether a run goes on as it would have, though this setting changed."""
    if key == "steps":
        return config.schedule != "cosine"  # whose rates depend on where it ends
    *parents, last = key.split(".")
    return key in _HARMLESS or (parents[:1] == ["sources"] and last in _HARMLESS_OF_A_SOURCE)


def _flatten(values: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; lists of settings have numbers for keys, other lists are values."""
    if isinstance(values, list) and any(isinstance(value, dict) for value in values):
        values = {str(index): value for index, value in enumerate(values)}
    if not isinstance(values, dict):
        yield where, values
        return
    for key, value in values.items():
        yield from _flatten(value, f"{where}.{key}" if where else key)


def restore(state: TrainingState, checkpoint: Checkpoint) -> None:
    """Brings a fresh run to where a checkpoint was.

    Args:
        state: as the run began, on its device.
        checkpoint: of the same run, as `load_run` checked it.

    Raises:
        WeightsError: the checkpoint's tensors do not fit the run.
    """
    tensors = checkpoint.tensors
    _check_tensors(checkpoint.path, tensors, dict(_expect(state, checkpoint)))
    state.model.load_state_dict(dict(_strip(tensors, "model.")))
    state.average.load_state_dict(dict(_strip(tensors, "average.")))
    for name, parameter in state.model.named_parameters():
        for key in _optimiser_keys(state.optimiser):
            value = tensors[f"optimiser.{key}.{name}"]
            # In the memory format of the parameter, as the optimiser would have made it.
            own = value.clone() if key == "step" else torch.empty_like(parameter.detach()).copy_(value)
            state.optimiser.state[parameter][key] = own
    device = next(state.model.parameters()).device
    state.losses = list(tensors["window.loss"].to(device))
    state.gradient_norms = list(tensors["window.gradient_norm"].to(device))
    state.step, state.validations = checkpoint.step, list(checkpoint.validations)


def load_average(model: CorrespondenceNetwork, checkpoint: Checkpoint) -> None:
    """Gives a model the best weights of a checkpoint that has some.

    Raises:
        WeightsError: they do not fit the model.
    """
    average = checkpoint.best_average or {}
    _check_tensors(checkpoint.path.with_name(BEST), average, model.state_dict())
    model.load_state_dict(average)


def _expect(state: TrainingState, checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a checkpoint of a run must have, by name, with others of their shape and type."""
    for part, model in (("model", state.model), ("average", state.average)):
        for name, value in model.state_dict().items():
            yield f"{part}.{name}", value
    for name, parameter in state.model.named_parameters():
        for key in _optimiser_keys(state.optimiser):
            yield f"optimiser.{key}.{name}", torch.zeros(()) if key == "step" else parameter
    losses = checkpoint.tensors.get("window.loss")
    steps = 0 if losses is None else losses.numel()
    yield "window.loss", torch.zeros(steps)
    yield "window.gradient_norm", torch.zeros(steps)


def _optimiser_keys(optimiser: Optimizer) -> tuple[str, ...]:
    """What the optimiser remembers of each parameter once it has made a step."""
    if isinstance(optimiser, SGD):
        return ("momentum_buffer",) if optimiser.defaults["momentum"] else ()
    return ("step", "exp_avg", "exp_avg_sq")


def _check_tensors(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuses tensors that have other names, shapes or types than the wanted ones, or are not finite."""
    odd = sorted(found.keys() ^ wanted.keys())
    if odd:
        raise WeightsError(f"{path} does not fit this run: {len(odd)} tensors differ, first '{odd[0][:80]}'")
    for name, like in wanted.items():
        value = found[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            raise WeightsError(
                f"tensor '{name}' of {path} must be {like.dtype} {tuple(like.shape)}, "
                f"got {value.dtype} {tuple(value.shape)}"
            )
        if not value.isfinite().all():
            raise WeightsError(f"tensor '{name}' of {path} holds values that are not finite")


def _strip(tensors: Mapping[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    return ((name.removeprefix(prefix), value) for name, value in tensors.items() if name.startswith(prefix))
