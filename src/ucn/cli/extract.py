"""``ucn extract``: keypoints and descriptors of all images of a folder, in hloc's format."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ucn.cli import _folder
from ucn.cli import _options as opt
from ucn.cli._progress import CountBar
from ucn.cli._report import find_version, print_json, print_lines

if TYPE_CHECKING:
    from ucn.folders.extraction import ExtractionResult


@opt.expand_options
def run(
    folder: _folder.Folder,
    output: Annotated[Path, opt.output_option("Features: .h5.", show_default=True)] = Path("features.h5"),
    shard: Annotated[int, opt.count_option("Images written at once; a kill loses at most these.")] = 16,
    limit: Annotated[int | None, opt.count_option("Extract only the first N images.", "all")] = None,
    *,
    options: _folder.ExtractOptions,
) -> None:
    """Extract keypoints and descriptors of all images of a folder, in the format of hloc.

    An interrupted run resumes when the same command is run again.
    """
    from ucn.errors import OutputError

    if output.suffix.lower() not in (".h5", ".hdf5"):
        raise OutputError(f"cannot write features {output}: its name must end in .h5 or .hdf5")
    options.check_inputs(folder)
    from ucn.folders.extraction import extract_folder

    found = options.find_method()
    settings = options.build_settings(found)
    begin = time.perf_counter()
    with CountBar("images", is_quiet=options.json) as bar:
        extracted = extract_folder(
            folder,
            output,
            found,
            settings,
            executor=options.build_executor(),
            shard=shard,
            limit=limit,
            overwrite=options.overwrite,
            progress=bar,
        )
    seconds = time.perf_counter() - begin
    speed = (extracted.images - extracted.resumed) / seconds
    if not options.json:
        _print(extracted, found.title, seconds, speed)
        return
    print_json(
        {
            "command": "extract",
            "ucn": find_version(),
            "folder": str(folder),
            "output": str(output),
            "method": {"name": found.name, "title": found.title, "key": dict(found.key)},
            "settings": vars(settings),
            "executor": options.executor.value,
            "images": extracted.images,
            "resumed": extracted.resumed,
            "failures": dict(extracted.failures),
            "seconds": round(seconds, 3),
            "images_per_second": round(speed, 3),
        }
    )


def _print(extracted: ExtractionResult, title: str, seconds: float, speed: float) -> None:
    resumed = f", {extracted.resumed:,} of them by an earlier run" if extracted.resumed else ""
    print_lines(
        {
            "images": f"{extracted.images:,}{resumed}",
            "method": title,
            "time": f"{seconds:.1f} s, {speed:.2f} images per second",
            "written": str(extracted.path),
        }
    )
    _folder.warn_failures(extracted)
