"""Accuracy of sub-cell refinement: an image matched to itself, shifted by fractions of a pixel.

python benchmarks/subcell_shifts.py [IMAGE ...] [--json]

Without images, both photographs of the bundled pair are used. The shift is exact: a phase ramp in the Fourier
domain, so that neither image is blurred by interpolation. Queries are the corners of the image, 32 px or more
from its border.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from command_line import make_parser
from torch import Tensor

import ucn
from ucn.data.example import example_pair
from ucn.data.io import read_image

SHIFTS = (0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75)
_BORDER = 32


def shift_image(image: Tensor, shift_xy: tuple[float, float]) -> Tensor:
    """Shifts an image (3, H, W) right and down by fractions of a pixel; it wraps around."""
    height, width = image.shape[-2:]
    frequency_y = torch.fft.fftfreq(height)[:, None]
    frequency_x = torch.fft.rfftfreq(width)[None]
    ramp = torch.exp(-2j * torch.pi * (frequency_x * shift_xy[0] + frequency_y * shift_xy[1]))
    moved: Tensor = torch.fft.irfft2(torch.fft.rfft2(image) * ramp, s=(height, width))
    return moved.clamp(0, 1)


def measure(matchers: dict[str, ucn.Matcher], image: Tensor) -> dict[str, list[float]]:
    """Errors in pixels of each matcher over all shifts and queries; the matchers share their weights."""
    errors: dict[str, list[float]] = {name: [] for name in matchers}
    height, width = image.shape[-2:]
    encoder = next(iter(matchers.values()))
    features0 = encoder.extract(image)
    points = features0.keypoints.cpu().numpy()
    inner = ((points >= _BORDER) & (points < [width - _BORDER, height - _BORDER])).all(axis=1)
    for index, shift in enumerate(SHIFTS):
        # Each shift along x is paired with another along y, so that both axes cover all.
        shift_xy = (shift, SHIFTS[(3 * index + 2) % len(SHIFTS)])
        features1 = encoder.extract(shift_image(image, shift_xy))
        for name, matcher in matchers.items():
            matches = matcher.match_features(features0, features1, points=points[inner])
            offsets = matches.points1 - matches.points0 - np.array(shift_xy, np.float32)
            errors[name] += np.hypot(offsets[:, 0], offsets[:, 1]).tolist()
    return errors


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("images", nargs="*", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--weights", default="geometric")
    arguments = parser.parse_args()
    pair = example_pair()
    matchers = {
        name: ucn.Matcher.from_pretrained(
            arguments.weights, config=ucn.MatchConfig(use_refinement=is_refined, max_keypoints=512)
        )
        for name, is_refined in (("unrefined", False), ("refined", True))
    }
    errors: dict[str, list[float]] = {name: [] for name in matchers}
    for path in arguments.images or (pair.image0_path, pair.image1_path):
        for name, values in measure(matchers, read_image(path)).items():
            errors[name] += values
    medians = {name: round(float(np.median(values)), 3) for name, values in errors.items()}
    if arguments.json:
        print(json.dumps({"median_error_px": medians, "queries": len(errors["refined"])}))
        return
    print(f"{len(errors['refined'])} queries, shifts of {SHIFTS[0]} to {SHIFTS[-1]} px along x and y")
    for name, median in medians.items():
        print(f"{name:<10} median error {median:.3f} px")


if __name__ == "__main__":
    main()
