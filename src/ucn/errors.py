"""Errors that callers may catch. A message says what was expected, what was given, and what to do."""

from __future__ import annotations

from pathlib import Path


class UcnError(Exception):
    """Base class of the errors that `ucn` raises; the command line prints them without a traceback.

    Attributes:
        path: the faulty file; None where the error concerns no file, or only the message names it.
    """

    def __init__(self, *arguments: object, path: Path | None = None) -> None:
        super().__init__(*arguments)
        self.path = path


class ImageReadError(UcnError, ValueError):
    """An image file is missing, damaged, not an image, or exceeds the size limits."""


class PointsError(UcnError, ValueError):
    """Points are malformed, not finite, or outside their image, or a file holds none."""


class WeightsError(UcnError, ValueError):
    """Weights are unknown, damaged, do not fit the network, or have a wrong SHA-256."""


class OutputError(UcnError, OSError):
    """An output cannot be written: no such folder, no permission, unknown format, or it exists already."""


class ConfigError(UcnError, ValueError):
    """A configuration has an unknown key, or a value of the wrong type or range."""


class DataError(UcnError, ValueError):
    """A data set folder or file does not have the expected layout or content."""


class NonFiniteLossError(UcnError, ArithmeticError):
    """The training loss became infinite or NaN; the message names the samples of the batch."""
