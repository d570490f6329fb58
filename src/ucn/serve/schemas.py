"""JSON schemas of the REST interface."""

from __future__ import annotations

import base64
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ucn.serve.limits import MAX_POINTS
from ucn.serve.samples import PAIRS
from ucn.types import Matches, SimilarityMap

# Strict: neither "3" nor true is a number.
Coordinate = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-0.5, le=1e6)]
_IMAGE = Field(
    min_length=1, max_length=64, description="Name of an upload or of a sample.", examples=[PAIRS[0].image0]
)


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(_Schema):
    """Why a request failed."""

    detail: str = Field(description="What was expected, what was received, and what to do.")


class Session(_Schema):
    """A session, which holds images."""

    session: str = Field(description="Secret name of the session.")
    idle_seconds: float = Field(description="Lifetime without a request, in seconds.")


class Image(_Schema):
    """An image on the server."""

    image: str = Field(description="Its name, for `/api/match` and `/api/images`.")
    width: int = Field(description="Width of the upright image in pixels; points refer to these.")
    height: int


class MatchRequest(_Schema):
    """Two images, and optionally points of the first."""

    image0: str = _IMAGE
    image1: str = Field(
        min_length=1, max_length=64, description="Name of the image to search.", examples=[PAIRS[0].image1]
    )
    weights: str = Field("geometric", max_length=100, description="Name of weights listed by `/api/status`.")
    points: Annotated[list[tuple[Coordinate, Coordinate]], Field(max_length=MAX_POINTS)] | None = Field(
        None,
        description="Points (x, y) of image 0 in pixels, with the centre of the top-left pixel at (0, 0): "
        "one match each, in order. Without points the server matches corners and keeps mutual matches.",
        examples=[[[370.0, 250.0]]],
    )
    similarities_of: int | None = Field(
        None,
        ge=0,
        lt=MAX_POINTS,
        description="Index of a point whose similarity to every cell of image 1 is returned.",
    )


class Match(_Schema):
    """A point of image 0 and its match in image 1, in pixels."""

    x0: float
    y0: float
    x1: float
    y1: float
    score: float = Field(description="Estimated probability that the match is correct.")
    is_mutual: bool = Field(description="The match passes the forward-backward check.")


class Similarities(_Schema):
    """Similarity of a point to each cell of image 1."""

    columns: int
    rows: int
    first_x: float = Field(description="Centre of the top-left cell, in pixels of image 1.")
    first_y: float
    step_x: float = Field(description="Pixels between neighbouring cells.")
    step_y: float
    low: float = Field(description="Cosine similarity of value 0.")
    high: float = Field(description="Cosine similarity of value 255.")
    values: str = Field(description="A byte per cell, row by row, base64.")

    @classmethod
    def of(cls, found: SimilarityMap) -> Self:
        """Quantises a map to bytes between its minimum and maximum."""
        rows, columns = found.similarities.shape
        low, high = float(found.similarities.min()), float(found.similarities.max())
        levels = np.round(255 * (found.similarities - low) / max(high - low, 1e-6)).astype(np.uint8)
        (first_x, first_y), (step_x, step_y) = found.first_cell, found.cell_step
        return cls(
            columns=columns,
            rows=rows,
            first_x=first_x,
            first_y=first_y,
            step_x=step_x,
            step_y=step_y,
            low=low,
            high=high,
            values=base64.b64encode(levels.tobytes()).decode(),
        )


class MatchResponse(_Schema):
    """Matches of a pair."""

    weights: str
    pair_score: float = Field(
        description="Estimated probability that both images show the same scene or object."
    )
    matches: list[Match]
    similarities: Similarities | None = None
    milliseconds: float = Field(description="Processing time.")

    @classmethod
    def of(
        cls, weights: str, matches: Matches, similarities: SimilarityMap | None, milliseconds: float
    ) -> Self:
        """Converts matches to plain values, with coordinates rounded to 0.001 pixels."""
        # In float64, since a rounded float32 has many digits as JSON.
        rows = zip(
            matches.points0.astype(np.float64).round(3).tolist(),
            matches.points1.astype(np.float64).round(3).tolist(),
            matches.scores.astype(np.float64).round(4).tolist(),
            matches.is_mutual.tolist(),
            strict=True,
        )
        return cls(
            weights=weights,
            pair_score=float(matches.pair_score),
            matches=[
                Match(x0=x0, y0=y0, x1=x1, y1=y1, score=score, is_mutual=is_mutual)
                for (x0, y0), (x1, y1), score, is_mutual in rows
            ],
            similarities=None if similarities is None else Similarities.of(similarities),
            milliseconds=round(milliseconds, 1),
        )


class WeightsChoice(_Schema):
    """Available weights."""

    name: str
    task: str
    description: str
    restrictions: str


class Sample(_Schema):
    """A bundled pair of images."""

    title: str
    image0: Image
    image1: Image
    credit: str


class Status(_Schema):
    """Weights, samples and limits of this server."""

    version: str
    weights: list[WeightsChoice]
    default_weights: str
    samples: list[Sample]
    max_upload_bytes: int
    max_pixels: int
    max_points: int
