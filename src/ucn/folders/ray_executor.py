"""Shards extracted on a Ray cluster: one actor per GPU or core, streamed by Ray Data.

Actors run the same worker as a single process, and write the same files. When one dies, Ray starts another
and gives it the unfinished shard; files are written atomically, so no partial shard is left. All machines
must see the folder of images and that of the output under the same paths.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucn.errors import ConfigError
from ucn.features.method import MethodInfo
from ucn.folders.extraction import ExtractionJob
from ucn.folders.shards import Shard
from ucn.folders.worker import MAX_THREADS, BatchExtractor, ExtractSettings, FeatureExtractionWorker


def load_ray() -> Any:
    """Imports Ray with Ray Data; raises `ConfigError` where it is not installed."""
    for name in ("ray", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"extraction on Ray needs {name}, which is not installed: pip install 'ucn[ray]'"
            )
    import ray
    import ray.data

    return ray


@contextmanager
def _quiet_ray() -> Iterator[None]:
    """Silences Ray's progress messages, and keeps its messages of dead workers off stdout."""
    logger = logging.getLogger("ray.data")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):  # stdout may carry JSON
            yield
    finally:
        logger.setLevel(before)


class ShardActor:
    """A Ray actor: one worker, shard after shard."""

    def __init__(
        self, folder: str, method: MethodInfo, settings: ExtractSettings, device: str | None, threads: int
    ) -> None:
        import torch

        if device == "cpu":
            torch.set_num_threads(threads)  # each actor has its own cores
        extractor = BatchExtractor(method.load(device).extractor, settings)
        self._worker = FeatureExtractionWorker(Path(folder), extractor, threads)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Extracts a shard, unless another actor finished it before it died."""
        shard = Shard(Path(row["path"]), tuple(row["names"]))
        if not shard.path.exists():
            deque(self._worker.run([shard]), maxlen=0)  # exhausts the generator
        return {"images": len(shard.names)}


@dataclass(frozen=True)
class RayExecutor:
    """Workers on a Ray cluster, or on this machine as one.

    Attributes:
        workers: actors; None takes one per GPU or, without GPUs, one per core.
        device: cpu or cuda; None takes GPUs where the cluster has some.
    """

    workers: int | None = None
    device: str | None = None

    def run(self, job: ExtractionJob, on_images: Callable[[int], None]) -> None:
        """Extracts all shards."""
        ray = load_ray()
        is_own = not ray.is_initialized()
        with _quiet_ray():
            if is_own:
                ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
            try:
                for row in self._plan(ray, job).iter_rows():
                    on_images(row["images"])
            finally:
                if is_own:
                    ray.shutdown()

    def _plan(self, ray: Any, job: ExtractionJob) -> Any:
        """The work as a Ray data set, with one block per shard: only unfinished shards are repeated."""
        resources = ray.cluster_resources()
        use_gpu = self._use_gpu(resources)
        available = int(resources.get("GPU" if use_gpu else "CPU", 0))
        workers = self.workers or available
        if workers > available:
            raise ConfigError(
                f"workers must be at most {available}, the cluster's {'GPUs' if use_gpu else 'cores'}, got "
                f"{workers}; request fewer or start more nodes"
            )
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        items = [{"path": str(shard.path.resolve()), "names": list(shard.names)} for shard in job.shards]
        return ray.data.from_items(items, override_num_blocks=len(items)).map(
            ShardActor,
            fn_constructor_args=(
                str(job.folder.resolve()),
                job.method,
                job.settings,
                "cuda" if use_gpu else self.device or "cpu",
                _share_cores(resources) if use_gpu else 1,
            ),
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(items))),
            **({"num_gpus": 1} if use_gpu else {"num_cpus": 1}),
        )

    def _use_gpu(self, resources: dict[str, float]) -> bool:
        has_gpu = resources.get("GPU", 0) >= 1
        is_requested = self.device is not None and self.device.startswith("cuda")
        if is_requested and not has_gpu:
            raise ConfigError(f"device '{self.device}' needs a GPU, and the cluster has none; use 'cpu'")
        return has_gpu if self.device is None else is_requested


def _share_cores(resources: dict[str, float]) -> int:
    """Reader threads per GPU of a cluster, whose machines are assumed to be alike."""
    return max(1, min(MAX_THREADS, int(resources.get("CPU", 1) / resources["GPU"])))
