"""One training step, from a batch to updated weights. Read this first.

The path of a batch: `train/sources/batches.py` makes it, `training_step` below takes it, `nn/model.py`
encodes its images, `losses/mining.py` finds negatives, and `losses/contrastive.py` computes the loss (beside
it are `infonce.py`, `triplet.py` and `distillation.py`). `loop.py` repeats the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ucn.config import LossConfig
from ucn.config.training import Levels
from ucn.errors import NonFiniteLossError
from ucn.losses import (
    descriptor_loss,
    distillation_loss,
    infonce_loss,
    mine_negatives,
    mined_contrastive_loss,
    mined_triplet_loss,
    one_correspondence_contrastive_loss,
)
from ucn.nn.model import CorrespondenceNetwork, Encoder
from ucn.types import FeatureMap, PairBatch

Precision = Literal["bf16", "float32"]

AverageGradients = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`ProcessGroup.average_gradients`: averages a model's gradients over processes, in place. It takes this
process's loss and number of correspondences, and returns those of the whole batch."""


@dataclass(frozen=True)
class StepResult:
    """Metrics of one step over all processes, as scalars on the device, since reading them would wait for it.

    Attributes:
        loss: before the update.
        gradient_norm: before clipping.
        correspondences: number of valid correspondences in the batch.
    """

    loss: Tensor
    gradient_norm: Tensor
    correspondences: Tensor


@dataclass(frozen=True)
class Teacher:
    """A trained network that the student imitates, and the weights of the loss terms.

    Attributes:
        model: in evaluation mode, on the device of the batches; it is not updated.
        weight: of the distillation loss on similarities.
        temperature: of the similarities.
        descriptor_weight: of the distillation loss on descriptors.
        ground_truth_weight: of the loss against the ground truth; 0 trains on the teacher alone.
    """

    model: Encoder
    weight: float
    temperature: float
    descriptor_weight: float = 0.0
    ground_truth_weight: float = 1.0


def training_step(
    model: CorrespondenceNetwork,
    batch: PairBatch,
    loss: LossConfig,
    optimiser: Optimizer,
    clip_norm: float,
    generator: torch.Generator,
    precision: Precision = "bf16",
    average_gradients: AverageGradients | None = None,
    teacher: Teacher | None = None,
) -> StepResult:
    """Updates the model once on one batch of pairs.

    Args:
        model: in training mode, on the device of the batch.
        batch: pairs with their ground-truth correspondences.
        loss: the loss against the ground truth.
        optimiser: of the model's parameters.
        clip_norm: longer gradients are scaled down to this norm.
        generator: of random mining.
        precision: of the forward pass on a GPU.
        average_gradients: averages gradients over processes that each have a share of the batch; None trains
            in one process.
        teacher: adds distillation losses.
    """
    map0, map1 = encode_pair(model, batch, precision)
    if teacher is None:
        value = compute_loss(map0, map1, batch, loss, generator)
    else:
        value = compare_with_teacher(map0, map1, batch, teacher, precision)
        if teacher.ground_truth_weight:
            value = value + teacher.ground_truth_weight * compute_loss(map0, map1, batch, loss, generator)

    optimiser.zero_grad(set_to_none=True)
    value.backward()
    mean_loss, correspondences = value.detach(), batch.is_valid.sum()
    if average_gradients is not None:
        mean_loss, correspondences = average_gradients(model, mean_loss, correspondences)
    gradient_norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimiser.step()
    return StepResult(mean_loss, gradient_norm, correspondences)


def encode_pair(
    model: Encoder, batch: PairBatch, precision: Precision = "bf16"
) -> tuple[FeatureMap, FeatureMap]:
    """Encodes both views in one forward pass; on a CPU, where bf16 is no faster, always in float32."""
    device = batch.image0.device
    is_bf16 = precision == "bf16" and device.type == "cuda"
    with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
        both = model.encode(torch.cat([batch.image0, batch.image1]))
    features0, features1 = both.features.float().chunk(2)
    return replace(both, features=features0), replace(both, features=features1)


def choose_levels(map0: FeatureMap, map1: FeatureMap, levels: Levels) -> tuple[FeatureMap, FeatureMap]:
    """The descriptors of the levels that a source trains: all of them, or those of the fine level."""
    return (map0, map1) if levels == "all" else (map0.without_semantic(), map1.without_semantic())


def compute_loss(
    map0: FeatureMap, map1: FeatureMap, batch: PairBatch, config: LossConfig, generator: torch.Generator
) -> Tensor:
    """The configured loss of one batch against its ground truth.

    Raises:
        NonFiniteLossError: a loss with mined negatives meets features that are not finite.
    """
    map0, map1 = choose_levels(map0, map1, config.levels)
    pair = (map0, map1, batch.points0, batch.points1, batch.is_valid)
    radius, direction = config.radius, config.direction
    if config.kind == "infonce":
        return infonce_loss(*pair, temperature=config.temperature, radius=radius, direction=direction)
    if config.kind == "one_contrastive":
        return one_correspondence_contrastive_loss(
            *pair,
            min_distance=radius,
            margin=config.margin,
            positive_share=config.positive_share,
            generator=generator,
        )
    _check_features(map0, map1, batch)
    mine = partial(mine_negatives, *pair, radius=radius, direction=direction, generator=generator)
    negatives = mine(method=config.mining, count=config.negatives)
    if config.random_negatives:
        negatives = negatives.join(mine(method="random", count=config.random_negatives))
    mined_loss = mined_triplet_loss if config.kind == "triplet" else mined_contrastive_loss
    return mined_loss(*pair, negatives, margin=config.margin)


def compare_with_teacher(
    map0: FeatureMap, map1: FeatureMap, batch: PairBatch, teacher: Teacher, precision: Precision = "bf16"
) -> Tensor:
    """The distillation losses of one batch: on similarities in both directions, and on descriptors."""
    with torch.no_grad():
        teacher_maps = encode_pair(teacher.model, batch, precision)
    points = (batch.points0, batch.points1, batch.is_valid)
    value = teacher.weight * distillation_loss(
        (map0, map1), teacher_maps, *points, temperature=teacher.temperature
    )
    if teacher.descriptor_weight:
        value = value + teacher.descriptor_weight * descriptor_loss((map0, map1), teacher_maps)
    return value


def _check_features(map0: FeatureMap, map1: FeatureMap, batch: PairBatch) -> None:
    """Mining refuses features that are not finite; this error names the samples."""
    if not (map0.features.isfinite().all() & map1.features.isfinite().all()):  # one wait for the device
        raise NonFiniteLossError(
            f"the network's features are not finite on the samples {', '.join(batch.names)}; "
            "lower the learning rates, or check these samples"
        )


def check_finite(values: Tensor, names: Sequence[Sequence[str]], what: str = "loss") -> None:
    """Stops a run whose loss or gradient is not finite, and names the samples.

    Args:
        values: (S,), one for each of S steps.
        names: the sample names of each of these steps.
        what: the values are, for the error message.

    Raises:
        NonFiniteLossError: one of `values` is not finite.
    """
    for step, is_finite in enumerate(values.isfinite().tolist()):
        if not is_finite:
            raise NonFiniteLossError(
                f"the {what} became {values[step].item()} on the samples {', '.join(names[step])}; "
                "lower the learning rates, or check these samples"
            )
