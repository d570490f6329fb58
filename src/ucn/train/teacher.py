"""Distillation: loads the trained network that the student imitates."""

from __future__ import annotations

from dataclasses import replace

import torch

from ucn.config import TrainConfig
from ucn.errors import ConfigError
from ucn.nn import CorrespondenceNetwork
from ucn.nn.encoder import choose_encoder
from ucn.nn.model import Encoder
from ucn.runtime.kernels import has_bfloat16_units
from ucn.train.step import Teacher
from ucn.weights import LoadedWeights, load_weights


def load_teacher(config: TrainConfig, student: CorrespondenceNetwork, device: torch.device) -> Teacher | None:
    """The teacher of a run, on its device; None where the config has none.

    Raises:
        ConfigError: its grid of cells differs from the student's, or its file is not the one the run began
            with.
        WeightsError: its file is missing or damaged.
    """
    settings = config.teacher
    if settings is None:
        return None
    model = load_same(settings.weights, settings.sha256, "teacher.weights").model
    ours, theirs = (student.stride, student.offset), (model.stride, model.offset)
    if ours != theirs:
        raise ConfigError(
            f"teacher.weights '{settings.weights}' must have the student's grid of cells: stride "
            f"{ours[0]} and offset {ours[1]:g}, got {theirs[0]} and {theirs[1]:g}"
        )
    # torch's annotations lack memory_format.
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.eval().requires_grad_(False)
    encoder: Encoder = model
    if config.precision == "bf16" and has_bfloat16_units(device):
        # The student's precision, but as one CUDA graph for each batch size.
        encoder = choose_encoder(model, "fast", use_compiler=config.use_compile)
    return Teacher(
        encoder,
        settings.weight,
        settings.temperature,
        settings.descriptor_weight,
        settings.ground_truth_weight,
    )


def record_teacher_hash(config: TrainConfig) -> TrainConfig:
    """The config with the SHA-256 of its teachers' files, so that logs and checkpoints identify them.

    Raises:
        WeightsError: a file is missing or damaged.
    """
    settings = config.teacher
    if settings is not None and not settings.sha256:
        settings = replace(settings, sha256=load_weights(settings.weights).info.sha256)
    sources = tuple(
        replace(source, teacher_sha256=load_weights(source.teacher).info.sha256)
        if source.teacher and not source.teacher_sha256
        else source
        for source in config.sources
    )
    if settings is config.teacher and sources == config.sources:
        return config
    return replace(config, teacher=settings, sources=sources)


def load_same(weights: str, sha256: str, key: str) -> LoadedWeights:
    """Loads the weights of a teacher.

    Args:
        weights: a name or a .safetensors file.
        sha256: the hash that its file must have; empty for any.
        key: of the recipe, for the error.

    Raises:
        ConfigError: the file has another hash.
        WeightsError: the file is missing or damaged.
    """
    loaded = load_weights(weights)
    if sha256 not in ("", loaded.info.sha256):
        raise ConfigError(
            f"{key} '{weights}' have the hash {loaded.info.sha256[:16]}…, but the recorded one is "
            f"{sha256[:16]}…: give the file that the run began with"
        )
    return loaded
