"""Initial weights: random, an ImageNet trunk, or a trained network to fine-tune."""

from __future__ import annotations

from pathlib import Path

import torch

from ucn.config import Calibration, ModelConfig, TrainConfig
from ucn.errors import ConfigError
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.nn.trunk_files import TRUNK_SUFFIXES, load_imagenet_trunk
from ucn.weights import load_weights
from ucn.weights.store import read_weights_header
from ucn.weights.table import SHIPPED

RANDOM = "random"
"""The `init` of random weights."""
_WEIGHTS_SUFFIX = ".safetensors"


def start_model(config: TrainConfig) -> CorrespondenceNetwork:
    """The network that a run starts from, in training mode, on the CPU.

    `config.init` is one of

    - ``random``: all weights are sampled from the run's seed;
    - a file of BVLC GoogLeNet (.npz, .onnx): the trunk is loaded, the rest sampled;
    - the name of shipped weights, or a .safetensors file of `ucn`: the whole network, which must be the one
      that `config.model` describes, or with `config.init_part` 'trunk' its trunk, with the rest sampled.

    Raises:
        ConfigError: `init` is none of these, or the weights are of another network than the run's.
        WeightsError: the file is missing, damaged or of another network.
    """
    is_weights, is_whole = names_weights(config.init), config.init_part == "whole"
    if is_weights and is_whole:
        model = load_weights(config.init).model
        _check_same(config.init, model.config, config.model)
        return model.train()
    model = build_model(config.model, torch.Generator().manual_seed(config.seed))
    if is_weights:
        _load_trunk(model, config.init)
        return model
    if not is_whole:
        raise ConfigError(
            f"init_part {config.init_part} needs shipped weights or a {_WEIGHTS_SUFFIX} file as init, "
            f"got '{config.init[:80]}'; leave init_part out"
        )
    if config.init == RANDOM:
        return model
    # Of a .caffemodel, `load_imagenet_trunk` says how to convert it.
    if Path(config.init).suffix.lower() not in (*TRUNK_SUFFIXES, ".caffemodel"):
        names = ", ".join(sorted(SHIPPED))
        suffixes = ", ".join((*TRUNK_SUFFIXES, _WEIGHTS_SUFFIX))
        raise ConfigError(
            f"init must be {RANDOM}, the name of shipped weights ({names}) or a file ({suffixes}), "
            f"got '{config.init[:80]}'"
        )
    load_imagenet_trunk(model.trunk, config.init)
    return model


def start_calibration(config: TrainConfig) -> Calibration:
    """The calibration of the network that a run fine-tunes; the default for any other start.

    Raises:
        WeightsError: the file of the weights is missing or damaged.
    """
    is_calibrated = names_weights(config.init) and config.init_part == "whole"
    return read_weights_header(config.init).calibration if is_calibrated else Calibration()


def names_weights(init: str) -> bool:
    """Whether an `init` is a trained network, which brings its `model` with it."""
    return init in SHIPPED or Path(init).suffix.lower() == _WEIGHTS_SUFFIX


def _load_trunk(model: CorrespondenceNetwork, init: str) -> None:
    source = load_weights(init).model
    theirs, stored = source.trunk.state_dict(), source.config
    ours = model.trunk.state_dict()
    if {name: value.shape for name, value in theirs.items()} != {n: v.shape for n, v in ours.items()}:
        transformer = "in_branch" if stored.transformer == "in_branch" else "none or after_trunk"
        raise ConfigError(
            f"init '{init}' has a different trunk from the recipe's model: set model.trunk to {stored.trunk} "
            f"and model.transformer to {transformer}"
        )
    model.trunk.load_state_dict(theirs)


def _check_same(init: str, theirs: ModelConfig, ours: ModelConfig) -> None:
    stored, configured = theirs.to_dict(), ours.to_dict()
    differing = [key for key in configured if configured[key] != stored[key]]
    if differing:
        pairs = ", ".join(
            f"model.{key} is {stored[key]} there and {configured[key]} here" for key in differing
        )
        raise ConfigError(
            f"init '{init}' is a different network from the recipe's: {pairs}. Leave these keys out of the "
            "recipe to use those of the weights, or initialise the trunk only, from a file of BVLC GoogLeNet "
            f"({', '.join(TRUNK_SUFFIXES)})"
        )
