"""Plots of scores, for pages (PNG) and for print (SVG)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ucn.evaluate.core.report import Plot

# Of Okabe and Ito: distinguishable for colour-blind readers too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442")
_LINES = ("-", "--", ":", "-.")
PANELS_A_ROW = 4
"""Panels side by side."""
_LEGEND_MARGIN = 0.15  # inches around the legend


def choose_style(number: int) -> dict[str, Any]:
    """Colour and line style of the n-th method; the line style changes where colours repeat."""
    lines = _LINES[number // len(_COLOURS) % len(_LINES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": lines}


def lay_out(count: int, panel_hw: tuple[float, float] = (3.3, 3.6)) -> tuple[Figure, list[Axes]]:
    """A figure without a display and without pyplot's global state, and its panels.

    Args:
        count: of panels, at least 1.
        panel_hw: height and width of each, in inches.
    """
    columns = min(count, PANELS_A_ROW)
    rows = -(-count // columns)
    figure = Figure(figsize=(0.6 + panel_hw[1] * columns, panel_hw[0] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.remove()
    for panel in panels[:count]:
        panel.grid(alpha=0.3, linewidth=0.6)
    return figure, panels[:count]


def add_legend(figure: Figure, panels: Sequence[Axes], fontsize: float = 8) -> None:
    """One legend below all panels, in as many columns as fit; the figure grows by its height.

    Args:
        figure: of `lay_out`.
        panels: whose lines are named; a name that several have is shown once.
        fontsize: in points.
    """
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    width, height = figure.get_size_inches()
    for rows in range(1, len(handles) + 1):
        legend = figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=-(-len(handles) // rows),
            fontsize=fontsize,
            frameon=False,
        )
        size = legend.get_window_extent()
        if size.width / figure.dpi <= width - _LEGEND_MARGIN or rows == len(handles):
            break
        legend.remove()
    figure.set_size_inches(width, height + size.height / figure.dpi + _LEGEND_MARGIN)


def save_plot(figure: Figure, caption: str, suffix: str = "") -> Plot:
    """A figure as PNG and SVG; equal figures give equal bytes."""
    png, svg = io.BytesIO(), io.BytesIO()
    figure.savefig(png, format="png", dpi=110, metadata={"Software": None})
    # Without a salt identifiers inside the file are random.
    with matplotlib.rc_context({"svg.hashsalt": "ucn"}):
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return Plot(suffix, caption, png.getvalue(), svg.getvalue())
