"""All outputs of a command are written, or none is changed."""

from pathlib import Path

import pytest

from ucn.cli._outputs import Output, check_files
from ucn.errors import OutputError
from ucn.files import write_files, write_together


def test_files_move_together_to_their_names(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    outputs = [tmp_path / "a.png", tmp_path / "other" / "b.csv"]
    with write_together(outputs, overwrite=False) as places:
        assert [place.name for place in places] == ["a.png", "b.csv"]
        for place in places:
            place.write_text(place.name)
        assert not any(path.exists() for path in outputs)
    assert [path.read_text() for path in outputs] == ["a.png", "b.csv"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.png", "b.csv", "other"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_nothing_is_touched_where_something_goes_wrong(tmp_path: Path, error: type[BaseException]) -> None:
    outputs = [tmp_path / "a", tmp_path / "b"]
    outputs[0].write_text("before")
    with pytest.raises(error), write_together(outputs, overwrite=True) as places:
        places[0].write_text("after")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert outputs[0].read_text() == "before"


def test_what_came_meanwhile_is_kept(tmp_path: Path) -> None:
    outputs = [tmp_path / "a", tmp_path / "b"]
    with (
        pytest.raises(OutputError, match=r"b exists already"),
        write_together(outputs, overwrite=False) as places,
    ):
        for place in places:
            place.write_text("mine")
        outputs[1].write_text("theirs")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert outputs[1].read_text() == "theirs"


def test_errors_name_the_output_and_not_where_it_was_written_first(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="disk full") as caught,
        write_together([tmp_path / "a"], overwrite=False) as places,
    ):
        raise OutputError(f"cannot write {places[0]}: disk full")
    assert str(caught.value) == f"cannot write {tmp_path / 'a'}: disk full"


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"cannot write .*no/a: .*no does not exist; create it first"),
        write_together([tmp_path / "no" / "a"], overwrite=False),
    ):
        pytest.fail("there is no place to write to")


def test_only_requested_files_are_written(tmp_path: Path) -> None:
    def write(path: Path) -> object:
        return path.write_text("result")

    def fail(path: Path) -> object:
        raise ValueError("no image")

    output, draw = tmp_path / "r.csv", tmp_path / "r.png"
    with pytest.raises(ValueError, match="no image"):
        write_files({output: write, draw: fail}, overwrite=False)
    assert list(tmp_path.iterdir()) == []
    assert write_files({None: fail}, overwrite=False) == []
    assert write_files({output: write, None: fail, draw: write}, overwrite=False) == [output, draw]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.csv", "r.png"]
    with pytest.raises(OutputError, match=r"r\.png exists already"):
        write_files({draw: write}, overwrite=False)


def test_suffixes_are_checked(tmp_path: Path) -> None:
    def check(output: str | None, draw: str | None) -> None:
        paths = [None if name is None else tmp_path / name for name in (output, draw)]
        check_files([Output(paths[0], "matches", (".csv", ".npz")), Output(paths[1])], (), overwrite=False)

    check("a.csv", "a.png")
    check(None, None)
    with pytest.raises(OutputError, match=r"matches .*must end in \.csv"):
        check("a.txt", None)
    with pytest.raises(OutputError, match=r"image .*b\.txt: its name must end in"):
        check(None, "b.txt")
    with pytest.raises(OutputError, match="two outputs have the same name"):
        check_files([Output(tmp_path / "a.png"), Output(tmp_path / "a.png")], (), overwrite=False)
