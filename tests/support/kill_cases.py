"""Commands that are killed at any moment, and run again: a process that forks every run.

    python -m support.kill_cases FOLDER --random 60 --injected 40 --damaged 30 --seed 0

prints one JSON object per case. A run is killed by SIGKILL: after a random time, or before its n-th change of
a file, which Python's audit events announce. It needs nothing of the package but its commands, so that other
versions can be measured too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import torch

from support.batch_cases import write_images
from support.pair_cases import FeatureShiftMatcher, write_tiny_images
from support.photo_cases import write_photos
from support.scene_cases import make_scene

RECIPE = """
name: tiny
steps: 3
batch: 1
model: {dim: 8, transformer: none, trunk: lite}
synthetic: {side: 64, points: 50}
validate_every: 2
checkpoint_every: 1
"""
_CHANGES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "shutil.rmtree"}
_LIMIT_S = 120.0
_STARTING_OVER = 17  # keypoints of the run whose remains a job with --overwrite finds


@dataclass(frozen=True)
class Job:
    """A command that writes into the folder ``out``.

    Attributes:
        prepare: makes its inputs, and what lies in ``out`` before.
        arguments: of ``ucn``, without the folder of the case.
        suffixes: outputs whose bytes must not depend on kills; the others hold times.
        is_resumable: a run after a complete one succeeds; else it may say that the outputs exist.
        weight: share of the cases.
    """

    prepare: Callable[[Path], None]
    arguments: Callable[[Path], list[str]]
    suffixes: tuple[str, ...]
    is_resumable: bool = True
    weight: float = 1.0


def _prepare_images(folder: Path) -> None:
    write_images(folder / "in", 4, (48, 64))


def _extract(folder: Path, *more: str) -> list[str]:
    arguments = ["extract", str(folder / "in"), "-o", str(folder / "out" / "f.h5"), "--method", "sift"]
    return [*arguments, "--max-keypoints", "20", "--shard", "1", *more]


def _prepare_overwriting(folder: Path) -> None:
    """An output of other settings, and an unfinished run of yet others."""
    _prepare_images(folder)
    run(folder, [*_extract(folder), "--max-keypoints", "5"])
    merge = _kill_at_merging
    run(folder, [*_extract(folder), "--max-keypoints", str(_STARTING_OVER), "--overwrite"], merge)


def _prepare_features(folder: Path) -> None:
    _prepare_images(folder)
    run(folder, _extract(folder))
    (folder / "out" / "f.h5").rename(folder / "f.h5")


def _prepare_pairs(folder: Path) -> None:
    write_tiny_images(folder / "in", "1.png", "2.png", "3.png")
    (folder / "in" / "pairs.txt").write_text("1.png 2.png\n1.png 3.png\n2.png 3.png\n")


def _prepare_training(folder: Path) -> None:
    write_photos(folder / "in", [(80, 96), (90, 80)])
    (folder / "tiny.yaml").write_text(RECIPE)


def _train(folder: Path) -> list[str]:
    output = str(folder / "out" / "w.safetensors")
    arguments = ["train", str(folder / "tiny.yaml"), "--images", str(folder / "in"), "-o", output]
    return [*arguments, "--device", "cpu", "--resume"]


def _prepare_scene(folder: Path) -> None:
    make_scene(folder / "in")


def _reconstruct(folder: Path) -> list[str]:
    arguments = ["reconstruct", str(folder / "in"), "-o", str(folder / "out" / "m"), "--method", "sift"]
    return [*arguments, "--max-keypoints", "300", "--no-adjust", "--no-consensus"]


JOBS = {
    "extract": Job(_prepare_images, _extract, (".h5",), weight=4),
    "extract --overwrite": Job(
        _prepare_overwriting, lambda folder: _extract(folder, "--overwrite"), (".h5",), weight=2
    ),
    "pairs": Job(
        _prepare_features,
        lambda folder: [
            *("pairs", str(folder / "f.h5"), "-o", str(folder / "out" / "pairs.txt")),
            *("--matches", str(folder / "out" / "m.h5")),
        ],
        (".txt", ".h5"),
        is_resumable=False,
        weight=1.5,
    ),
    "match --pairs": Job(
        _prepare_pairs,
        lambda folder: [
            "match",
            "--pairs",
            str(folder / "in" / "pairs.txt"),
            "-o",
            str(folder / "out" / "m"),
        ],
        (".npz",),
        weight=1.5,
    ),
    "train --resume": Job(_prepare_training, _train, (".safetensors",), weight=0.3),
    "reconstruct": Job(
        _prepare_scene,
        _reconstruct,
        (".bin", ".txt", ".h5", ".db"),
        is_resumable=False,
        weight=0.15,
    ),
}


def _replace_slow_parts() -> None:
    """A matcher without weights, and few pairs to validate on."""
    from ucn.cli import _command
    from ucn.train import loop
    from ucn.train.sources import batches

    _command.load_matcher = lambda weights, config=None, device=None: FeatureShiftMatcher(config)  # type: ignore
    batches._VALIDATION_PAIRS, loop._CALIBRATION_PAIRS = 2, 2


def _kill_at_merging(_folder: Path) -> None:
    import ucn.folders.shards

    def stop(*_: object, **__: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    vars(ucn.folders.shards)["merge_features"] = stop


def _watch(folder: Path, at: int, number: int, count_to: int | None = None) -> None:
    """Sends this process a signal before its change number `at` of a file in ``out``; 0 counts them only."""
    place, seen = str(folder / "out"), 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in _CHANGES or not str(arguments[0]).startswith(place):
            return
        if event == "open" and not (isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
            return
        seen += 1
        if count_to is not None:
            os.pwrite(count_to, f"{seen:10}".encode(), 0)
        if seen == at:
            os.kill(os.getpid(), number)

    sys.addaudithook(hook)


def _list_modules(folder: Path) -> None:
    """Notes what the run has imported, in the end."""
    leave = os._exit

    def note(code: int) -> None:
        (folder / "modules").write_text("\n".join(sys.modules))
        leave(code)

    os._exit = note  # type: ignore[assignment]


def start(folder: Path, arguments: list[str], begin: Callable[[Path], None] | None = None) -> int:
    """Forks a process that runs the command; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(int(_LIMIT_S))
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        (folder / "out").mkdir(exist_ok=True)
        if begin is not None:
            begin(folder)
        sys.argv = ["ucn", *arguments]
        from ucn.cli import main

        code = 0
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    except BaseException as error:  # a traceback would be that of the parent's code
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(99)


