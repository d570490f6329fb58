"""Networks for tests."""

import torch
from torch import nn

from ucn.config import ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model


def make_lively(config: ModelConfig) -> CorrespondenceNetwork:
    """A network in which nothing is zero or one, as after training."""
    model = build_model(config).eval()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "localiser.2" in name or parameter.ndim == 1 or not parameter.any():
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean += torch.randn(module.running_mean.shape, generator=generator)
            module.running_var += torch.rand(module.running_var.shape, generator=generator)
    return model
