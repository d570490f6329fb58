"""``ucn reconstruct``: a sparse reconstruction of the images of a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _folder
from ucn.cli import _options as opt
from ucn.cli._checks import check_file
from ucn.cli._outputs import check_folder
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines, warn, without_nan
from ucn.files.writing import write_files

if TYPE_CHECKING:
    from ucn.folders.reconstruction import ReconstructionResult
    from ucn.formats.colmap import SparseModel


_WRITTEN = ("summary.json", "above.png", "points.ply", "cameras.ply", "view.html")


class PrincipalPointName(StrEnum):
    """When principal points are refined."""

    auto = "auto"
    always = "always"
    never = "never"


class ColmapName(StrEnum):
    """Versions of COLMAP whose databases are written."""

    three = "3"
    four = "4"


@opt.expand_options
def run(
    folder: _folder.Folder,
    output: Annotated[
        Path, opt.output_option("Folder for the model; created if missing.", metavar="DIR", show_default=True)
    ] = Path("model"),
    pairing: _folder.Pairing = _folder.PairingName.exhaustive,
    overlap: _folder.Overlap = 10,
    neighbours: _folder.Neighbours = 20,
    pairs: Annotated[Path | None, opt.path_option("Pairs to match, two names per line.")] = None,
    min_similarity: _folder.MinSimilarity = -1.0,
    consensus: _folder.Consensus = True,
    intrinsics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|fx,fy,cx,cy",
            help="Fixed camera matrix of all images, as for `ucn pose`, without `exif`.",
            show_default="from EXIF or estimated",
        ),
    ] = None,
    camera_model: Annotated[
        str, typer.Option(metavar="NAME", help="COLMAP's camera model without --intrinsics.")
    ] = "SIMPLE_RADIAL",
    shared: Annotated[
        bool, opt.flag("--shared/--single", "One camera for all images of a size, or one per image.")
    ] = True,
    refine_principal_point: Annotated[
        PrincipalPointName,
        typer.Option(
            help="Refine principal points, which otherwise are image centres: where the images determine "
            "them, always or never.",
            show_default="auto",
        ),
    ] = PrincipalPointName.auto,
    adjust: Annotated[bool, opt.flag("--adjust/--no-adjust", "Refine keypoints photometrically.")] = True,
    seed: Annotated[int, opt.count_option("Random seed of COLMAP.", minimum=0)] = 0,
    threads: Annotated[int, opt.count_option("Threads of COLMAP; more than one is not reproducible.")] = 1,
    colmap: Annotated[
        ColmapName, typer.Option(help="Oldest COLMAP that can open database.db; newer ones open it, too.")
    ] = ColmapName.four,
    *,
    options: _folder.ExtractOptions,
) -> None:
    """Reconstruct a scene: extract, match, verify and refine features, then map with COLMAP.

    The output folder gets features.h5, pairs.txt and matches.h5 in the format of hloc; database.db and
    sparse/ in the format of COLMAP; above.png, a top view; points.ply and cameras.ply; view.html, which
    shows both in a browser, offline; and summary.json. The next run reuses the features.
    """
    options.check_inputs(folder)
    check_file(pairs, "the list of pairs")
    from ucn.errors import ConfigError
    from ucn.folders.pairing import PairingSettings
    from ucn.folders.reconstruction import ReconstructSettings, reconstruct_folder
    from ucn.formats.colmap import CameraSettings, MappingSettings, load_pycolmap

    load_pycolmap()
    if intrinsics is not None and refine_principal_point is PrincipalPointName.always:
        raise ConfigError("--intrinsics are fixed; give either them or --refine-principal-point always")
    _open_output(output, folder, options.overwrite)
    K = None if intrinsics is None else opt.read_camera_option("--intrinsics", intrinsics)
    found = options.find_method()
    settings = ReconstructSettings(
        extract=options.build_settings(found),
        pairing=PairingSettings(pairing.value, overlap, neighbours, pairs),
        cameras=CameraSettings(camera_model, K, shared),
        mapping=MappingSettings(seed, threads, principal_point=refine_principal_point.value),
        use_adjustment=adjust,
        min_similarity=min_similarity,
        consensus=consensus,
        colmap=int(colmap.value),
    )
    begin = time.perf_counter()
    with CountBar("starting", is_quiet=options.json) as bar:
        made = reconstruct_folder(
            folder,
            output,
            found,
            settings,
            executor=options.build_executor(),
            overwrite=options.overwrite,
            progress=bar.show,
        )
    summary = {
        "command": "reconstruct",
        "ucn": find_version(),
        "folder": str(folder),
        "output": str(output),
        "method": {"name": found.name, "title": found.title},
        **_summarise(made),
        "seed": seed,
        "seconds": round(time.perf_counter() - begin, 3),
    }
    _write(output, summary, made.model, folder.resolve().name, options.overwrite)
    if options.json:
        print_json(summary)
    else:
        _print(summary, made)


def _open_output(output: Path, images: Path, overwrite: bool) -> None:
    """Creates the folder; refuses one that holds a finished model or lies among the images."""
    from ucn.errors import OutputError
    from ucn.files.reading import find_real_path

    if find_real_path(output).is_relative_to(find_real_path(images)):
        raise OutputError(
            f"cannot write a model to {output}: it lies in the folder of images {images}, and above.png "
            "would become one of them; give a folder elsewhere with -o"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot create the folder {output}: {error.strerror or error}") from error
    check_folder(output, _WRITTEN, overwrite)


def _summarise(made: ReconstructionResult) -> dict[str, Any]:
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
        "principal_points": [asdict(point) for point in model.principal_points],
        "pairs": made.pairs,
        "matches": made.matches,
        "verified_matches": made.verified,
        "used_matches": made.used,
        "median_move_px": made.moved,
        "failures": dict(made.extracted.failures),
    }


def _write(output: Path, summary: dict[str, Any], model: SparseModel, title: str, overwrite: bool) -> None:
    """Writes the files of `_WRITTEN`, or none after an error."""
    import json

    from ucn.data.io import write_image
    from ucn.files.writing import write_bytes_atomically
    from ucn.formats.colmap_scene import to_scene
    from ucn.formats.ply import write_cameras_ply, write_points_ply
    from ucn.viz.reconstruction import draw_reconstruction
    from ucn.viz.scene_page import write_scene_page

    scene = to_scene(model)
    text = json.dumps(without_nan(summary), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    drawn = draw_reconstruction(scene.points, scene.colours, scene.rotations, scene.centres)
    writers: list[Callable[[Path], object]] = [
        lambda path: write_bytes_atomically(path, text.encode()),
        lambda path: write_image(path, drawn),
        lambda path: write_points_ply(path, scene),
        lambda path: write_cameras_ply(path, scene),
        lambda path: write_scene_page(path, scene, title=title),
    ]
    write_files(dict(zip([output / name for name in _WRITTEN], writers, strict=True)), overwrite)


def _describe_principal_points(model: SparseModel) -> dict[str, str]:
    """A line for the most frequent camera, and how many others there are."""
    points = sorted(model.principal_points, key=lambda point: -point.images)
    if not points:
        return {}
    state = "refined" if points[0].is_refined else "image centre"
    others = f"; {len(points) - 1} other cameras in summary.json" if len(points) > 1 else ""
    return {"principal point": f"{state} ({points[0].reason}){others}"}


def _print(summary: dict[str, Any], made: ReconstructionResult) -> None:
    lines = {
        "registered": f"{summary['registered']} of {summary['images']} images",
        "points": f"{summary['points']:,}",
        "track length": f"{summary['track_length']:.2f} images per point",
        "reprojection": f"{summary['reprojection_error_px']:.3f} px",
        "matches": f"{summary['matches']:,} in {summary['pairs']:,} pairs, {summary['verified_matches']:,} "
        f"verified, {summary['used_matches']:,} used",
        **_describe_principal_points(made.model),
        "method": summary["method"]["title"],
        "time": f"{summary['seconds']:.1f} s",
        "written": f"{summary['output']}: features.h5, pairs.txt, matches.h5, database.db, sparse/, "
        f"{', '.join(_WRITTEN)}",
    }
    if summary["models"] > 1:
        lines["models"] = f"{summary['models']}, of which this is the largest; sparse/ holds all"
    print_lines(lines)
    _folder.warn_failures(made.extracted)
    _warn_unread(made.model)


def _warn_unread(model: SparseModel) -> None:
    """Prints, on stderr, that COLMAP cannot read some images."""
    from ucn.formats.colmap_colours import UNREAD_SUFFIXES

    count = sum(name.lower().endswith(UNREAD_SUFFIXES) for name in model.registered)
    if count:
        warn(
            f"warning: COLMAP does not read HEIC, AVIF and WebP, of which {count:,} images are: for "
            "`colmap image_undistorter`, convert them to JPEG and run again"
        )
