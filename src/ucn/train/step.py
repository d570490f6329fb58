"""One training step: encode both views, lose, differentiate, clip, update. Read this first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from ucn.config import LossConfig
from ucn.errors import NonFiniteLossError
from ucn.losses import (
    MinedNegatives,
    descriptor_loss,
    distillation_loss,
    infonce_loss,
    mine_negatives,
    mined_contrastive_loss,
    mined_triplet_loss,
    one_correspondence_contrastive_loss,
)
from ucn.nn.encoder import FastEncoder
from ucn.nn.model import CorrespondenceNetwork
from ucn.train.distributed import ALONE, Team
from ucn.types import FeatureMap, PairBatch

Precision = Literal["bf16", "float32"]


@dataclass(frozen=True)
class StepResult:
    """What one step did, over all processes together; tensors on the device, so that nothing waits for it.

    Attributes:
        loss: before the update.
        gradient_norm: the length of the gradient before clipping.
        correspondences: how many true ones the batch had.
    """

    loss: Tensor
    gradient_norm: Tensor
    correspondences: Tensor


@dataclass(frozen=True)
class Teacher:
    """A finished network, which the one that is trained follows, and how much what it says counts.

    Attributes:
        model: in evaluation mode, on the device of the batches, or an encoder made of one; it does not
            change.
        weight: of differences between similarities, beside the loss against the truth.
        temperature: of the similarities that are compared.
        descriptor_weight: of differences between descriptors.
        truth_weight: of the loss against the truth; with 0 the teacher alone teaches.
    """

    model: CorrespondenceNetwork | FastEncoder
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
    team: Team = ALONE,
    teacher: Teacher | None = None,
) -> StepResult:
    """Updates the model once on one batch of pairs.

    Args:
        model: in training mode, on the device of the batch.
        batch: pairs with their true correspondences.
        loss: which loss against the truth.
        optimiser: of the model's parameters.
        clip_norm: a longer gradient is shortened to this length.
        generator: source of the draws of random mining.
        precision: of the forward pass on a GPU.
        team: the processes that train together, each with its share of the batch.
        teacher: whose similarities cost too, where they differ.
    """
    map0, map1 = encode_pair(model, batch, precision)
    if teacher is None:
        value = compute_loss(map0, map1, batch, loss, generator)
    else:
        value = compare_with_teacher(map0, map1, batch, teacher, precision)
        if teacher.ground_truth_weight:
            value = value + teacher.ground_truth_weight * compute_loss(map0, map1, batch, loss, generator)
    optimiser.zero_grad(set_to_none=True)
    value.backward()  # type: ignore[no-untyped-call]
    mean_loss, correspondences = team.average(model, value.detach(), batch.is_valid.sum())
    gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimiser.step()
    return StepResult(mean_loss, gradient_norm, correspondences)


def encode_pair(
    model: CorrespondenceNetwork | FastEncoder, batch: PairBatch, precision: Precision = "bf16"
) -> tuple[FeatureMap, FeatureMap]:
    """Both views in one forward pass; on a CPU, where bf16 is no faster, always in float32."""
    device = batch.image0.device
    is_bf16 = precision == "bf16" and device.type == "cuda"
    with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
        both = model.encode(torch.cat([batch.image0, batch.image1]))
    features0, features1 = both.features.float().chunk(2)
    return (
        FeatureMap(features0, both.stride, both.offset, both.image_hw),
        FeatureMap(features1, both.stride, both.offset, both.image_hw),
    )


def compute_loss(
    map0: FeatureMap, map1: FeatureMap, batch: PairBatch, config: LossConfig, generator: torch.Generator
) -> Tensor:
    """The configured loss of one batch.

    Raises:
        NonFiniteLossError: negatives are to be mined among features that are not finite.
    """
    truth = (map0, map1, batch.points0, batch.points1, batch.is_valid)
    if config.kind == "infonce":
        return infonce_loss(
            *truth, temperature=config.temperature, radius=config.radius, direction=config.direction
        )
    if config.kind == "one_contrastive":
        return one_correspondence_contrastive_loss(
            *truth,
            min_distance=config.radius,
            margin=config.margin,
            positive_share=config.positive_share,
            generator=generator,
        )
    negatives = _mine(map0, map1, batch, config, generator)
    if config.kind == "triplet":
        return mined_triplet_loss(*truth, negatives, margin=config.margin)
    return mined_contrastive_loss(*truth, negatives, margin=config.margin)


def compare_with_teacher(
    map0: FeatureMap, map1: FeatureMap, batch: PairBatch, teacher: Teacher, precision: Precision = "bf16"
) -> Tensor:
    """What differences from the teacher cost: of similarities, both directions, and of descriptors."""
    with torch.no_grad():
        taught = encode_pair(teacher.model, batch, precision)
    points = (batch.points0, batch.points1, batch.is_valid)
    similarities = distillation_loss((map0, map1), taught, *points, temperature=teacher.temperature)
    value = teacher.weight * similarities
    if teacher.descriptor_weight:
        value = value + teacher.descriptor_weight * descriptor_loss((map0, map1), taught)
    return value


def _mine(
    map0: FeatureMap, map1: FeatureMap, batch: PairBatch, config: LossConfig, generator: torch.Generator
) -> MinedNegatives:
    """The negatives that the configured method finds, and random ones beside them where asked for."""
    if not (map0.features.isfinite().all() & map1.features.isfinite().all()):  # one wait for the device
        raise NonFiniteLossError(
            f"the network's features are not finite on the samples {', '.join(batch.names)}; "
            "lower the learning rates, or look at these samples"
        )
    truth = (map0, map1, batch.points0, batch.points1, batch.is_valid)
    mined = mine_negatives(
        *truth,
        method=config.mining,
        radius=config.radius,
        direction=config.direction,
        count=config.negatives,
        generator=generator,
    )
    if not config.random_negatives:
        return mined
    drawn = mine_negatives(
        *truth,
        method="random",
        radius=config.radius,
        direction=config.direction,
        count=config.random_negatives,
        generator=generator,
    )
    return MinedNegatives(
        _join(mined.cells_0to1, drawn.cells_0to1, dim=2),
        _join(mined.cells_1to0, drawn.cells_1to0, dim=2),
        _add(mined.counts_0to1, drawn.counts_0to1),
        _add(mined.counts_1to0, drawn.counts_1to0),
    )


def _join(first: Tensor | None, second: Tensor | None, dim: int) -> Tensor | None:
    return None if first is None or second is None else torch.cat([first, second], dim)


def _add(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else first + second


def check_finite(values: Tensor, names: Sequence[Sequence[str]], what: str = "loss") -> None:
    """Stops a run whose loss or gradient broke, and says on which samples.

    Args:
        values: (S,) of as many steps.
        names: the sample names of each of these steps.
        what: the values are.

    Raises:
        NonFiniteLossError: one of `values` is not finite.
    """
    for step, is_finite in enumerate(values.isfinite().tolist()):
        if not is_finite:
            raise NonFiniteLossError(
                f"the {what} became {values[step].item()} on the samples {', '.join(names[step])}; "
                "lower the learning rates, or look at these samples"
            )
