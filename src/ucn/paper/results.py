"""Published results of the paper (Choy et al., NIPS 2016), for the 'paper' columns of reports.

They were measured on whole data sets with networks trained on each, so results of this package can only be
compared roughly. Tables are numbered as in the paper; A1 is in its appendix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ucn.features.method import MethodInfo

UCN_SYSTEMS = ("UCN-RN", "UCN-HN", "UCN-HN-ST")
"""The paper's own networks: random negatives, hard negatives, and with the spatial transformer."""


@dataclass(frozen=True)
class PaperColumn:
    """A column of a report's table that quotes the paper.

    Attributes:
        label: its header.
        source: table or figure of the paper.
        values: of each system, in per cent or degrees; None where the paper only plots it.
        digits: the fewest decimals; values of the paper with more keep them.
    """

    label: str
    source: str
    values: dict[str, float | None]
    digits: int = 1


@dataclass(frozen=True)
class PaperClasses:
    """A table of the paper by class.

    Attributes:
        title: what it shows.
        classes: of its columns; the last is what the paper calls the mean.
        values: of each system, one for each class, in per cent.
    """

    title: str
    classes: tuple[str, ...]
    values: dict[str, tuple[float, ...]]


_FLOW_SYSTEMS = ("SIFT", "HOG", "SIFT flow", "DaisyFF", "DSP", "DeepMatching", "UCN-HN", "UCN-HN-ST")
_SINTEL = PaperColumn(
    "paper: Sintel @10",
    "Table 3, MPI-Sintel",
    dict(zip(_FLOW_SYSTEMS, (68.4, 71.2, 89.0, 87.3, 85.3, 89.2, 91.5, 90.7), strict=True)),
)
_KITTI = PaperColumn(
    "paper: KITTI @10",
    "Table 3, KITTI flow 2015",
    dict(zip(_FLOW_SYSTEMS, (48.9, 53.7, 67.3, 79.6, 58.0, 85.6, 86.5, 83.4), strict=True)),
)
_BERKELEY_SYSTEMS = ("conv4 flow", "SIFT flow", "NN transfer", *UCN_SYSTEMS)
_BERKELEY = tuple(
    PaperColumn(
        f"paper: mean @α={alpha}",
        "Table 5, where NN transfer is called fc7 NN",
        dict(zip(_BERKELEY_SYSTEMS, row, strict=True)),
    )
    for alpha, row in {
        "0.025": (4.08, 3.55, 2.35, 11.5, 13.1, 14.4),
        "0.05": (11.8, 10.9, 7.8, 21.0, 23.2, 25.9),
        "0.1": (24.9, 24.7, 19.9, 36.0, 38.6, 44.0),
    }.items()
)
_FLOWWEB = PaperColumn(
    "paper: mean @α=0.05",
    "Table A1",
    {"DSP": 17.0, "FlowWeb": 26.0, "UCN-RN": 31.5, "UCN-HN": 36.7, "UCN-HN-ST": 43.0},
)
_CUB = PaperColumn(
    "paper",
    "Figure 8, a curve without numbers, over WarpNet's cleaned test images",
    {"WarpNet": None, "UCN-HN-ST": None},
)
_MOTION_SYSTEMS = ("SIFT", "DAISY", "SURF", "KAZE", "Agrawal et al.", "UCN-HN", "UCN-HN-ST")
_MOTION = (
    PaperColumn(
        "paper: rotation, °",
        "Table 6, KITTI raw",
        dict(zip(_MOTION_SYSTEMS, (0.307, 0.309, 0.344, 0.312, 0.394, 0.317, 0.325), strict=True)),
        digits=3,
    ),
    PaperColumn(
        "paper: translation, °",
        "Table 6, KITTI raw",
        dict(zip(_MOTION_SYSTEMS, (4.749, 4.516, 5.790, 4.584, 9.293, 4.147, 4.728), strict=True)),
        digits=3,
    ),
)

PAPER_COLUMNS: dict[str, tuple[PaperColumn, ...]] = {
    "sintel": (_SINTEL,),
    "kitti-flow": (_KITTI,),
    "flow": (_SINTEL, _KITTI),
    "pascal-berkeley": _BERKELEY,
    "flowweb": (_FLOWWEB,),
    "cub": (_CUB,),
    "kitti-raw": _MOTION,
    "kitti-odometry": _MOTION,
}
"""Columns of the paper by the name of the benchmark."""

_BERKELEY_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable"),
    *("dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor", "mean"),
)
_FLOWWEB_CLASSES = (
    *("aeroplane", "bicycle", "boat", "bottle", "bus", "car", "chair", "diningtable", "motorbike", "sofa"),
    *("train", "tvmonitor", "mean"),
)


def _read(classes: tuple[str, ...], rows: dict[str, str]) -> dict[str, tuple[float, ...]]:
    values = {system: tuple(map(float, text.split())) for system, text in rows.items()}
    if any(len(row) != len(classes) for row in values.values()):
        raise ValueError("a row of the paper's results does not fit its classes")
    return values


