"""One of several processes that train together; `test_distributed` starts it and reads what it leaves."""

import sys
from pathlib import Path

import torch
from torch.optim import SGD

from support.photo_cases import make_photo
from ucn.config import LossConfig, ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.distributed import ProcessGroup, join_process_group
from ucn.train.step import training_step
from ucn.types import PairBatch

LOSSES = {
    "infonce": LossConfig("infonce", radius=6),
    "contrastive": LossConfig("contrastive", radius=6),
}
NORMS = ("channel", "batch")


def make_batch() -> PairBatch:
    """Four pairs of 64 px with 30, 25, 20 and 5 points."""
    images = torch.stack([make_photo(64, 64, seed=seed, grain=8) for seed in range(8)])
    generator = torch.Generator().manual_seed(0)
    points0, points1 = torch.rand(2, 4, 30, 2, generator=generator) * 63
    is_valid = torch.arange(30) < torch.tensor([30, 25, 20, 5])[:, None]
    return PairBatch(images[:4], images[4:], points0, points1, is_valid, ("a", "b", "c", "d"))


def take_share(batch: PairBatch, group: ProcessGroup) -> PairBatch:
    """The pairs of a process, of a batch that is shared evenly."""
    pairs = len(batch.names) // group.size
    rows = slice(group.rank * pairs, (group.rank + 1) * pairs)
    return PairBatch(
        batch.image0[rows],
        batch.image1[rows],
        batch.points0[rows],
        batch.points1[rows],
        batch.is_valid[rows],
        batch.names[rows],
    )


def differentiate(loss: str, norm: str, group: ProcessGroup) -> dict[str, torch.Tensor]:
    """The gradients, the statistics and the figures of one step from the same weights."""
    model: CorrespondenceNetwork = build_model(ModelConfig.from_dict({"dim": 8, "head_norm": norm})).train()
    optimiser = SGD(model.parameters(), lr=0.0)
    share = take_share(make_batch(), group)
    result = training_step(
        model,
        share,
        LOSSES[loss],
        optimiser,
        1e9,
        torch.Generator(),
        average_gradients=group.average_gradients,
    )
    found = {f"gradient.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    found |= {f"buffer.{name}": buffer for name, buffer in model.named_buffers()}
    figures = {"loss": result.loss, "norm": result.gradient_norm, "count": result.correspondences.float()}
    return found | figures


def main(folder: Path) -> None:
    """Leaves what this process found in a file of its number."""
    group = join_process_group("cpu")
    found = {
        f"{loss} {norm} {name}": value
        for loss in LOSSES
        for norm in NORMS
        for name, value in differentiate(loss, norm, group).items()
    }
    words = {
        "rank": group.rank,
        "size": group.size,
        "device": str(group.device),
        "nobody asks": group.any(False),
        "one asks": group.any(group.rank == 1),
        "told": group.broadcast({"rank": group.rank}),
        "gathered": group.gather((f"of {group.rank}",)),
    }
    torch.save({"tensors": found, "words": words}, folder / f"{group.rank}.pt")
    group.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
