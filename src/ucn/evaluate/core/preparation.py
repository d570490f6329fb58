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
        use_enlarging: bring smaller images to that side too.
        min_side: shortest side in pixels to which narrower images are padded; None pads none.
    """

    canvas_hw: tuple[int, int] | None = None
    max_side: int | None = None
    use_enlarging: bool = False
    min_side: int | None = None

    def describe(self) -> str:
        """What happens, in a sentence."""
        if self.canvas_hw is not None:
            height, width = self.canvas_hw
            return (
                f"every image is scaled to fit into {width} × {height} and padded to it, for all methods; "
                "matches are looked for on the picture, not on the padding; pixels are those of that canvas"
            )
        if self.max_side is None:
            scaled = "images at their own size"
        elif self.use_enlarging:
            scaled = f"images are scaled to a longest side of {self.max_side} px"
        else:
            scaled = f"images with a longer side than {self.max_side} px are reduced to it"
        if self.min_side is None:
            return scaled
        return f"{scaled}; sides under {self.min_side} px are padded to it, and padding is not searched"

    def to_dict(self) -> dict[str, Any]:
        """What a prediction depends on."""
        canvas = None if self.canvas_hw is None else list(self.canvas_hw)
        key: dict[str, Any] = {"canvas_hw": canvas, "max_side": self.max_side}
        # Left out where they change nothing, so that older predictions keep their keys.
        if self.use_enlarging:
            key["use_enlarging"] = True
        if self.min_side is not None:
            key["min_side"] = self.min_side
        return key

    def apply(self, sample: PairSample) -> Prepared:
        """The pair as methods see it; its points move along."""
        if self.max_side is not None:
            largest = float("inf") if self.use_enlarging else 1.0
            scales = [
                min(largest, self.max_side / max(image.shape[-2:]))
                for image in (sample.image0, sample.image1)
            ]
            sample = resize_by(sample, scales[0], scales[1])
        if self.canvas_hw is not None:
            return _put_on_canvas(resize_to_fit(sample, self.canvas_hw), self.canvas_hw)
        sides = [*sample.image0.shape[-2:], *sample.image1.shape[-2:]]
        if self.min_side is None or min(sides) >= self.min_side:
            return Prepared(sample, _whole(sample.image0), _whole(sample.image1))
        height, width = (max(self.min_side, *sides[axis::2]) for axis in (0, 1))
        return _put_on_canvas(sample, (height, width))


AS_THEY_ARE = Preparation()
"""Images at their own size."""


def _put_on_canvas(sample: PairSample, canvas_hw: tuple[int, int]) -> Prepared:
    content0, content1 = (_centre(image, canvas_hw) for image in (sample.image0, sample.image1))
    return Prepared(pad(sample, canvas_hw), content0, content1)


def _whole(image: Tensor) -> Rectangle:
    return 0, 0, image.shape[-1], image.shape[-2]


def _centre(image: Tensor, canvas_hw: tuple[int, int]) -> Rectangle:
    """Where `pad` puts an image."""
    height, width = image.shape[-2:]
    left, top = -((width - canvas_hw[1]) // 2), -((height - canvas_hw[0]) // 2)
    return left, top, left + width, top + height
