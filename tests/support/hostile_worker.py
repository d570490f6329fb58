"""Reads hostile files in a process with a limit of memory; says how each reading ended.

`run_cases` starts it, feeds it, and kills it where a file takes too long. A reading may end well or in an
error of `ucn`. The peak of memory is measured from before the reading, by Linux's VmHWM.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

HANG_SECONDS = 10.0
SPARE_BYTES = 200_000_000
MAX_SIDE = 1024
_LIMIT = 3 * 2**30
_MAX_PIXELS = 160_000_000
_MAX_SIDE = 100_000


@dataclass(frozen=True)
class Outcome:
    """How one reading ended.

    Attributes:
        kind: "read", "refused" (an error of ucn), "foreign" (another exception), "hang" or "died".
        text: the message.
        seconds: that it took.
        peak: bytes of memory above those before.
        allowed: bytes that it may take.
        noise: what was written to stderr.
    """

    kind: str
    text: str
    seconds: float
    peak: int
    allowed: int
    noise: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it took more memory than promised."""
        return self.peak > self.allowed


class Worker:
    """A process that reads files; a new one follows where a file stopped it.

    Args:
        seconds: after which reading a file is a hang.
        source: folder of another version of ucn.
    """

    def __init__(self, seconds: float = HANG_SECONDS, source: Path | None = None) -> None:
        self._seconds, self._source = seconds, source
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
        self._process = None

    def read(self, reader: str, path: Path) -> Outcome:
        """Reads a file by the reader of that name."""
        worker = self._process = self._process or _start(self._source)
        assert worker.stdin is not None and worker.stdout is not None
        started = time.monotonic()
        worker.stdin.write(json.dumps([reader, str(path)]).encode() + b"\n")
        worker.stdin.flush()
        before = _find_processor_seconds(worker.pid)
        with selectors.DefaultSelector() as waiting:
            waiting.register(worker.stdout, selectors.EVENT_READ)
            is_ready = bool(waiting.select(self._seconds))
            # On a busy machine it may only wait for a processor.
            while not is_ready and _find_processor_seconds(worker.pid) - before < self._seconds:
                if _is_asleep(worker.pid):
                    break
                is_ready = bool(waiting.select(1.0))
        line = worker.stdout.readline() if is_ready else b""
        if line:
            return Outcome(**json.loads(line))
        worker.kill()
        self._end(worker)
        kind = "died" if is_ready else "hang"
        return Outcome(kind, f"{reader} {path.name}", time.monotonic() - started, 0, 0)


def _find_processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _is_asleep(process: int) -> bool:
    """Whether it waits for something else than a processor, at ten looks within a second."""
    states = set()
    for _ in range(10):
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        states.add(fields[0])
        time.sleep(0.1)
    return states <= {"S"}


def run_cases(
    paths: Iterable[tuple[str, Path]], seconds: float = HANG_SECONDS, source: Path | None = None
) -> list[Outcome]:
    """Reads files one after another, each by the reader of its name, as `Worker.read`."""
    with Worker(seconds, source) as worker:
        return [worker.read(reader, path) for reader, path in paths]


