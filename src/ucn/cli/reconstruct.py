"""``ucn reconstruct``: a sparse model, cameras and points in space, of the images of a folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli._folder import (
    Batch,
    Detector,
    DetectorName,
    EngineName,
    Folder,
    MaxKeypoints,
    MethodName,
    Workers,
    build_engine,
    build_settings,
    find_method,
)
from ucn.cli._options import Debug, Device, Json, MaxSide, Overwrite, Weights, output_option, path_option
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines
from ucn.cli.extract import say_failures
from ucn.cli.pairs import MinSimilarity, Neighbours, Overlap, Pairing, PairingName

if TYPE_CHECKING:
    from ucn.folders.reconstruction import Reconstructed
    from ucn.formats.colmap import CameraSettings, Model


def run(
    folder: Folder,
    output: Annotated[
        Path, output_option("Folder for the model, made where missing.", metavar="DIR", show_default=True)
    ] = Path("model"),
    weights: Weights = "geometric",
    method: MethodName = None,
    detector: Detector = DetectorName.corners,
    max_keypoints: MaxKeypoints = 4096,
    max_side: MaxSide = None,
    pairing: Pairing = PairingName.exhaustive,
    overlap: Overlap = 10,
    neighbours: Neighbours = 20,
    pairs: Annotated[Path | None, path_option("A list of pairs, two names a line.")] = None,
    min_similarity: MinSimilarity = -1.0,
    intrinsics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|fx,fy,cx,cy",
            help="Camera matrix of all images, as for `ucn pose`; it is then held.",
            show_default="from EXIF or guessed, then refined",
        ),
    ] = None,
    camera_model: Annotated[
        str, typer.Option(metavar="NAME", help="COLMAP's model of cameras that are not given.")
    ] = "SIMPLE_RADIAL",
    shared: Annotated[
        bool, typer.Option("--shared/--single", help="One camera for images of one size, or one for each.")
    ] = True,
    adjust: Annotated[
        bool, typer.Option("--adjust/--no-adjust", help="Move keypoints to where the pixels of images agree.")
    ] = True,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of COLMAP's draws.")] = 0,
    threads: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Of COLMAP; more than one may change the last digits."),
    ] = 1,
    batch: Batch = 4,
    engine: Annotated[EngineName, typer.Option(help="Who describes images.")] = EngineName.local,
    workers: Workers = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a sparse model of images: describe, match, verify and adjust, then map with COLMAP.

    DIR gets features.h5, pairs.txt and matches.h5 as hloc has them, database.db and sparse/ as COLMAP has
    them, summary.json, and above.png, the model seen from above. Features are used again by the next run.
    """
    from ucn.folders.reconstruction import PairingSettings, ReconstructSettings, reconstruct_folder
    from ucn.formats.colmap import MappingSettings, load_pycolmap

    load_pycolmap()
    _open_output(output, folder, overwrite)
    found = find_method(weights, method)
    settings = ReconstructSettings(
        extract=build_settings(found, max_side, max_keypoints, detector, batch),
        pairing=PairingSettings(pairing.value, overlap, neighbours, pairs),
        cameras=_choose_cameras(intrinsics, camera_model, shared),
        mapping=MappingSettings(seed=seed, threads=threads),
        use_adjustment=adjust,
        min_similarity=min_similarity,
    )
    begin = time.perf_counter()
    with CountBar("starting", is_quiet=json) as bar:
        made = reconstruct_folder(
            folder,
            output,
            found.method,
            settings,
            engine=build_engine(engine, workers, device),
            overwrite=overwrite,
            progress=bar.show,
        )
    summary = {
        "command": "reconstruct",
        "ucn": find_version(),
        "folder": str(folder),
        "output": str(output),
        "method": {"name": found.method.name, "title": found.title},
        **_summarise(made),
        "seed": seed,
        "seconds": round(time.perf_counter() - begin, 3),
    }
    _write(output, summary, made.model)
    if json:
        print_json(summary)
    else:
        _print(summary, made)


def _open_output(output: Path, images: Path, overwrite: bool) -> None:
    """Makes the folder, and refuses to replace a model that is complete, or to write among the images."""
    from ucn.data.io import check_output
    from ucn.errors import OutputError

    if output.resolve().is_relative_to(images.resolve()):
        raise OutputError(
            f"cannot write a model to {output}: it lies in the folder of images {images}, and its picture "
            "would be taken for one of them; give a folder elsewhere with -o"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {output}: {error.strerror or error}") from error
    for name in ("summary.json", "above.png"):
        check_output(output / name, overwrite)


def _choose_cameras(intrinsics: str | None, model: str, is_shared: bool) -> CameraSettings:
    from ucn.data.cameras import read_intrinsics
    from ucn.formats.colmap import CameraSettings

    K = None if intrinsics is None else read_intrinsics(intrinsics)
    return CameraSettings(model, K, is_shared)


def _summarise(made: Reconstructed) -> dict[str, Any]:
    model = made.model
    return {
        "images": made.extracted.images,
        "registered": len(model.registered),
        "registered_images": list(model.registered),
        "points": model.points,
        "observations": model.observations,
        "track_length": model.track_length,
        "reprojection_error_px": model.reprojection_error,
        "models": model.models,
        "pairs": made.pairs,
        "matches": made.matches,
        "verified_matches": made.verified,
        "used_matches": made.used,
        "median_move_px": made.moved,
        "failures": dict(made.extracted.failures),
    }


def _write(output: Path, summary: dict[str, Any], model: Model) -> None:
    import json

    from ucn.data.io import write_bytes_atomically, write_image
    from ucn.viz.reconstruction import draw_model

    write_image(output / "above.png", draw_model(*model.arrays()), overwrite=True)
    text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    write_bytes_atomically(output / "summary.json", text.encode(), overwrite=True)


def _print(summary: dict[str, Any], made: Reconstructed) -> None:
    lines = {
        "registered": f"{summary['registered']} of {summary['images']} images",
        "points": f"{summary['points']:,}",
        "track length": f"{summary['track_length']:.2f} images a point",
        "reprojection": f"{summary['reprojection_error_px']:.3f} px",
        "matches": f"{summary['matches']:,} in {summary['pairs']:,} pairs, {summary['verified_matches']:,} "
        f"verified, {summary['used_matches']:,} used",
        "method": summary["method"]["title"],
        "time": f"{summary['seconds']:.1f} s",
        "written": f"{summary['output']}: features.h5, pairs.txt, matches.h5, database.db, sparse/, "
        "above.png, summary.json",
    }
    if summary["models"] > 1:
        lines["models"] = f"{summary['models']}, of which this is the largest; sparse/ has all"
    print_lines(lines)
    say_failures(made.extracted)
