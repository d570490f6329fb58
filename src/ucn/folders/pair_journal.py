"""The journal of a run over many pairs: which pairs are finished, with their outcome."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ucn.errors import OutputError
from ucn.files import explain_failure
from ucn.folders.image_pairs import ImagePair
from ucn.folders.journal import Journal, Stamps, stamp_files
from ucn.folders.pairing import Pair

JOURNAL = "progress.jsonl"
"""The journal's file name in the folder of outputs."""
FORMAT = "ucn-pairs-1"
"""Stands in the first line of every journal."""


@dataclass(frozen=True)
class PairRecord:
    """The outcome of a pair.

    Attributes:
        image0: name of image 0.
        image1: name of image 1.
        file: name of the file of matches in the folder; empty where the pair failed.
        matches: number of matches; None where the pair failed.
        inliers: number of inliers; None without verification, or where the pair failed.
        pair_score: as `Matches.pair_score`; None where the pair failed.
        seconds: that the pair took, encoding of its images included where it was needed.
        error: why the pair failed; empty otherwise.
    """

    image0: str
    image1: str
    file: str = ""
    matches: int | None = None
    inliers: int | None = None
    pair_score: float | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def names(self) -> Pair:
        """Names of both images."""
        return self.image0, self.image1


class PairJournal(Journal):
    """The finished pairs of a folder; new ones are added within its context."""

    fields = ("image0", "image1")
    format = FORMAT

    def __init__(
        self, folder: Path, key: Mapping[str, Any], outputs: Collection[Path], start_over: bool = False
    ) -> None:
        """Opens the folder of a run, or creates it, but not its parent; the rest as `Journal`.

        Raises:
            OutputError: also if the folder cannot be created.
        """
        make_folder(folder)
        super().__init__(folder / JOURNAL, key, outputs, start_over)

    def find(self, pair: ImagePair) -> PairRecord | None:
        """The record of a finished pair; None where it is not finished, or an image has changed since."""
        item = self.find_item(pair.names, pair.paths)
        return None if item is None else _to_record(item)

    def add(self, record: PairRecord, stamps: Stamps) -> None:
        """Notes a finished pair; raises `OutputError` where that fails."""
        self.add_item(asdict(record), stamps)

    def check_item(self, item: Mapping[str, Any]) -> None:
        """Raises where an item is no record."""
        _to_record(item)


def stamp_images(pair: ImagePair) -> Stamps | None:
    """Size and modification time of both images; None where one is missing."""
    return stamp_files(pair.paths)


def make_folder(folder: Path) -> None:
    """Creates a folder for outputs if it is missing, but not its parent; raises `OutputError`."""
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise OutputError(f"cannot write into {folder}: it is a file; give a folder") from error
    except OSError as error:
        raise OutputError(f"cannot create the folder {folder}: {explain_failure(error)}") from error


def _to_record(item: Mapping[str, Any]) -> PairRecord:
    """A record from an item of a file that anyone may have edited."""
    inliers = item["inliers"]
    return PairRecord(
        image0=str(item["image0"]),
        image1=str(item["image1"]),
        file=str(item["file"]),
        matches=int(item["matches"]),
        inliers=None if inliers is None else int(inliers),
        pair_score=float(item["pair_score"]),
        seconds=float(item["seconds"]),
    )
