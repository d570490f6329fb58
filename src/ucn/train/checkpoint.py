"""Checkpoints: everything that resuming a run needs, in safetensors files, which run no code when read.

Batches, learning rates and random numbers follow from the seed and the step, so neither a generator nor a
schedule has a state to save. Tensors are saved in full precision: on a CPU a resumed run is bit-identical.
"""

from __future__ import annotations

import json
import math
import os
import platform
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

import ucn
from ucn.config import Calibration, TrainConfig
from ucn.errors import ConfigError, UcnError, WeightsError
from ucn.files.reading import open_regular, shorten
from ucn.files.writing import write_bytes_atomically
from ucn.nn import CorrespondenceNetwork
from ucn.train.validation import Validation

FORMAT = "ucn-checkpoint-1"
LAST = "last.safetensors"
"""The newest checkpoint of a run folder."""
BEST = "best.safetensors"
"""The checkpoint of the validation with the highest score."""
_MAX_FILE_BYTES = 8 * 2**30
# Settings that may change when a run is resumed.
_CHANGEABLE = frozenset({"validate_every", "checkpoint_every", "use_compile"})
_CHANGEABLE_OF_A_SOURCE = frozenset({"workers"})
_SHOWN_DIFFERENCES = 5


@dataclass(frozen=True)
class StepValidation:
    """A validation and its step."""

    step: int
    found: Validation


@dataclass
class TrainingState:
    """The state of a run that a checkpoint saves.

    Attributes:
        model: the network.
        average: the EMA of its weights.
        optimiser: of the model's parameters.
        start_calibration: of the network that the run fine-tunes; the default for any other start.
        step: number of steps so far.
        validations: all of them, in order.
        losses: of the steps since the last report, on the device.
        gradient_norms: of the same steps.
    """

    model: CorrespondenceNetwork
    average: CorrespondenceNetwork
    optimiser: Optimizer
    start_calibration: Calibration = field(default_factory=Calibration)
    step: int = 0
    validations: list[StepValidation] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    gradient_norms: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint.

    Attributes:
        path: of the file.
        step: number of steps.
        config: the run's settings, from `record_config`.
        sources: labels of the run's sources.
        validations: all of them, in order.
        tensors: by name, on the CPU.
        start_calibration: as in `TrainingState`.
        best_average: the EMA weights with the highest validation score; None before the first validation.
    """

    path: Path
    step: int
    config: dict[str, Any]
    sources: tuple[str, ...]
    validations: tuple[StepValidation, ...]
    tensors: dict[str, Tensor]
    start_calibration: Calibration
    best_average: dict[str, Tensor] | None = None


def find_best(validations: Sequence[StepValidation]) -> StepValidation | None:
    """The validation with the highest score, the first of equals; None where there is none."""
    return max(validations, key=lambda validation: validation.found.score, default=None)


def record_config(config: TrainConfig) -> dict[str, Any]:
    """The settings, with file and folder names instead of paths, which mean nothing on other machines."""
    record = config.to_dict()
    record["init"] = Path(config.init).name
    if config.teacher is not None:
        record["teacher"]["weights"] = Path(config.teacher.weights).name
    for source in record["sources"]:
        source["folder"] = Path(source["folder"]).name
        source["teacher"] = Path(source["teacher"]).name
    return record


def find_versions() -> dict[str, str]:
    """The versions of ucn, torch and Python."""
    return {"ucn": ucn.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def save_run(folder: Path, state: TrainingState, config: TrainConfig, sources: Sequence[str]) -> None:
    """Writes the checkpoint `LAST`, and `BEST` if the validation of this step is the best.

    `LAST` is written first: whenever the process is killed, either `LAST` is the best itself, or `BEST` is
    the step that it records.

    Args:
        folder: of the run.
        state: of the run after a step.
        config: the run.
        sources: labels of the run's sources.

    Raises:
        OutputError: a file cannot be written; its previous version is kept.
    """
    header = {
        "format": FORMAT,
        "step": str(state.step),
        "config": json.dumps(record_config(config), sort_keys=True),
        "sources": json.dumps(list(sources)),
        "validations": json.dumps([_to_plain(validation) for validation in state.validations]),
        "start_calibration": json.dumps(state.start_calibration.to_dict(), sort_keys=True),
        "versions": json.dumps(find_versions(), sort_keys=True),
    }
    content = safetensors.torch.save(_collect(state), header)
    best = find_best(state.validations)
    names = [LAST, BEST] if best is not None and best.step == state.step else [LAST]
    for name in names:
        write_bytes_atomically(folder / name, lambda file: _write_through(file, content), overwrite=True)


def is_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint of ucn, by its header; a link is not."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("format") == FORMAT
    except (OSError, safetensors.SafetensorError, ValueError):
        return False


def _write_through(file: BinaryIO, content: bytes) -> None:
    """Writes to disk with fsync, so that a machine that crashes does not leave an empty file."""
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
        config: the run to resume.
        sources: labels of the run's sources.

    Raises:
        WeightsError: a file is damaged, or not a checkpoint.
        ConfigError: it is the checkpoint of another run; the error names the keys that differ.
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
    if best.step == last.step:  # the process may have been killed before it wrote the second file
        write_bytes_atomically(folder / BEST, path.read_bytes(), overwrite=True)
    else:
        holder = _read(folder / BEST)
    if holder.step != best.step:
        raise WeightsError(
            f"{holder.path} is of step {holder.step}, but the best step of {path} is {best.step}: "
            "the two are not of one run; start over with overwrite=True"
        )
    return replace(last, best_average=dict(_strip(holder.tensors, "average.")))


def _read(path: Path) -> Checkpoint:
    try:
        with open_regular(path) as file:  # the library opens it by name
            size = file.seek(0, os.SEEK_END)
        if size > _MAX_FILE_BYTES:
            raise WeightsError(f"{path} has {size} bytes; checkpoints have at most {_MAX_FILE_BYTES}")
        with safetensors.safe_open(path, framework="pt") as content:
            header = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except OSError as error:
        raise WeightsError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, UcnError):
            raise
        raise WeightsError(f"{path} is not a readable checkpoint: {shorten(error)}; remove it") from error
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
            tuple(map(_to_validation, json.loads(header["validations"]))),
            tensors,
            Calibration.from_dict(json.loads(header.get("start_calibration", "{}"))),
        )
    except ConfigError as error:
        raise WeightsError(
            f"the settings in {path} are not of this version of ucn: {shorten(error)}"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise WeightsError(f"the header of {path} is damaged: {shorten(error)}; remove the file") from error


def _to_plain(validation: StepValidation) -> dict[str, Any]:
    """One validation for JSON, which has no NaN."""
    pck = {name: None if math.isnan(value) else value for name, value in validation.found.pck.items()}
    return {"step": validation.step, "score": validation.found.score, "pck": pck}


def _to_validation(plain: Mapping[str, Any]) -> StepValidation:
    pck = {str(name): math.nan if value is None else float(value) for name, value in plain["pck"].items()}
    return StepValidation(int(plain["step"]), Validation(pck, float(plain["score"])))


def _check_same_run(checkpoint: Checkpoint, config: TrainConfig, sources: Sequence[str]) -> None:
    there = dict(_flatten(checkpoint.config)) | {"training data": ", ".join(checkpoint.sources)}
    here = dict(_flatten(record_config(config))) | {"training data": ", ".join(sources)}
    differing = [
        f"{key} (there {reprlib.repr(there.get(key))}, here {reprlib.repr(here.get(key))})"
        for key in dict.fromkeys([*here, *there])
        if there.get(key) != here.get(key) and not _is_changeable(key, config)
    ]
    if differing:
        named = ", ".join(differing[:_SHOWN_DIFFERENCES])
        more = (
            f" and {len(differing) - _SHOWN_DIFFERENCES} more" if len(differing) > _SHOWN_DIFFERENCES else ""
        )
        raise ConfigError(
            f"{checkpoint.path} is of another run; these differ: {named}{more}. Give the recipe and options "
            "it began with, or start over with overwrite=True"
        )


def _is_changeable(key: str, config: TrainConfig) -> bool:
    """Whether a resumed run gives the same result though this setting changed."""
    if key == "steps":
        return config.schedule != "cosine"  # its learning rates depend on the last step
    *parents, last = key.split(".")
    return key in _CHANGEABLE or (parents[:1] == ["sources"] and last in _CHANGEABLE_OF_A_SOURCE)


def _flatten(values: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; entries of a list of settings have their indices as keys."""
    if isinstance(values, list) and any(isinstance(value, dict) for value in values):
        values = {str(index): value for index, value in enumerate(values)}
    if not isinstance(values, dict):
        yield where, values
        return
    for key, value in values.items():
        yield from _flatten(value, f"{where}.{key}" if where else key)


