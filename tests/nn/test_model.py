import pytest
import torch
import torch.nn.functional as F

from ucn.config import ModelConfig
from ucn.nn import build_model
from ucn.nn.normalise import ChannelNorm, l2_normalise

CONFIGS = [
    ModelConfig(),
    ModelConfig(transformer="none", head_norm="batch"),
    ModelConfig(transformer="in_branch", head_norm="none"),
    ModelConfig(dim=None, transformer="none", head_norm="none"),
    ModelConfig(dim=16, transformer_kernel=5),
    ModelConfig(dim=16, head_norm="batch", context_layers=2),
    ModelConfig(dim=16, context_layers=3, context_dilation=2),
    ModelConfig(dim=None, transformer="none", context_layers=1),
    ModelConfig(dim=16, levels=3, use_standard_light=True),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_descriptors_are_unit_and_of_the_given_dimension(config: ModelConfig) -> None:
    model = build_model(config).eval()
    with torch.no_grad():
        feature_map = model.encode(torch.rand(1, 3, 45, 61, generator=torch.Generator().manual_seed(0)))
    assert feature_map.features.shape == (1, config.dim or 512, 11, 15)
    assert (feature_map.stride, feature_map.offset, feature_map.image_hw) == (4, 2.0, (45, 61))
    torch.testing.assert_close(feature_map.features.norm(dim=1), torch.ones(1, 11, 15))


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_parameter_receives_a_gradient_after_one_step(config: ModelConfig) -> None:
    model = build_model(config).train()
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, 3, 48, 48, generator=generator)
    target = torch.randn(2, config.dim or 512, 12, 12, generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    # Localiser and context end in zeros: the layers before them hear of the loss only after the first step.
    for _ in range(2):
        optimiser.zero_grad(set_to_none=True)
        (model(images) * target).sum().backward()
        optimiser.step()
    silent = [n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]
    assert silent == []


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_batched_equals_unbatched(config: ModelConfig) -> None:
    model = build_model(config).eval()
    images = torch.rand(3, 3, 40, 56, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        together = model.encode(images)
        for index in range(3):
            alone = model.encode(images[index : index + 1]).features
            torch.testing.assert_close(together[index].features, alone, atol=1e-5, rtol=0)


def test_building_is_repeatable_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = build_model(ModelConfig()), build_model(ModelConfig())
    assert torch.equal(before, torch.get_rng_state())
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    other = build_model(ModelConfig(), torch.Generator().manual_seed(1))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_wrong_images_are_refused() -> None:
    model = build_model(ModelConfig())
    with pytest.raises(ValueError, match=r"images must be \(B, 3, H, W\), got \(3, 64, 64\)"):
        model.encode(torch.zeros(3, 64, 64))
    with pytest.raises(ValueError, match="at least 32 px a side, got 64×31"):
        model.encode(torch.zeros(1, 3, 31, 64))


def test_l2_normalise_by_hand_and_at_zero() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    unit = l2_normalise(vectors, dim=1)
    assert unit.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0, 0]]
    unit.sum().backward()
    assert vectors.grad is not None and vectors.grad.isfinite().all()
    x = torch.randn(
        2, 4, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )
    assert torch.autograd.gradcheck(l2_normalise, x)
    assert l2_normalise(torch.full((1, 300, 1, 1), 300.0).half()).norm().item() == pytest.approx(1, abs=1e-3)


def test_channel_norm_equals_layer_norm() -> None:
    x = torch.randn(2, 6, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = ChannelNorm(6).double()
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.normal_(norm.bias, generator=torch.Generator().manual_seed(2))
    expected = F.layer_norm(x.movedim(1, -1), (6,), norm.weight, norm.bias, norm.epsilon).movedim(-1, 1)
    torch.testing.assert_close(norm(x), expected)
