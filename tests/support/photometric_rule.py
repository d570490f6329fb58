"""The photometric rule: true correspondences must look alike, far more than unmoved points do.

A truth with a wrong sign, scale, axis order or frame order still gives plausible numbers; it does not bring
the second image onto the first.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from ucn.geometry.sampling import sample_image
from ucn.types import PairSample


def photometric_error(sample: PairSample) -> tuple[float, float]:
    """Mean absolute colour difference at the true points, and at the same points left unmoved.

    Returns:
        mean |image0(points0) - image1(points1)| and mean |image0(points0) - image1(points0)|, in [0, 1].
        Beyond the border of image 1 (the views may differ in size) its border answers.
    """
    assert len(sample) > 0, f"{sample.name} has no correspondences to compare"
    colours0 = _read(sample.image0, sample.points0)
    matched = (colours0 - _read(sample.image1, sample.points1)).abs().mean()
    unmoved = (colours0 - _read(sample.image1, sample.points0)).abs().mean()
    return float(matched), float(unmoved)


def assert_photometric_rule(sample: PairSample, largest_ratio: float = 0.5) -> None:
    """Fails where the truth does not bring image 1 much closer to image 0 than it is unmoved.

    Args:
        sample: a pair whose views differ by motion more than by light.
        largest_ratio: of the difference at the true points to that at unmoved points.
    """
    matched, unmoved = photometric_error(sample)
    assert matched <= largest_ratio * unmoved, (
        f"{sample.name}: mean difference {matched:.4f} at the true points, {unmoved:.4f} at unmoved ones; "
        f"expected at most {largest_ratio:g} of it"
    )


def assert_centred(samples: Iterable[PairSample], shift: float = 0.25) -> None:
    """Fails where views agree better a fraction of a pixel beside the truth: a wrong pixel centre, say.

    Args:
        samples: pairs, judged together by the mean of their correlations, which ignore exposure.
        shift: pixels of image 1, tried to the left, right, top and bottom.
    """
    shifts = torch.tensor([[0.0, 0], [shift, 0], [-shift, 0], [0, shift], [0, -shift]])
    scores = torch.stack([_correlate(sample, shifts) for sample in samples]).mean(dim=0)
    assert scores.argmax() == 0, f"correlations {scores.tolist()} at shifts {shifts.tolist()}"


def _correlate(sample: PairSample, shifts: Tensor) -> Tensor:
    """Correlation coefficients of the colours at the true points, moved by each shift in image 1."""
    colours0 = _read(sample.image0, sample.points0).flatten()
    rows = [torch.stack([colours0, _read(sample.image1, sample.points1 + s).flatten()]) for s in shifts]
    return torch.stack([torch.corrcoef(row)[0, 1] for row in rows])


def _read(image: Tensor, points: Tensor) -> Tensor:
    return sample_image(image[None], points[None, :, None], "border")[0, :, :, 0]
