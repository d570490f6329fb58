"""Several processes train as one: the same gradients, their own pairs, one output."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from support.distributed_worker import LOSSES, differentiate
from support.photo_cases import write_photos
from support.train_cases import CPU, make_config
from ucn.errors import ConfigError, UcnError
from ucn.train.distributed import SINGLE_PROCESS, ProcessGroup, join_process_group, open_shared_sources
from ucn.train.sources.batches import open_sources
from ucn.weights import load_weights

TESTS = Path(__file__).parents[1]


class Member(ProcessGroup):
    """One of several processes that are not there."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def environment(**changes: str) -> dict[str, str]:
    paths = [str(TESTS), str(TESTS.parent / "src")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | changes


def find_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def test_a_process_alone_changes_nothing() -> None:
    config = make_config(batch=3)
    model = torch.nn.Linear(2, 2)
    loss, count = torch.tensor(2.0), torch.tensor(5)
    assert SINGLE_PROCESS.average_gradients(model, loss, count) == (loss, count)
    assert SINGLE_PROCESS.localise(config) is config
    assert SINGLE_PROCESS.is_first and (SINGLE_PROCESS.rank, SINGLE_PROCESS.size) == (0, 1)
    assert (SINGLE_PROCESS.any(True), SINGLE_PROCESS.any(False)) == (True, False)
    assert SINGLE_PROCESS.broadcast("told") == "told" and SINGLE_PROCESS.gather(("a",)) == ("a",)


def test_each_process_draws_its_share() -> None:
    config = make_config(batch=6, sources=[{"name": "cub", "batch": 4}, {"name": "own"}])
    shares = [Member(rank, 2).localise(config) for rank in range(2)]
    for share in shares:
        assert share.batch == 3
        assert [source.batch for source in share.sources] == [2, None]
    assert shares[0].seed == config.seed != shares[1].seed
    assert Member(1, 2).localise(config) == shares[1] != Member(2, 3).localise(make_config(batch=6))
    with pytest.raises(ConfigError, match="batch must be a multiple of the 4 processes, got 6"):
        Member(0, 4).localise(config)
    with pytest.raises(ConfigError, match="batch must be a multiple of the 3 processes, got 4"):
        Member(0, 3).localise(config)


def test_processes_take_other_pairs_of_the_same_source(tmp_path: Path) -> None:
    write_photos(tmp_path, [(90, 120), (100, 80), (80, 80), (90, 90)])
    entry = {"name": "synthetic", "folder": str(tmp_path)}
    config = make_config(batch=4, sources=[entry, entry | {"loss": {"radius": 3.0}}])
    mixtures = [open_shared_sources(config, None, CPU, Member(rank, 2)) for rank in range(2)]
    alone = open_sources(config, None, CPU)
    choices = [[mixture._choose(step) for step in range(1, 20)] for mixture in (*mixtures, alone)]
    assert choices[0] == choices[1] == choices[2] and len(set(choices[0])) == 2
    batches = [mixture.sample_batch(1, torch.Generator().manual_seed(3)) for mixture in mixtures]
    assert [len(batch.names) for batch in batches] == [2, 2]


def test_one_process_needs_no_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join_process_group(None) is SINGLE_PROCESS
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert join_process_group("cuda:3") is SINGLE_PROCESS
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        UcnError, match=r"in 2 processes needs the package accelerate: pip install 'ucn\[train\]'"
    ):
        join_process_group("cpu")


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_devices_that_cannot_be_shared_out(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=f"device must be cpu or cuda for 2 processes .*, got {device}"):
        join_process_group(device)


def test_no_gpu_to_share_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch finds no GPU"):
        join_process_group("cuda")


@pytest.mark.parametrize("text", ["", "two", "0", "-1"])
def test_a_launcher_with_invalid_variables(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    with pytest.raises(ConfigError, match="WORLD_SIZE must be an integer of at least 1"):
        join_process_group(None)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two connected processes found, each with half of the batch."""
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("group")
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": find_port(),
    }
    command = [sys.executable, str(TESTS / "support" / "distributed_worker.py"), str(folder)]
    processes = [
        subprocess.Popen(
            command,
            env=environment(**shared, RANK=str(rank), LOCAL_RANK=str(rank)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_two_processes_have_the_gradients_of_one_with_the_whole_batch(
    loss: str, two_processes: list[dict[str, Any]]
) -> None:
    whole = differentiate(loss, "channel", SINGLE_PROCESS)
    assert any(value.abs().max() > 0.01 for name, value in whole.items() if "gradient" in name)
    for found in two_processes:
        for name, value in whole.items():
            theirs = found["tensors"][f"{loss} channel {name}"]
            torch.testing.assert_close(theirs, value, atol=1e-6, rtol=1e-6, msg=name)


@pytest.mark.slow
def test_two_processes_share_statistics_and_words(two_processes: list[dict[str, Any]]) -> None:
    first, second = two_processes
    for name, value in first["tensors"].items():
        assert torch.equal(value, second["tensors"][name]), name
    whole = differentiate("infonce", "batch", SINGLE_PROCESS)
    mean = (
        "buffer.head_norm.running_mean"  # the halves are equally large, so that theirs is the mean of means
    )
    torch.testing.assert_close(first["tensors"][f"infonce batch {mean}"], whole[mean], atol=1e-4, rtol=0)
    for rank, found in enumerate(two_processes):
        assert found["words"] == {
            "rank": rank,
            "size": 2,
            "device": "cpu",
            "nobody asks": False,
            "one asks": True,
            "told": {"rank": 0},
            "gathered": ("of 0", "of 1"),
        }


RECIPE = """
name: tiny
steps: 3
batch: 4
validate_every: 2
model: {dim: 8, transformer: none}
synthetic: {side: 64, points: 50}
"""


def launch(folder: Path, *options: str) -> list[str]:
    """The command that trains in two processes."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        find_port(),
    ]
    arguments = [str(folder / "tiny.yaml"), "--images", str(folder / "photos"), "--device", "cpu"]
    return [*launcher, "-m", "ucn", "train", *arguments, "-o", str(folder / "w.safetensors"), *options]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("accelerate")
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    write_photos(tmp_path / "photos", [(90, 120), (100, 80), (80, 80)])
    return tmp_path


@pytest.mark.slow
def test_the_command_under_torchrun_is_stopped_and_resumed(folder: Path) -> None:
    endless = ("--set", "steps=100000", "--set", "checkpoint_every=1", "--set", "schedule=constant")
    process = subprocess.Popen(launch(folder, *endless), env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        started = time.monotonic()
        while not (folder / "w.train" / "last.safetensors").exists() and time.monotonic() - started < 300:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode != 0
    assert errors.count("stopped by SIGTERM at step") == 1
    lines = _read_log(folder)
    assert (lines[0]["event"], lines[0]["step"]) == ("start", 0)
    assert (lines[-1]["event"], lines[-1]["signal"]) == ("stop", "SIGTERM")
    steps = lines[-1]["step"] + 1
    done = subprocess.run(
        launch(folder, *endless, "--set", f"steps={steps}", "--resume", "--json"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)  # one process prints
    assert (report["processes"], report["resumed_at"]) == (2, steps - 1)
    assert load_weights(folder / "w.safetensors").info.sha256 == report["sha256"]
    ends = [(line["event"], line["step"]) for line in _read_log(folder)[-2:]]
    assert ends == [("progress", steps), ("end", steps)]


def _read_log(folder: Path) -> list[dict[str, Any]]:
    """The lines of the log, which one process writes."""
    return [json.loads(line) for line in (folder / "w.train" / "log.jsonl").read_text().splitlines()]
