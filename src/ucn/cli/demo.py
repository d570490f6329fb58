"""``ucn demo``: the bundled pair, the bundled weights, and how right they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ucn.cli import _matcher
from ucn.cli._options import Debug, Device, Json, Overwrite, Weights, output_option
from ucn.cli._outputs import check_folder
from ucn.cli._report import describe_run, print_json, print_lines, say_files, say_seconds, say_share
from ucn.cli._stages import Stages

if TYPE_CHECKING:
    from ucn.data.example import DisparityScore, ExamplePair
    from ucn.matching.matcher import Matcher
    from ucn.types import Flow, Matches


_PICTURES = ("matches.png", "flow.png")


@dataclass(frozen=True)
class _Result:
    matches: Matches
    flow: Flow
    sparse: DisparityScore
    dense: DisparityScore


def run(
    output: Annotated[
        Path,
        output_option("Folder for the pictures; made if missing.", metavar="DIR", show_default=True),
    ] = Path("ucn-demo"),
    weights: Weights = "geometric",
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Match a bundled pair of photographs and compare with the truth.

    Every match is compared with the measured disparity of this stereo pair in both coordinates; nothing about
    the pair is used in matching.
    """
    with Stages(is_quiet=json) as stages:
        check_folder(output, _PICTURES, overwrite)
        from ucn.data.example import example_pair

        pair = example_pair()
        stages("loading weights")
        matcher = _matcher.load_matcher(weights, device=device)
        stages("matching")
        result = _match_and_score(matcher, pair, stages)
        stages("drawing")
        written = _draw(output, pair, result, overwrite)
    facts = {
        **describe_run(matcher),
        "image0_sha256": _hash(pair.image0_path),
        "image1_sha256": _hash(pair.image1_path),
    }
    if json:
        numbers = _numbers(result)
        files = [str(path) for path in written]
        print_json({"command": "demo", **facts, **numbers, "seconds": stages.report(), "outputs": files})
        return
    sparse, dense = result.sparse, result.dense
    dense_share = say_share(dense.share_within[3.0])
    lines = {
        "pair": "Motorcycle (Middlebury 2014 stereo), 741 × 500",
        "matches": f"{sparse.count:,}",
        "known disparity": f"{sparse.known_count:,} of them; of these",
        "  within 3 px": say_share(sparse.share_within[3.0]),
        "  within 1, 5 px": f"{say_share(sparse.share_within[1.0])}, {say_share(sparse.share_within[5.0])}",
        "  median error": f"{sparse.median_error:.2f} px",
        "dense PCK@3": f"{dense_share} of {dense.known_count:,} pixels of known disparity",
        "pair score": f"{result.matches.pair_score:.3f}",
        "time": say_seconds(stages.report()),
        "weights": f"{matcher.weights.name}, sha256 {matcher.weights.sha256}",
        "images": f"sha256 {facts['image0_sha256'][:16]}, {facts['image1_sha256'][:16]}",
        "written": say_files(written),
    }
    print_lines(lines)


def _match_and_score(matcher: Matcher, pair: ExamplePair, stages: Stages) -> _Result:
    import numpy as np

    from ucn.data.example import score_against_disparity

    matches = matcher.match(pair.image0_path, pair.image1_path, progress=stages)
    flow = matcher.flow(pair.image0_path, pair.image1_path, progress=stages)
    stages("scoring")
    height, width = pair.disparity.shape
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    moved = pixels + flow.flow_0to1
    sparse = score_against_disparity(matches.points0, matches.points1, pair.disparity)
    dense = score_against_disparity(pixels.reshape(-1, 2), moved.reshape(-1, 2), pair.disparity)
    return _Result(matches, flow, sparse, dense)


def _draw(folder: Path, pair: ExamplePair, result: _Result, overwrite: bool) -> list[Path]:
    from ucn.data.example import disparity_errors
    from ucn.data.io import write_image
    from ucn.viz import draw_flow, draw_matches

    errors = disparity_errors(result.matches.points0, result.matches.points1, pair.disparity)
    pictures = (
        draw_matches(pair.image0_path, pair.image1_path, result.matches, errors=errors),
        draw_flow(result.flow, pair.image0_path),
    )
    folder.mkdir(exist_ok=True)
    for name, picture in zip(_PICTURES, pictures, strict=True):
        write_image(folder / name, picture, overwrite)
    return [folder / name for name in _PICTURES]


def _numbers(result: _Result) -> dict[str, Any]:
    sparse, dense = result.sparse, result.dense
    return {
        "matches": sparse.count,
        "known_disparity": sparse.known_count,
        "share_within_px": {f"{t:g}": share for t, share in sparse.share_within.items()},
        "median_error_px": sparse.median_error,
        "dense_known_disparity": dense.known_count,
        "dense_pck_px": {f"{t:g}": share for t, share in dense.share_within.items()},
        "pair_score": float(result.matches.pair_score),
    }


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
