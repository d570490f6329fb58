"""Shards made by a Ray cluster: an actor for each GPU or core, streamed by Ray Data.

Actors run the same code as one process does, and write the same files. When one dies, Ray starts another and
gives it the shard that was not finished; a shard that was half written was never seen. All machines must see
the folder of images and that of the output under the same paths.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucn.errors import ConfigError
from ucn.folders.extraction import Method
from ucn.folders.image_features import ExtractSettings, ImageDescriber
from ucn.folders.pipeline import MAX_THREADS, ShardMaker
from ucn.folders.shards import Shard


def load_ray() -> Any:
    """The package with its data part; raises `ConfigError` where it is not installed."""
    for name in ("ray", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"--engine ray needs {name}, which is not installed: pip install 'ucn[ray]'")
    import ray
    import ray.data

    return ray


@contextmanager
def _quiet_ray() -> Iterator[None]:
    """Keeps Ray from saying what the command says itself, and what it says of dead workers off stdout."""
    logger = logging.getLogger("ray.data")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):  # where there may be JSON for a program
            yield
    finally:
        logger.setLevel(before)


class ShardWorker:
    """What each actor does: one extractor, shard after shard."""

    def __init__(
        self, folder: str, method: Method, settings: ExtractSettings, device: str | None, threads: int
    ) -> None:
        import torch

        if device == "cpu":
            torch.set_num_threads(threads)  # each actor has its own cores
        describer = ImageDescriber(method.make(device), settings)
        self._maker = ShardMaker(Path(folder), describer, threads)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Makes a shard, unless another actor did before it died."""
        shard = Shard(Path(row["path"]), tuple(row["names"]))
        if not shard.path.exists():
            deque(self._maker.make([shard]), maxlen=0)  # nothing is kept: it is the work that counts
        return {"images": len(shard.names)}


@dataclass(frozen=True)
class RayEngine:
    """A cluster, or this machine as one.

    Attributes:
        workers: actors; None takes one for each GPU or, without, for each core.
        device: cpu or cuda; None takes GPUs where the cluster has some.
    """

    workers: int | None = None
    device: str | None = None

    def run(
        self,
        folder: Path,
        shards: Sequence[Shard],
        method: Method,
        settings: ExtractSettings,
        on_images: Callable[[int], None],
    ) -> None:
        """Makes all shards."""
        ray = load_ray()
        is_own = not ray.is_initialized()
        with _quiet_ray():
            if is_own:
                ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
            try:
                for row in self._plan(ray, folder, shards, method, settings).iter_rows():
                    on_images(row["images"])
            finally:
                if is_own:
                    ray.shutdown()

    def _plan(
        self, ray: Any, folder: Path, shards: Sequence[Shard], method: Method, settings: ExtractSettings
    ) -> Any:
        """The work as a stream: a block a shard, so that only unfinished ones are done again."""
        resources = ray.cluster_resources()
        use_gpu = self._use_gpu(resources)
        there = int(resources.get("GPU" if use_gpu else "CPU", 0))
        asked = self.workers or there
        if asked > there:
            raise ConfigError(
                f"--workers {asked}: the cluster has {there} {'GPUs' if use_gpu else 'cores'}; ask for "
                "fewer or start more nodes"
            )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        items = [{"path": str(shard.path.resolve()), "names": list(shard.names)} for shard in shards]
        return ray.data.from_items(items, override_num_blocks=len(items)).map(
            ShardWorker,
            fn_constructor_args=(
                str(folder.resolve()),
                method,
                settings,
                "cuda" if use_gpu else self.device or "cpu",
                _share_cores(resources) if use_gpu else 1,
            ),
            compute=ray.data.ActorPoolStrategy(size=min(asked, len(shards))),
            **({"num_gpus": 1} if use_gpu else {"num_cpus": 1}),
        )

    def _use_gpu(self, resources: dict[str, float]) -> bool:
        has_gpu = resources.get("GPU", 0) >= 1
        wants = self.device is not None and self.device.startswith("cuda")
        if wants and not has_gpu:
            raise ConfigError(f"--device {self.device}: the cluster has no GPU; use --device cpu")
        return has_gpu if self.device is None else wants


def _share_cores(resources: dict[str, float]) -> int:
    """Threads that read for each GPU of a cluster, whose machines are taken to be alike."""
    return max(1, min(MAX_THREADS, int(resources.get("CPU", 1) / resources["GPU"])))
