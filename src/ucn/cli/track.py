"""``ucn track``: points tracked through a video."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ucn.cli import _command
from ucn.cli import _options as opt
from ucn.cli._checks import check_file
from ucn.cli._outputs import check_folder
from ucn.cli._progress import CountBar
from ucn.cli._report import describe_run, format_share, format_weights, print_json, print_lines, warn
from ucn.files.writing import write_together

if TYPE_CHECKING:
    from torch import Tensor

    from ucn.data.sets.video.frames import Frames
    from ucn.matching.matcher import Matcher
    from ucn.matching.tracking import TrackedFrame
    from ucn.types import FloatArray

_TABLE, _VIDEO = "tracks.csv", "tracks.mp4"


def run(
    video: Annotated[Path, opt.path_argument("VIDEO", "A video, or a folder of frames in natural order.")],
    output: Annotated[
        Path, opt.output_option(f"Folder for {_TABLE} and {_VIDEO}; created if missing.", metavar="DIR")
    ],
    points: Annotated[
        Path | None, opt.path_option("Points of the first frame: CSV, COCO, labelme or .pts.")
    ] = None,
    grid: Annotated[
        int | None,
        typer.Option(
            metavar="PX",
            min=1,
            help="Instead of --points: track a grid of points with this spacing in pixels.",
            show_default=False,
        ),
    ] = None,
    min_score: Annotated[
        float, typer.Option(metavar="P", min=0, max=1, help="Points below this score are lost.")
    ] = 0.5,
    max_frames: Annotated[int, typer.Option(metavar="N", min=1, help="Largest number of frames.")] = 1000,
    fps: Annotated[
        float | None,
        typer.Option(metavar="N", help="Frames per second of the output.", show_default="the video's; 25"),
    ] = None,
    use_video: Annotated[bool, opt.flag("--video/--no-video", "Draw the points into the video.")] = True,
    weights: opt.Weights = "geometric",
    max_side: opt.MaxSide = "auto",
    consensus: opt.Consensus = None,
    device: opt.Device = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    debug: opt.Debug = False,
) -> None:
    """Track points of the first frame through a video.

    Every frame is encoded once. A point is lost where it fails the forward-backward check or its score is
    low; it is searched for again in the next frame. tracks.csv has a line per frame and point: frame, point
    (its row in FILE, from 0), x, y, score, is_lost, and the other columns of FILE.
    """
    if (points is None) == (grid is None):
        raise typer.BadParameter("give --points FILE.csv, or --grid PX, and not both")
    if fps is not None and not 0 < fps <= 1000:
        raise typer.BadParameter(f"--fps must be above 0 and at most 1000, got {fps:g}")
    from ucn.weights import check_weights

    names = (_TABLE, _VIDEO) if use_video else (_TABLE,)
    outputs = [output / name for name in names]
    check_folder(output, names, overwrite, (video, points))
    if not video.is_dir():
        check_file(video, "video")
    check_file(points, "points")
    check_weights(weights)
    from ucn.data.sets.video.frames import Video
    from ucn.matching.tracking import open_frames, write_tracks

    frames = open_frames(video, max_frames)
    starts, columns = _choose_points(frames, points, grid)
    matcher = _command.load_matcher(
        weights, opt.build_config(max_side, consensus=consensus, use_views=False), device
    )
    count = min(len(frames), max_frames)
    speed, is_cut = 25.0, len(frames) > count
    if isinstance(frames, Video):
        speed, is_cut = frames.frames_per_second, frames.is_truncated
    with _make_folder(output), write_together(outputs, overwrite) as places:
        path = places[1] if use_video else None
        tracks = _track(matcher, frames, starts, count, min_score, path, fps or speed, is_quiet=json)
        write_tracks(places[0], tracks, columns=columns)
    summary = {
        "command": "track",
        **describe_run(matcher),
        "video": str(video),
        **_summarise(tracks),
        "min_score": min_score,
        "is_cut": is_cut,
        "outputs": [str(path) for path in outputs],
    }
    if json:
        print_json(summary)
    else:
        _print(summary)


@contextmanager
def _make_folder(path: Path) -> Iterator[None]:
    """Creates a folder, and removes it again after an error."""
    is_new = not path.exists()
    path.mkdir(exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # by now it may hold a file of someone else
                path.rmdir()
        raise


def _choose_points(
    frames: Frames, points: Path | None, grid: int | None
) -> tuple[FloatArray, Mapping[str, Sequence[str]]]:
    """The points of the first frame, and the other columns of their file."""
    from ucn.data.points import read_image_points
    from ucn.matching.keypoints import grid_points

    image = frames.read(0)
    size_hw = (int(image.shape[-2]), int(image.shape[-1]))
    if points is not None:
        table = read_image_points(points, frames.frame_path(0), size_hw)
        for note in table.notes:
            warn(f"note: {note}")
        return table.points.astype("float32"), table.columns
    found: FloatArray = grid_points(size_hw, grid or 1).numpy()
    return found, {}


def _track(
    matcher: Matcher,
    frames: Frames,
    starts: FloatArray,
    count: int,
    min_score: float,
    video: Path | None,
    frames_per_second: float,
    *,
    is_quiet: bool,
) -> list[TrackedFrame]:
    """Tracks through all frames, and draws each into the video, if any."""
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
        file = None if video is None else stack.enter_context(VideoFile(video, frames_per_second))
        for tracked in track_points(matcher, read(), starts, min_score=min_score):
            tracks.append(tracked)
            if file is not None:
                file.add(painter.paint(shown[0], tracked))
            bar(len(tracks), count)
    return tracks


def _summarise(tracks: list[TrackedFrame]) -> dict[str, Any]:
    import numpy as np

    is_lost = np.stack([frame.is_lost for frame in tracks])
    return {
        "frames": len(tracks),
        "points": is_lost.shape[1],
        "seen_share": float((~is_lost).mean()),
        "seen_at_end": int((~is_lost[-1]).sum()),
    }


def _print(summary: dict[str, Any]) -> None:
    more = ", there are more: see --max-frames" if summary["is_cut"] else ""
    print_lines(
        {
            "frames": f"{summary['frames']:,}{more}",
            "points": f"{summary['points']:,}",
            "tracked": f"{format_share(summary['seen_share'])} of all points in all frames",
            "at the end": f"{summary['seen_at_end']:,} of {summary['points']:,} points",
            "weights": format_weights(summary["weights"]),
            "written": ", ".join(summary["outputs"]),
        }
    )
