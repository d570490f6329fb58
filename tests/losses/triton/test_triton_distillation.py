"""The Triton kernels of distillation, interpreted on the CPU, and the loss that is made of them."""

from pathlib import Path

import pytest
import torch

from support.interpreter import run_interpreted
from support.loss_cases import make_pair
from ucn.losses import distillation, distillation_loss
from ucn.losses.triton.distillation import Divergences


@pytest.mark.slow
def test_the_kernels() -> None:
    run_interpreted(Path(__file__).with_name("fused_distillation_cases.py"))


def test_the_fused_loss_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code around the kernels: which rows are computed, which are valid, and where gradients go."""
    from ucn.losses.triton import distillation as triton_distillation

    def sum_plainly(q: torch.Tensor, c: torch.Tensor, tq: torch.Tensor, tc: torch.Tensor) -> Divergences:
        student, teacher = (q @ c).log_softmax(-1), (tq @ tc).log_softmax(-1)
        values = (teacher.exp() * (teacher - student)).sum(-1)
        return Divergences(values, (q @ c).logsumexp(-1), (tq @ tc).logsumexp(-1))

    def send_plainly(
        q: torch.Tensor,
        c: torch.Tensor,
        tq: torch.Tensor,
        tc: torch.Tensor,
        sums: torch.Tensor,
        teacher_sums: torch.Tensor,
        gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shares = (q @ c - sums[..., None]).exp() - (tq @ tc - teacher_sums[..., None]).exp()
        weights = shares * gradient[..., None]
        return weights @ c.mT, q.mT @ weights

    pair, other = make_pair(B=2, N=6), make_pair(B=2, N=6, D=7, seed=3)
    maps = [pair.map0, pair.map1]
    results = []
    for is_fused in (False, True):
        monkeypatch.setattr(distillation, "can_fuse", lambda *_, is_fused=is_fused: is_fused)
        monkeypatch.setattr(triton_distillation, "compute_divergences", sum_plainly)
        monkeypatch.setattr(triton_distillation, "divergences_backward", send_plainly)
        for feature_map in maps:
            feature_map.features.grad = None
            feature_map.features.requires_grad_()
        loss = distillation_loss(
            (pair.map0, pair.map1), (other.map0, other.map1), pair.points0, pair.points1, pair.is_valid
        )
        loss.backward()
        results.append([loss.detach(), *(m.features.grad for m in maps)])
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain)