PAPER_CLASSES: dict[str, PaperClasses] = {
    "pascal-berkeley": PaperClasses(
        "the paper's results by class, PCK@α=0.1 (Table 4; its mean of UCN is not that of the classes)",
        _BERKELEY_CLASSES,
        _read(
            _BERKELEY_CLASSES,
            {
                "conv4 flow": "28.2 34.1 20.4 17.1 50.6 36.7 20.9 19.6 15.7 25.4 12.7 "
                "18.7 25.9 23.1 21.4 40.2 21.1 14.5 18.3 33.3 24.9",
                "SIFT flow": "27.6 30.8 19.9 17.5 49.4 36.4 20.7 16.0 16.1 25.0 16.1 "
                "16.3 27.7 28.3 20.2 36.4 20.5 17.2 19.9 32.9 24.7",
                "NN transfer": "18.3 24.8 14.5 15.4 48.1 27.6 16.0 11.1 12.0 16.8 15.7 "
                "12.7 20.2 18.5 18.7 33.4 14.0 15.5 14.6 30.0 19.9",
                "UCN-RN": "31.5 19.6 30.1 23.0 53.5 36.7 34.0 33.7 22.2 28.1 12.8 "
                "33.9 29.9 23.4 38.4 39.8 38.6 17.6 28.4 60.2 36.0",
                "UCN-HN": "36.0 26.5 31.9 31.3 56.4 38.2 36.2 34.0 25.5 31.7 18.1 "
                "35.7 32.1 24.8 41.4 46.0 45.3 15.4 28.2 65.3 38.6",
                "UCN-HN-ST": "37.7 30.1 42.0 31.7 62.6 35.4 38.0 41.7 27.5 34.0 17.3 "
                "41.9 38.0 24.4 47.1 52.5 47.5 18.5 40.2 70.5 44.0",
            },
        ),
    ),
    "flowweb": PaperClasses(
        "the paper's results by class, PCK@α=0.05 (Table A1; its mean of UCN is not that of the classes)",
        _FLOWWEB_CLASSES,
        _read(
            _FLOWWEB_CLASSES,
            {
                "DSP": "17 30 5 19 33 34 9 3 17 12 12 18 17",
                "FlowWeb": "29 41 5 34 54 50 14 4 21 16 15 33 26",
                "UCN-RN": "33.3 27.6 10.5 34.8 53.9 41.1 18.9 0 16.0 22.2 17.5 39.5 31.5",
                "UCN-HN": "35.3 44.6 11.2 39.7 61.0 45.0 16.5 4.2 18.2 32.4 24.0 48.3 36.7",
                "UCN-HN-ST": "38.6 50.0 12.6 40.0 67.7 57.2 26.7 4.2 28.1 27.8 27.8 45.1 43.0",
            },
        ),
    ),
}
"""The paper's tables by class, by the benchmark's name."""

_SYSTEMS = {
    "sift": "SIFT",
    "hog": "HOG",
    "daisy": "DAISY",
    "surf": "SURF",
    "kaze": "KAZE",
    "siftflow": "SIFT flow",
    "dsp": "DSP",
    "deepmatching": "DeepMatching",
    "nntransfer": "NN transfer",
    # Long et al. took conv4 of AlexNet.
    "vggsiftflow": "conv4 flow",
    "trunksiftflow": "conv4 flow",
}


def find_systems(method: MethodInfo) -> tuple[str, ...]:
    """Names of a method in the paper: one, or none; of UCN's weights only its variants have one."""
    if "ucn" in method.key:
        variant = method.key.get("variant")
        return () if variant is None else (f"UCN-{variant}",)
    plain = "".join(letter for letter in method.name.lower() if letter.isalnum())
    return (_SYSTEMS[plain],) if plain in _SYSTEMS else ()


def format_paper_cells(columns: Sequence[PaperColumn], method: MethodInfo) -> tuple[str, ...]:
    """The cells of a method's row in the paper's columns."""
    systems = find_systems(method)
    return tuple(_format_cell(column, systems) for column in columns)


def list_cited(columns: Sequence[PaperColumn], methods: Iterable[MethodInfo]) -> list[tuple[str, ...]]:
    """Name and cells of each system of the paper that was not run."""
    run = {system for method in methods for system in find_systems(method)}
    names = dict.fromkeys(system for column in columns for system in column.values)
    return [
        (f"{system} (cited)", *(_format_cell(column, (system,)) for column in columns))
        for system in names
        if system not in run
    ]


def format_sources(columns: Sequence[PaperColumn]) -> tuple[str, ...]:
    """The note on the source of the paper's columns; empty without columns."""
    if not columns:
        return ()
    sources = "; ".join(dict.fromkeys(column.source for column in columns))
    return (
        f"columns 'paper' and rows 'cited' quote Choy et al., Universal Correspondence Network, NIPS 2016 "
        f"({sources}), measured there on the whole data set with networks trained on it, so they are not of "
        "the same images as the other columns",
    )


def format_value(value: float, digits: int = 1) -> str:
    """A value with at least so many decimals; 4.08 keeps both of its own."""
    _, _, decimals = f"{value:g}".partition(".")
    return f"{value:.{max(digits, len(decimals))}f}"


def _format_cell(column: PaperColumn, systems: Sequence[str]) -> str:
    values = (column.values.get(name) for name in systems)
    return next((format_value(value, column.digits) for value in values if value is not None), "–")
