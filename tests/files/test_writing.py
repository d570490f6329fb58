"""Atomic writing."""

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from ucn.errors import OutputError
from ucn.files import writing
from ucn.files.writing import check_output, write_bytes_atomically


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
        monkeypatch.setattr(writing, "check_output", lambda *_: None)
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
