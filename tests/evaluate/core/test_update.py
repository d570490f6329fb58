"""Some methods evaluated, the others of a page: the same as all evaluated, or refused."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from support.driving_cases import DRIVE, HW
from support.evaluation_cases import write_sequence
from support.update_cases import KINDS, Bench, make_bench
from ucn.errors import DataError
from ucn.evaluate.core import update
from ucn.evaluate.core.report import Report, to_dict, write_csv, write_markdown, write_report
from ucn.evaluate.core.update import Page, read_page, update_report
from ucn.evaluate.evaluations import EVALUATIONS

CHANGING = ("command", "notes", "skipped", "earlier_runs")
RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(request.param, tmp_path, monkeypatch)


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench("hpatches", tmp_path, monkeypatch)


def keep(report: Report, folder: Path) -> Page:
    """Writes a report as the command does, and reads it again."""
    folder.mkdir(exist_ok=True)
    write_report(report, folder, overwrite=True)
    return read_page(folder / f"{report.name}.json", report.name)


def edit(page: Page, change: Callable[[dict[str, Any]], object]) -> Page:
    """Changes the JSON of a page, and reads it again."""
    values = json.loads(page.path.read_text())
    change(values)
    page.path.write_text(json.dumps(values).replace("Infinity", "1e999"))
    return read_page(page.path, values["benchmark"])


def assert_same(found: Any, expected: Any, place: str = "") -> None:
    """Equal JSON, numbers to 1e-6."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), place
        for key, value in expected.items():
            assert_same(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1.1e-6), place
    else:
        assert found == expected, place


def assert_whole(updated: Report, whole: Report) -> None:
    """An updated report equals one of all methods, but for what it says of its making."""
    plain, expected = (
        {key: value for key, value in to_dict(report).items() if key not in CHANGING}
        for report in (updated, whole)
    )
    assert_same(plain, expected)
    assert updated.tables == whole.tables
    assert [plot.suffix for plot in updated.plots] == [plot.suffix for plot in whole.plots]
    for plot, other in zip(updated.plots, whole.plots, strict=True):
        # JSON rounds to 1e-6, so the edge of a line may be a little lighter or darker.
        images = [np.asarray(PIL.Image.open(io.BytesIO(p.png)), np.int64) for p in (plot, other)]
        assert np.abs(images[0] - images[1]).max() <= 8
    assert len(write_csv(updated).splitlines()) == len(write_csv(whole).splitlines())
    lines = write_markdown(whole).splitlines()
    assert [line for line in lines if line.startswith("|")] == [
        line for line in write_markdown(updated).splitlines() if line.startswith("|")
    ]


@pytest.mark.slow
def test_a_method_in_place_of_another(bench: Bench, tmp_path: Path) -> None:
    before = bench.measure({"sift": 0, "mine": 1, "last": 2})
    page = keep(before, tmp_path / "out")
    updated = bench.measure({"mine": 0}, page)
    whole = bench.measure({"sift": 0, "mine": 0, "last": 2})
    assert_whole(updated, whole)
    assert to_dict(updated)["figures"] != to_dict(before)["figures"]
    assert updated.notes == before.notes
    assert updated.plots[0].png != before.plots[0].png
    again = bench.measure({"mine": 1}, keep(updated, tmp_path / "out"))
    assert_whole(again, before)


@pytest.mark.slow
@pytest.mark.parametrize("bench", ["hpatches", "reconstruction"], indirect=True)
def test_a_method_is_added_at_the_end(bench: Bench, tmp_path: Path) -> None:
    first = bench.measure({"mine": 0, "last": 2})
    updated = bench.measure({"sift": 1, "mine": 0}, keep(first, tmp_path / "out"))
    assert_whole(updated, bench.measure({"mine": 0, "last": 2, "sift": 1}))
    begin = f"ucn evaluate {bench.name} --data DIR --methods"
    assert updated.command == f"{begin} mine,last -o out\n{begin} sift,mine -o out"
    assert updated.command in write_markdown(updated)
    again = bench.measure({"sift": 1, "mine": 0}, keep(updated, tmp_path / "out"))
    assert again.command == updated.command


