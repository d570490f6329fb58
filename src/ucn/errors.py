"""Errors a caller can cause and may catch; each message says what was expected, what came, what to do."""

from __future__ import annotations

from pathlib import Path


class UcnError(Exception):
    """Base of every error that `ucn` raises on purpose; the command line prints it without a traceback.

    Attributes:
        path: the file that is wrong; None where the error is not about one, or its message alone names it.
    """

    def __init__(self, *arguments: object, path: Path | None = None) -> None:
        super().__init__(*arguments)
        self.path = path


class ImageReadError(UcnError, ValueError):
    """An image file is missing, damaged, not an image, or larger than the limits allow."""


class PointsError(UcnError, ValueError):
    """A list of points is empty, malformed, not finite, or lies outside its image."""


class WeightsError(UcnError, ValueError):
    """Weights are unknown, damaged, do not fit the network, or have an unexpected hash."""


class OutputError(UcnError, OSError):
    """An output cannot be written: its folder is missing or locked, its format unknown, or it exists."""


class ConfigError(UcnError, ValueError):
    """A configuration has an unknown key or a value outside its range."""


class DataError(UcnError, ValueError):
    """A data set folder or one of its files does not have the layout its reader expects."""


class NonFiniteLossError(UcnError, ArithmeticError):
    """The training loss became infinite or NaN; the message names the samples of the batch."""
