"""The training step, called with pairs made by hand."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW

from support.photo_cases import write_photos
from ucn.config import LossConfig, ModelConfig, SyntheticConfig
from ucn.config.training import Levels
from ucn.data.synthetic import ImageBank, make_pairs
from ucn.errors import NonFiniteLossError
from ucn.losses import (
    MinedNegatives,
    infonce_loss,
    mine_negatives,
    mined_contrastive_loss,
    mined_triplet_loss,
    one_correspondence_contrastive_loss,
)
from ucn.matching.cells import match_forward
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train import step
from ucn.train.step import check_finite, compute_loss, encode_pair, training_step
from ucn.types import Direction, FeatureMap, PairBatch

LOSSES = [
    LossConfig("infonce", radius=6),
    LossConfig("infonce", radius=6, direction="0to1"),
    LossConfig("contrastive", radius=6),
    LossConfig("contrastive", radius=6, mining="random"),
    LossConfig("triplet", radius=6, mining="nearest", direction="1to0"),
    LossConfig("one_contrastive", radius=6),
    LossConfig("contrastive", radius=6, negatives=2, random_negatives=4),
]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> PairBatch:
    """Two pairs of 64 px views."""
    paths = write_photos(tmp_path_factory.mktemp("photos"), [(128, 128)], grain=8)
    config = SyntheticConfig(side=64, points=100, photometric=0.0, max_scale=1.2, upright_share=1.0)
    return make_pairs(ImageBank(paths, 128, "cpu"), 2, config, torch.Generator().manual_seed(0))


def make_model(dim: int = 16) -> CorrespondenceNetwork:
    return build_model(ModelConfig(dim=dim)).train()


@pytest.mark.slow
def test_the_step_imports_only_the_model_the_losses_and_types() -> None:
    code = "import sys, ucn.train.step; print(*(name for name in sys.modules if name.startswith('ucn.')))"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    names = modules.split()
    allowed = {"config", "errors", "files", "geometry", "knn", "losses", "nn", "runtime", "train", "types"}
    assert {name.split(".")[1] for name in names} <= allowed
    assert [name for name in names if name.startswith("ucn.train.")] == ["ucn.train.step"]
    assert not [name for name in names if name.startswith(("ucn.nn.encoder", "ucn.nn.cpu", "ucn.nn.cuda"))]
    assert not [name for name in names if "triton" in name]


def copy_parameters(model: CorrespondenceNetwork) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def share_matched(model: CorrespondenceNetwork, batch: PairBatch, within: float) -> float:
    errors = []
    with torch.no_grad():
        for pair in batch:
            is_valid = pair.is_valid[0]
            found = match_forward(*encode_pair(model, pair), pair.points0[0][is_valid])
            errors.append((found.points - pair.points1[0][is_valid]).norm(dim=-1))
    return (torch.cat(errors) <= within).double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "steps"), [("infonce", 25), ("contrastive", 32)])
def test_one_batch_can_be_overfitted(batch: PairBatch, kind: str, steps: int) -> None:
    config = LossConfig.from_dict({"kind": kind, "radius": 6})
    model = make_model()
    before = share_matched(model, batch, within=3)
    optimiser = AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    losses = [
        training_step(model, batch, config, optimiser, 1.0, generator).loss.item() for _ in range(steps)
    ]
    assert losses[-1] < 0.2 * losses[0]
    assert before < 0.3
    assert share_matched(model, batch, within=3) > 0.95


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.kind} {loss.mining} {loss.direction}")
def test_each_loss_is_finite_and_moves_all_weights(batch: PairBatch, loss: LossConfig) -> None:
    model = make_model()
    before = copy_parameters(model)
    optimiser = AdamW(model.parameters(), 1e-3, weight_decay=0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(
        2
    ):  # in the first step the transformer still is a convolution, whatever its localiser says
        result = training_step(model, batch, loss, optimiser, 1.0, generator)
    assert result.loss.isfinite() and result.loss.item() > 0
    assert not result.loss.requires_grad
    assert result.gradient_norm.isfinite() and result.gradient_norm.item() > 0
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, before[name]), name


def test_long_gradients_are_shortened_and_old_ones_forgotten(batch: PairBatch) -> None:
    model = make_model()
    optimiser = SGD(model.parameters(), lr=1.0)
    lengths = []
    for clip_norm in (1e-3, 1e-3, 1e9):
        before = copy_parameters(model)
        result = training_step(model, batch, LOSSES[0], optimiser, clip_norm, torch.Generator())
        steps = [parameter.detach() - before[name] for name, parameter in model.named_parameters()]
        length = torch.cat([step.flatten().double() for step in steps]).norm().item()
        lengths.append((length, result.gradient_norm.item()))
    for length, gradient_norm in lengths[:2]:  # with SGD at rate 1 the step is the gradient
        assert gradient_norm > 0.01
        assert length == pytest.approx(1e-3, rel=0.01)
    assert lengths[2][0] == pytest.approx(lengths[2][1], rel=1e-3)


@pytest.mark.parametrize("loss", LOSSES[::2], ids=lambda loss: loss.kind)
@pytest.mark.parametrize("N", [0, 5])
def test_no_valid_points_cost_nothing_and_change_nothing(batch: PairBatch, loss: LossConfig, N: int) -> None:
    empty = replace(
        batch,
        points0=torch.full((2, N, 2), torch.nan),
        points1=torch.full((2, N, 2), torch.nan),
        is_valid=torch.zeros(2, N, dtype=torch.bool),
    )
    model = make_model()
    before = copy_parameters(model)
    optimiser = SGD(model.parameters(), lr=1.0)
    result = training_step(model, empty, loss, optimiser, 1.0, torch.Generator().manual_seed(0))
    assert result.loss.item() == 0
    assert result.gradient_norm.item() == 0
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_both_views_are_encoded_as_each_alone(batch: PairBatch) -> None:
    model = make_model().eval()
    with torch.no_grad():
        map0, map1 = encode_pair(model, batch)
        for found, image in ((map0, batch.image0), (map1, batch.image1)):
            alone = model.encode(image)
            torch.testing.assert_close(found.features, alone.features, atol=1e-5, rtol=0)
            assert (found.stride, found.offset, found.image_hw) == (alone.stride, alone.offset, (64, 64))


def test_a_loss_of_the_fine_level_is_that_of_a_network_without_the_other(batch: PairBatch) -> None:
    plain = make_model(dim=8)
    joined = build_model(ModelConfig(dim=8, semantic_dim=4)).train()
    for name, value in plain.state_dict().items():
        joined.state_dict()[name].copy_(value)
    config = LossConfig("infonce", radius=6)
    values = []
    cases: list[tuple[CorrespondenceNetwork, Levels]] = [(plain, "all"), (joined, "fine"), (joined, "all")]
    for model, levels in cases:
        model.zero_grad(set_to_none=True)
        loss = replace(config, levels=levels)
        value = compute_loss(*encode_pair(model, batch), batch, loss, torch.Generator())
        value.backward()
        values.append(value.item())
        if levels == "fine":
            assert joined.semantic is not None
            gradients = [parameter.grad for parameter in joined.semantic.parameters()]
            assert all(gradient is None or gradient.abs().max() < 1e-6 for gradient in gradients)
    assert values[1] == pytest.approx(values[0], rel=1e-5) and values[2] != pytest.approx(values[0], rel=1e-3)


def test_compute_loss_passes_every_setting_on(batch: PairBatch) -> None:
    with torch.no_grad():
        map0, map1 = encode_pair(make_model(), batch)
    truth = (map0, map1, batch.points0, batch.points1, batch.is_valid)

    def compute(config: LossConfig) -> float:
        return compute_loss(map0, map1, batch, config, torch.Generator().manual_seed(0)).item()

    infonce = LossConfig("infonce", radius=9.0, temperature=0.2, direction="1to0")
    direct = infonce_loss(*truth, temperature=0.2, radius=9.0, direction="1to0")
    assert compute(infonce) == pytest.approx(direct.item())
    contrastive = LossConfig("contrastive", radius=9.0, margin=1.5, mining="random", direction="0to1")
    generator = torch.Generator().manual_seed(0)
    mined = mine_negatives(*truth, method="random", radius=9.0, direction="0to1", generator=generator)
    assert compute(contrastive) == pytest.approx(mined_contrastive_loss(*truth, mined, margin=1.5).item())
    triplet = replace(contrastive, kind="triplet")
    assert compute(triplet) == pytest.approx(mined_triplet_loss(*truth, mined, margin=1.5).item())
    several = replace(contrastive, negatives=3)
    generator = torch.Generator().manual_seed(0)
    mined = mine_negatives(
        *truth, method="random", radius=9.0, direction="0to1", count=3, generator=generator
    )
    assert compute(several) == pytest.approx(mined_contrastive_loss(*truth, mined, margin=1.5).item())
    one = LossConfig("one_contrastive", radius=9.0, margin=1.5, positive_share=0.25)
    generator = torch.Generator().manual_seed(0)
    direct = one_correspondence_contrastive_loss(
        *truth, min_distance=9.0, margin=1.5, positive_share=0.25, generator=generator
    )
    assert compute(one) == pytest.approx(direct.item())
    values = [compute(config) for config in (infonce, contrastive, triplet)]
    assert all(abs(first - second) > 1e-3 for first, second in pairwise(sorted(values)))


@pytest.mark.parametrize("direction", ["0to1", "1to0", "both"])
def test_random_negatives_come_beside_the_mined_ones(
    batch: PairBatch, direction: Direction, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        map0, map1 = encode_pair(make_model(), batch)
    given: list[MinedNegatives] = []

    def remember(*arguments: object, **_: object) -> Tensor:
        assert isinstance(arguments[-1], MinedNegatives)
        given.append(arguments[-1])
        return torch.zeros(())

    monkeypatch.setattr(step, "mined_contrastive_loss", remember)
    config = LossConfig("contrastive", 9.0, negatives=2, random_negatives=3, direction=direction)
    compute_loss(map0, map1, batch, config, torch.Generator().manual_seed(0))
    truth = (map0, map1, batch.points0, batch.points1, batch.is_valid)
    mined = mine_negatives(*truth, method="hardest", radius=9.0, direction=direction, count=2)
    generator = torch.Generator().manual_seed(0)
    drawn = mine_negatives(
        *truth, method="random", radius=9.0, direction=direction, count=3, generator=generator
    )
    for way in ("0to1", "1to0"):
        joined, hard, random = (getattr(found, f"cells_{way}") for found in (given[0], mined, drawn))
        assert (joined is None) == (direction not in (way, "both"))
        if joined is not None:
            assert torch.equal(joined[..., :2], hard) and torch.equal(joined[..., 2:], random)


def test_a_step_counts_correspondences(batch: PairBatch) -> None:
    model = make_model()
    is_valid = batch.is_valid.clone()
    is_valid[0, 7:] = False
    partial = replace(batch, is_valid=is_valid)
    optimiser = SGD(model.parameters(), lr=0.0)
    result = training_step(model, partial, LOSSES[0], optimiser, 1.0, torch.Generator())
    assert int(result.correspondences) == int(is_valid.sum())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_loss_names_its_samples(value: float) -> None:
    names: list[tuple[str, ...]] = [("a", "b"), ("c", "d"), ("e", "f")]
    with pytest.raises(NonFiniteLossError, match=rf"the loss became {value} on the samples c, d; lower"):
        check_finite(torch.tensor([1.0, value, torch.nan]), names)
    with pytest.raises(NonFiniteLossError, match=rf"the gradient became {value} on the samples a, b; lower"):
        check_finite(torch.tensor([value, 1.0, 1.0]), names, "gradient")
    check_finite(torch.tensor([1.0, 2.0, 0.0]), names)
    check_finite(torch.zeros(0), [])


@pytest.mark.parametrize("kind", ["contrastive", "triplet"])
def test_broken_features_are_named_before_mining(kind: str) -> None:
    features = torch.full((1, 4, 8, 8), torch.nan)
    feature_map = FeatureMap(features, 4, 2.0, (32, 32))
    image, points = torch.zeros(1, 3, 32, 32), torch.full((1, 5, 2), 9.0)
    batch = PairBatch(image, image, points, points, torch.ones(1, 5, dtype=torch.bool), ("bad.jpg",))
    config = LossConfig.from_dict({"kind": kind})
    with pytest.raises(NonFiniteLossError, match=r"not finite on the samples bad\.jpg"):
        compute_loss(feature_map, feature_map, batch, config, torch.Generator())
