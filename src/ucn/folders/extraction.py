"""Features of all images of a folder in one file, by an engine of choice; a run that was stopped goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ucn.data.io import check_output
from ucn.errors import ConfigError
from ucn.features.extractor import Extractor
from ucn.folders.image_features import ExtractSettings, ImageDescriber
from ucn.folders.images import digest_images, list_images
from ucn.folders.pipeline import ShardMaker
from ucn.folders.shards import Shard, ShardFolder

SHARD = 16
"""Images that are written together; a run that is killed loses these, and those just being written."""

Progress = Callable[[int, int], None]
"""Called with (images done, all images)."""


@dataclass(frozen=True)
class Method:
    """How images are described, in a form that can be sent to another machine.

    Attributes:
        name: for people.
        key: everything that its features depend on, as plain JSON values.
        make: makes the extractor, for a device or, with None, for the best there is; it is called once in
            each process that works.
    """

    name: str
    key: Mapping[str, Any]
    make: Callable[[str | None], Extractor]


@dataclass(frozen=True)
class Extracted:
    """What a run gave.

    Attributes:
        path: of the features.
        images: how many it has.
        resumed: how many of them an earlier run had made.
        failures: reasons by name of the images that are missing.
    """

    path: Path
    images: int
    resumed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Does the work of shards, in whatever order."""

    def run(
        self,
        folder: Path,
        shards: Sequence[Shard],
        method: Method,
        settings: ExtractSettings,
        on_images: Callable[[int], None],
    ) -> None:
        """Makes all shards; calls `on_images` with the number of images of each that is done."""


@dataclass(frozen=True)
class LocalEngine:
    """One after another in this process, on one device; what comes next is read meanwhile.

    Attributes:
        device: where the network runs; None takes the best there is.
        threads: that read images and find keypoints; None takes one for each core, up to 16.
    """

    device: str | None = None
    threads: int | None = None

    def run(
        self,
        folder: Path,
        shards: Sequence[Shard],
        method: Method,
        settings: ExtractSettings,
        on_images: Callable[[int], None],
    ) -> None:
        """Makes all shards."""
        describer = ImageDescriber(method.make(self.device), settings)
        for shard in ShardMaker(folder, describer, self.threads).make(shards):
            on_images(len(shard.names))


def extract_folder(
    folder: Path,
    output: Path,
    method: Method,
    settings: ExtractSettings | None = None,
    *,
    engine: Engine | None = None,
    shard: int = SHARD,
    limit: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Extracted:
    """Describes all images of a folder and writes one file in hloc's layout.

    Until it is complete, what is done lies in ``OUTPUT.parts``; the same call goes on from there. The file
    does not depend on the engine, nor on how often the work was stopped.

    Args:
        folder: of images, with those in folders below.
        output: the .h5 file.
        method: how images are described.
        settings: size, keypoints, batch; the defaults when None.
        engine: who does the work; this process when None.
        shard: images that are written together, at least 1.
        limit: at most the first so many images by name; None takes all.
        overwrite: replace an existing file, and what an unfinished run with other settings has left.
        progress: called after each shard.

    Raises:
        DataError: no images, none of them readable, or an unfinished run with other settings is in the way.
        OutputError: the file cannot be written, or exists already.
    """
    settings = settings or ExtractSettings()
    if shard < 1:
        raise ConfigError(f"shard must be at least 1 image, got {shard}")
    check_output(output, overwrite)
    names = list_images(folder)[:limit]
    key = {"method": dict(method.key), "settings": asdict(settings), "images": digest_images(folder, names)}
    parts = ShardFolder(output, names, shard, key, begin_again=overwrite)
    waiting = parts.list_open()
    open_names = {name for item in waiting for name in item.names}
    done = len(names) - len(open_names)

    def count(images: int) -> None:
        nonlocal done
        done += images
        if progress is not None:
            progress(done, len(names))

    count(0)
    if waiting:
        try:
            (engine or LocalEngine()).run(folder, waiting, method, settings, count)
        except BaseException:
            parts.leave()
            raise
    meta = {"name": method.name, "settings": asdict(settings), "images": key["images"], "key": key["method"]}
    images, failures = parts.finish(meta, overwrite)
    resumed = sum(name not in open_names and name not in failures for name in names)
    return Extracted(output, images, resumed, failures)
