import os
from pathlib import Path

import numpy as np
import pytest

from ucn.errors import DataError, OutputError
from ucn.evaluate.core.cache import PredictionCache, digest_key

KEY = {"method": "a", "points": 3}


def test_records_survive(tmp_path: Path) -> None:
    store = PredictionCache(tmp_path / "new folder", "queries", KEY)
    assert 5 not in store
    for index in (5, 63, 64, 200):
        store.put(index, {"points": np.full((index % 3, 2), index, np.float32), "length": np.array(1.5)})
    store.flush()
    again = PredictionCache(tmp_path / "new folder", "queries", dict(reversed(KEY.items())))
    assert again.folder == store.folder
    assert [index in again for index in (5, 6, 63, 64, 200)] == [True, False, True, True, True]
    assert again.get(200)["points"].tolist() == [[200, 200], [200, 200]]
    assert again.get(63)["points"].shape == (0, 2)
    assert float(again.get(5)["length"]) == 1.5
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "0000.npz",
        "0001.npz",
        "0003.npz",
        "key.json",
    ]


def test_what_was_not_flushed_is_not_there(tmp_path: Path) -> None:
    store = PredictionCache(tmp_path, "queries", KEY)
    store.put(0, {"a": np.zeros(1)})
    assert 0 in store
    assert 0 not in PredictionCache(tmp_path, "queries", KEY)


def test_it_writes_by_itself_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucn.evaluate.core.cache._FLUSH_SECONDS", -1.0)
    PredictionCache(tmp_path, "queries", KEY).put(0, {"a": np.zeros(1)})
    assert 0 in PredictionCache(tmp_path, "queries", KEY)


def test_other_keys_have_other_folders(tmp_path: Path) -> None:
    names = {PredictionCache(tmp_path, "m", {**KEY, "points": count}).folder for count in range(4)}
    assert len(names) == 4
    assert digest_key(KEY) in PredictionCache(tmp_path, "m", KEY).folder.name


def test_a_folder_of_another_key_is_refused(tmp_path: Path) -> None:
    store = PredictionCache(tmp_path, "m", KEY)
    (store.folder / "key.json").write_text('{"method": "b",\n "points": 3}')
    with pytest.raises(DataError, match=r'of another key, \{"method": "b", .* expected .*"a"'):
        PredictionCache(tmp_path, "m", KEY)


def test_predictions_of_other_weights_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = PredictionCache(tmp_path, "m", {**KEY, "method": {"ucn": "0ld"}})
    old.put(0, {"a": np.zeros(1)})
    old.flush()
    PredictionCache(tmp_path, "other", {**KEY, "method": {"ucn": "0ld"}})
    (tmp_path / "m-damaged").mkdir()
    (tmp_path / "m-damaged" / "key.json").write_text("[1")
    (tmp_path / "m-listed").mkdir()
    (tmp_path / "m-listed" / "key.json").write_text("[1]")
    (tmp_path / "m-deep").mkdir()
    (tmp_path / "m-deep" / "key.json").write_text("[" * 100_000)
    (tmp_path / "m-pipe").mkdir()
    os.mkfifo(tmp_path / "m-pipe" / "key.json")
    (tmp_path / "m-file").write_text("")
    assert not caplog.records
    key = {**KEY, "method": {"ucn": "new"}}
    new = PredictionCache(tmp_path, "m", key)
    assert 0 not in new
    assert caplog.messages == [
        f'predictions in {old.folder} are not used: they are of {{"ucn": "0ld"}}, this run needs '
        f'{{"ucn": "new"}} (key {digest_key(key)})'
    ]
    PredictionCache(tmp_path, "m", key)
    PredictionCache(tmp_path, "m", {**key, "points": 4})
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"x" * 100])
def test_damaged_files_are_made_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = PredictionCache(tmp_path, "m", KEY)
    (store.folder / "0000.npz").write_bytes(content)
    assert 3 not in store
    assert "0000.npz is damaged" in caplog.text
    store.put(3, {"points": np.ones(2)})
    store.flush()
    assert PredictionCache(tmp_path, "m", KEY).get(3)["points"].tolist() == [1, 1]


def test_pickles_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = PredictionCache(tmp_path, "m", KEY)
    np.savez(store.folder / "0000.npz", **{"0/points": np.array([{"a": 1}], object)})  # type: ignore[arg-type]
    assert 0 not in store
    assert "is damaged" in caplog.text


def test_a_folder_of_others_is_kept(tmp_path: Path) -> None:
    folder = PredictionCache(tmp_path, "m", KEY).folder
    (folder / "key.json").rename(folder / "0000.npz")
    with pytest.raises(DataError, match=r"holds 0000\.npz and no key\.json, so it was not made by ucn"):
        PredictionCache(tmp_path, "m", KEY)


def test_missing_record(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no prediction of pair 7"):
        PredictionCache(tmp_path, "m", KEY).get(7)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="cannot make"):
        PredictionCache(tmp_path / "file", "m", KEY)
