"""``ucn pairs``: image pairs of a feature file, and their matches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ucn.cli import _folder
from ucn.cli import _options as opt
from ucn.cli._outputs import check_outputs
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, format_files, print_json, print_lines
from ucn.files import write_together

if TYPE_CHECKING:
    from ucn.folders.pairing import Pair


def run(
    features: Annotated[Path, opt.path_argument("FEATURES", "Features of `ucn extract`, .h5.")],
    output: Annotated[Path, opt.output_option("Pairs, two names a line.", show_default=True)] = Path(
        "pairs.txt"
    ),
    pairing: _folder.Pairing = _folder.PairingName.exhaustive,
    overlap: _folder.Overlap = 10,
    neighbours: _folder.Neighbours = 20,
    matches: Annotated[Path | None, opt.path_option("Also match the pairs, and write: .h5.")] = None,
    min_similarity: _folder.MinSimilarity = -1.0,
    consensus: _folder.Consensus = True,
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Choose image pairs, and match their keypoints: mutual nearest neighbours, in the format of hloc."""
    outputs = [path for path in (output, matches) if path is not None]
    check_outputs(outputs, (features,), overwrite)
    from ucn.errors import DataError
    from ucn.formats.hloc import open_features

    with open_features(features) as file:  # before torch is imported
        from ucn.folders.pair_matching import match_image_pairs
        from ucn.folders.pairing import PairingSettings, choose_pairs
        from ucn.runtime.device import choose_device

        settings = PairingSettings(pairing.value, overlap, neighbours)
        chosen = choose_pairs(file, settings)
        images = len(file)
    if not chosen:
        raise DataError(f"{features} has features of {images} images; a pair needs two: `ucn extract` them")
    match = partial(
        match_image_pairs,
        min_similarity=min_similarity,
        consensus=consensus,
        device=str(choose_device(device)),
    )
    found = _write(features, chosen, outputs, match, overwrite, json)
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
        lines["matches"] = f"{found:,}, {found / len(chosen):,.0f} per pair"
    print_lines({**lines, "written": format_files(outputs)})


def _write(
    features: Path,
    pairs: list[Pair],
    outputs: list[Path],
    match: Callable[..., int],
    overwrite: bool,
    is_quiet: bool,
) -> int | None:
    """Writes the list and, to the second output if any, the matches; returns their number."""
    from ucn.formats.hloc_pairs import write_pair_list

    with write_together(outputs, overwrite) as places:
        write_pair_list(places[0], pairs)
        if len(places) == 1:
            return None
        with CountBar("pairs", is_quiet) as bar:
            return match(features, pairs, places[1], progress=bar)
