"""Where training starts from: random weights, an ImageNet trunk, or a whole network of `ucn`."""

from __future__ import annotations

from pathlib import Path

import torch

from ucn.config import ModelConfig, TrainConfig
from ucn.errors import ConfigError
from ucn.nn import CorrespondenceNetwork, build_model, load_imagenet_trunk
from ucn.nn.trunk_files import TRUNK_SUFFIXES
from ucn.weights import load_weights
from ucn.weights.table import SHIPPED

RANDOM = "random"
"""The `init` of a network that begins with random weights."""
_WEIGHTS_SUFFIX = ".safetensors"


def start_model(config: TrainConfig) -> CorrespondenceNetwork:
    """The network that a run begins with, in training mode, on the CPU.

    `config.init` is one of

    - ``random``: all weights drawn from the run's seed;
    - a file of BVLC GoogLeNet (.npz, .caffemodel, .onnx): the trunk from it, the rest drawn;
    - the name of shipped weights, or a .safetensors file of `ucn`: the whole network, which must be the one
      that `config.model` describes; or where `config.init_part` says so its trunk, with the rest drawn.

    Raises:
        ConfigError: `init` is none of these, or the network of the weights is another than the run's.
        WeightsError: the file is missing, damaged or of another network.
    """
    is_weights, is_whole = names_weights(config.init), config.init_part == "whole"
    if is_weights and is_whole:
        model = load_weights(config.init).model
        _check_same(config.init, model.config, config.model)
        return model.train()
    model = build_model(config.model, torch.Generator().manual_seed(config.seed))
    if is_weights:
        _take_trunk(model, config.init)
        return model
    if not is_whole:
        raise ConfigError(
            f"init_part is {config.init_part}, which is for init of shipped weights or a {_WEIGHTS_SUFFIX} "
            f"file, got '{config.init[:200]}'; leave init_part out"
        )
    if config.init == RANDOM:
        return model
    if Path(config.init).suffix.lower() not in TRUNK_SUFFIXES:
        names = ", ".join(sorted(SHIPPED))
        suffixes = ", ".join((*TRUNK_SUFFIXES, _WEIGHTS_SUFFIX))
        raise ConfigError(
            f"init must be {RANDOM}, the name of shipped weights ({names}) or a file ({suffixes}), "
            f"got '{config.init[:200]}'"
        )
    load_imagenet_trunk(model.trunk, config.init)
    return model


def names_weights(init: str) -> bool:
    """Whether an `init` names weights of a whole network, which bring their `model` with them."""
    return init in SHIPPED or Path(init).suffix.lower() == _WEIGHTS_SUFFIX


def _take_trunk(model: CorrespondenceNetwork, init: str) -> None:
    source = load_weights(init).model
    theirs, stored = source.trunk.state_dict(), source.config
    ours = model.trunk.state_dict()
    if {name: value.shape for name, value in theirs.items()} != {n: v.shape for n, v in ours.items()}:
        transformer = "in_branch" if stored.transformer == "in_branch" else "none or after_trunk"
        raise ConfigError(
            f"init '{init}' has another trunk than the recipe's model: set model.trunk to {stored.trunk} and "
            f"model.transformer to {transformer}"
        )
    model.trunk.load_state_dict(theirs)


def _check_same(init: str, theirs: ModelConfig, ours: ModelConfig) -> None:
    stored, asked = theirs.to_dict(), ours.to_dict()
    differing = [key for key in asked if asked[key] != stored[key]]
    if differing:
        pairs = ", ".join(f"model.{key} is {stored[key]} there and {asked[key]} here" for key in differing)
        raise ConfigError(
            f"init '{init}' holds another network than the recipe's: {pairs}. Leave these keys out of the "
            f"recipe to take the weights' own, or start the trunk only, from a file of BVLC GoogLeNet "
            f"({', '.join(TRUNK_SUFFIXES)})"
        )
