"""Log-log plots of the growth part."""

from __future__ import annotations

import math

from ucn.bench.growth import first_fitted, fit_exponent
from ucn.bench.report import Part
from ucn.evaluate.core.plots import choose_style, lay_out, save_plot
from ucn.evaluate.core.report import Plot


def draw_growth(part: Part, machine: str) -> Plot:
    """Plots time and memory against size, with the fitted power law.

    Args:
        part: the result of `growth.measure`.
        machine: description of the machine, for the caption.
    """
    canvas, panels = lay_out(len(part.tables), (3.6, 3.8))
    for panel, table in zip(panels, part.tables, strict=True):
        rows = [row for row in table.rows if row[1]]
        sizes, times = ([float(row[column] or 0) for row in rows] for column in (0, 1))
        head, _, rest = table.title.partition(":")
        panel.set_title(f"{head}\n{rest.strip()}" if rest else head, fontsize=7)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.plot(sizes, times, marker="o", markersize=4, label="time, ms", **choose_style(0))
        memory = [(float(row[0] or 0), float(row[2])) for row in rows if row[2]]
        if memory:
            style = {"marker": "s", "markersize": 3, **choose_style(1)}
            panel.plot(*zip(*memory, strict=True), label="extra MB", **style)
        exponent = fit_exponent(sizes, times)
        if not math.isnan(exponent):
            ends = (sizes[first_fitted(len(sizes))], sizes[-1])
            line = [times[-1] * (end / sizes[-1]) ** exponent for end in ends]
            style = {**choose_style(2), "linestyle": ":"}
            panel.plot(ends, line, label=f"time, exponent {exponent:.2f}", **style)
        panel.legend(fontsize=6)
        panel.tick_params(which="both", labelsize=6)
    return save_plot(canvas, f"Growth of time and memory on {machine}", "growth")