def _start(source: Path | None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    if source is not None:
        environment["PYTHONPATH"] = str(source)
    command = [sys.executable, str(Path(__file__))]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    return worker


def _read_image(path: Path) -> Any:
    from ucn.data import io

    if hasattr(io, "read_reduced_image"):
        return io.read_reduced_image(path, MAX_SIDE)
    from ucn.nn.tiling import reduce_image

    return reduce_image(io.read_image(path), MAX_SIDE)


def _read_mask(path: Path) -> Any:
    from ucn.data.io import read_header_hw, read_mask

    return read_mask(path, read_header_hw(path) or (64, 64))


def _read_exif(path: Path) -> Any:
    from ucn.data.camera_files import read_exif_camera

    return read_exif_camera(path)


def _read_points(path: Path) -> Any:
    from ucn.data.points import read_points

    return read_points(path)


def _read_pairs(path: Path) -> Any:
    from ucn.formats.hloc_pairs import read_pair_list

    return read_pair_list(path)


def _read_matches(path: Path) -> Any:
    from ucn.data.match_files import read_matches

    return read_matches(path)


def _read_flow(path: Path) -> Any:
    from ucn.data.points import read_flow

    return read_flow(path)


def _read_flo(path: Path) -> Any:
    from ucn.data.points import read_flo

    return read_flo(path)


def _read_hloc(path: Path) -> Any:
    from ucn.formats.hloc import open_features

    with open_features(path) as file:
        return [file.read(name) for name in file.names[:4]]


def _read_pair_matches(path: Path) -> Any:
    from ucn.formats.hloc import read_pair_matches, read_pair_matches_meta

    return read_pair_matches_meta(path), list(read_pair_matches(path, [("a", "b")]))


def _read_camera(path: Path) -> Any:
    from ucn.data.cameras import read_camera

    return read_camera(str(path))


def _read_mat(path: Path) -> Any:
    from ucn.data.sets.semantic.matlab import read_mat

    return read_mat(path, ["kps"])


def _read_recipe(path: Path) -> Any:
    from ucn.train.recipe import read_recipe

    return read_recipe(path)


def _read_weights(path: Path) -> Any:
    from ucn.weights import load_weights
    from ucn.weights.store import read_weights_header

    read_weights_header(path)
    return load_weights(path)


def _read_checkpoint(path: Path) -> Any:
    from ucn.train import checkpoint

    return checkpoint._read(path)


def _read_features(path: Path) -> Any:
    from ucn.formats.features import read_features

    return read_features(path)


def _read_own(path: Path) -> Any:
    from ucn.data.sets.own.json_lines import read_pair_json

    return read_pair_json(path, None)


def _read_video(path: Path) -> Any:
    from ucn.data.sets.video.frames import Video

    return Video(path, 10)


def _read_colmap(name: str, path: Path) -> Any:
    from ucn.data.sets.posed.colmap_model import read_model

    folder = Path(tempfile.mkdtemp())
    empty = (0).to_bytes(8, "little") if path.suffix == ".bin" else b""
    for part in ("cameras", "images", "points3D"):
        target = folder / f"{part}{path.suffix}"
        if part.startswith(name):
            target.symlink_to(path)
        else:
            target.write_bytes(empty)
    return read_model(folder)


def _read_trunk(path: Path) -> Any:
    from ucn.nn.trunk_files import _read_layers

    return _read_layers(path, {"conv1": (64, 3, 7, 7)})


READERS: dict[str, Callable[[Path], Any]] = {
    "image": _read_image,
    "mask": _read_mask,
    "exif": _read_exif,
    "points": _read_points,
    "pairs": _read_pairs,
    "matches": _read_matches,
    "flow": _read_flow,
    "flo": _read_flo,
    "hloc": _read_hloc,
    "pair matches": _read_pair_matches,
    "camera": _read_camera,
    "mat": _read_mat,
    "recipe": _read_recipe,
    "weights": _read_weights,
    "checkpoint": _read_checkpoint,
    "features": _read_features,
    "own": _read_own,
    "video": _read_video,
    "colmap cameras": lambda path: _read_colmap("cameras", path),
    "colmap images": lambda path: _read_colmap("images", path),
    "colmap points": lambda path: _read_colmap("points", path),
    "trunk": _read_trunk,
}


def _find_allowed(reader: str, path: Path) -> int:
    """The memory that reading a file may take; see docs/security.md. Of ucn it uses nothing."""
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError:
        size = 0
    if reader not in ("image", "mask", "exif"):
        return SPARE_BYTES + 32 * size
    width, height, kind = _read_header(path) if size else (0, 0, "")
    pixels = width * height
    if reader == "exif" or pixels > _MAX_PIXELS or max(width, height) > _MAX_SIDE or min(width, height) < 32:
        return SPARE_BYTES
    allowed = SPARE_BYTES + 4 * pixels
    if kind == "compressed TIFF":
        allowed += size  # libtiff maps it
    if reader == "mask":
        return allowed + 6 * pixels
    reduced = min(pixels, MAX_SIDE**2 * min(width, height) // max(1, width, height))
    if kind == "JPEG":  # by draft, at less than four times the reduced sides
        allowed -= 4 * pixels - min(4 * pixels, 4 * 16 * reduced)
    return allowed + 6 * 12 * reduced


def _read_header(path: Path) -> tuple[int, int, str]:
    """Width, height and format, after "compressed" or "progressive" where it is."""
    import PIL.Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with PIL.Image.open(path) as image:
                is_packed = image.format == "TIFF" and image.info.get("compression") != "raw"
                prefix = "compressed " if is_packed else "progressive " * ("progressive" in image.info)
                return image.width, image.height, f"{prefix}{image.format}"
    except Exception:  # it has no size that counts
        return 0, 0, ""


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


def _try(reader: str, path: Path) -> Outcome:
    from ucn.errors import UcnError

    ctypes.CDLL(None).malloc_trim(0)  # memory that is kept for reuse would hide a peak
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, started = _status("VmRSS"), time.monotonic()
    kind, text = "read", ""
    try:
        READERS[reader](path)
    except UcnError as error:
        kind, text = "refused", str(error)
    except (Exception, RecursionError) as error:
        kind, text = "foreign", f"{type(error).__name__}: {error}"
    seconds, peak = time.monotonic() - started, _status("VmHWM") - before
    return Outcome(kind, text[:2000], seconds, peak, _find_allowed(reader, path))


def _warm(folder: Path) -> None:
    """Imports and first uses, which later peaks shall not hold."""
    import PIL.Image

    path = folder / "warm.png"
    PIL.Image.new("RGB", (64, 64)).save(path)
    for reader, read in READERS.items():
        try:
            read(path if reader in ("image", "mask") else folder / "missing")
        except Exception:  # all that matters are the imports
            continue


def _main() -> None:
    out, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        _warm(Path(folder))
        resource.setrlimit(resource.RLIMIT_AS, (_LIMIT, _LIMIT))
        with (Path(folder) / "noise").open("w+b") as noise:
            os.dup2(noise.fileno(), 2)
            print("ready", file=out, flush=True)
            for line in sys.stdin:
                reader, path = json.loads(line)
                noise.seek(0)
                noise.truncate()
                outcome = _try(reader, Path(path))
                sys.stderr.flush()
                noise.seek(0)
                written = noise.read(500).decode(errors="replace")
                print(json.dumps({**outcome.__dict__, "noise": written}), file=out, flush=True)


if __name__ == "__main__":
    _main()
