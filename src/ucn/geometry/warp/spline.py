"""Thin-plate splines: smooth warps of the plane with given displacements of control points."""

from __future__ import annotations

import torch
from torch import Tensor


class ThinPlateSpline:
    """The interpolation between control points with the least bending energy (Bookstein 1989, PAMI 11(6)).

    The linear system depends on the control points alone and is solved once; a warp is two matrix products.

    Attributes:
        controls: (K, 2) pixels.
    """

    def __init__(self, controls: Tensor) -> None:
        """Solves the linear system, in float64.

        Args:
            controls: (K, 2) pixels, K at least 3; distinct, and not all on a line.

        Raises:
            ValueError: the shape does not fit, or the controls do not determine a spline.
        """
        if controls.ndim != 2 or controls.shape[-1] != 2 or len(controls) < 3:
            raise ValueError(f"controls must be (K, 2) with K at least 3, got {tuple(controls.shape)}")
        self.controls = controls
        wide = controls.double().cpu()
        # Normalised by the spread of the controls, which keeps the system well conditioned.
        self._centre = wide.mean(dim=0).to(controls)
        self._spread = max(float((wide - wide.mean(dim=0)).abs().max()), 1e-9)
        unit = (wide - wide.mean(dim=0)) / self._spread
        self._unit_controls = unit.to(controls)
        count = len(unit)
        system = torch.zeros(count + 3, count + 3, dtype=torch.float64)
        system[:count] = _terms(unit, unit)
        system[count:, :count] = system[:count, count:].T
        solution, info = torch.linalg.inv_ex(system)
        is_solved = bool(info == 0) and bool(solution.abs().max() < 1e9)
        if not is_solved:
            raise ValueError("controls must be different points that do not all lie on one line")
        self._solution = solution[:, :count].to(controls)  # (K + 3, K)

    def warp(self, points: Tensor, displacements: Tensor) -> Tensor:
        """Warps points so that control point k moves exactly by its displacement.

        Args:
            points: (B, N, 2) pixels, or (N, 2) for the same points in each warp, which is faster.
            displacements: (B, K, 2) pixels.

        Returns:
            (B, N, 2).

        Raises:
            ValueError: the shapes do not fit.
        """
        if displacements.ndim != 3 or displacements.shape[1:] != self.controls.shape:
            expected = f"(B, {len(self.controls)}, 2)"
            raise ValueError(f"displacements must be {expected}, got {tuple(displacements.shape)}")
        batch = len(displacements)
        is_batched = points.ndim == 3 and len(points) == batch
        if points.shape[-1:] != (2,) or not (points.ndim == 2 or is_batched):
            raise ValueError(f"points must be (N, 2) or ({batch}, N, 2), got {tuple(points.shape)}")
        terms = _terms((points - self._centre) / self._spread, self._unit_controls)
        warped: Tensor = points + terms @ (self._solution @ displacements)
        return warped


def control_grid(count: int, size_hw: tuple[int, int], device: torch.device | str = "cpu") -> Tensor:
    """Control points (count * count, 2) on a grid that spans an image, row by row."""
    height, width = size_hw
    y, x = torch.meshgrid(
        torch.linspace(-0.5, height - 0.5, count, device=device),
        torch.linspace(-0.5, width - 0.5, count, device=device),
        indexing="ij",
    )
    return torch.stack([x.flatten(), y.flatten()], dim=-1)


def _terms(points: Tensor, controls: Tensor) -> Tensor:
    """(..., K + 3): the kernel r² log r² of the distance to each control, and the affine terms 1, x, y."""
    x, y = (points[..., axis, None] - controls[:, axis] for axis in (0, 1))
    squares = x.square() + y.square()
    kernel = torch.xlogy(squares, squares)  # 0 at a control itself
    return torch.cat([kernel, torch.ones_like(points[..., :1]), points], dim=-1)
