"""A local Ray cluster of two workers, one of which is killed; and errors where Ray cannot run."""

import importlib
import os
import re
import signal
import sys
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import batch_cases
from support.batch_cases import SETTINGS, make_method, write_images
from ucn.errors import ConfigError
from ucn.features.method import wrap_extractor
from ucn.folders.extraction import extract_folder
from ucn.folders.ray_executor import RayExecutor, ShardActor, _share_cores, load_ray
from ucn.types import Features, ImageLike


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"extraction on Ray needs ray.*pip install 'ucn\[ray\]'"):
        load_ray()


def test_device_that_a_cluster_lacks() -> None:
    assert RayExecutor()._use_gpu({"CPU": 2, "GPU": 1})
    assert not RayExecutor()._use_gpu({"CPU": 2})
    assert not RayExecutor(device="cpu")._use_gpu({"CPU": 2, "GPU": 1})
    with pytest.raises(ConfigError, match="the cluster has none"):
        RayExecutor(device="cuda")._use_gpu({"CPU": 2})


@pytest.mark.parametrize(
    ("cores", "gpus", "threads"), [(16, 1, 16), (64, 8, 8), (128, 2, 16), (4, 3, 1), (2, 8, 1)]
)
def test_gpus_share_the_cores(cores: int, gpus: int, threads: int) -> None:
    assert _share_cores({"CPU": cores, "GPU": gpus}) == threads


def test_finished_shard_is_not_made_again(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images", 2)
    diary = tmp_path / "diary"
    worker = ShardActor(str(tmp_path / "images"), make_method(diary), SETTINGS, None, 1)
    row = {"path": str(tmp_path / "0.h5"), "names": names}
    assert worker(row) == worker(row) == {"images": 2}
    assert sorted(batch_cases.read_diary(diary)) == [0, 1]


class _PidExtractor(batch_cases.DiaryExtractor):
    """Also notes which process it is in, and waits for a second one, which may start late."""

    def extract(self, image: ImageLike) -> Features:
        folder = self._diary.parent
        (folder / f"pid-{os.getpid()}").touch()
        end = time.monotonic() + 60
        while len(list(folder.glob("pid-*"))) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        return super().extract(image)


@pytest.fixture(scope="module")
def cluster() -> Any:
    ray = pytest.importorskip("ray", reason="ray is not installed (extra ray)")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra ray)")
    pickle = importlib.import_module("ray.cloudpickle")
    for module in (batch_cases, sys.modules[__name__]):  # workers cannot import tests
        pickle.register_pickle_by_value(module)
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's own
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            runtime_env=environment,
        )
        yield ray
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_workers_of_which_one_is_killed(
    tmp_path: Path, cluster: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "images", 12)
    local = extract_folder(
        tmp_path / "images", tmp_path / "local.h5", make_method(tmp_path / "d"), SETTINGS, shard=1
    )
    diary = tmp_path / "noted" / "diary"
    diary.parent.mkdir()
    method = replace(make_method(diary), loader=wrap_extractor(_PidExtractor(diary, 0.2)))
    killed: list[int] = []

    def kill_one() -> None:
        parts = tmp_path / "ray.h5.parts"
        end = time.monotonic() + 120
        while time.monotonic() < end:
            pids = sorted(int(path.name[4:]) for path in diary.parent.glob("pid-*"))
            if len(pids) >= 2 and len(list(parts.glob("*.h5"))) >= 2:
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    result = extract_folder(
        tmp_path / "images",
        tmp_path / "ray.h5",
        method,
        SETTINGS,
        executor=RayExecutor(workers=2, device="cpu"),
        shard=1,
    )
    killer.join()
    assert killed, "no worker was killed"
    assert len(list(diary.parent.glob("pid-*"))) >= 3, "nobody took the place of the killed worker"
    assert (result.images, result.failures) == (local.images, local.failures) == (12, {})
    assert (tmp_path / "ray.h5").read_bytes() == (tmp_path / "local.h5").read_bytes()
    printed = capfd.readouterr()
    assert printed.out == ""
    assert not re.search("Progress bars|execution finished", printed.err)


@pytest.mark.slow
def test_more_workers_than_cores(tmp_path: Path, cluster: Any) -> None:
    write_images(tmp_path / "images", 4)
    with pytest.raises(ConfigError, match="workers must be at most 2, the cluster's cores, got 3"):
        extract_folder(
            tmp_path / "images",
            tmp_path / "f.h5",
            make_method(tmp_path / "diary"),
            SETTINGS,
            executor=RayExecutor(workers=3, device="cpu"),
            shard=1,
        )