def test_other_data_and_settings_are_refused(bench: Bench, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"limit": 1} if bench.name == "reconstruction" else {"limit": 2}
    page = keep(bench.measure({"mine": 0, "last": 2}, **settings), tmp_path / "out")
    with pytest.raises(DataError, match=r"is of another run: .* was .*, now it is .*; use the same data and"):
        bench.measure({"mine": 0}, page)
    if bench.name != "pair-score":
        with pytest.raises(DataError, match="is of another run: seed was 0, now it is 7"):
            bench.measure({"mine": 0}, page, seed=7, **settings)
    if bench.name in ("hpatches", "kitti-raw-points", "reconstruction"):
        with pytest.raises(DataError, match=r"refinements was \[true, false\], now it is \[false\]"):
            bench.measure({"mine": 0}, page, refinements=(False,), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("bench", ["hpatches", "pair-score"], indirect=True)
def test_older_pages_have_no_hashes(bench: Bench, tmp_path: Path) -> None:
    page = keep(bench.measure({"mine": 0, "last": 2}), tmp_path / "out")

    def make_old(values: dict[str, Any]) -> None:
        for key in ("data_sha256", "protocol_sha256", "refinements", "jobs", "class_masks"):
            values.pop(key, None)

    old = edit(page, make_old)
    assert_whole(bench.measure({"mine": 1}, old), bench.measure({"mine": 1, "last": 2}))
    if bench.name == "hpatches":
        with pytest.raises(DataError, match="'figures' of 'last' was"):
            bench.measure({"mine": 0}, old, refinements=(False,))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_published_pages_can_be_read(path: Path) -> None:
    values = json.loads(path.read_text(encoding="utf-8"))
    if "benchmark" not in values:
        pytest.skip("not a page of `ucn evaluate`")
    page = read_page(path, path.stem)
    assert list(page.methods) == [method["name"] for method in values["methods"]]


@pytest.mark.parametrize("name", ["hpatches", "hpatches-matches", "pair-score"])
def test_data_of_the_same_size_are_distinguished(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(name, tmp_path, monkeypatch)
    page = keep(bench.measure({"mine": 0, "last": 2}), tmp_path / "out")
    write_sequence(tmp_path / "planes", "v_two", (4, 12))
    with pytest.raises(DataError, match="another run: data_sha256 was"):
        bench.measure({"mine": 0}, page)
    if name == "hpatches":
        with pytest.raises(DataError, match=r"another run: (points|points_sha256) was"):
            bench.measure({"mine": 0}, edit(page, lambda values: values.pop("data_sha256")))


def test_refusals_come_before_the_work(
    points: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = keep(points.measure({"mine": 0, "last": 2}), tmp_path / "out")
    place = "ucn.evaluate.points.report.predict_points"
    monkeypatch.setattr(place, lambda *_, **__: pytest.fail("worked first"))
    for settings, name in (
        ({"limit": 3}, "pairs"),
        ({"seed": 1}, "seed"),
        ({"refinements": (True,)}, "refinements"),
        ({"max_side": 40}, "protocol_sha256"),
    ):
        with pytest.raises(DataError, match=f"another run: {name}"):
            points.measure({"mine": 0}, page, **settings)


@pytest.mark.slow
def test_class_masks_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench("kitti-raw-points", tmp_path, monkeypatch)
    mask = tmp_path / "masks" / DRIVE / f"{0:010d}.png"
    mask.parent.mkdir(parents=True)
    PIL.Image.fromarray(np.full(HW, 7, np.uint8)).save(mask)
    bench.masks = tmp_path / "masks"
    page = keep(bench.measure({"mine": 0, "last": 2}), tmp_path / "out")
    updated = bench.measure({"mine": 1}, page)
    assert_whole(updated, bench.measure({"mine": 1, "last": 2}))
    assert {row["table"] for row in updated.rows} == {"dense", "keypoints", "baseline", "class"}
    bench.masks = None
    with pytest.raises(DataError, match="class_masks was true, now it is false"):
        bench.measure({"mine": 0}, page)


@pytest.mark.slow
def test_versions_of_both_runs_are_noted(points: Bench, tmp_path: Path) -> None:
    first = points.measure({"mine": 0, "last": 2, "third": 1}, jobs=1)
    old = replace(first, versions={"torch": "1.0"}, device="an abacus")
    updated = points.measure({"mine": 0}, keep(old, tmp_path / "out"))
    note = "last, third: from an earlier run with torch 1.0 on an abacus, jobs 1"
    assert updated.notes == (note,)
    assert f"- {note}" in write_markdown(updated)
    assert updated.versions == first.versions
    # The note outlives later updates, without what they evaluate; what came from this run needs none.
    later = points.measure({"third": 1}, keep(updated, tmp_path / "out"))
    assert later.notes == (note.replace("last, third", "last"),)
    latest = points.measure({"third": 1}, keep(replace(later, device="a slide rule"), tmp_path / "out"))
    assert [line.partition(":")[0] for line in latest.notes] == ["last", "mine"]
    assert "an abacus" in latest.notes[0] and "a slide rule" in latest.notes[1]
    done = points.measure({"mine": 0, "last": 2}, keep(latest, tmp_path / "out"))
    assert done.notes == ()
    assert "earlier_runs" not in done.values


@pytest.mark.slow
def test_skipped_methods(points: Bench, tmp_path: Path) -> None:
    first = points.measure({"mine": 0, "last": 2})
    assert first.skipped == {"xfeat": "not here"}
    page = keep(replace(first, skipped={"new": "no file", "other": "no package"}), tmp_path / "out")
    updated = points.measure({"new": 1}, page)
    assert updated.skipped == {"other": "no package", "xfeat": "not here"}
    # One that cannot be evaluated now, but could be then, keeps its rows.
    assert "last" not in update_report(replace(updated, skipped={"last": "its file is gone"}), page).skipped


def test_camera_motion_cannot_be_updated() -> None:
    for name in ("kitti-raw", "kitti-odometry"):
        assert "pair by pair" in EVALUATIONS[name].update_obstacle
    assert not any(EVALUATIONS[name].update_obstacle for name in KINDS)


def test_no_page_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no .*hpatches\.json to update; evaluate all methods first"):
        read_page(tmp_path / "hpatches.json", "hpatches")
    (tmp_path / "hpatches.json").mkdir()
    with pytest.raises(DataError, match="it is a folder"):
        read_page(tmp_path / "hpatches.json", "hpatches")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "it is not JSON"),
        (b"\xff\xfe{}", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (b"[]", "it is not a report of 'hpatches'"),
        (b'{"benchmark": 3}', "it is not a report of 'hpatches'"),
        (b'{"benchmark": "cub"}', "it is not a report of 'hpatches'"),
        (b'{"benchmark": "hpatches"}', "'command' is null"),
    ],
)
def test_files_that_are_no_pages(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hpatches.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"cannot be updated: {re.escape(message)}.*; evaluate all methods"):
        read_page(path, "hpatches")


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hpatches.json").write_bytes(b" " * 200)
    monkeypatch.setattr(update, "_MAX_BYTES", 100)
    with pytest.raises(DataError, match="has 200 bytes, the limit for report is 100"):
        read_page(tmp_path / "hpatches.json", "hpatches")


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        inner: Any = values
        for key in path[:-1]:
            inner = inner[key]
        if to is _DROP:
            del inner[path[-1]]
        else:
            inner[path[-1]] = to

    return change


_DROP = object()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Report]:
    """A bench with its predictions, and the report of two methods."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as monkeypatch:
        bench = make_bench("hpatches", folder, monkeypatch)
        return bench, bench.measure({"mine": 0, "last": 2}, limit=2, cache=folder / "cache")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("command", to=3), "'command' is 3"),
        (_set("device", to=_DROP), "'device' is null"),
        (_set("versions", to=["torch"]), "'versions' is "),
        (_set("methods", 0, to="sift"), "'methods' or 'earlier_runs' is damaged"),
        (_set("methods", 0, "titel", to=""), "'methods' or 'earlier_runs' is damaged"),
        (_set("earlier_runs", to=[{"jobs": 1}]), "'methods' or 'earlier_runs' is damaged"),
        (_set("figures", to=3), "'figures' is 3"),
        (_set("figures", 2, to=[1]), "figures[2] is [1]"),
        (_set("figures", 2, "method", to="strange"), "(wrong: 'strange')"),
        (_set("figures", 2, "method", to=7), "(wrong: 7)"),
        (_set("figures", 2, "per_point", to=_DROP), "(wrong: 'per_point')"),
        (_set("figures", 2, "per_point", to="0.5"), "(wrong: 0.5)"),
        (_set("figures", 2, "per_point", to=True), "(wrong: true)"),
        (_set("figures", 2, "per_point", to=10**400), "(wrong: int too large"),
        (_set("figures", 2, "points", to=1.5), "(wrong: 1.5)"),
        (_set("figures", 2, "use_refinement", to=1), "(wrong: 1)"),
        (_set("figures", -1, to=_DROP), "'figures' of 'last' was"),
        (_set("figures", -1, "group", to="mars"), "'figures' of 'last' was"),
        (_set("figures", -1, "limit", to=4.0), "'figures' of 'last' was"),
        (_set("points_sha256", to="ab"), "points_sha256 was ab, now it is "),
        (_set("unit", to="alpha"), "unit was alpha, now it is px"),
        (_set("curves", to=_DROP), "curves[0] is null"),
        (_set("curves", 0, "shares", to=0.5), "(wrong: 0.5)"),
        (_set("curves", 0, "shares", 3, to="x"), "(wrong: x)"),
        (_set("curves", -1, "shares", -1, to=_DROP), "'curves' of 'last' was"),
        (_set("seconds", -1, to=_DROP), "'seconds' of 'last' was"),
    ],
)
def test_damaged_pages(
    change: Callable[[dict[str, Any]], None], message: str, kept: tuple[Bench, Report], tmp_path: Path
) -> None:
    bench, report = kept
    page = keep(report, tmp_path)
    with pytest.raises(DataError, match=re.escape(message)):
        bench.measure({"mine": 0}, edit(page, change), limit=2, cache=bench.folder / "cache")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path", "to", "message"),
    [
        ("hpatches-matches", ("curves", -1, "mma"), [0.5], "'curves' of 'last' was"),
        ("pair-score", ("reliability", -1), _DROP, "'reliability' of 'last' was"),
        ("pair-score", ("reliability", -1, "counts"), [1], "'reliability' of 'last' was"),
        ("reconstruction", ("camera_errors", -1), _DROP, "'camera_errors' of 'last' was"),
        ("kitti-raw-points", ("seconds_at_keypoints",), _DROP, "seconds_at_keypoints[0] is null"),
        ("kitti-raw-points", ("curves",), [], "curves[0] is null"),
        ("kitti-raw-points", ("points_at_keypoints",), 3, "points_at_keypoints was 3, now it is 180"),
    ],
)
def test_damage_of_other_kinds(
    name: str,
    path: tuple[str | int, ...],
    to: object,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = make_bench(name, tmp_path, monkeypatch)
    page = edit(keep(bench.measure({"mine": 0, "last": 1}), tmp_path / "out"), _set(*path, to=to))
    with pytest.raises(DataError, match=re.escape(message)):
        bench.measure({"mine": 0}, page)
