"""The journal of finished pairs: what is resumed, refused and kept."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.pair_cases import write_tiny_images
from ucn.errors import DataError, OutputError
from ucn.folders.image_pairs import ImagePair
from ucn.folders.pair_journal import FORMAT, JOURNAL, PairJournal, PairRecord, stamp_images

KEY = {"weights": "ab", "config": {"ratio": 1.0, "keypoints": "corners"}, "verify": None}


@pytest.fixture
def pair(tmp_path: Path) -> ImagePair:
    write_tiny_images(tmp_path / "in", "a.png", "b.png")
    return ImagePair(("a.png", "b.png"), (tmp_path / "in/a.png", tmp_path / "in/b.png"))


def write_record(folder: Path, pair: ImagePair) -> PairRecord:
    record = PairRecord(*pair.names, "a__b.npz", 40, None, 0.5, 1.25)
    stamps = stamp_images(pair)
    assert stamps is not None
    with PairJournal(folder, KEY, ()) as journal:
        assert journal.find(pair) is None
        journal.add(record, stamps)
    return record


def test_records_come_back(tmp_path: Path, pair: ImagePair) -> None:
    record = write_record(tmp_path / "out", pair)
    again = PairJournal(tmp_path / "out", KEY, [tmp_path / "out" / "a__b.npz"])
    assert again.find(pair) == record
    swapped = ImagePair((pair.names[1], pair.names[0]), (pair.paths[1], pair.paths[0]))
    assert again.find(swapped) is None
    first, second, third = map(json.loads, (tmp_path / "out" / JOURNAL).read_text().splitlines())
    assert first == {"format": FORMAT, **KEY}
    assert second == {"outputs": ["a__b.npz"]}
    assert third["matches"] == 40


def test_a_changed_or_missing_image_is_not_done(tmp_path: Path, pair: ImagePair) -> None:
    write_record(tmp_path / "out", pair)
    pair.paths[0].write_bytes(b"other")
    assert PairJournal(tmp_path / "out", KEY, ()).find(pair) is None
    pair.paths[0].unlink()
    assert stamp_images(pair) is None
    assert PairJournal(tmp_path / "out", KEY, ()).find(pair) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2],  # a killed run
        lambda line: line.replace("40", '"many"'),
        lambda line: line.replace("[[", "[["[:1]),
        lambda line: "[]",
        lambda line: "[" * 100_000,
        lambda line: line.replace("40", "1e999"),
    ],
)
def test_a_damaged_line_is_a_pair_to_do(
    tmp_path: Path, pair: ImagePair, damage: Callable[[str], str]
) -> None:
    record = write_record(tmp_path / "out", pair)
    path = tmp_path / "out" / JOURNAL
    first, second, third = path.read_text().splitlines()
    path.write_text(f"{first}\n{second}\n{damage(third)}")
    with PairJournal(tmp_path / "out", KEY, ()) as journal:
        assert journal.find(pair) is None
        journal.add(record, stamp_images(pair) or [])
    assert PairJournal(tmp_path / "out", KEY, ()).find(pair) == record


def test_other_settings_are_refused_and_named(tmp_path: Path, pair: ImagePair) -> None:
    write_record(tmp_path / "out", pair)
    other = {**KEY, "config": {"ratio": 0.8, "keypoints": "corners"}}
    with pytest.raises(DataError, match=r"other settings \(config.ratio 1.0, now 0.8\); repeat that run"):
        PairJournal(tmp_path / "out", other, ())
    many = {"weights": "cd", "config": {"ratio": 0.8, "keypoints": "grid"}, "verify": {"seed": 0}}
    with pytest.raises(DataError, match=r"weights 'ab', now 'cd'; config.ratio .*; …\)"):
        PairJournal(tmp_path / "out", many, ())
    assert PairJournal(tmp_path / "out", other, (), start_over=True).find(pair) is None
    assert PairJournal(tmp_path / "out", other, ()).find(pair) is None


def test_starting_over_forgets(tmp_path: Path, pair: ImagePair) -> None:
    write_record(tmp_path / "out", pair)
    assert PairJournal(tmp_path / "out", KEY, (), start_over=True).find(pair) is None


def test_outputs_of_nobody_are_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a__b.npz").write_text("mine")
    with pytest.raises(OutputError, match=r"a__b\.npz exists already and was kept"):
        PairJournal(tmp_path / "out", KEY, [tmp_path / "out" / "a__b.npz"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a__b.npz"]
    PairJournal(tmp_path / "out", KEY, [tmp_path / "out" / "other.npz"])
    assert (tmp_path / "out" / "a__b.npz").read_text() == "mine"


def test_outputs_of_earlier_runs_are_ours(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "drawing.jpg"
    PairJournal(out, KEY, [out / "a__b.npz", elsewhere])
    for path in (out / "a__b.npz", out / "c__d.npz", elsewhere):
        path.write_text("")
    PairJournal(out, KEY, [out / "a__b.npz"])
    PairJournal(out, KEY, [elsewhere])  # a run of other pairs forgets nothing
    with pytest.raises(OutputError, match=r"c__d\.npz exists already"):
        PairJournal(out, KEY, [out / "a__b.npz", out / "c__d.npz"])
    out.rename(tmp_path / "moved")
    PairJournal(tmp_path / "moved", KEY, [tmp_path / "moved" / "a__b.npz"])
    PairJournal(tmp_path / "moved", KEY, [tmp_path / "moved" / "c__d.npz"], start_over=True)


@pytest.mark.parametrize("text", ["", "not JSON\n", "[]\n", '{"format": "other"}\n'])
@pytest.mark.parametrize("start_over", [False, True])
def test_a_foreign_journal_is_kept(tmp_path: Path, text: str, start_over: bool) -> None:
    (tmp_path / JOURNAL).write_text(text)
    with pytest.raises(OutputError, match="is no journal of ucn"):
        PairJournal(tmp_path, KEY, (), start_over=start_over)
    assert (tmp_path / JOURNAL).read_text() == text


def test_a_link_is_not_followed(tmp_path: Path, pair: ImagePair) -> None:
    write_record(tmp_path / "out", pair)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / JOURNAL).symlink_to(tmp_path / "out" / JOURNAL)
    with pytest.raises(OutputError, match="is no journal of ucn"):
        PairJournal(tmp_path / "other", KEY, ())


def test_wrong_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="it is a file; give a folder"):
        PairJournal(tmp_path / "file", KEY, ())
    with pytest.raises(OutputError, match=r"cannot create the folder .*no such file"):
        PairJournal(tmp_path / "no" / "folder", KEY, ())
