"""Lists of pairs: round trips, and lines that name no pair."""

from pathlib import Path

import pytest

from ucn.errors import DataError
from ucn.formats.hloc_pairs import read_pair_list, write_pair_list


def test_pairs_round_trip(tmp_path: Path) -> None:
    pairs = [("a.jpg", "s/b.jpg"), ("s/b.jpg", "c.jpg")]
    write_pair_list(tmp_path / "p.txt", pairs)
    assert (tmp_path / "p.txt").read_text() == "a.jpg s/b.jpg\ns/b.jpg c.jpg\n"
    with (tmp_path / "p.txt").open("a") as file:
        file.write("\n# a note\ns/b.jpg a.jpg\n")
    assert read_pair_list(tmp_path / "p.txt", ["a.jpg", "s/b.jpg", "c.jpg"]) == pairs


def test_list_of_pairs_has_no_spaces(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no spaces in names"):
        write_pair_list(tmp_path / "p.txt", [("a.jpg", "my photo.jpg")])
    assert not (tmp_path / "p.txt").exists()


@pytest.mark.parametrize("line", ["a.jpg", "a.jpg a.jpg", "a.jpg x.jpg", "a.jpg b.jpg c.jpg"])
def test_wrong_line_of_pairs_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "p.txt").write_text(f"a.jpg b.jpg\n{line}\n")
    with pytest.raises(DataError, match=r"p\.txt:2: expected the names of two images"):
        read_pair_list(tmp_path / "p.txt", ["a.jpg", "b.jpg", "c.jpg"])


def test_missing_list_of_pairs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the list of pairs"):
        read_pair_list(tmp_path / "p.txt", [])
