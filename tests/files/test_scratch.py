"""Temporary files, locks, and what killed runs leave."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ucn.errors import OutputError
from ucn.files.scratch import clean_up, lock_output, scratch_file, scratch_folder
from ucn.files.writing import check_output, write_bytes_atomically


def run_killed(tmp_path: Path, code: str) -> None:
    """Runs statements about the output ``path`` in a process that kills itself where they say ``die()``."""
    begin = f"""
import os, signal
from pathlib import Path
from ucn.files.arrays import *
from ucn.files.reading import *
from ucn.files.writing import *
from ucn.files.scratch import lock_output, scratch_file, scratch_folder
from ucn.files.writing import write_together
path = Path({str(tmp_path / "out.bin")!r})
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", begin + code], check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no flock")
class TestRemains:
    """What killed runs leave, and what only looks like it."""

    @pytest.mark.parametrize(
        "code",
        [
            "write_bytes_atomically(path, lambda file: (file.write(b'half'), file.flush(), die()))",
            "with scratch_folder(path) as work: (work / 'x').write_text('half'); die()",
            "os.link = lambda *a, f=os.link: (f(*a), die()); write_bytes_atomically(path, b'whole')",
        ],
        ids=["file", "folder", "named already"],
    )
    def test_the_next_run_removes_them(self, tmp_path: Path, code: str) -> None:
        run_killed(tmp_path, code)
        assert len(list(tmp_path.glob(".ucn-*.part"))) == 1
        write_bytes_atomically(tmp_path / "out.bin", b"new", overwrite=True)
        assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]
        assert (tmp_path / "out.bin").read_bytes() == b"new"

    def test_outputs_that_were_moved_without_the_others_are_removed(self, tmp_path: Path) -> None:
        code = """
with write_together([path, path.with_name("b")], overwrite=False) as places:
    for place in places: place.write_text("new")
    os.link = lambda *a, f=os.link: (f(*a), die())
"""
        run_killed(tmp_path, code)
        assert (tmp_path / "out.bin").is_file() and not (tmp_path / "b").exists()
        clean_up(tmp_path / "out.bin")
        assert not (tmp_path / "out.bin").exists()
        run_killed(tmp_path, code)
        (tmp_path / "out.bin").write_text("mine since")
        clean_up(tmp_path / "out.bin")
        assert (tmp_path / "out.bin").read_text() == "mine since"
        assert not list(tmp_path.glob(".ucn-*.part"))

    def test_what_is_alive_linked_or_of_others_stays(self, tmp_path: Path) -> None:
        path, precious = tmp_path / "out.bin", tmp_path / "precious"
        precious.mkdir()
        (precious / "photo").write_text("x")
        with scratch_file(path) as file, scratch_folder(path) as folder:
            name = file.name
            clean_up(path)
            assert file.is_file() and folder.is_dir()
        assert not file.exists() and not folder.exists()
        (tmp_path / name).symlink_to(precious)
        (tmp_path / ".ucn-0123456789ab.part").write_text("another output's")
        write_bytes_atomically(path, b"new")
        assert (tmp_path / name).is_symlink() and (precious / "photo").is_file()
        assert (tmp_path / ".ucn-0123456789ab.part").is_file()

    def test_many_writers_of_one_file(self, tmp_path: Path) -> None:
        def write(number: int) -> None:
            write_bytes_atomically(tmp_path / "out.bin", bytes([number]) * 1000, overwrite=True)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(200)))
        content = (tmp_path / "out.bin").read_bytes()
        assert content == content[:1] * 1000
        assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]

    def test_links_to_nowhere_are_kept(self, tmp_path: Path) -> None:
        (tmp_path / "out.bin").symlink_to(tmp_path / "nowhere")
        with pytest.raises(OutputError, match="exists already"):
            check_output(tmp_path / "out.bin")


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no flock")
class TestLock:
    @pytest.mark.parametrize("is_folder", [False, True])
    def test_the_second_is_told(self, tmp_path: Path, is_folder: bool) -> None:
        path = tmp_path if is_folder else tmp_path / "out.bin"
        with lock_output(path, is_folder):
            with (
                pytest.raises(OutputError, match=rf"another run is writing {path}; wait until .* or give"),
                lock_output(path, is_folder),
            ):
                pytest.fail("both have the lock")
            with lock_output(tmp_path / "another"):
                pass
        assert list(tmp_path.iterdir()) == []
        with lock_output(path, is_folder):
            pass

    def test_it_dies_with_its_process(self, tmp_path: Path) -> None:
        run_killed(tmp_path, "with lock_output(path): die()")
        assert len(list(tmp_path.iterdir())) == 1
        with lock_output(tmp_path / "out.bin"):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_it_dies_before_its_workers(self, tmp_path: Path) -> None:
        code = """
with lock_output(path):
    worker = os.fork()
    if not worker:
        import time
        time.sleep(300)
    path.with_name("worker").write_text(str(worker))
    die()
"""
        run_killed(tmp_path, code)
        worker = tmp_path / "worker"
        try:
            with lock_output(tmp_path / "out.bin"):
                pass
        finally:
            os.kill(int(worker.read_text()), signal.SIGKILL)

    def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        with lock_output(tmp_path / "out.bin"):
            (lock,) = tmp_path.iterdir()
        lock.mkdir()
        with pytest.raises(OutputError, match=r"cannot lock .*out\.bin"), lock_output(tmp_path / "out.bin"):
            pytest.fail("there is no lock")
        assert lock.is_dir()
