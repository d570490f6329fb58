"""Curves as pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas

from ucn.evaluate.report import Report
from ucn.evaluate.scoring import Curve, Figure

# Of Okabe and Ito: told apart by colour-blind readers too.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#F0E442")
_MARKERS = "osD^vP*Xh"
_PANELS_A_ROW = 4


def draw_curves(report: Report) -> bytes:
    """A PNG: share of correct points against the limit, or against rotation and scale, a panel a group.

    Where a run has both, matches placed between cells are shown.
    """
    figures = report.scores.figures
    use = any(figure.use_refinement for figure in figures)
    axes = [axis for axis in dict.fromkeys(figure.axis for figure in figures) if axis]
    if axes:
        canvas, panels = _lay_out(len(axes))
        for panel, axis in zip(panels, axes, strict=True):
            shown = [f for f in figures if f.axis == axis and f.use_refinement == use]
            _draw_axis(panel, report, shown, axis)
    else:
        groups = list(dict.fromkeys(curve.group for curve in report.scores.curves))
        canvas, panels = _lay_out(len(groups))
        for panel, group in zip(panels, groups, strict=True):
            lines = [c for c in report.scores.curves if c.group == group and c.use_refinement == use]
            _draw_limits(panel, report, lines, group)
    panels[0].legend(fontsize=8, frameon=False, loc="lower right")
    content = io.BytesIO()
    canvas.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def _lay_out(count: int) -> tuple[Canvas, list[Axes]]:
    columns = min(count, _PANELS_A_ROW)
    rows = -(-count // columns)
    canvas = Canvas(figsize=(0.6 + 3.6 * columns, 3.3 * rows), layout="constrained")
    FigureCanvasAgg(canvas)  # without a display, and without pyplot's global state
    grid = canvas.subplots(rows, columns, sharey=True, squeeze=False)
    for row in grid:
        row[0].set_ylabel("points found, %")
    panels = list(grid.flat)
    for panel in panels[count:]:
        panel.remove()
    for panel in panels[:count]:
        panel.set_ylim(0, 100)
        panel.grid(alpha=0.3, linewidth=0.6)
    return canvas, panels[:count]


def _draw_limits(panel: Axes, report: Report, curves: Sequence[Curve], group: str) -> None:
    for number, curve in enumerate(curves):
        shares = [100 * share for share in curve.shares]
        panel.plot(curve.limits, shares, label=curve.method, color=_COLOURS[number % len(_COLOURS)])
    panel.set_title(group, fontsize=10)
    is_pixels = report.benchmark.unit == "px"
    panel.set_xlabel("distance from the truth, px" if is_pixels else "distance from the truth, α (of L)")


def _draw_axis(panel: Axes, report: Report, figures: Sequence[Figure], axis: str) -> None:
    for number, method in enumerate(dict.fromkeys(figure.method for figure in figures)):
        own = [figure for figure in figures if figure.method == method]
        panel.plot(
            [figure.value for figure in own],
            [100 * figure.per_point for figure in own],
            label=method,
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=3.5,
        )
    panel.set_title(f"within {report.benchmark.limits[0]:g} px", fontsize=10)
    panel.set_xlabel("rotation, degrees" if axis == "rotation" else axis)
