"""Images that are formulas, so that every position in them has an exact value."""

import torch
from torch import Tensor

SIZE_HW = (120, 160)
TURN = torch.tensor([[0.9, -0.25], [0.3, 1.05]])
SHIFT = torch.tensor([12.3, -4.6])


def look(points: Tensor, seed: int = 0, detail: float = 1.2) -> Tensor:
    """The brightness, in [0, 1], of an endless pattern at positions (..., 2); less detail is smoother."""
    generator = torch.Generator().manual_seed(seed)
    waves = (torch.rand(40, 2, generator=generator) - 0.5) * detail
    phases = torch.rand(40, generator=generator) * 6.3
    return 0.5 + 0.04 * torch.cos(points @ waves.t() + phases).sum(dim=-1)


def render(
    to_pattern: tuple[Tensor, Tensor], size_hw: tuple[int, int] = SIZE_HW, seed: int = 0, detail: float = 1.2
) -> Tensor:
    """An image whose pixel p shows the pattern at A p + b."""
    y, x = torch.meshgrid(torch.arange(size_hw[0]), torch.arange(size_hw[1]), indexing="ij")
    pixels = torch.stack([x, y], dim=-1).float()
    return look(pixels @ to_pattern[0].t() + to_pattern[1], seed, detail)
