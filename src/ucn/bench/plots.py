"""Curves of growth as pictures, from tables as they were measured."""

from __future__ import annotations

import math

from ucn.bench.growth import fit_exponent
from ucn.bench.report import Part
from ucn.evaluate.core.plots import choose_style, lay_out, save_plot
from ucn.evaluate.core.report import Plot


def draw_growth(part: Part, machine: str) -> Plot:
    """Times and memory against sizes, both axes in logarithms, with the fitted line.

    Args:
        part: what `growth.measure` gave, perhaps read from a file.
        machine: what it was measured on, for the caption.
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
            panel.plot(
                *zip(*memory, strict=True), marker="s", markersize=3, label="extra MB", **choose_style(1)
            )
        exponent = fit_exponent(sizes, times)
        if not math.isnan(exponent):
            upper = sizes[len(sizes) // 2 if len(sizes) > 3 else 0 :]
            ends = (upper[0], upper[-1])
            line = [times[-1] * (end / sizes[-1]) ** exponent for end in ends]
            style = {**choose_style(2), "linestyle": ":"}
            panel.plot(ends, line, label=f"time grows by {exponent:.2f}", **style)
        panel.legend(fontsize=6)
        panel.tick_params(which="both", labelsize=6)
    return save_plot(canvas, f"Growth of time and memory on {machine}", "growth")
