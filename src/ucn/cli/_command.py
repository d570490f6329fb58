"""A run of a command that matches two images: stages, images, weights, outputs and the report."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ucn.cli import _checks
from ucn.cli._options import PairOptions, build_config
from ucn.cli._outputs import Output, check_files
from ucn.cli._progress import Stages
from ucn.cli._report import (
    describe_run,
    format_files,
    format_seconds,
    format_weights,
    print_json,
    print_lines,
)
from ucn.files.writing import write_files

if TYPE_CHECKING:
    from ucn.config import MatchConfig
    from ucn.data.point_files.table import PointTable
    from ucn.matching.matcher import Matcher


def load_matcher(weights: str, config: MatchConfig | None = None, device: str | None = None) -> Matcher:
    """Loads weights onto a device.

    Raises:
        WeightsError: the weights are unknown or damaged.
        ValueError: there is no such device.
    """
    _import_torch()
    from ucn.matching.matcher import Matcher

    return Matcher.from_pretrained(weights, config=config, device=device)


def _import_torch() -> None:
    """Imports torch for a command that matches: it starts and ends sooner, and wastes no core."""
    if "torch" in sys.modules:
        return
    # Threads of OpenMP that wait actively would keep the cores from the bands of images of `runtime.threads`.
    # Not for training, whose many small operations wait for each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The garbage collector need not search torch's objects, now or at the exit.
    gc.disable()
    try:
        import torch  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()


class PairCommand:
    """One run of a command; the work is done in its context, the report follows.

    Attributes:
        stages: to be called when a stage begins.
        run: versions, weights, configuration and images, to be stored with the result.
        summary: the JSON report so far.
        written: output files.
    """

    def __init__(self, name: str, options: PairOptions, **settings: Any) -> None:
        """Starts nothing yet.

        Args:
            name: of the command.
            options: shared with the other commands.
            settings: fields of `MatchConfig` that the command sets itself; None for its default.

        Raises:
            ConfigError: a value is out of range.
        """
        self._config = build_config(
            options.max_side, consensus=options.consensus, use_views=options.views, **settings
        )
        self._options = options
        self.stages = Stages(is_quiet=options.json)
        self.run: dict[str, Any] = {}
        self.summary: dict[str, Any] = {"command": name}
        self._images: dict[str, str] = {}
        self.written: list[Path] = []

    def __enter__(self) -> Self:
        self.stages.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stages.__exit__(*exception)

    def check_outputs(self, *outputs: Output, inputs: Iterable[Path | None]) -> None:
        """As `check_files`."""
        check_files(outputs, inputs, self._options.overwrite)

    def check_images(
        self,
        image0: Path,
        image1: Path,
        *,
        masks: Iterable[Path | None] = (),
        points: Path | None = None,
    ) -> tuple[list[tuple[int, int]], PointTable | None]:
        """Checks images, masks, points and weights by their headers.

        An error comes before torch is imported, if the caller does not import it earlier. The matcher reads
        the images at the size at which it encodes them, drawings at full size.

        Returns:
            (H, W) of both images, upright, and the points of image 0; None where no file is given.
        """
        from ucn.data.points import read_image_points
        from ucn.weights import check_weights

        sizes = _checks.check_images((image0, image1))
        _checks.check_masks(masks, sizes)
        table = None if points is None else read_image_points(points, image0, sizes[0])
        check_weights(self._options.weights)
        _import_torch()  # its seconds count as starting, not as reading
        self._images = {"image0": str(image0), "image1": str(image1)}
        return sizes, table

    def load_matcher(self) -> Matcher:
        """Loads the weights; the next stage is matching."""
        self.stages("loading weights")
        matcher = load_matcher(self._options.weights, self._config, self._options.device)
        self.run = {**describe_run(matcher), **self._images}
        self.summary |= self.run
        self.stages("matching")
        return matcher

    def write(self, writers: Mapping[Path | None, Callable[[Path], object]]) -> None:
        """Writes all requested outputs, or none after an error."""
        self.stages("writing")
        self.written = write_files(writers, self._options.overwrite)

    def report(
        self, lines: Mapping[str, str], *, rows: Mapping[str, Any] | None = None, to_stderr: bool = False
    ) -> None:
        """Prints the summary and `rows` as JSON, or `lines`, weights, time and written files."""
        seconds = self.stages.report()
        if self._options.json:
            files = [str(path) for path in self.written]
            print_json({**self.summary, "seconds": seconds, "outputs": files, **(rows or {})})
            return
        shown = {
            "weights": format_weights(self.summary["weights"]),
            "time": format_seconds(seconds),
            "written": format_files(self.written),
        }
        own = {name: text for name, text in lines.items() if name not in shown}
        print_lines({**own, **shown, **lines}, to_stderr)
