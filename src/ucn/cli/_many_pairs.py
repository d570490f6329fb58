"""``ucn match`` for many pairs: a list of them, or two folders; a file for each pair, and a summary."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ucn.cli import _command
from ucn.cli._checks import check_file
from ucn.cli._options import PairOptions, build_config
from ucn.cli._outputs import check_folder
from ucn.cli._progress import CountBar
from ucn.cli._report import describe_run, format_share, format_weights, print_json, print_lines, warn

if TYPE_CHECKING:
    from ucn.folders.image_pairs import ImagePair
    from ucn.folders.pair_files import PairFileSettings, PairFilesResult
    from ucn.geometry.verification import VerifySettings

_SHOWN = 5
_LIKELY_PAIR = 0.5


class FileFormat(StrEnum):
    """Formats of files of matches."""

    npz = "npz"
    csv = "csv"
    h5 = "h5"


@dataclass(frozen=True)
class PairSource:
    """What the user gave to say which images are matched.

    Attributes:
        first: image or folder A.
        second: image or folder B.
        pairs: a list of pairs.
        root: the folder of the images of the list.
        use_all: pair all images of two folders.
    """

    first: Path | None
    second: Path | None
    pairs: Path | None
    root: Path | None
    use_all: bool

    def is_many(self) -> bool:
        """Whether many pairs are given, not two images; raises `typer.BadParameter` where neither is."""
        if self.pairs is not None:
            if self.first is not None or self.use_all:
                raise typer.BadParameter("give --pairs FILE, or two folders, or two images: only one of them")
            return True
        if self.root is not None:
            raise typer.BadParameter("--root is the folder of the images of --pairs; leave it out without")
        if self.first is None or self.second is None:
            raise typer.BadParameter("give two images, two folders, or --pairs FILE")
        is_many = _is_folder(self.first) and _is_folder(self.second)
        if self.use_all and not is_many:
            raise typer.BadParameter("--all-pairs is for two folders of images; leave it out for two images")
        return is_many

    def find_pairs(self) -> tuple[tuple[ImagePair, ...], dict[str, list[str]]]:
        """The pairs, and for each of two folders the images that have no partner."""
        from ucn.folders.image_pairs import pair_folders, read_image_pairs

        if self.pairs is not None:
            return read_image_pairs(self.pairs, self.root or self.pairs.parent), {}
        assert self.first is not None and self.second is not None
        found = pair_folders(self.first, self.second, self.use_all)
        unpaired = {str(self.first): found.unpaired0, str(self.second): found.unpaired1}
        return found.pairs, {folder: list(names) for folder, names in unpaired.items() if names}

    def describe(self) -> dict[str, str]:
        """The paths that were given, for reports."""
        named = {"list": self.pairs, "root": self.root, "folder0": self.first, "folder1": self.second}
        return {name: str(path) for name, path in named.items() if path is not None}


def match_many(
    source: PairSource,
    options: PairOptions,
    config: dict[str, Any],
    *,
    output: Path | None,
    drawings: Path | None,
    max_lines: int,
    file_format: FileFormat,
    verify: VerifySettings | None,
) -> None:
    """Matches all pairs, and reports; `config` has the fields of `MatchConfig` that the command sets.

    Raises:
        typer.BadParameter: no folder is given for the outputs or the drawings.
        typer.Exit: a pair failed.
    """
    folder = _check_output(output)
    match_config = build_config(
        options.max_side, consensus=options.consensus, use_views=options.views, **config
    )
    begin = time.perf_counter()
    check_folder(folder, (), options.overwrite)
    _check_drawings(drawings, source)
    from ucn.weights import check_weights

    check_file(source.pairs, "the list of pairs")
    check_weights(options.weights)
    pairs, unpaired = source.find_pairs()
    from ucn.folders.pair_files import PairFileSettings, match_pair_files

    settings = PairFileSettings(f".{file_format.value}", verify, drawings, max_lines)
    with CountBar("pairs", is_quiet=options.json) as bar:
        matcher = _command.load_matcher(options.weights, match_config, options.device)
        run = describe_run(matcher)
        result = match_pair_files(
            pairs, folder, matcher, settings, meta=run, overwrite=options.overwrite, progress=bar
        )
    summary = {
        "command": "match",
        **run,
        **source.describe(),
        "verify": None if verify is None else verify.to_dict(),
        **_summarise(result),
        "unpaired": unpaired,
        "seconds": round(time.perf_counter() - begin, 3),
        "outputs": _list_outputs(folder, settings),
    }
    if options.json:
        print_json({**summary, "rows": [asdict(record) for record in result.records]})
    else:
        print_lines(_format_lines(summary, settings))
        _warn(unpaired, result)
    if result.failures:
        raise typer.Exit(1)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, say; reading the image explains it
        return False


def _check_output(output: Path | None) -> Path:
    if output is None:
        raise typer.BadParameter("many pairs are written to a folder, one file a pair: give -o FOLDER")
    if output.suffix.lower() in {f".{each.value}" for each in FileFormat} and not _is_folder(output):
        raise typer.BadParameter(
            f"many pairs are written to a folder, one file a pair: give -o FOLDER instead of {output}, and "
            "choose the format by --format"
        )
    return output


def _check_drawings(drawings: Path | None, source: PairSource) -> None:
    """Refuses a file, and a folder among the images: drawings would be images of the next run."""
    from ucn.data.io import WRITE_FORMATS
    from ucn.errors import OutputError
    from ucn.files.reading import find_real_path

    if drawings is not None and drawings.suffix.lower() in WRITE_FORMATS and not _is_folder(drawings):
        raise typer.BadParameter(
            f"drawings of many pairs are written to a folder: give --draw FOLDER instead of {drawings}"
        )
    for folder in (source.first, source.second):
        if drawings is None or folder is None:
            continue
        if find_real_path(drawings).is_relative_to(find_real_path(folder)):
            raise OutputError(
                f"cannot draw into {drawings}: it lies in the folder of images {folder}; give another one by "
                "--draw"
            )


def _summarise(result: PairFilesResult) -> dict[str, Any]:
    done = [record for record in result.records if not record.error]
    inliers = [record.inliers for record in done if record.inliers is not None]
    return {
        "pairs": len(result.records),
        "resumed": result.resumed,
        "failed": len(result.failures),
        "matches": sum(record.matches or 0 for record in done),
        "inliers": sum(inliers) if inliers else None,
        "likely_pairs": sum((record.pair_score or 0.0) >= _LIKELY_PAIR for record in done),
        "encodings": result.encodings,
    }


def _list_outputs(folder: Path, settings: PairFileSettings) -> list[str]:
    from ucn.folders.pair_files import SUMMARY

    drawings = [] if settings.drawings is None else [str(settings.drawings)]
    return [str(folder), str(folder / SUMMARY), *drawings]


def _format_lines(summary: dict[str, Any], settings: PairFileSettings) -> dict[str, str]:
    done = summary["pairs"] - summary["failed"]
    resumed = f", {summary['resumed']:,} of them by an earlier run" if summary["resumed"] else ""
    lines = {"pairs": f"{summary['pairs']:,}{resumed}"}
    if summary["failed"]:
        lines["failed"] = f"{summary['failed']:,}"
    lines["matches"] = f"{summary['matches']:,}, {summary['matches'] / max(done, 1):,.0f} per pair"
    if summary["verify"] is not None:
        share = (summary["inliers"] or 0) / summary["matches"] if summary["matches"] else float("nan")
        lines["inliers"] = f"{summary['inliers'] or 0:,}, {format_share(share)} of the matches"
        lines["verified by"] = format_verifier(summary["verify"])
    folder, table, *drawings = summary["outputs"]
    drawn = f", {drawings[0]}: drawings" if drawings else ""
    return {
        **lines,
        "pair score": f"{summary['likely_pairs']:,} of {done:,} pairs at least {_LIKELY_PAIR:g}",
        "weights": format_weights(summary["weights"]),
        "time": f"{summary['seconds']:.2f} s, {summary['encodings']:,} images encoded",
        "written": f"{folder}: {done:,} {settings.suffix}, {Path(table).name}{drawn}",
    }


def format_verifier(verify: dict[str, Any]) -> str:
    """Model, threshold and seed of a verification."""
    return f"{verify['model']}, threshold {verify['threshold_px']:g} px, seed {verify['seed']}"


def _warn(unpaired: dict[str, list[str]], result: PairFilesResult) -> None:
    """Prints, on stderr, which images had no partner, and which pairs failed."""
    for folder, names in unpaired.items():
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        count = f"{len(names):,} image{'' if len(names) == 1 else 's'}"
        warn(f"left out: {count} of {folder} without a partner of the same name ({shown})")
    failures = result.failures
    for record in failures[:_SHOWN]:
        warn(f"failed: {record.image0} {record.image1}: {record.error}")
    if len(failures) > _SHOWN:
        warn(f"failed: {len(failures) - _SHOWN:,} more (summary.csv and --json list all)")