def run(folder: Path, arguments: list[str], begin: Callable[[Path], None] | None = None) -> int:
    """Runs the command to its end; returns the exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(start(folder, arguments, begin), 0)[1])


def snapshot(folder: Path, suffixes: tuple[str, ...]) -> dict[str, bytes | None]:
    """The names of all files and folders in ``out``, with the bytes of those that are compared."""
    return {
        str(path.relative_to(folder / "out")): (
            _read(path) if path.is_file() and path.suffix in suffixes else None
        )
        for path in sorted((folder / "out").rglob("*"))
    }


def _read(path: Path) -> bytes:
    """The bytes of a file; a checkpoint's header is sorted, whose entries safetensors writes in any order."""
    content = path.read_bytes()
    if path.suffix != ".safetensors" or path.parent.name == "out":
        return content
    end = 8 + int.from_bytes(content[:8], "little")
    return json.dumps(json.loads(content[8:end]), sort_keys=True).encode() + content[end:]


class Cases:
    """The cases of one job: prepared once, run once without a kill, then copied for each case."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.job, self._folder = name, JOBS[name], folder
        # Commands note paths: every case runs in the same place.
        self.place, self._saved = folder / "case", folder / "saved"
        self.place.mkdir(parents=True)
        (self.place / "out").mkdir()
        self.job.prepare(self.place)
        shutil.copytree(self.place, self._saved)
        count = os.open(folder / "count", os.O_RDWR | os.O_CREAT)
        code = self._run(lambda folder: _list_modules(folder))
        for name in (self.place / "modules").read_text().split():
            with suppress(ImportError):
                importlib.import_module(name)  # once, instead of in every run
        self._reset()
        began = time.monotonic()
        code = code or self._run(lambda folder: _watch(folder, 0, 0, count))
        self.seconds = time.monotonic() - began
        self.changes = int(os.pread(count, 10, 0))
        os.close(count)
        if code:
            raise RuntimeError(f"{name} fails without a kill: {(self.place / 'log').read_text()}")
        self.expected = snapshot(self.place, self.job.suffixes)

    def _run(self, begin: Callable[[Path], None] | None = None) -> int:
        return run(self.place, self.job.arguments(self.place), begin)

    def _reset(self) -> None:
        shutil.rmtree(self.place)
        shutil.copytree(self._saved, self.place)

    def check_end(self, **details: Any) -> dict[str, Any]:
        """Runs the command again; says what is wrong afterwards."""
        code = self._run()
        said = (self.place / "log").read_text(errors="replace")
        found, fault = snapshot(self.place, self.job.suffixes), ""
        is_refused = bool(code) and not (not self.job.is_resumable and "exists already" in said)
        if is_refused:
            fault = f"refused: {said.strip()[-300:]}"
        elif found.keys() != self.expected.keys():
            fault = f"left over or missing: {sorted(found.keys() ^ self.expected.keys())}"
        elif found != self.expected:
            fault = f"other bytes: {[name for name in found if found[name] != self.expected[name]]}"
        return {"job": self.name, **details, "fault": fault}

    def injected(self, count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
        """Kills before changes that are spread over the run."""
        for k in range(count):
            at = 1 + int((k + rng.random()) * self.changes / count)
            self._reset()
            self._run(partial(_watch, at=at, number=signal.SIGKILL))
            yield self.check_end(kind="injected", at=f"change {at} of {self.changes}")

    def timed(self, count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
        """Kills after random times, some of them twice."""
        for _ in range(count):
            self._reset()
            delays = [rng.uniform(0, 1.05 * self.seconds) for _ in range(rng.choice((1, 1, 2)))]
            for delay in delays:
                child = start(self.place, self.job.arguments(self.place))
                time.sleep(delay)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            yield self.check_end(kind="random", at=", ".join(f"{delay:.3f} s" for delay in delays))

    def twice(self) -> Iterator[dict[str, Any]]:
        """A second run while the first is stopped in its middle; the first then ends well."""
        for share in (0.35, 0.7) if self.job.weight > 1 else (0.5,):
            self._reset()
            at = max(1, round(self.changes * share))
            arguments = self.job.arguments(self.place)
            child = start(self.place, arguments, partial(_watch, at=at, number=signal.SIGSTOP))
            _, status = os.waitpid(child, os.WUNTRACED)
            fault = "" if os.WIFSTOPPED(status) else "did not stop"
            code = self._run()
            said = (self.place / "log").read_text(errors="replace")
            words = " ".join(said.split())
            # Or the first has moved its outputs already.
            is_late = not self.job.is_resumable and "exists already" in words
            if not code or not (is_late or "another run is writing" in words):
                fault = f"the second run ended with {code}: {said.strip()[-300:]}"
            os.kill(child, signal.SIGCONT)
            first = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if not fault and first:
                fault = f"the first run ended with {first}"
            if not fault and snapshot(self.place, self.job.suffixes) != self.expected:
                fault = "the outputs of the first run differ"
            yield {"job": self.name, "kind": "twice", "at": f"change {at}", "fault": fault}

    def damaged(self, count: int, rng: random.Random) -> Iterator[dict[str, Any]]:
        """Damages a shard of a run that was killed when all were written."""
        for number in range(count):
            self._reset()
            self._run(_kill_at_merging)
            shard = sorted((self.place / "out" / "f.h5.parts").glob("*.h5"))[number % 4]
            content = bytearray(shard.read_bytes())
            kind = ("bits", "cut", "zeros", "head", "noise", "empty")[number % 6]
            if kind == "bits":
                for _ in range(rng.randint(1, 40)):
                    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            elif kind == "head":  # where HDF5 keeps its structure
                for _ in range(rng.randint(1, 8)):
                    content[rng.randrange(min(2048, len(content)))] = rng.randrange(256)
            elif kind == "zeros":
                begin = rng.randrange(len(content))
                content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))
            elif kind == "noise":
                content[:] = rng.randbytes(len(content))
            else:
                del content[0 if kind == "empty" else rng.randrange(len(content)) :]
            shard.write_bytes(content)
            yield self.check_end(kind="damaged", at=kind)


def _share(total: int) -> dict[str, int]:
    """Cases of all jobs, by their weights; at least `total` together."""
    whole = sum(job.weight for job in JOBS.values())
    return {name: -(-int(total * job.weight * 100) // int(whole * 100)) for name, job in JOBS.items()}


def main() -> None:
    """Runs all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--job", choices=JOBS, action="append")
    for kind in ("random", "injected", "damaged", "seed"):
        parser.add_argument(f"--{kind}", type=int, default=0)
    parser.add_argument("--twice", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    _replace_slow_parts()
    for name in given.job or JOBS:
        rng = random.Random(f"{given.seed} {name}")
        cases = Cases(name, given.folder / name.replace(" ", ""))
        families = [
            cases.injected(_share(given.injected)[name], rng),
            cases.timed(_share(given.random)[name], rng),
        ]
        if given.twice:
            families.append(cases.twice())
        if name == "extract":
            families.append(cases.damaged(given.damaged, rng))
        for family in families:
            for result in family:
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
