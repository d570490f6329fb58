"""``ucn track``: points followed through a clip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _matcher
from ucn.cli._options import (
    Debug,
    Device,
    Json,
    MaxSide,
    Overwrite,
    Weights,
    build_config,
    output_option,
    path_argument,
    path_option,
)
from ucn.cli._outputs import check_folder, write_together
from ucn.cli._progress import CountBar
from ucn.cli._report import describe_run, print_json, print_lines, say_share

if TYPE_CHECKING:
    from torch import Tensor

    from ucn.data.sets.video.frames import Frames
    from ucn.matching.matcher import Matcher
    from ucn.matching.tracking import TrackedFrame
    from ucn.types import FloatArray

_TABLE, _VIDEO = "tracks.csv", "tracks.mp4"


@dataclass(frozen=True)
class _Drawing:
    """The video that is drawn: its file, and frames a second."""

    path: Path
    speed: float


def run(
    video: Annotated[
        Path, path_argument("VIDEO", "A clip, or a folder of frames in the order of their names.")
    ],
    output: Annotated[
        Path, output_option(f"Folder for {_TABLE} and {_VIDEO}; made if missing.", metavar="DIR")
    ],
    points: Annotated[Path | None, path_option("CSV of points x,y of the first frame.")] = None,
    grid: Annotated[
        int | None,
        typer.Option(
            metavar="PX",
            min=1,
            help="Instead of --points: follow a grid of points so many pixels apart.",
            show_default=False,
        ),
    ] = None,
    min_score: Annotated[
        float, typer.Option(metavar="P", min=0, max=1, help="Less sure answers count as lost.")
    ] = 0.5,
    max_frames: Annotated[
        int, typer.Option(metavar="N", min=1, help="Follow through so many frames at most.")
    ] = 1000,
    fps: Annotated[
        float | None,
        typer.Option(metavar="N", help="Frames a second of the drawn video.", show_default="the clip's; 25"),
    ] = None,
    use_video: Annotated[
        bool, typer.Option("--video/--no-video", help="Draw the points into the clip.")
    ] = True,
    weights: Weights = "geometric",
    max_side: MaxSide = None,
    device: Device = None,
    overwrite: Overwrite = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow points of the first frame through a clip.

    Every frame is encoded once. A point is lost where the way back does not end where it began, or where the
    answer is not sure; it is looked for again in the next frame. tracks.csv has a line per frame and point:
    frame, point (its row in FILE, from 0), x, y, score, is_lost.
    """
    if (points is None) == (grid is None):
        raise typer.BadParameter("give --points FILE.csv, or --grid PX, and not both")
    if fps is not None and not 0 < fps <= 1000:
        raise typer.BadParameter(f"--fps must be above 0 and at most 1000, got {fps:g}")
    names = (_TABLE, _VIDEO) if use_video else (_TABLE,)
    outputs = [output / name for name in names]
    check_folder(output, names, overwrite, (video, points))
    from ucn.matching.tracking import open_frames, write_tracks

    frames = open_frames(video, max_frames)
    starts = _choose_points(frames.read(0), points, grid)
    matcher = _matcher.load_matcher(weights, build_config(max_side), device)
    count = min(len(frames), max_frames)
    with _folder(output), write_together(outputs, overwrite) as places:
        drawing = _Drawing(places[1], fps or _find_speed(frames)) if use_video else None
        tracks = _track(matcher, frames, starts, count, min_score, drawing, is_quiet=json)
        write_tracks(places[0], tracks)
    facts = {
        "command": "track",
        **describe_run(matcher),
        "video": str(video),
        **_summarise(tracks, min_score),
        "is_cut": _is_cut(frames, count),
        "outputs": [str(path) for path in outputs],
    }
    if json:
        print_json(facts)
    else:
        _print(facts)


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Makes a folder, and takes it away again where nothing came of it."""
    is_new = not path.exists()
    path.mkdir(exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # somebody else's file is in it by now
                path.rmdir()
        raise


def _choose_points(image: Tensor, points: Path | None, grid: int | None) -> FloatArray:
    from ucn.data.points import read_points
    from ucn.matching.keypoints import grid_points

    size_hw = (int(image.shape[-2]), int(image.shape[-1]))
    if points is not None:
        return read_points(points, size_hw)
    found: FloatArray = grid_points(size_hw, grid or 1).numpy()
    return found


def _track(
    matcher: Matcher,
    frames: Frames,
    starts: FloatArray,
    count: int,
    min_score: float,
    drawing: _Drawing | None,
    *,
    is_quiet: bool,
) -> list[TrackedFrame]:
    """Tracks through all frames, drawing each as it comes."""
    from ucn.matching.tracking import track_points
    from ucn.viz.tracks import TrackPainter, VideoFile

    shown: list[Tensor] = []

    def read() -> Iterator[Tensor]:
        for number in range(count):
            shown[:] = [frames.read(number)]
            yield shown[0]

    tracks: list[TrackedFrame] = []
    painter = TrackPainter()
    with ExitStack() as stack:
        bar = stack.enter_context(CountBar("tracking", is_quiet))
        file = None if drawing is None else stack.enter_context(VideoFile(drawing.path, drawing.speed))
        for tracked in track_points(matcher, read(), starts, min_score=min_score):
            tracks.append(tracked)
            if file is not None:
                file.add(painter.paint(shown[0], tracked))
            bar(len(tracks), count)
    return tracks


def _find_speed(frames: Frames) -> float:
    """Frames a second: the clip's, or 25."""
    from ucn.data.sets.video.frames import Clip

    return frames.frames_per_second if isinstance(frames, Clip) else 25.0


def _is_cut(frames: Frames, count: int) -> bool:
    """Whether there are more frames than were followed through."""
    from ucn.data.sets.video.frames import Clip

    return frames.is_cut if isinstance(frames, Clip) else len(frames) > count


def _summarise(tracks: list[TrackedFrame], min_score: float) -> dict[str, Any]:
    import numpy as np

    is_lost = np.stack([frame.is_lost for frame in tracks])
    return {
        "frames": len(tracks),
        "points": is_lost.shape[1],
        "seen_share": float((~is_lost).mean()),
        "seen_at_end": int((~is_lost[-1]).sum()),
        "min_score": min_score,
    }


def _print(facts: dict[str, Any]) -> None:
    weights = facts["weights"]
    print_lines(
        {
            "frames": f"{facts['frames']:,}{', there are more: see --max-frames' if facts['is_cut'] else ''}",
            "points": f"{facts['points']:,}",
            "seen": f"{say_share(facts['seen_share'])} of all points in all frames",
            "at the end": f"{facts['seen_at_end']:,} of {facts['points']:,} seen",
            "weights": f"{weights['name']}, sha256 {weights['sha256'][:16]}",
            "written": ", ".join(facts["outputs"]),
        }
    )
