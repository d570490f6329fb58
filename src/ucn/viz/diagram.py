"""Parts of block diagrams: slabs, boxes, arrows, nodes and pictures, drawn by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import PIL.Image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch, Polygon

from ucn.viz.colours import ImageArray

Point = tuple[float, float]
Colour = tuple[int, int, int]

_DPI = 100
_INK = "#282828"
_SLANT = 0.32  # of the sides of a slab
_HEAD = 5.0  # half the width of an arrow's head


class Sheet:
    """A white sheet in pixels, x to the right and y down."""

    def __init__(self, width: float, height: float) -> None:
        self._figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor="white")
        FigureCanvasAgg(self._figure)
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._axes.axis("off")

    def write(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 11,
        anchor: str = "left",
        colour: str = _INK,
        is_bold: bool = False,
    ) -> None:
        """Writes a line of text whose left end, centre or right end (`anchor`) and middle lie at a place."""
        self._axes.text(
            x,
            y,
            text,
            fontsize=size * 72 / _DPI,
            ha=anchor,
            va="center",
            color=colour,
            weight="bold" if is_bold else "normal",
        )

    def write_lines(self, x: float, top: float, lines: Sequence[str], anchor: str = "left") -> None:
        """Writes lines of text below each other, the first one bold."""
        for number, line in enumerate(lines):
            self.write(x, top + (number + 0.5) * 16, line, anchor=anchor, is_bold=number == 0)

    def slab(
        self, left: float, floor: float, tall: float, thick: float, colour: Colour, is_flat: bool = False
    ) -> float:
        """Draws a box in oblique projection, or its front alone, on its floor; returns where it ends."""
        slant, top = 0.0 if is_flat else tall * _SLANT, floor - tall
        right = left + thick
        roof = [(left, top), (left + slant, top - slant), (right + slant, top - slant), (right, top)]
        side = [(right, top), (right + slant, top - slant), (right + slant, floor - slant), (right, floor)]
        front = [(left, top), (right, top), (right, floor), (left, floor)]
        for face, shade in ((roof, 1.0), (side, 0.82), (front, 0.92)):
            self._polygon(face, _shade(colour, shade))
        return right + slant

    def box(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        lines: Sequence[str] = (),
        colour: str = "#f4f4f4",
        is_dashed: bool = False,
    ) -> None:
        """Draws a rounded box with centred lines of text, the first one bold."""
        style = "round,pad=0,rounding_size=8"
        self._axes.add_patch(
            FancyBboxPatch(
                (left, top),
                width,
                height,
                boxstyle=style,
                fc=colour,
                ec=_INK,
                lw=1.0,
                ls="--" if is_dashed else "-",
            )
        )
        first = top + height / 2 - 8 * len(lines)
        self.write_lines(left + width / 2, first, lines, anchor="center")

    def line(self, points: Sequence[Point], colour: str = _INK, is_dashed: bool = False) -> None:
        """Draws a polyline."""
        x, y = zip(*points, strict=True)
        self._axes.plot(x, y, color=colour, lw=1.4, ls="--" if is_dashed else "-", solid_capstyle="round")

    def arrow(self, points: Sequence[Point], colour: str = _INK) -> None:
        """Draws a polyline with a head at its end."""
        start, end = np.asarray(points[-2], float), np.asarray(points[-1], float)
        ahead = (end - start) / max(float(np.linalg.norm(end - start)), 1e-6)
        across = np.array([-ahead[1], ahead[0]])
        base = end - 1.8 * _HEAD * ahead
        self.line([*points[:-1], (float(base[0]), float(base[1]))], colour)
        self._polygon([tuple(end), tuple(base + _HEAD * across), tuple(base - _HEAD * across)], colour, 0)

    def node(self, x: float, y: float, symbol: str) -> None:
        """Draws a circle with a symbol."""
        self._axes.add_patch(Circle((x, y), 10, fc="white", ec=_INK, lw=1.2, zorder=3))
        self._axes.text(x, y, symbol, ha="center", va="center_baseline", fontsize=10, zorder=4)

    def dot(self, x: float, y: float, colour: str) -> None:
        """Draws a small filled circle."""
        self._axes.add_patch(Circle((x, y), 4.5, fc=colour, ec="white", lw=1.0, zorder=3))

    def picture(self, left: float, top: float, width: float, height: float) -> None:
        """Draws a stylised photograph."""
        bottom, right = top + height, left + width
        self._polygon([(left, top), (right, top), (right, bottom), (left, bottom)], "#d8e6f2")
        hills = ((0.0, 0.75), (0.3, 0.35), (0.5, 0.62), (0.72, 0.25), (1.0, 0.7), (1.0, 1.0), (0.0, 1.0))
        self._polygon([(left + x * width, top + y * height) for x, y in hills], "#9db59a")

    def render(self) -> ImageArray:
        """The sheet as (H, W, 3) uint8."""
        content = io.BytesIO()
        self._figure.savefig(content, format="png", dpi=_DPI)
        with PIL.Image.open(content) as image:
            return np.ascontiguousarray(image.convert("RGB"))

    def _polygon(self, points: Sequence[Point], colour: str, edge: float = 0.8) -> None:
        self._axes.add_patch(Polygon(points, closed=True, fc=colour, ec=_INK, lw=edge))


def _shade(colour: Colour, factor: float) -> str:
    red, green, blue = (round(channel * factor) for channel in colour)
    return f"#{red:02x}{green:02x}{blue:02x}"