def restore(state: TrainingState, checkpoint: Checkpoint) -> None:
    """Restores a run from a checkpoint.

    Args:
        state: a new state of the run, on its device.
        checkpoint: of the same run, from `load_run`.

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
            # In the memory format of the parameter, as the optimiser allocates it.
            own = value.clone() if key == "step" else torch.empty_like(parameter.detach()).copy_(value)
            state.optimiser.state[parameter][key] = own
    device = next(state.model.parameters()).device
    state.losses = list(tensors["window.loss"].to(device))
    state.gradient_norms = list(tensors["window.gradient_norm"].to(device))
    state.step, state.validations = checkpoint.step, list(checkpoint.validations)
    state.start_calibration = checkpoint.start_calibration


def load_average(model: CorrespondenceNetwork, checkpoint: Checkpoint) -> None:
    """Loads the best weights of a checkpoint into a model.

    Raises:
        WeightsError: they do not fit the model.
    """
    average = checkpoint.best_average or {}
    _check_tensors(checkpoint.path.with_name(BEST), average, model.state_dict())
    model.load_state_dict(average)


def _expect(state: TrainingState, checkpoint: Checkpoint) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a checkpoint must have: their names, with examples of their shape and type."""
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
    """The optimiser's state of each parameter after its first step."""
    if isinstance(optimiser, SGD):
        return ("momentum_buffer",) if optimiser.defaults["momentum"] else ()
    return ("step", "exp_avg", "exp_avg_sq")


def _check_tensors(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuses tensors whose names, shapes or types differ from the expected ones, or that are not finite."""
    odd = sorted(found.keys() ^ expected.keys())
    if odd:
        raise WeightsError(f"{path} does not fit this run: {len(odd)} tensors differ, first '{odd[0][:80]}'")
    for name, like in expected.items():
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
