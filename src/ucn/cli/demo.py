"""``ucn demo``: the bundled pair matched with the bundled weights, and its accuracy."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ucn.cli import _options as opt
from ucn.cli._command import PairCommand
from ucn.cli._outputs import check_folder
from ucn.cli._report import format_share
from ucn.files import write_files

if TYPE_CHECKING:
    from ucn.data.example import DisparityScore, ExamplePair
    from ucn.types import Flow, Matches


_IMAGES = ("matches.png", "flow.png")


def run(
    output: Annotated[
        Path,
        opt.output_option("Folder for the images; created if missing.", metavar="DIR", show_default=True),
    ] = Path("ucn-demo"),
    weights: opt.Weights = "geometric",
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Match a bundled pair of photographs and compare with its ground truth.

    The ground truth is the measured disparity of this stereo pair. It is not used for matching.
    """
    options = opt.PairOptions(weights, device=device, overwrite=overwrite, json=json)
    with PairCommand("demo", options) as command:
        from ucn.weights import check_weights

        check_folder(output, _IMAGES, overwrite)
        check_weights(weights)
        from ucn.data.example import example_pair, score_against_disparity
        from ucn.files import hash_file

        pair = example_pair()
        matcher = command.load_matcher()
        matches = matcher.match(pair.image0_path, pair.image1_path, progress=command.stages)
        flow = matcher.flow(pair.image0_path, pair.image1_path, progress=command.stages)
        command.stages("scoring")
        sparse = score_against_disparity(matches.points0, matches.points1, pair.disparity)
        dense = _score_flow(flow, pair)
        command.summary |= {
            "image0_sha256": hash_file(pair.image0_path),
            "image1_sha256": hash_file(pair.image1_path),
            **_summarise(sparse, dense),
            "pair_score": float(matches.pair_score),
        }
        command.stages("drawing")
        command.written = _draw(output, pair, matches, flow, overwrite)
    within = {limit: format_share(share) for limit, share in sparse.share_within.items()}
    dense_share = format_share(dense.share_within[3.0])
    hashes = [command.summary[key][:16] for key in ("image0_sha256", "image1_sha256")]
    command.report(
        {
            "pair": "Motorcycle (Middlebury 2014 stereo), 741 × 500",
            "matches": f"{sparse.count:,}",
            "known disparity": f"{sparse.known_count:,} of them; of these",
            "  within 3 px": within[3.0],
            "  within 1, 5 px": f"{within[1.0]}, {within[5.0]}",
            "  median error": f"{sparse.median_error:.2f} px",
            "dense PCK@3": f"{dense_share} of {dense.known_count:,} pixels with known disparity",
            "pair score": f"{matches.pair_score:.3f}",
            "images": f"sha256 {', '.join(hashes)}",
            "weights": f"{matcher.weights.name}, sha256 {matcher.weights.sha256}",
        }
    )


def _score_flow(flow: Flow, pair: ExamplePair) -> DisparityScore:
    import numpy as np

    from ucn.data.example import score_against_disparity

    height, width = pair.disparity.shape
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    moved = pixels + flow.flow_0to1
    return score_against_disparity(pixels.reshape(-1, 2), moved.reshape(-1, 2), pair.disparity)


def _draw(folder: Path, pair: ExamplePair, matches: Matches, flow: Flow, overwrite: bool) -> list[Path]:
    from ucn.data.example import disparity_errors
    from ucn.data.io import write_image
    from ucn.viz import draw_flow, draw_matches

    errors = disparity_errors(matches.points0, matches.points1, pair.disparity)
    images = (
        draw_matches(pair.image0_path, pair.image1_path, matches, errors=errors),
        draw_flow(flow, pair.image0_path),
    )
    folder.mkdir(exist_ok=True)
    drawn = zip(_IMAGES, images, strict=True)
    return write_files(
        {folder / name: partial(write_image, pixels=image) for name, image in drawn}, overwrite
    )


def _summarise(sparse: DisparityScore, dense: DisparityScore) -> dict[str, Any]:
    return {
        "matches": sparse.count,
        "known_disparity": sparse.known_count,
        "share_within_px": {f"{t:g}": share for t, share in sparse.share_within.items()},
        "median_error_px": sparse.median_error,
        "dense_known_disparity": dense.known_count,
        "dense_pck_px": {f"{t:g}": share for t, share in dense.share_within.items()},
    }
