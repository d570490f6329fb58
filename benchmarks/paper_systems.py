"""Judges the systems rebuilt from their papers by what each paper claims, where that can be seen.

python benchmarks/paper_systems.py

Three made pairs with exact ground truth, each of which nearest neighbours must fail:
- flat: a moving texture with a flat square in it. SIFT Flow (Liu et al. 2011): smoothness gives cells
  without features the displacement of their surroundings.
- copies: two identical patches, told apart by what lies around them alone. DSP (Kim et al. 2013): the larger
  nodes of the pyramid decide between them.
- tiles: a pattern repeated over the whole image, with weak marks, bent by waves. DeepMatching (Revaud et al.
  2016): large patches resolve repetition, and bend.
Each system runs with its own features; beside it are nearest neighbours of the same features. It behaves as
its paper says if, on its own case, it finds at least 90 % of the points within 5 px where these find at most
60 %. The verdict does not depend on real data, nor on being ahead of other methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from command_line import make_parser
from torch import Tensor

from ucn.features.pair_matcher import NearestNeighbours
from ucn.geometry.coords import pixel_grid
from ucn.geometry.sampling import sample_image
from ucn.paper.registry import METHODS

OWN_CASES = {"sift-flow": "flat", "dsp": "copies", "deepmatching": "tiles"}
"""The case on which each system is judged."""
LIMIT, FOUND, MISSED = 5.0, 0.9, 0.6
_SIZE_HW = (128, 160)


@dataclass(frozen=True)
class Case:
    """Two images (3, H, W), and points (N, 2) of image 0 with their places in image 1."""

    image0: Tensor
    image1: Tensor
    points0: Tensor
    points1: Tensor


def make_texture(seed: int, size_hw: tuple[int, int] = _SIZE_HW, grain: int = 8) -> Tensor:
    """A random texture (3, H, W) in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    height, width = size_hw
    layers = []
    for step in (grain, grain // 2):
        coarse = torch.rand(1, 1, height // step + 2, width // step + 2, generator=generator)
        layers.append(F.interpolate(coarse, size=size_hw, mode="bicubic", align_corners=False))
    grey = (0.6 * layers[0] + 0.4 * layers[1])[0].clamp(0, 1)
    return grey.expand(3, -1, -1).contiguous()


def move(image1: Tensor, shift_xy: tuple[float, float], waves: float = 0.0) -> tuple[Tensor, Tensor]:
    """Image 0, and where each of its pixels lies in image 1: (3, H, W) and (H, W, 2)."""
    places = pixel_grid((image1.shape[1], image1.shape[2]))
    turns = places * (math.tau / 80)
    bent = waves * torch.stack([turns[..., 1].sin(), turns[..., 0].sin()], -1)
    moved = places + torch.tensor(shift_xy) + bent
    return sample_image(image1[None], moved[None], "border")[0], moved


def choose_points(moved: Tensor, window: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """Every third pixel of a window (left, top, right, bottom) of image 0, and its place in image 1."""
    left, top, right, bottom = window
    places = pixel_grid((moved.shape[0], moved.shape[1]))
    chosen = (slice(top, bottom, 3), slice(left, right, 3))
    return places[chosen].reshape(-1, 2), moved[chosen].reshape(-1, 2)


def make_flat() -> Case:
    image1 = make_texture(0)
    image1[:, 42:86, 52:108] = 0.5
    image0, moved = move(image1, (9.0, -5.0))
    return Case(image0, image1, *choose_points(moved, (60, 64, 82, 76)))


def make_copies() -> Case:
    image1 = make_texture(1, (160, 256))
    image1[:, 36:124, 152:240] = image1[:, 36:124, 16:104]
    image0, moved = move(image1, (6.0, 0.0))
    points0, points1 = zip(
        *(choose_points(moved, (left, 70, left + 20, 90)) for left in (44, 180)), strict=True
    )
    return Case(image0, image1, torch.cat(points0), torch.cat(points1))


def make_tiles() -> Case:
    height, width = _SIZE_HW
    tile = make_texture(2, (32, 32), grain=8)
    repeated = tile.repeat(1, height // 32, width // 32)
    image1 = (repeated + 0.35 * (make_texture(3, grain=32) - 0.5)).clamp(0, 1)
    image0, moved = move(image1, (8.0, 4.0), waves=3.0)
    return Case(image0, image1, *choose_points(moved, (24, 24, width - 32, height - 32)))


CASES = {"flat": make_flat, "copies": make_copies, "tiles": make_tiles}


def measure(system_name: str, case: Case) -> tuple[float, float]:
    """The share of points that a system finds within the limit, and that of nearest neighbours."""
    system = METHODS.systems[system_name]()
    map0, map1 = (system.published_extractor.extract(image).map for image in (case.image0, case.image1))
    shares = []
    for matcher in (system.published_matcher, NearestNeighbours()):
        found = matcher.align(map0, map1).find(case.points0, False)
        shares.append(float(((found - case.points1).norm(dim=-1) <= LIMIT).float().mean()))
    return shares[0], shares[1]


def behaves(own: float, nearest: float) -> bool:
    """Whether a system does on its case what nearest neighbours of its features cannot."""
    return own >= FOUND and nearest <= MISSED


def main() -> None:
    make_parser(__doc__).parse_args()
    print("| system | " + " | ".join(CASES) + " | as its paper says |")
    print("|---" * (2 + len(CASES)) + "|")
    for name, own_case in OWN_CASES.items():
        found = {case: measure(name, make()) for case, make in CASES.items()}
        cells = [f"{100 * own:.0f} ({100 * nearest:.0f})" for own, nearest in found.values()]
        verdict = "yes" if behaves(*found[own_case]) else "no"
        print(f"| `{name}` | {' | '.join(cells)} | {verdict}: {own_case} |", flush=True)


if __name__ == "__main__":
    main()
