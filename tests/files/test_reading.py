"""Files that strangers may have made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ucn.errors import DataError
from ucn.files.reading import parse_numbers, read_binary, read_lines, read_text


def test_importing_is_quick() -> None:
    modules = "ucn.files.arrays, ucn.files.writing"
    code = f"import sys, {modules}; assert not {{'torch', 'numpy', 'h5py'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


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
