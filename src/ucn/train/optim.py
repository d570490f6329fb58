"""Optimisers, learning rate schedules, and the exponential moving average (EMA) of the weights.

Learning rates and decay are functions of the step alone, so a schedule has no state to resume.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from ucn.config import TrainConfig
from ucn.nn import CorrespondenceNetwork
from ucn.nn.transformer import ConvolutionalSpatialTransformer


def build_optimiser(model: CorrespondenceNetwork, config: TrainConfig) -> Optimizer:
    """The configured optimiser, with separate learning rates for trunk and head."""
    groups = _parameter_groups(model, config)
    if config.optimiser == "adamw":
        return AdamW(groups)
    return SGD(groups, momentum=config.momentum, nesterov=config.use_nesterov)


def _parameter_groups(model: CorrespondenceNetwork, config: TrainConfig) -> list[dict[str, Any]]:
    """Trunk, trunk of the semantic level, and head: parameters outside both.

    Each is split into kernels and vectors where only kernels have weight decay.
    Localisers of transformers in the trunk are not pretrained, so they belong to the head.
    """
    localisers = (
        m.localiser for m in model.trunk.modules() if isinstance(m, ConvolutionalSpatialTransformer)
    )
    new = {id(parameter) for localiser in localisers for parameter in localiser.parameters()}
    trunk = [parameter for parameter in model.trunk.parameters() if id(parameter) not in new]
    semantic = [] if model.semantic is None else list(model.semantic.trunk.parameters())
    in_trunk = {id(parameter) for parameter in (*trunk, *semantic)}
    head = [parameter for parameter in model.parameters() if id(parameter) not in in_trunk]
    groups: list[dict[str, Any]] = []
    for part, rate, parameters in (
        ("trunk", config.trunk_learning_rate, trunk),
        ("semantic", config.semantic_learning_rate, semantic),
        ("head", config.head_learning_rate, head),
    ):
        for chosen, decay in _divide_by_decay(parameters, config):
            if chosen:
                groups.append(
                    {"params": chosen, "lr": rate, "peak": rate, "part": part, "weight_decay": decay}
                )
    return groups


def _divide_by_decay(parameters: list[Parameter], config: TrainConfig) -> list[tuple[list[Parameter], float]]:
    if config.use_vector_decay:
        return [(parameters, config.weight_decay)]
    kernels = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [(kernels, config.weight_decay), (vectors, 0.0)]


def set_learning_rates(optimiser: Optimizer, config: TrainConfig, step: int) -> None:
    """Sets the learning rates of a step, counted from 1."""
    factor = learning_rate_factor(config, step - 1)
    for group in optimiser.param_groups:
        group["lr"] = group["peak"] * factor


def read_learning_rates(optimiser: Optimizer) -> dict[str, float]:
    """The present learning rates of 'trunk' and 'head', and of the 'semantic' trunk where there is one."""
    return {group["part"]: group["lr"] for group in optimiser.param_groups}


def learning_rate_factor(config: TrainConfig, done: int) -> float:
    """The learning rate after `done` steps, relative to its peak: linear warm-up, then the schedule.

    The cosine reaches 0 after the last step. A milestone m takes effect in step m + 1.
    """
    if done < config.warmup_steps:
        return (done + 1) / config.warmup_steps
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "step":
        return float(config.milestone_factor ** bisect_right(config.milestones, done))
    progress = (done - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@torch.no_grad()
def update_average(
    average: CorrespondenceNetwork, model: CorrespondenceNetwork, decay: float, step: int
) -> None:
    """Updates the EMA of the weights after a step, counted from 1; buffers are copied.

    The decay is at most step / (step + 10), so that initial weights are forgotten quickly.
    """
    averaged: list[Tensor] = list(average.parameters())
    current: list[Tensor] = list(model.parameters())
    torch._foreach_lerp_(averaged, current, 1 - min(decay, step / (step + 10)))
    for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(theirs)
