"""Features of all images of a folder in one file; a stopped run resumes.

`extract_folder` lists the images, splits them into shards (`ucn.folders.shards`) and gives the unfinished
ones to an executor, whose workers extract and write them (`ucn.folders.worker`). It then merges the shards
into one file (`ucn.formats.hloc`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ucn.data.io import IMAGE_SUFFIXES
from ucn.data.listing import list_images
from ucn.errors import ConfigError, DataError
from ucn.features.method import MethodInfo
from ucn.files.scratch import clean_up, lock_output
from ucn.files.writing import check_output, exists_error
from ucn.folders.shards import Shard, ShardFolder
from ucn.folders.worker import BatchExtractor, ExtractSettings, FeatureExtractionWorker
from ucn.formats.hloc import open_features

SHARD_SIZE = 16
"""Images per shard; a killed run loses the shards that it is working on."""

CONTENT_VERSION = 3
"""Counts changes of what is stored per image: version 2 added coarse maps, version 3 the keypoints of turned
photographs in pixels as stored."""

Progress = Callable[[int, int], None]
"""Called with (images done, all images)."""


@dataclass(frozen=True)
class ExtractionResult:
    """The outcome of a run.

    Attributes:
        path: the file of features.
        images: how many images it holds.
        resumed: how many of them an earlier run had extracted.
        failures: for each image that is missing the reason, by name.
    """

    path: Path
    images: int
    resumed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExtractionJob:
    """What an executor does.

    Attributes:
        folder: of the images.
        shards: unfinished ones.
        method: how features are extracted.
        settings: image size, keypoints, batch.
    """

    folder: Path
    shards: Sequence[Shard]
    method: MethodInfo
    settings: ExtractSettings


class Executor(Protocol):
    """Runs the workers that extract shards."""

    def run(self, job: ExtractionJob, on_images: Callable[[int], None]) -> None:
        """Extracts all shards, in any order; calls `on_images` with the number of images of each."""


@dataclass(frozen=True)
class LocalExecutor:
    """One worker in this process, on one device.

    Attributes:
        device: where the network runs; None takes CUDA where there is one, else the CPU.
    """

    device: str | None = None

    def run(self, job: ExtractionJob, on_images: Callable[[int], None]) -> None:
        """Extracts all shards."""
        extractor = BatchExtractor(job.method.load(self.device).extractor, job.settings)
        for shard in FeatureExtractionWorker(job.folder, extractor).run(job.shards):
            on_images(len(shard.names))


def extract_folder(
    folder: Path,
    output: Path,
    method: MethodInfo,
    settings: ExtractSettings | None = None,
    *,
    executor: Executor | None = None,
    shard: int = SHARD_SIZE,
    limit: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExtractionResult:
    """Extracts features of all images of a folder and writes one file in hloc's layout.

    Unfinished work is kept in ``OUTPUT.parts``; the same call resumes it, and returns at once where the file
    is complete. The file depends neither on the executor nor on interruptions.

    Args:
        folder: of images, searched recursively.
        output: the .h5 file.
        method: how features are extracted.
        settings: image size, keypoints, batch; the defaults when None.
        executor: where the work is done; in this process when None.
        shard: images per shard, at least 1.
        limit: the most images to take, in natural order of their names; None takes all.
        overwrite: replace an existing file, and the shards of an unfinished run with other settings.
        progress: called after each shard.

    Raises:
        DataError: there are no images, none is readable, an unfinished run with other settings is in the way,
            or ``OUTPUT.parts`` holds files that ucn did not write.
        OutputError: the file cannot be written, exists already with something else, or another run is
            writing it.
    """
    settings = settings or ExtractSettings()
    if shard < 1:
        raise ConfigError(f"shard must be at least 1 image, got {shard}")
    clean_up(output)
    check_output(output, overwrite=True)
    with lock_output(output):
        names = list_image_names(folder)[:limit]
        key = _build_key(folder, names, method, settings)
        meta = {
            "name": method.name,
            "key": key["method"],
            **{name: key[name] for name in ("settings", "images", "version")},
        }
        parts = ShardFolder(output, names, shard, key)
        if os.path.lexists(output) and not overwrite:
            finished = _find_finished(output, names, meta)
            parts.discard()
            return finished
        parts.open(start_over=overwrite)
        job = ExtractionJob(folder, parts.list_open(), method, settings)
        _run(job, executor or LocalExecutor(), parts, len(names), progress)
        images, failures = parts.finish(meta, overwrite)
    extracted = {name for item in job.shards for name in item.names}
    resumed = sum(name not in extracted and name not in failures for name in names)
    return ExtractionResult(output, images, resumed, failures)


def discard_remains(folder: Path, output: Path, method: MethodInfo, settings: ExtractSettings) -> None:
    """Removes what `extract_folder` left beside a complete output where it was killed in the end.

    Raises:
        DataError: the shards lie among files that ucn did not write.
        OutputError: another run is writing the output.
    """
    clean_up(output)
    with lock_output(output):
        names = list_image_names(folder)
        ShardFolder(output, names, SHARD_SIZE, _build_key(folder, names, method, settings)).discard()


def _build_key(
    folder: Path, names: Sequence[str], method: MethodInfo, settings: ExtractSettings
) -> dict[str, Any]:
    """Everything that features depend on."""
    return {
        "method": dict(method.key),
        "settings": settings.to_key(),
        "images": digest_images(folder, names),
        "version": CONTENT_VERSION,
    }


def _find_finished(output: Path, names: Sequence[str], meta: Mapping[str, Any]) -> ExtractionResult:
    """The outcome of the run that wrote an output, if that did the same; else `OutputError`: it is kept."""
    try:
        with open_features(output) as file:
            found = dict(file.meta)
            failures = found.pop("failures", {})
            if found == json.loads(json.dumps(meta)) and {*file.names, *failures} == set(names):
                return ExtractionResult(output, len(file), len(file), failures)
    except (DataError, TypeError):
        pass
    raise exists_error(output)


def _run(
    job: ExtractionJob, executor: Executor, parts: ShardFolder, total: int, progress: Progress | None
) -> None:
    """Extracts all shards of a job; `total` counts the images of all shards."""
    done = total - sum(len(shard.names) for shard in job.shards)

    def count(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, total)

    count(0)
    if job.shards:
        try:
            executor.run(job, count)
        except BaseException:
            parts.remove_if_empty()
            raise


def list_image_names(folder: Path) -> tuple[str, ...]:
    """Paths of all images below a folder, relative to it and in natural order, with / between folders.

    Hidden files and folders are left out.

    Raises:
        DataError: there is no such folder, it holds no image, or a name is not Unicode.
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; give a folder of images")
    found = list_images(folder, is_recursive=True)
    for name in found:
        if not name.isprintable():  # surrogates of bytes that are not UTF-8 are not
            raise DataError(f"{folder}: the name {name!r} has unprintable characters; rename the file")
    if not found:
        raise DataError(f"{folder} holds no image ({', '.join(IMAGE_SUFFIXES)}); give another folder")
    return tuple(found)


def digest_images(folder: Path, names: Sequence[str]) -> str:
    """A hash of names, sizes and modification times of images, which tells whether a folder has changed.

    The order of names does not count.
    """
    digest = hashlib.sha256()
    for name in sorted(names):
        status = (folder / name).stat()
        digest.update(json.dumps([name, status.st_size, status.st_mtime_ns]).encode())
    return digest.hexdigest()
