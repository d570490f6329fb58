"""What a teacher's similarities cost: by hand, against the definition, and by gradcheck."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from support.loss_cases import Pair, assert_free, assert_same_gradients, make_map, make_pair
from ucn.geometry.sampling import sample_descriptors
from ucn.losses import descriptor_loss, distillation_loss
from ucn.types import FeatureMap

Maps = tuple[FeatureMap, FeatureMap]


def make_case(B: int = 2, N: int = 6, dtype: torch.dtype = torch.float64) -> tuple[Pair, Maps, Maps]:
    """A student of 5 dimensions and a teacher of 7, with the same cells."""
    pair, other = make_pair(B=B, N=N, dtype=dtype), make_pair(B=B, N=N, D=7, dtype=dtype, seed=3)
    return pair, (pair.map0, pair.map1), (other.map0, other.map1)


def define_slowly(pair: Pair, maps: Maps, teacher_maps: Maps, temperature: float) -> Tensor:
    """The definition, point by point and cell by cell."""
    terms = []
    for view, points in enumerate((pair.points0, pair.points1)):
        for b, n in pair.is_valid.nonzero().tolist():
            shares = []
            for from_maps in (maps, teacher_maps):
                query = sample_descriptors(from_maps[view], points)[b, n]
                cells = from_maps[1 - view].features[b].flatten(1)
                similarities = torch.stack([query @ cell for cell in cells.unbind(1)])
                scaled = (similarities / temperature).exp()
                shares.append(scaled / scaled.sum())
            student, teacher = shares
            terms.append((teacher * (teacher / student).log()).sum())
    return torch.stack(terms).mean()


def points_of(pair: Pair) -> tuple[Tensor, Tensor, Tensor]:
    return pair.points0, pair.points1, pair.is_valid


def test_by_hand() -> None:
    # One point on cell 0 of view 0; two cells in view 1, and two in view 0.
    own0 = make_map(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).T.reshape(1, 2, 1, 2))
    own1 = make_map(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).T.reshape(1, 2, 1, 2))
    teacher0 = make_map(torch.tensor([[1.0, -1.0]]).reshape(1, 1, 1, 2))
    teacher1 = make_map(torch.tensor([[1.0, 1.0]]).reshape(1, 1, 1, 2))
    point0, point1 = torch.tensor([[[2.0, 2.0]]]), torch.tensor([[[6.0, 2.0]]])
    is_valid = torch.ones(1, 1, dtype=torch.bool)

    def divergence(teacher: list[float], student: list[float]) -> float:
        p, q = torch.tensor(teacher).softmax(0), torch.tensor(student).softmax(0)
        return float((p * (p / q).log()).sum())

    # The student finds (1, -1) in view 1, the teacher (1, 1); back, (-1, 0) against (1, -1).
    forth, back = divergence([1.0, 1.0], [1.0, -1.0]), divergence([1.0, -1.0], [-1.0, 0.0])
    assert forth == pytest.approx(math.log((1 + math.exp(-2)) / 2) + 1)  # Σ ½ log(½ / q)
    found = distillation_loss((own0, own1), (teacher0, teacher1), point0, point1, is_valid, temperature=1.0)
    assert found.item() == pytest.approx((forth + back) / 2)


@pytest.mark.parametrize("B", [1, 2])
@pytest.mark.parametrize("memory_bytes", [1, 8000, 2**28])
def test_equals_the_definition_with_gradient(B: int, memory_bytes: int) -> None:
    pair, maps, teacher_maps = make_case(B)
    features = [each.features for each in maps]
    expected = define_slowly(pair, maps, teacher_maps, 0.3)
    found = distillation_loss(
        maps, teacher_maps, *points_of(pair), temperature=0.3, memory_bytes=memory_bytes
    )
    assert found > 0
    assert_same_gradients(3 * found, 3 * expected, features)


@pytest.mark.slow
def test_gradcheck() -> None:
    pair, maps, teacher_maps = make_case(B=1, N=3)

    def lose(features0: Tensor, features1: Tensor) -> Tensor:
        own = replace(maps[0], features=features0), replace(maps[1], features=features1)
        return distillation_loss(own, teacher_maps, *points_of(pair), temperature=0.4, memory_bytes=4000)

    assert torch.autograd.gradcheck(lose, (maps[0].features, maps[1].features))


def test_a_student_like_its_teacher_costs_nothing_and_the_teacher_learns_nothing() -> None:
    pair, maps, teacher_maps = make_case()
    same = distillation_loss(maps, maps, *points_of(pair))
    assert same.item() == pytest.approx(0, abs=1e-12)
    # Turned descriptors have the same similarities.
    turn = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    turned = [
        replace(each, features=torch.einsum("ij,bjhw->bihw", turn.Q, each.features.detach())) for each in maps
    ]
    cost = distillation_loss((turned[0], turned[1]), maps, *points_of(pair))
    assert cost.item() == pytest.approx(0, abs=1e-12)
    distillation_loss(maps, teacher_maps, *points_of(pair)).backward()
    assert maps[0].features.grad is not None and maps[0].features.grad.any()
    assert teacher_maps[0].features.grad is None


def test_points_that_are_not_valid_do_not_matter() -> None:
    pair, maps, teacher_maps = make_case()
    expected = distillation_loss(maps, teacher_maps, *points_of(pair))
    points0 = torch.where(pair.is_valid[..., None], pair.points0, torch.nan)
    found = distillation_loss(maps, teacher_maps, points0, pair.points1, pair.is_valid)
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(found, maps[0].features)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("N", [0, 3])
def test_nothing_to_compare_costs_nothing(N: int) -> None:
    pair, maps, teacher_maps = make_case(N=max(N, 1))
    points, none = pair.points0[:, :N], torch.zeros(2, N, dtype=torch.bool)
    loss = distillation_loss(maps, teacher_maps, points, points, none)
    assert_free(loss, maps[1].features)


def test_half_types_are_compared_in_float32() -> None:
    pair, maps, teacher_maps = make_case(dtype=torch.float32)
    points = points_of(pair)
    halves: list[Maps] = []
    for both in (maps, teacher_maps):
        first, second = (replace(each, features=each.features.detach().bfloat16()) for each in both)
        halves.append((first, second))
    found = distillation_loss(halves[0], halves[1], *points)
    assert found.dtype == torch.float32
    widened = [tuple(replace(each, features=each.features.float()) for each in both) for both in halves]
    expected = distillation_loss(widened[0], widened[1], *points)  # type: ignore[arg-type]
    assert torch.equal(found, expected)


def test_refusals() -> None:
    pair, maps, teacher_maps = make_case()
    points = points_of(pair)
    with pytest.raises(ValueError, match="temperature must be above 0, got 0"):
        distillation_loss(maps, teacher_maps, *points, temperature=0)
    with pytest.raises(ValueError, match="memory_bytes must be at least 1"):
        distillation_loss(maps, teacher_maps, *points, memory_bytes=0)
    for name, changed in (
        ("stride 4, got 8", replace(teacher_maps[1], stride=8)),
        ("offset 2.0, got 0.0", replace(teacher_maps[1], offset=0.0)),
        ("grid", make_map(F.normalize(torch.ones(2, 7, 3, 3, dtype=torch.float64)))),
    ):
        with pytest.raises(ValueError, match=rf"the teacher's map of view 1 must have the {name}"):
            distillation_loss(maps, (teacher_maps[0], changed), *points)


def turn_slowly(student: Tensor, teacher_maps: Tensor) -> Tensor:
    """The teacher's rows, turned: the polar factor of the cross product, as the limit of Newton's iteration.

    Only for as many dimensions on both sides, where the factor is a rotation or mirror image.
    """
    factor = teacher_maps.T @ student
    for _ in range(200):
        factor = (factor + torch.linalg.inv(factor).T) / 2
    return teacher_maps @ factor


def list_rows(maps: Maps) -> Tensor:
    return torch.stack([m.features[b, :, y, x] for m in maps for b in range(len(m.features))
                        for y in range(m.features.shape[2]) for x in range(m.features.shape[3])])  # fmt: skip


class TestDescriptors:
    def test_by_hand(self) -> None:
        # A teacher turned by 90 degrees costs nothing; then one of four cells lies at a right angle to it.
        own = make_map(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).T.reshape(1, 2, 1, 2))
        turned = make_map(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]).T.reshape(1, 2, 1, 2))
        assert descriptor_loss((own, own), (turned, turned)).item() == pytest.approx(0, abs=1e-6)
        other = make_map(torch.tensor([[1.0, 0.0], [1.0, 0.0]]).T.reshape(1, 2, 1, 2))
        # The turn follows the three cells that agree: the cross product [[2, 1], [0, 1]] has a polar factor
        # of the angle atan(1 / 3).
        cosine, sine = 3 / math.sqrt(10), 1 / math.sqrt(10)
        expected = 1 - (cosine + cosine + cosine + sine) / 4
        assert descriptor_loss((own, own), (own, other)).item() == pytest.approx(expected, abs=1e-6)

    def test_against_another_rotation(self) -> None:
        pair, other = (
            make_pair(B=2, D=5, dtype=torch.float64),
            make_pair(B=2, D=5, dtype=torch.float64, seed=3),
        )
        maps, teacher_maps = (pair.map0, pair.map1), (other.map0, other.map1)
        rows = list_rows(maps)
        aims = turn_slowly(rows, list_rows(teacher_maps))
        terms = [1 - a @ b / (a.norm() * b.norm()) for a, b in zip(rows, aims, strict=True)]
        torch.testing.assert_close(descriptor_loss(maps, teacher_maps), torch.stack(terms).mean())

    @pytest.mark.parametrize("D", [1, 5, 9])
    def test_no_turn_of_the_student_changes_it(self, D: int) -> None:
        _, maps, _ = make_case()
        other = make_pair(B=2, D=D, dtype=torch.float64, seed=5)
        teacher_maps = (other.map0, other.map1)
        turn = torch.linalg.qr(
            torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        )[0]
        turned = tuple(replace(m, features=torch.einsum("bchw,cd->bdhw", m.features, turn)) for m in maps)
        wanted = descriptor_loss(maps, teacher_maps)
        torch.testing.assert_close(descriptor_loss((turned[0], turned[1]), teacher_maps), wanted)
        assert 0 < wanted < 2

    def test_a_longer_teacher_is_followed_where_it_can_be(self) -> None:
        """Descriptors that lie in as many dimensions as the student has cost nothing."""
        _, maps, _ = make_case()
        lift = torch.linalg.qr(
            torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        )[0]
        teacher_maps = tuple(
            replace(m, features=torch.einsum("bchw,dc->bdhw", m.features, lift)) for m in maps
        )
        assert descriptor_loss(maps, (teacher_maps[0], teacher_maps[1])).item() == pytest.approx(0, abs=1e-12)

    def test_gradient(self) -> None:
        """The turn is held, so the gradient is that of the angles alone, and only the student gets one."""
        _, maps, teacher_maps = make_case()
        for feature_map in (*maps, *teacher_maps):
            feature_map.features.requires_grad_()
        descriptor_loss(maps, teacher_maps).backward()
        rows, aims = list_rows(maps).detach(), list_rows(teacher_maps).detach()
        left, _, right = torch.linalg.svd(aims.T @ rows, full_matrices=False)
        aims = F.normalize(aims @ left @ right, dim=1)
        moved = [m.features.detach().clone().requires_grad_() for m in maps]
        again = torch.cat([f.permute(0, 2, 3, 1).flatten(0, 2) for f in moved])
        (1 - F.cosine_similarity(again, aims)).mean().backward()
        for feature_map, expected in zip(maps, moved, strict=True):
            torch.testing.assert_close(feature_map.features.grad, expected.grad)
        assert all(m.features.grad is None for m in teacher_maps)

    def test_half_precision_and_no_images(self) -> None:
        _, maps, teacher_maps = make_case(dtype=torch.float32)
        halves = tuple(replace(m, features=m.features.bfloat16()) for m in maps)
        found = descriptor_loss((halves[0], halves[1]), teacher_maps)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, descriptor_loss(maps, teacher_maps), atol=1e-2, rtol=1e-2)
        none = tuple(replace(m, features=m.features[:0].requires_grad_()) for m in maps)
        no_teacher = tuple(replace(m, features=m.features[:0]) for m in teacher_maps)
        empty = descriptor_loss((none[0], none[1]), (no_teacher[0], no_teacher[1]))
        empty.backward()
        assert empty.item() == 0

    def test_other_cells(self) -> None:
        _, maps, teacher_maps = make_case()
        with pytest.raises(ValueError, match="map of view 1 must have the stride"):
            descriptor_loss(maps, (teacher_maps[0], replace(teacher_maps[1], stride=8)))
