"""Curves as pictures, for pages (PNG) and for print (SVG)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from ucn.evaluate.core.report import Plot
from ucn.evaluate.points.benchmarks import Benchmark
from ucn.evaluate.points.scoring import Curve, Figure, Scores

# Of Okabe and Ito: told apart by colour-blind readers too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442")
_LINES = ("-", "--", ":", "-.")
_MARKERS = "osD^vP*Xh"
_PANELS_A_ROW = 4
_INCHES_AROUND = 0.15  # of the legend


def choose_style(number: int) -> dict[str, Any]:
    """Colour and kind of line of the n-th method; the kind changes where colours begin again."""
    lines = _LINES[number // len(_COLOURS) % len(_LINES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": lines}


def lay_out(count: int, panel_hw: tuple[float, float] = (3.3, 3.6)) -> tuple[Canvas, list[Axes]]:
    """A canvas without a display and without pyplot's global state, and its panels.

    Args:
        count: of panels, at least 1.
        panel_hw: height and width of each, in inches.
    """
    columns = min(count, _PANELS_A_ROW)
    rows = -(-count // columns)
    canvas = Canvas(figsize=(0.6 + panel_hw[1] * columns, panel_hw[0] * rows), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = list(canvas.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.remove()
    for panel in panels[:count]:
        panel.grid(alpha=0.3, linewidth=0.6)
    return canvas, panels[:count]


def add_legend(canvas: Canvas, panels: Sequence[Axes], fontsize: float = 8) -> None:
    """One legend below all panels, in as many columns as fit; the canvas grows by its height.

    Args:
        canvas: of `lay_out`.
        panels: whose lines are named; a name that several have is shown once.
        fontsize: in points.
    """
    handles: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if not handles:
        return
    width, height = canvas.get_size_inches()
    for rows in range(1, len(handles) + 1):
        legend = canvas.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=-(-len(handles) // rows),
            fontsize=fontsize,
            frameon=False,
        )
        size = legend.get_window_extent()
        if size.width / canvas.dpi <= width - _INCHES_AROUND or rows == len(handles):
            break
        legend.remove()
    canvas.set_size_inches(width, height + size.height / canvas.dpi + _INCHES_AROUND)


def save_plot(canvas: Canvas, caption: str, suffix: str = "") -> Plot:
    """A canvas as PNG and SVG; equal canvases give equal bytes."""
    png, svg = io.BytesIO(), io.BytesIO()
    canvas.savefig(png, format="png", dpi=110, metadata={"Software": None})
    # Without a salt names inside the file are drawn at random.
    with matplotlib.rc_context({"svg.hashsalt": "ucn"}):
        canvas.savefig(svg, format="svg", metadata={"Date": None})
    return Plot(suffix, caption, png.getvalue(), svg.getvalue())


def draw_curves(benchmark: Benchmark, scores: Scores) -> Plot:
    """Share of correct points against the limit, or against rotation and scale, a panel a group.

    Where a run has both, matches placed between cells are shown.
    """
    figures = scores.figures
    use = any(figure.use_refinement for figure in figures)
    axes = [axis for axis in dict.fromkeys(figure.axis for figure in figures) if axis]
    if axes:
        canvas, panels = lay_out(len(axes))
        for panel, axis in zip(panels, axes, strict=True):
            shown = [f for f in figures if f.axis == axis and f.use_refinement == use]
            _draw_axis(panel, benchmark, shown, axis)
    else:
        groups = list(dict.fromkeys(curve.group for curve in scores.curves))
        canvas, panels = lay_out(len(groups))
        for panel, group in zip(panels, groups, strict=True):
            lines = [c for c in scores.curves if c.group == group and c.use_refinement == use]
            _draw_limits(panel, benchmark, lines, group)
    for number, panel in enumerate(panels):
        panel.set_ylim(0, 100)
        if number % _PANELS_A_ROW == 0:
            panel.set_ylabel("points found, %")
    add_legend(canvas, panels)
    return save_plot(canvas, "share of correct points against the limit")


def _draw_limits(panel: Axes, benchmark: Benchmark, curves: Sequence[Curve], group: str) -> None:
    for number, curve in enumerate(curves):
        shares = [100 * share for share in curve.shares]
        panel.plot(curve.limits, shares, label=curve.method, **choose_style(number))
    panel.set_title(group, fontsize=10)
    is_pixels = benchmark.unit == "px"
    panel.set_xlabel("distance from the truth, px" if is_pixels else "distance from the truth, α (of L)")


def _draw_axis(panel: Axes, benchmark: Benchmark, figures: Sequence[Figure], axis: str) -> None:
    for number, method in enumerate(dict.fromkeys(figure.method for figure in figures)):
        own = [figure for figure in figures if figure.method == method]
        panel.plot(
            [figure.value for figure in own],
            [100 * figure.per_point for figure in own],
            label=method,
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=3.5,
            **choose_style(number),
        )
    panel.set_title(f"within {benchmark.limits[0]:g} px", fontsize=10)
    panel.set_xlabel("rotation, degrees" if axis == "rotation" else axis)
