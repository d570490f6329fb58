"""Training with a teacher: a finished network, which the one that is trained follows."""

from __future__ import annotations

from dataclasses import replace

import torch

from ucn.config import TrainConfig
from ucn.errors import ConfigError
from ucn.nn import CorrespondenceNetwork
from ucn.nn.encoder import FastEncoder
from ucn.runtime.kernels import has_bfloat16_units
from ucn.train.step import Teacher
from ucn.weights import load_weights


def start_teacher(
    config: TrainConfig, student: CorrespondenceNetwork, device: torch.device
) -> Teacher | None:
    """The teacher of a run on its device; None where it has none.

    Raises:
        ConfigError: its cells lie elsewhere than the student's, or its file is another than the run's.
        WeightsError: its file is missing or damaged.
    """
    settings = config.teacher
    if settings is None:
        return None
    loaded = load_weights(settings.weights)
    if settings.sha256 not in ("", loaded.info.sha256):
        raise ConfigError(
            f"teacher.weights '{settings.weights}' have the hash {loaded.info.sha256[:16]}…, but "
            f"teacher.sha256 is {settings.sha256[:16]}…: give the file that the run began with"
        )
    model = loaded.model
    ours, theirs = (student.stride, student.offset), (model.stride, model.offset)
    if ours != theirs:
        raise ConfigError(
            f"teacher.weights '{settings.weights}' must have cells where the network has them: stride "
            f"{ours[0]} and offset {ours[1]:g}, got {theirs[0]} and {theirs[1]:g}"
        )
    # torch's annotations do not know memory_format.
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.eval().requires_grad_(False)
    weighing = (
        settings.weight,
        settings.temperature,
        settings.descriptor_weight,
        settings.ground_truth_weight,
    )
    if config.precision == "bf16" and has_bfloat16_units(device):
        # In the same precision as the student, but as one CUDA graph for each size of batch.
        fast = FastEncoder(model, use_compiler=config.use_compile)
        return Teacher(fast, *weighing)
    return Teacher(model, *weighing)


def note_teacher(config: TrainConfig) -> TrainConfig:
    """The run with the hash of its teacher's file, so that records and checkpoints name it.

    Raises:
        WeightsError: the file is missing or damaged.
    """
    settings = config.teacher
    if settings is None or settings.sha256:
        return config
    return replace(config, teacher=replace(settings, sha256=load_weights(settings.weights).info.sha256))
