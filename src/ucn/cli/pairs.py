"""``ucn pairs``: which images of a file of features are worth matching, and their matches."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ucn.cli._options import Debug, Device, Json, Overwrite, output_option, path_argument, path_option
from ucn.cli._outputs import check_outputs, write_together
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines, say_files

if TYPE_CHECKING:
    from ucn.folders.pairing import Pair


class PairingName(StrEnum):
    """How pairs are chosen."""

    exhaustive = "exhaustive"
    sequential = "sequential"
    retrieval = "retrieval"


Pairing = Annotated[
    PairingName,
    typer.Option(help="All pairs; images that follow each other by name; or images that look alike."),
]
Overlap = Annotated[int, typer.Option(metavar="N", min=1, help="Of sequential: images that follow.")]
Neighbours = Annotated[int, typer.Option(metavar="N", min=1, help="Of retrieval: images for each.")]
MinSimilarity = Annotated[
    float, typer.Option(metavar="S", help="Drop matches whose descriptors have a smaller cosine; -1 = off.")
]


def run(
    features: Annotated[Path, path_argument("FEATURES", "Of `ucn extract`, .h5.")],
    output: Annotated[Path, output_option("Two names a line.", show_default=True)] = Path("pairs.txt"),
    pairing: Pairing = PairingName.exhaustive,
    overlap: Overlap = 10,
    neighbours: Neighbours = 20,
    matches: Annotated[Path | None, path_option("Match the pairs too, and write matches, .h5.")] = None,
    min_similarity: MinSimilarity = -1.0,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Choose pairs of images, and match their keypoints: mutual nearest neighbours, in hloc's layout."""
    from ucn.errors import DataError
    from ucn.folders.reconstruction import PairingSettings, choose_pairs
    from ucn.formats.hloc import open_features
    from ucn.runtime.device import choose_device

    outputs = [path for path in (output, matches) if path is not None]
    check_outputs(outputs, (features,), overwrite)
    settings = PairingSettings(pairing.value, overlap, neighbours)
    with open_features(features) as file:
        chosen = choose_pairs(file, settings)
        images = len(file)
    if not chosen:
        what = "features of no image" if not images else "features of one image"
        raise DataError(f"{features} has {what}; a pair needs two: `ucn extract` them")
    found = _write(features, chosen, outputs, min_similarity, str(choose_device(device)), overwrite, json)
    if json:
        print_json(
            {
                "command": "pairs",
                "ucn": find_version(),
                "features": str(features),
                "pairing": {"kind": pairing.value, "overlap": overlap, "neighbours": neighbours},
                "images": images,
                "pairs": len(chosen),
                "matches": found,
                "outputs": [str(path) for path in outputs],
            }
        )
        return
    lines = {"images": f"{images:,}", "pairs": f"{len(chosen):,}, {pairing.value}"}
    if found is not None:
        lines["matches"] = f"{found:,}, {found / len(chosen):,.0f} a pair"
    print_lines({**lines, "written": say_files(outputs)})


def _write(
    features: Path,
    pairs: list[Pair],
    outputs: list[Path],
    min_similarity: float,
    device: str,
    overwrite: bool,
    is_quiet: bool,
) -> int | None:
    """Writes the list and, where a second output is given, the matches, whose number it returns."""
    from ucn.folders.pair_matching import match_pairs
    from ucn.formats.pair_lists import write_pairs

    with write_together(outputs, overwrite) as places:
        write_pairs(places[0], pairs)
        if len(places) == 1:
            return None
        with CountBar("pairs", is_quiet) as bar:
            return match_pairs(
                features, pairs, places[1], min_similarity=min_similarity, device=device, progress=bar
            )
