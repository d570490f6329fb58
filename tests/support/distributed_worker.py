"""One of several processes that train together; `test_distributed` starts it and reads what it leaves."""

import sys
from pathlib import Path

import torch
from torch.optim import SGD

from support.photo_cases import make_photo
from ucn.config import LossConfig, ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.distributed import Team, join_team
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


def take_share(batch: PairBatch, team: Team) -> PairBatch:
    """The pairs of a process, of a batch that is shared evenly."""
    pairs = len(batch.names) // team.size
    rows = slice(team.rank * pairs, (team.rank + 1) * pairs)
    return PairBatch(
        batch.image0[rows],
        batch.image1[rows],
        batch.points0[rows],
        batch.points1[rows],
        batch.is_valid[rows],
        batch.names[rows],
    )


def differentiate(loss: str, norm: str, team: Team) -> dict[str, torch.Tensor]:
    """The gradients, the statistics and the figures of one step from the same weights."""
    model: CorrespondenceNetwork = build_model(ModelConfig.from_dict({"dim": 8, "head_norm": norm})).train()
    optimiser = SGD(model.parameters(), lr=0.0)
    share = take_share(make_batch(), team)
    result = training_step(model, share, LOSSES[loss], optimiser, 1e9, torch.Generator(), team=team)
    found = {f"gradient.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    found |= {f"buffer.{name}": buffer for name, buffer in model.named_buffers()}
    figures = {"loss": result.loss, "norm": result.gradient_norm, "count": result.correspondences.float()}
    return found | figures


def main(folder: Path) -> None:
    """Leaves what this process found in a file of its number."""
    team = join_team("cpu")
    found = {
        f"{loss} {norm} {name}": value
        for loss in LOSSES
        for norm in NORMS
        for name, value in differentiate(loss, norm, team).items()
    }
    words = {
        "rank": team.rank,
        "size": team.size,
        "device": str(team.device),
        "nobody asks": team.agree(False),
        "one asks": team.agree(team.rank == 1),
        "told": team.tell({"rank": team.rank}),
        "gathered": team.gather((f"of {team.rank}",)),
    }
    torch.save({"tensors": found, "words": words}, folder / f"{team.rank}.pt")
    team.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
