"""One training step: encode both views, lose, differentiate, clip, update. Read this first."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from ucn.config import LossConfig
from ucn.errors import NonFiniteLossError
from ucn.losses import infonce_loss, mine_negatives, mined_contrastive_loss, mined_triplet_loss
from ucn.nn.model import CorrespondenceNetwork
from ucn.types import FeatureMap, PairBatch


@dataclass(frozen=True)
class StepResult:
    """What one step did: the loss, and the length of its gradient before clipping, both on the device."""

    loss: Tensor
    gradient_norm: Tensor


def training_step(
    model: CorrespondenceNetwork,
    batch: PairBatch,
    loss: LossConfig,
    optimiser: Optimizer,
    clip_norm: float,
    generator: torch.Generator,
) -> StepResult:
    """Updates the model once on one batch of pairs.

    Args:
        model: in training mode, on the device of the batch.
        batch: pairs with their true correspondences.
        loss: which loss.
        optimiser: of the model's parameters.
        clip_norm: a longer gradient is shortened to this length.
        generator: source of the draws of random mining.
    """
    map0, map1 = encode_pair(model, batch)
    value = compute_loss(map0, map1, batch, loss, generator)
    optimiser.zero_grad(set_to_none=True)
    value.backward()  # type: ignore[no-untyped-call]
    gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimiser.step()
    return StepResult(value.detach(), gradient_norm)


def encode_pair(model: CorrespondenceNetwork, batch: PairBatch) -> tuple[FeatureMap, FeatureMap]:
    """Both views in one forward pass; bf16 on a GPU, where that is faster, and float32 on a CPU."""
    device = batch.image0.device
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
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
    if not (map0.features.isfinite().all() and map1.features.isfinite().all()):
        raise NonFiniteLossError(
            f"the network's features are not finite on the samples {', '.join(batch.names)}; "
            "lower the learning rates, or look at these samples"
        )
    negatives = mine_negatives(
        *truth, method=config.mining, radius=config.radius, direction=config.direction, generator=generator
    )
    if config.kind == "triplet":
        return mined_triplet_loss(*truth, negatives, margin=config.margin)
    return mined_contrastive_loss(*truth, negatives, margin=config.margin)


def check_finite(losses: Tensor, names: list[tuple[str, ...]]) -> None:
    """Stops a run whose loss broke, and says on which samples.

    Raises:
        NonFiniteLossError: one of `losses` (S,) is not finite; `names` holds the sample names of each step.
    """
    for step, is_finite in enumerate(losses.isfinite().tolist()):
        if not is_finite:
            raise NonFiniteLossError(
                f"the loss became {losses[step].item()} on the samples {', '.join(names[step])}; "
                "lower the learning rates, or look at these samples"
            )
