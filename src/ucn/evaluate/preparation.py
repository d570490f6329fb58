"""How a benchmark shows its images to the methods: as they are, reduced, or all on a canvas of one size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ucn.data.transforms import pad, resize_by, resize_to_fit
from ucn.types import PairSample

Rectangle = tuple[int, int, int, int]
"""Pixels (left, top, right, bottom), ends excluded."""


@dataclass(frozen=True)
class Prepared:
    """A pair as all methods see it.

    Attributes:
        sample: images and points.
        content0: where the picture is in image 0; around it is padding.
        content1: the same in image 1; matches are looked for on it only.
    """

    sample: PairSample
    content0: Rectangle
    content1: Rectangle


@dataclass(frozen=True)
class Preparation:
    """What happens to images, the same for each method.

    Attributes:
        canvas_hw: (H, W) that each image is scaled to fit into, in its middle; None uses none.
        max_side: longest side in pixels to which larger images are reduced; None keeps them.
    """

    canvas_hw: tuple[int, int] | None = None
    max_side: int | None = None

    def describe(self) -> str:
        """What happens, in a sentence."""
        if self.canvas_hw is not None:
            height, width = self.canvas_hw
            return (
                f"every image is scaled to fit into {width} × {height} and padded to it, for all methods; "
                "matches are looked for on the picture, not on the padding; pixels are those of that canvas"
            )
        if self.max_side is not None:
            return f"images with a longer side than {self.max_side} px are reduced to it"
        return "images at their own size"

    def to_dict(self) -> dict[str, Any]:
        """What a prediction depends on."""
        canvas = None if self.canvas_hw is None else list(self.canvas_hw)
        return {"canvas_hw": canvas, "max_side": self.max_side}

    def apply(self, sample: PairSample) -> Prepared:
        """The pair as methods see it; its points move along."""
        if self.max_side is not None:
            limit = self.max_side
            scales = [min(1.0, limit / max(image.shape[-2:])) for image in (sample.image0, sample.image1)]
            sample = resize_by(sample, scales[0], scales[1])
        if self.canvas_hw is None:
            return Prepared(sample, _whole(sample.image0), _whole(sample.image1))
        fitted = resize_to_fit(sample, self.canvas_hw)
        content0, content1 = (_centre(image, self.canvas_hw) for image in (fitted.image0, fitted.image1))
        return Prepared(pad(fitted, self.canvas_hw), content0, content1)


AS_THEY_ARE = Preparation()
"""Images at their own size."""


def _whole(image: Tensor) -> Rectangle:
    return 0, 0, image.shape[-1], image.shape[-2]


def _centre(image: Tensor, canvas_hw: tuple[int, int]) -> Rectangle:
    """Where `pad` puts an image."""
    height, width = image.shape[-2:]
    left, top = -((width - canvas_hw[1]) // 2), -((height - canvas_hw[0]) // 2)
    return left, top, left + width, top + height
