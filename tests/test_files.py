"""Safe reading, atomic writing, the cache of recent items and suggestions of names."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import h5py
import numpy as np
import pytest

from ucn import files
from ucn.errors import DataError, OutputError
from ucn.files import (
    RecentItems,
    check_output,
    clean_up,
    lock_output,
    pack_h5,
    pack_npz,
    parse_numbers,
    read_binary,
    read_h5,
    read_lines,
    read_npz,
    read_text,
    scratch_file,
    scratch_folder,
    suggest,
    write_bytes_atomically,
)


def test_importing_is_quick() -> None:
    code = "import sys, ucn.files; assert not {'torch', 'numpy', 'h5py'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


class TestWriting:
    def test_writes_bytes_and_callbacks(self, tmp_path: Path) -> None:
        write_bytes_atomically(tmp_path / "a", b"1")
        write_bytes_atomically(tmp_path / "b", lambda file: file.write(b"2"))
        assert [p.read_bytes() for p in sorted(tmp_path.iterdir())] == [b"1", b"2"]

    def test_rights_follow_the_umask(self, tmp_path: Path) -> None:
        write_bytes_atomically(tmp_path / "a", b"1")
        (tmp_path / "b").write_bytes(b"1")
        assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode

    def test_existing_file_is_kept_unless_overwrite(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"old")
        with pytest.raises(OutputError, match=r"a exists already and was kept; use overwrite=True"):
            write_bytes_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        write_bytes_atomically(path, b"new", overwrite=True)
        assert path.read_bytes() == b"new"

    def test_failure_leaves_nothing_and_keeps_the_old(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(b"old")

        def fail(file: BinaryIO) -> None:
            file.write(b"half")
            raise OSError(28, "No space left on device")

        with pytest.raises(OutputError, match="no space left on device"):
            write_bytes_atomically(path, fail, overwrite=True)
        assert [p.name for p in tmp_path.iterdir()] == ["a"]
        assert path.read_bytes() == b"old"

    def test_other_failures_leave_nothing_either(self, tmp_path: Path) -> None:
        def fail(_: BinaryIO) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_bytes_atomically(tmp_path / "a", fail)
        assert list(tmp_path.iterdir()) == []

    def test_file_that_appears_meanwhile_is_kept(self, tmp_path: Path) -> None:
        def another_process(file: BinaryIO) -> None:
            file.write(b"ours")
            (tmp_path / "a").write_bytes(b"theirs")

        with pytest.raises(OutputError, match="exists already"):
            write_bytes_atomically(tmp_path / "a", another_process)
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"theirs"]

    def test_file_that_appears_after_every_check_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a").write_bytes(b"theirs")
        monkeypatch.setattr(files, "check_output", lambda *_: None)
        with pytest.raises(OutputError, match=r"a exists already and was kept; use overwrite=True"):
            write_bytes_atomically(tmp_path / "a", b"ours")
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"theirs"]

    def test_file_systems_without_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        write_bytes_atomically(tmp_path / "a", b"1")
        with pytest.raises(OutputError, match="exists already"):
            write_bytes_atomically(tmp_path / "a", b"2")
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"1"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_names_too_long(self, tmp_path: Path, overwrite: bool) -> None:
        for path in (tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "a"):
            with pytest.raises(OutputError, match=r"cannot write .*: file name too long"):
                check_output(path, overwrite)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="no does not exist; create it first"):
            check_output(tmp_path / "no" / "a")

    def test_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "f").touch()
        with pytest.raises(OutputError, match="f is not a folder"):
            check_output(tmp_path / "f" / "a")

    def test_path_that_is_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="it is a folder; give the name of a file"):
            check_output(tmp_path, overwrite=True)

    def test_folder_not_writable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "access", lambda *_: False)  # as root every folder is writable
        with pytest.raises(OutputError, match="is not writable"):
            check_output(tmp_path / "a")


class TestParseNumbers:
    def test_blanks_and_commas_separate(self) -> None:
        assert parse_numbers("1 -2.5,\t3e2", 3, "a:1") == [1.0, -2.5, 300.0]
        assert parse_numbers("", None, "a:1") == []

    def test_another_count(self) -> None:
        with pytest.raises(DataError, match="a:1: expected 3 numbers, got 2: '1 2'"):
            parse_numbers("1 2", 3, "a:1")

    @pytest.mark.parametrize("cell", ["x", "1_0", "0x10", "1;2"])
    def test_not_a_number(self, cell: str) -> None:
        with pytest.raises(DataError, match=f"a:1: expected a number, got '{cell}'"):
            parse_numbers(f"1 {cell}", None, "a:1")

    @pytest.mark.parametrize("cell", ["nan", "inf", "-Infinity", "1e999"])
    def test_not_finite(self, cell: str) -> None:
        with pytest.raises(DataError, match=f"a:1: expected a finite number, got '{cell}'"):
            parse_numbers(f"{cell} 1", 2, "a:1")


class TestReadLines:
    def test_numbers_from_one_blank_ones_excluded(self, tmp_path: Path) -> None:
        path = tmp_path / "l.txt"
        path.write_bytes("\ufeff a \r\n\r\nb\n \nc".encode())
        assert list(read_lines(path, "list")) == [(1, "a"), (3, "b"), (5, "c")]

    def test_only_newlines_end_a_line(self, tmp_path: Path) -> None:
        path = tmp_path / "l.txt"
        texts = ["a\u2028b", "c\x0bd", "e\x85f", "g\x1ch"]
        path.write_bytes("\n".join(texts).encode())
        assert list(read_lines(path, "list")) == list(enumerate(texts, start=1))

    def test_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "l.txt").write_bytes(b"\xff\xfe")
        with pytest.raises(DataError, match=r"cannot read list .*l\.txt: it is not UTF-8 text") as caught:
            list(read_lines(tmp_path / "l.txt", "list"))
        assert caught.value.path == tmp_path / "l.txt"


class TestReadText:
    def test_without_the_byte_order_mark(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes("\ufeffä\r\n".encode())
        assert read_text(tmp_path / "a.txt", "list") == "ä\r\n"

    def test_within_the_limit(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("12345")
        with pytest.raises(DataError, match=r"a\.txt has 5 bytes, the limit for list is 4; "):
            read_text(tmp_path / "a.txt", "list", limit=4)


class TestReadBinary:
    def test_within_the_limit(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"12345")
        assert read_binary(tmp_path / "a", "scan", limit=5) == b"12345"
        with pytest.raises(DataError, match=r"a has 5 bytes, the limit for scan is 4; "):
            read_binary(tmp_path / "a", "scan", limit=4)

    def test_missing_and_folder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"cannot read scan .*gone: no such file; check the path"):
            read_binary(tmp_path / "gone", "scan")
        with pytest.raises(DataError, match="it is a folder; put the file itself in its place"):
            read_binary(tmp_path, "scan")

    @pytest.mark.timeout(10)
    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
    def test_pipes_and_devices_are_not_read(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pairs.csv")
        (tmp_path / "zero.csv").symlink_to("/dev/zero")
        for name in ("pairs.csv", "zero.csv"):
            with pytest.raises(DataError, match=rf"{name}: it is not a regular file; put the file") as caught:
                read_binary(tmp_path / name, "list")
            assert caught.value.path == tmp_path / name


class TestArchives:
    def test_npz_round_trip(self, tmp_path: Path) -> None:
        (tmp_path / "a.npz").write_bytes(pack_npz({"x": np.arange(3), "y": np.float32(0.5)}))
        arrays = read_npz(tmp_path / "a.npz")
        assert arrays["x"].tolist() == [0, 1, 2]
        assert arrays["y"] == 0.5

    def test_h5_reads_the_first_group_with_the_array(self, tmp_path: Path) -> None:
        content = pack_h5("pair", {"points0": np.ones((2, 2)), "scores": np.zeros(2)}, {"pair_score": 0.25})
        (tmp_path / "a.h5").write_bytes(content)
        values = read_h5(tmp_path / "a.h5", ["points0", "absent"], "matches")
        assert set(values) == {"points0", "pair_score"}
        with pytest.raises(DataError, match=r"a\.h5 does not hold keypoints: no group with keypoints"):
            read_h5(tmp_path / "a.h5", ["keypoints"], "keypoints")

    @pytest.mark.parametrize("content", [b"", b"PK\x05\x06", b"text"])
    def test_damaged(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot read .*a: damaged or no \.h5 .*; write it again"):
            read_h5(tmp_path / "a", ["x"], "matches")
        if content != b"PK\x05\x06":
            with pytest.raises(DataError, match=r"cannot read .*a as \.npz: .*; write it again"):
                read_npz(tmp_path / "a")

    def test_what_unpacks_to_too_much_is_refused_unread(self, tmp_path: Path) -> None:
        zeros = np.zeros(100_000)
        (tmp_path / "a.npz").write_bytes(pack_npz({"x": zeros}))
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("pair/x", data=zeros, compression="gzip")
        for name in ("a.npz", "a.h5"):
            assert (tmp_path / name).stat().st_size < 20_000
        message = r"a\.npz has 800,128 bytes, the limit for arrays is 20,000; check that it is the right file"
        with pytest.raises(DataError, match=message):
            read_npz(tmp_path / "a.npz", 20_000)
        with pytest.raises(DataError, match=r"a\.h5: .*x has 800,000 bytes, the limit for arrays is 20,000"):
            read_h5(tmp_path / "a.h5", ["x"], "arrays", 20_000)
        with pytest.raises(DataError, match=r"the limit for \.npz is 100"):
            read_npz(tmp_path / "a.npz", 100)
        with pytest.raises(DataError, match=r"the limit for \.h5 is 100"):
            read_h5(tmp_path / "a.h5", ["x"], "arrays", 100)
        assert read_npz(tmp_path / "a.npz", 10**6)["x"].shape == zeros.shape

    def test_single_array_is_no_archive(self, tmp_path: Path) -> None:
        np.save(tmp_path / "a.npy", np.zeros(3))
        with pytest.raises(DataError, match=r"a\.npy as \.npz: it holds a single array; write it again"):
            read_npz(tmp_path / "a.npy")


class TestSuggest:
    def test_closest_name(self) -> None:
        assert suggest("stesp", ["dim", "steps"]) == "; did you mean 'steps'?"
        assert suggest("stesp", iter(["steps"])) == "; did you mean 'steps'?"

    def test_nothing_close(self) -> None:
        assert suggest("xyz", ["steps"]) == ""
        assert suggest("", ["steps"]) == ""
        assert suggest("steps", []) == ""


class TestRecentItems:
    def test_drops_the_least_recently_used(self) -> None:
        cache: RecentItems[int, int] = RecentItems(2)
        made: list[int] = []

        def make(key: int) -> int:
            made.append(key)
            return 10 * key

        for key in (1, 2, 1, 3, 1, 2):  # 3 drops 2, since 1 was used later
            assert cache.get_or_make(key, lambda key=key: make(key)) == 10 * key  # type: ignore[misc]
        assert made == [1, 2, 3, 2]
        assert len(cache) == 2

    def test_getting_is_a_use_and_looking_is_not(self) -> None:
        cache: RecentItems[str, int] = RecentItems(2)
        cache.put("a", 1)
        cache.put("b", 2)
        assert cache.get("a") == 1
        assert "b" in cache
        cache.put("c", 3)
        assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)

    def test_empty(self) -> None:
        cache: RecentItems[str, int] = RecentItems()
        assert cache.get("a") is None
        assert len(cache) == cache.held_bytes == 0
        cache.remove(lambda key: True)

    def test_none_is_a_value(self) -> None:
        cache: RecentItems[str, None] = RecentItems(2)
        cache.put("a", None)
        assert cache.get_or_make("a", lambda: pytest.fail("made twice")) is None

    def test_bytes_are_limited(self) -> None:
        cache: RecentItems[str, bytes] = RecentItems(max_bytes=10, count_bytes=len)
        for key in "abc":
            cache.put(key, b"1234")
        assert ("a" in cache, "b" in cache, "c" in cache) == (False, True, True)
        assert cache.held_bytes == 8
        cache.put("b", b"1")  # replaced, and used last
        assert cache.held_bytes == 5
        cache.put("d", b"1234567")
        assert ("b" in cache, "c" in cache, cache.held_bytes) == (True, False, 8)

    def test_the_last_items_stay_however_large(self) -> None:
        cache: RecentItems[str, bytes] = RecentItems(max_bytes=1, count_bytes=len, min_items=2)
        for key in "abc":
            cache.put(key, b"1234")
        assert ("a" in cache, len(cache), cache.held_bytes) == (False, 2, 8)
        one: RecentItems[str, bytes] = RecentItems(max_bytes=1, count_bytes=len)
        one.put("a", b"1234")
        assert one.get("a") == b"1234"

    def test_removing_by_key(self) -> None:
        cache: RecentItems[tuple[str, int], bytes] = RecentItems(max_bytes=99, count_bytes=len)
        for key in (("a", 0), ("b", 0), ("a", 1)):
            cache.put(key, b"12")
        cache.remove(lambda key: key[0] == "a")
        assert (len(cache), cache.held_bytes, cache.get(("b", 0))) == (1, 2, b"12")

    def test_a_copy_is_empty_and_has_the_limits(self) -> None:
        cache: RecentItems[int, bytes] = RecentItems(3, 10, len, 2)
        cache.put(1, b"1234")
        again: RecentItems[int, bytes] = pickle.loads(pickle.dumps(cache))
        assert (len(again), again.held_bytes) == (0, 0)
        for key in range(5):
            again.put(key, b"12345678")
        assert len(again) == 2

    def test_a_failed_make_keeps_nothing(self) -> None:
        cache: RecentItems[int, int] = RecentItems(3)
        with pytest.raises(ZeroDivisionError):
            cache.get_or_make(1, lambda: 1 // 0)
        assert cache.get_or_make(1, lambda: 2) == 2

    def test_threads(self) -> None:
        cache: RecentItems[int, bytes] = RecentItems(5, 60, len)
        start = threading.Barrier(8)

        def work(seed: int) -> None:
            start.wait()
            for step in range(500):
                key = (seed * 7 + step * step) % 11
                assert len(cache.get_or_make(key, lambda key=key: bytes(key + 1))) == key + 1  # type: ignore[misc]
                if step % 50 == 0:
                    cache.remove(lambda key: key % 2 == 0)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert len(cache) <= 5
        assert cache.held_bytes == sum(key + 1 for key in range(11) if key in cache)

    def test_limits_that_make_no_sense(self) -> None:
        for max_items, min_items in ((0, 1), (None, 0)):
            with pytest.raises(ValueError, match="max_items and min_items must be 1 or more"):
                RecentItems(max_items, min_items=min_items)
        with pytest.raises(ValueError, match="max_bytes needs count_bytes"):
            RecentItems(max_bytes=3)


def run_killed(tmp_path: Path, code: str) -> None:
    """Runs statements about the output ``path`` in a process that kills itself where they say ``die()``."""
    begin = f"""
import os, signal
from pathlib import Path
from ucn.files import *
from ucn.files import lock_output, scratch_file, scratch_folder, write_together
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
