"""Optimisers and rates, against values worked out by hand."""

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from support.train_cases import make_config
from ucn.config import ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.train.optim import (
    build_optimiser,
    learning_rate_factor,
    read_learning_rates,
    set_learning_rates,
    update_average,
)

MODEL = ModelConfig(dim=8, head_norm="channel")


def step_with(model: CorrespondenceNetwork, optimiser: Optimizer, gradient: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimiser.step()


def moves(before: CorrespondenceNetwork, after: CorrespondenceNetwork) -> dict[str, Tensor]:
    old = dict(before.named_parameters())
    return {name: (parameter - old[name]).detach() for name, parameter in after.named_parameters()}


def test_learning_rates_rise_and_fall_along_a_cosine() -> None:
    config = make_config(steps=10, warmup_steps=4)
    factors = [learning_rate_factor(config, done) for done in range(12)]
    # From step 4 on, 6 steps of half a cosine: 1, 0.933, 0.75, 0.5, 0.25, 0.067, 0.
    expected = [0.25, 0.5, 0.75, 1, 1, 0.9330127, 0.75, 0.5, 0.25, 0.0669873, 0, 0]
    assert factors == pytest.approx(expected, abs=1e-6)


def test_learning_rates_without_warmup_and_with_nothing_else() -> None:
    assert learning_rate_factor(make_config(steps=4, warmup_steps=0), 0) == 1
    assert learning_rate_factor(make_config(steps=4, warmup_steps=0), 2) == pytest.approx(0.5)
    config = make_config(steps=4, warmup_steps=4)
    assert [learning_rate_factor(config, done) for done in range(5)] == [0.25, 0.5, 0.75, 1, 1]


def test_learning_rates_fall_at_milestones() -> None:
    config = make_config(
        steps=8,
        warmup_steps=2,
        schedule="step",
        milestones=[3, 6],
        milestone_factor=0.5,
        head_learning_rate=2.0,
    )
    factors = [learning_rate_factor(config, done) for done in range(8)]
    assert factors == [0.5, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]  # the first 3 steps and the first 6 have more
    longer = make_config(**config.to_dict() | {"steps": 80})
    assert [learning_rate_factor(longer, done) for done in range(8)] == factors


def test_constant_learning_rates_stay_after_warmup() -> None:
    config = make_config(steps=4, warmup_steps=2, schedule="constant")
    assert [learning_rate_factor(config, done) for done in range(4)] == [0.5, 1, 1, 1]


def test_trunk_and_head_have_their_own_learning_rates() -> None:
    model = build_model(MODEL)
    config = make_config(steps=4, warmup_steps=4, trunk_learning_rate=0.25, head_learning_rate=0.5)
    optimiser = build_optimiser(model, config)
    assert isinstance(optimiser, AdamW)
    assert read_learning_rates(optimiser) == {"trunk": 0.25, "head": 0.5}
    set_learning_rates(optimiser, config, 2)
    assert read_learning_rates(optimiser) == {"trunk": 0.125, "head": 0.25}
    set_learning_rates(optimiser, config, 1)  # not what came before but the step decides
    assert read_learning_rates(optimiser) == {"trunk": 0.0625, "head": 0.125}
    trunk, head = optimiser.param_groups
    assert {id(p) for p in trunk["params"]} == {id(p) for p in model.trunk.parameters()}
    grouped = [id(p) for p in (*trunk["params"], *head["params"])]
    assert sorted(grouped) == sorted(map(id, model.parameters()))


def test_the_semantic_trunk_has_its_own_learning_rate() -> None:
    model = build_model(ModelConfig(dim=8, transformer="none", semantic_dim=6))
    assert model.semantic is not None
    rates = {"trunk_learning_rate": 0.25, "semantic_learning_rate": 0.0, "head_learning_rate": 0.5}
    config = make_config(steps=4, **rates)
    optimiser = build_optimiser(model, config)
    assert read_learning_rates(optimiser) == {"trunk": 0.25, "semantic": 0.0, "head": 0.5}
    semantic = next(group for group in optimiser.param_groups if group["part"] == "semantic")
    assert {id(p) for p in semantic["params"]} == {id(p) for p in model.semantic.trunk.parameters()}
    grouped = [id(p) for group in optimiser.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(map(id, model.parameters()))
    before = copy.deepcopy(model)
    step_with(model, optimiser, gradient=1.0)
    for name, move in moves(before, model).items():
        assert move.any() != name.startswith("semantic.trunk."), name  # a learning rate of 0 freezes it


def test_localisers_in_the_trunk_have_the_learning_rate_of_the_head() -> None:
    model = build_model(ModelConfig(dim=None, head_norm="none", transformer="in_branch"))
    optimiser = build_optimiser(model, make_config(trunk_learning_rate=0.25, head_learning_rate=0.5))
    trunk, head = optimiser.param_groups
    assert (trunk["peak"], head["peak"]) == (0.25, 0.5)
    localisers = {id(p) for name, p in model.named_parameters() if ".localiser." in name}
    assert len(localisers) == 2 * 4 and {id(p) for p in head["params"]} == localisers
    assert {id(p) for p in trunk["params"]} == {id(p) for p in model.parameters()} - localisers


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_weight_decay_spares_vectors_where_configured(name: str) -> None:
    model = build_model(MODEL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
    rates = {"trunk_learning_rate": 0.25, "head_learning_rate": 0.25, "weight_decay": 0.5, "optimiser": name}
    for use_vector_decay in (True, False):
        changed = copy.deepcopy(model)
        config = make_config(**rates, use_vector_decay=use_vector_decay)
        step_with(changed, build_optimiser(changed, config), gradient=0.0)
        for key, move in moves(model, changed).items():
            decays = use_vector_decay or move.ndim > 1
            # 0.25 * 0.5 * 2: AdamW shrinks the weights, SGD adds to a gradient of 0.
            torch.testing.assert_close(move, torch.full_like(move, -0.25 if decays else 0.0), msg=key)


@pytest.mark.parametrize(("use_nesterov", "expected"), [(False, [1.0, 1.5]), (True, [1.5, 1.75])])
def test_momentum_by_hand(use_nesterov: bool, expected: list[float]) -> None:
    # Of gradients 1 and 1 the buffer is 1, then 0.5 * 1 + 1; Nesterov's step is 1 + 0.5 * buffer.
    model = build_model(MODEL)
    config = make_config(
        optimiser="sgd",
        momentum=0.5,
        use_nesterov=use_nesterov,
        weight_decay=0.0,
        trunk_learning_rate=1.0,
        head_learning_rate=1.0,
    )
    optimiser = build_optimiser(model, config)
    assert isinstance(optimiser, SGD)
    states = [copy.deepcopy(model)]
    for _ in expected:
        step_with(model, optimiser, gradient=1.0)
        states.append(copy.deepcopy(model))
    for (before, after), length in zip(pairwise(states), expected, strict=True):
        for move in moves(before, after).values():
            torch.testing.assert_close(move, torch.full_like(move, -length), atol=1e-6, rtol=0)


def test_the_moving_average_by_hand() -> None:
    config = ModelConfig(dim=8, head_norm="batch")
    average, model = build_model(config), build_model(config)
    with torch.no_grad():
        for kept, current in zip(average.parameters(), model.parameters(), strict=True):
            kept.fill_(1)
            current.fill_(3)
        for buffer in model.buffers():
            buffer.fill_(7)
    update_average(average, model, 0.75, step=1000)
    assert all((parameter == 1.5).all() for parameter in average.parameters())  # 0.75 * 1 + 0.25 * 3
    assert all((parameter == 3).all() for parameter in model.parameters())
    buffers = list(average.buffers())
    assert len(buffers) == 3 and all((buffer == 7).all() for buffer in buffers)
    update_average(average, model, 0.75, step=10)  # a decay of 10 / 20
    assert all((parameter == 2.25).all() for parameter in average.parameters())
