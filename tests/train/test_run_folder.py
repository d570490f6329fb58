"""The folder of a run: where it lies, what is refused, what is taken away."""

import os
from pathlib import Path

import pytest

from ucn.errors import OutputError
from ucn.train.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.beside(tmp_path / "my best.v2.safetensors")


def fill(folder: RunFolder) -> None:
    folder.tensorboard.mkdir(parents=True)
    for path in (
        folder.path / "last.safetensors",
        folder.path / "best.safetensors",
        folder.path / "notes.txt",
        folder.path / ".ucn-mine.part",
        folder.path / ".ucn-0123456789ab.part",
        folder.tensorboard / "events.out.tfevents.1.host",
        folder.tensorboard / "mine",
    ):
        path.write_text("old")
    folder.log.write_text('{"event": "start", "step": 0}\n')


def names(folder: RunFolder) -> list[str]:
    return sorted(str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file())


def test_it_lies_beside_the_weights(folder: RunFolder, tmp_path: Path) -> None:
    assert folder.path == tmp_path / "my best.v2.train"
    folder.check(resume=False, overwrite=False)
    assert not folder.path.exists() and not folder.has_checkpoint
    folder.prepare(is_new=True)
    assert folder.path.is_dir() and names(folder) == []


def test_a_run_that_stopped_is_not_lost_by_accident(folder: RunFolder) -> None:
    fill(folder)
    assert folder.has_checkpoint
    with pytest.raises(OutputError, match=r"my best\.v2\.train holds an .*resume=True.*overwrite=True"):
        folder.check(resume=False, overwrite=False)
    folder.check(resume=True, overwrite=False)
    folder.check(resume=False, overwrite=True)


def test_a_new_run_takes_away_the_old_one_and_nothing_else(folder: RunFolder) -> None:
    fill(folder)
    folder.prepare(is_new=False)
    kept = [".ucn-mine.part", "best.safetensors", "last.safetensors", "log.jsonl", "notes.txt"]
    events = ["tensorboard/events.out.tfevents.1.host", "tensorboard/mine"]
    assert names(folder) == kept + events
    folder.prepare(is_new=True)
    assert names(folder) == [".ucn-mine.part", "notes.txt", "tensorboard/mine"]


@pytest.mark.parametrize("name", ["log.jsonl", "best.safetensors", "tensorboard/events.out.tfevents.1.host"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_kept(folder: RunFolder, name: str, overwrite: bool) -> None:
    (folder.path / name).parent.mkdir(parents=True)
    (folder.path / name).write_text("mine")
    with pytest.raises(OutputError, match=rf"holds {name}, which no run of ucn wrote .*; move"):
        folder.check(resume=True, overwrite=overwrite)


def test_links_are_not_followed(folder: RunFolder, tmp_path: Path) -> None:
    events = tmp_path / "other"
    events.mkdir()
    (events / "events.out.tfevents.1.host").write_text("mine")
    folder.path.mkdir()
    folder.log.touch()  # as a kill leaves it before the first line
    folder.tensorboard.symlink_to(events)
    folder.check(resume=False, overwrite=True)
    folder.prepare(is_new=True)
    assert (events / "events.out.tfevents.1.host").read_text() == "mine"
    folder.tensorboard.unlink()
    folder.path.rmdir()
    folder.path.symlink_to(events)
    with pytest.raises(OutputError, match="it is a link"):
        folder.check(resume=False, overwrite=True)


def test_what_is_no_folder_is_refused(folder: RunFolder) -> None:
    folder.path.write_text("a file")
    with pytest.raises(OutputError, match="it is not a folder"):
        folder.check(resume=False, overwrite=True)
    with pytest.raises(OutputError, match=r"cannot write to .*my best"):
        folder.prepare(is_new=True)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_locked_folder_is_refused(folder: RunFolder) -> None:
    folder.path.mkdir(mode=0o500)
    with pytest.raises(OutputError, match="permission denied"):
        folder.check(resume=False, overwrite=False)
