"""Some methods measured, the others of an earlier report: the same as all measured, or refused."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from support.driving_cases import DRIVE, HW
from support.evaluation_cases import write_sequence
from support.update_cases import KINDS, Bench, make_bench
from ucn.errors import DataError
from ucn.evaluate.core import merge as earlier_module
from ucn.evaluate.core.merge import Earlier, Origin, complete_report, read_earlier
from ucn.evaluate.core.methods import OPTIMISERS, MethodInfo, is_nearest, load_methods
from ucn.evaluate.core.outputs import write_outputs
from ucn.evaluate.core.report import Report, to_dict, write_markdown
from ucn.evaluate.evaluations import EVALUATIONS
from ucn.evaluate.points.report import read_figures

CHANGING = ("command", "notes", "skipped", "earlier_runs")


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(request.param, tmp_path, monkeypatch)


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench("hpatches", tmp_path, monkeypatch)


def keep(report: Report, folder: Path) -> Earlier:
    """Writes a report as the command does, and reads it again."""
    folder.mkdir(exist_ok=True)
    write_outputs(report, folder, overwrite=True)
    return read_earlier(folder / f"{report.name}.json", report.name)


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
    """An updated report is one of all methods, but for what it says of its making."""
    plain, expected = (
        {key: value for key, value in to_dict(report).items() if key not in CHANGING}
        for report in (updated, whole)
    )
    assert_same(plain, expected)
    assert updated.tables == whole.tables
    assert [plot.suffix for plot in updated.plots] == [plot.suffix for plot in whole.plots]
    lines = write_markdown(whole).splitlines()
    assert [line for line in lines if line.startswith("|")] == [
        line for line in write_markdown(updated).splitlines() if line.startswith("|")
    ]


def test_a_method_in_place_of_another(bench: Bench, tmp_path: Path) -> None:
    before = bench.measure({"sift": 0, "mine": 1, "last": 2})
    earlier = keep(before, tmp_path / "out")
    updated = bench.measure({"mine": 0}, earlier)
    assert_whole(updated, bench.measure({"sift": 0, "mine": 0, "last": 2}))
    assert to_dict(updated)["figures"] != to_dict(before)["figures"]
    assert updated.command == before.command
    assert updated.notes == before.notes
    assert updated.plots[0].png != before.plots[0].png
    again = bench.measure({"mine": 1}, keep(updated, tmp_path / "out"))
    assert_whole(again, before)


def test_a_method_is_added_at_the_end(bench: Bench, tmp_path: Path) -> None:
    earlier = keep(bench.measure({"mine": 0, "last": 2}), tmp_path / "out")
    updated = bench.measure({"sift": 1, "mine": 0}, earlier)
    assert_whole(updated, bench.measure({"mine": 0, "last": 2, "sift": 1}))
    assert updated.command == f"ucn evaluate {bench.name} --data DIR --methods mine,last,sift -o out"


def test_other_data_and_options_are_refused(bench: Bench, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"limit": 1} if bench.name == "reconstruction" else {"limit": 2}
    earlier = keep(bench.measure({"mine": 0, "last": 2}, **settings), tmp_path / "out")
    with pytest.raises(DataError, match=r"is of another run: .* was .*, and is .* now; give the same data"):
        bench.measure({"mine": 0}, earlier)
    if bench.name != "pair-score":
        with pytest.raises(DataError, match="is of another run: seed was 0, and is 7 now"):
            bench.measure({"mine": 0}, earlier, seed=7, **settings)
    if bench.name in ("hpatches", "kitti-raw-points"):
        with pytest.raises(DataError, match="what was measured was matches placed between cells and matches"):
            bench.measure({"mine": 0}, earlier, refinements=(False,), **settings)
    if bench.name == "reconstruction":
        with pytest.raises(DataError, match="what was measured was as matched and adjusted, and is as matc"):
            bench.measure({"mine": 0}, earlier, refinements=(False,), **settings)


@pytest.mark.parametrize("name", ["hpatches", "hpatches-matches", "pair-score"])
def test_data_of_the_same_size_are_told_apart(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(name, tmp_path, monkeypatch)
    earlier = keep(bench.measure({"mine": 0, "last": 2}), tmp_path / "out")
    write_sequence(tmp_path / "planes", "v_two", (4, 12))
    with pytest.raises(DataError, match=r"another run: (points|points_sha256|data_sha256) was"):
        bench.measure({"mine": 0}, earlier)


def test_refusals_come_before_the_work(
    points: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = keep(points.measure({"mine": 0, "last": 2}), tmp_path / "out")
    monkeypatch.setattr("ucn.evaluate.points.run.predict_pairs", lambda *_, **__: pytest.fail("worked first"))
    for settings, what in (({"limit": 3}, "pairs"), ({"seed": 1}, "seed"), ({"refinements": (True,)}, "")):
        with pytest.raises(DataError, match=f"another run: {what}"):
            points.measure({"mine": 0}, earlier, **settings)


def test_masks_of_classes_are_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench("kitti-raw-points", tmp_path, monkeypatch)
    mask = tmp_path / "masks" / DRIVE / f"{0:010d}.png"
    mask.parent.mkdir(parents=True)
    PIL.Image.fromarray(np.full(HW, 7, np.uint8)).save(mask)
    bench.masks = tmp_path / "masks"
    earlier = keep(bench.measure({"mine": 0, "last": 2}), tmp_path / "out")
    updated = bench.measure({"mine": 1}, earlier)
    assert_whole(updated, bench.measure({"mine": 1, "last": 2}))
    assert {row["table"] for row in updated.rows} == {"dense", "keypoints", "baseline", "class"}
    bench.masks = None
    with pytest.raises(DataError, match="--class-masks was given, and is not given now"):
        bench.measure({"mine": 0}, earlier)


def test_other_protocols_are_refused(points: Bench, tmp_path: Path) -> None:
    earlier = keep(points.measure({"mine": 0, "last": 2}), tmp_path / "out")
    other = tuple(line.replace("95%", "90%") for line in earlier.protocol)
    with pytest.raises(DataError, match=r"the line 'averages' of the protocol was averages: .*, and is ave"):
        points.measure({"mine": 0}, replace(earlier, protocol=other))


def test_versions_of_both_runs_are_told(points: Bench, tmp_path: Path) -> None:
    first = points.measure({"mine": 0, "last": 2, "third": 1}, jobs=1)
    old = replace(first, versions={**first.versions, "torch": "1.0", "gone": "3"}, device="an abacus")
    torch_now = first.versions["torch"]
    updated = points.measure({"mine": 0}, keep(old, tmp_path / "out"))
    note = (
        f"`last`, `third` were measured in an earlier run, with torch 1.0 (now {torch_now}), gone 3 (now "
        f"absent), on an abacus (now {first.device})"
    )
    assert updated.notes == (note,)
    assert f"- {note}" in write_markdown(updated)
    assert updated.versions == first.versions
    # The note outlives later updates, without what they measure; what came from this run needs none.
    later = points.measure({"third": 1}, keep(updated, tmp_path / "out"))
    assert later.notes == (note.replace("`last`, `third` were", "`last` was"),)
    twice = keep(replace(later, device="a slide rule"), tmp_path / "out")
    assert [origin.methods for origin in twice.origins] == [("last",), ("mine", "third")]
    latest = points.measure({"third": 1}, twice)
    assert [line.partition(" ")[0] for line in latest.notes] == ["`last`", "`mine`"]
    assert "an abacus" in latest.notes[0] and "a slide rule" in latest.notes[1]
    done = points.measure({"mine": 0, "last": 2}, keep(latest, tmp_path / "out"))
    assert done.notes == ()
    assert "earlier_runs" not in done.values


def test_processes_are_told() -> None:
    now = Origin((), {}, "d")
    assert Origin(("a",), {}, "d", 4).describe(now).endswith("an earlier run, in 4 processes (now 1)")
    assert Origin(("a",), {}, "d").describe(replace(now, jobs=2)).endswith("in 1 process (now 2)")


def test_what_was_skipped(points: Bench, tmp_path: Path) -> None:
    first = points.measure({"mine": 0, "last": 2})
    assert first.skipped == {"xfeat": "not here"}
    earlier = keep(replace(first, skipped={"new": "no file", "other": "no package"}), tmp_path / "out")
    updated = points.measure({"new": 1}, earlier)
    assert updated.skipped == {"other": "no package", "xfeat": "not here"}
    # One that cannot be measured now, but could be then, keeps its figures, and that is said.
    known = replace(updated, skipped={"last": "its file is gone"})
    told = complete_report(known, earlier)
    assert "last" not in told.skipped
    assert told.notes[-1].startswith("`last` could not be measured anew, so its figures are those of an")


def test_methods_that_match_otherwise_are_known_by_their_keys() -> None:
    for name in ("sift", "siamese", *OPTIMISERS, "sift+dsp"):
        (method,) = load_methods([name]).methods
        assert is_nearest(MethodInfo(name, "", method.key)) == is_nearest(method) == (name == "sift")
    assert not is_nearest(MethodInfo("nn-transfer", "", {"transfer": {}}))


def test_infinite_medians_come_back(points: Bench, tmp_path: Path) -> None:
    earlier = keep(points.measure({"mine": 0}), tmp_path / "out")
    rows = [{**row, "median_error": None, "mean_error": None} for row in earlier.get("figures")]
    figures = read_figures(earlier, rows, "figures")
    assert all(math.isinf(figure.median_error) and math.isnan(figure.mean_error) for figure in figures)


def test_camera_motion_cannot_be_updated() -> None:
    for name in ("kitti-raw", "kitti-odometry"):
        assert "pair by pair" in EVALUATIONS[name].update_obstacle
    assert not any(EVALUATIONS[name].update_obstacle for name in KINDS)


def test_no_report_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no .*hpatches\.json.*; run without --update first"):
        read_earlier(tmp_path / "hpatches.json", "hpatches")
    (tmp_path / "hpatches.json").mkdir()
    with pytest.raises(DataError, match="not a regular file"):
        read_earlier(tmp_path / "hpatches.json", "hpatches")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is no JSON"),
        (b"{", "it is no JSON"),
        (b"\xff\xfe{}", "it is no JSON"),
        (b"[" * 100_000, "it is no JSON"),
        (b'{"seed": NaN}', "NaN is no number of JSON"),
        (b'{"seed": -Infinity}', "Infinity is no number of JSON"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "it is no JSON"),
        (b"[]", "it is no report of `ucn evaluate`"),
        (b"{}", "it is no report of `ucn evaluate`"),
        (b'{"benchmark": 3}', "it is no report of `ucn evaluate`"),
        (b'{"benchmark": "cub"}', "it is of 'cub', expected one of 'hpatches'"),
    ],
)
def test_files_that_are_no_reports(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hpatches.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(message)):
        read_earlier(path, "hpatches")


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hpatches.json").write_bytes(b" " * 200)
    monkeypatch.setattr(earlier_module, "_MAX_BYTES", 100)
    with pytest.raises(DataError, match="has 200 bytes, the limit for report is 100"):
        read_earlier(tmp_path / "hpatches.json", "hpatches")


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
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, str]:
    """A bench with its predictions, and the report of two methods as JSON."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as monkeypatch:
        bench = make_bench("hpatches", folder, monkeypatch)
        report = bench.measure({"mine": 0, "last": 2}, limit=2, cache=folder / "cache")
    return bench, json.dumps(to_dict(report))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("command", to=3), "'command' must be text, got 3"),
        (_set("device", to=_DROP), "'device' must be text, got null"),
        (_set("versions", to=["torch"]), "'versions' must be an object of texts"),
        (_set("skipped", to={"a": 1}), "'skipped' must be an object of texts"),
        (_set("protocol", to="all"), "'protocol' must be a list of texts"),
        (_set("methods", to=[]), "'methods' must be a list of objects, got []"),
        (_set("methods", 0, to="sift"), "a method must have 'name', 'title' and 'key', got sift"),
        (_set("methods", 0, "key", to=[]), "a method must have 'name', 'title' and 'key'"),
        (_set("methods", 0, "title", to=None), "'title' must be text, got null"),
        (_set("methods", 1, "name", to="mine"), "'methods' names 'mine' twice"),
        (_set("methods", 1, "name", to="other"), "it has no figures of its method 'other'"),
        (_set("jobs", to="many"), "'jobs' must be a whole number, got many"),
        (_set("jobs", to=True), "'jobs' must be a whole number, got true"),
        (_set("earlier_runs", to={}), "'earlier_runs' must be a list of objects"),
        (_set("earlier_runs", to=[{"jobs": 1}]), "'methods' must be a list of texts"),
        (_set("earlier_runs", to=[{}]), "'jobs' of 'earlier_runs' must be a whole number"),
        (_set("figures", to=3), "'figures' must be a list of objects, got 3"),
        (_set("figures", 2, to=[1]), "'figures' must be a list of objects"),
        (_set("figures", 2, "method", to="strange"), "figures[2] is of 'strange', which 'methods' does not"),
        (_set("figures", 2, "method", to=7), "figures[2].method must be text, got 7"),
        (_set("figures", 2, "per_point", to=_DROP), "figures[2] has no 'per_point'"),
        (_set("figures", 2, "per_point", to="0.5"), "figures[2].per_point must be a number, got 0.5"),
        (_set("figures", 2, "per_point", to=True), "figures[2].per_point must be a number, got true"),
        (_set("figures", 2, "per_point", to=math.inf), "figures[2].per_point must be a number, got Infinity"),
        (_set("figures", 2, "per_point", to=10**400), "figures[2].per_point must be a number, got 1000"),
        (_set("figures", 2, "points", to=2**63), "figures[2].points must be a whole number, got 9223"),
        (_set("figures", 2, "points", to=1.5), "figures[2].points must be a whole number, got 1.5"),
        (_set("figures", 2, "use_refinement", to=1), "use_refinement must be true or false, got 1"),
        (_set("figures", -1, to=_DROP), "a figure of 'last' was"),
        (_set("figures", -1, "points", to=3), "a figure of 'last' was"),
        (_set("figures", -1, "group", to="mars"), "a figure of 'last' was matches on cell centres, mars,"),
        (_set("figures", -1, "limit", to=4.0), "the list of limits was [3.0, 4.0, 5.0, 10.0], and is [3.0"),
        (_set("seed", to=_DROP), "it has no 'seed', so an older version wrote it"),
        (_set("points_sha256", to="ab"), "points_sha256 was ab, and is "),
        (_set("unit", to="alpha"), "unit was alpha, and is px now"),
        (_set("curves", to=_DROP), "it has no 'curves'"),
        (_set("curves", to={}), "'curves' must be a list, got {}"),
        (_set("curves", 0, to=4), "curves[0] must be an object, got 4"),
        (_set("curves", 0, "shares", to=0.5), "curves[0].shares must be a list, got 0.5"),
        (_set("curves", 0, "shares", 3, to="x"), "curves[0].shares must be a number, got x"),
        (_set("curves", -1, "shares", -1, to=_DROP), "a curve of 'last' was"),
        (_set("curves", -1, "limits", 0, to=0.5), "a curve of 'last' was"),
        (_set("seconds", -1, to=_DROP), "the seconds of 'last' was 0 rows, and is 1 rows now"),
        (_set("seconds", -1, "method", to="mine"), "the seconds of 'last' was 0 rows"),
    ],
)
def test_damaged_reports(
    change: Callable[[dict[str, Any]], None], message: str, kept: tuple[Bench, str], tmp_path: Path
) -> None:
    bench, text = kept
    values = json.loads(text)
    change(values)
    path = tmp_path / "hpatches.json"
    path.write_text(json.dumps(values).replace("Infinity", "1e999"))
    with pytest.raises(DataError, match=re.escape(message)):
        bench.measure({"mine": 0}, read_earlier(path, "hpatches"), limit=2, cache=bench.folder / "cache")


def test_null_becomes_nan_where_a_number_is_expected() -> None:
    @dataclass(frozen=True)
    class Line:
        method: str
        value: float
        more: tuple[float, ...]

    earlier = Earlier(Path("r.json"), "", (), {"m": MethodInfo("m", "", {})}, {}, (), {})
    (row,) = earlier.read_rows(Line, [{"method": "m", "value": None, "more": [1, None], "x": 0}], "rows")
    assert (math.isnan(row.value), row.more[0], math.isnan(row.more[1])) == (True, 1.0, True)
    with pytest.raises(DataError, match=r"rows\[0\]\.method must be text, got null"):
        earlier.read_rows(Line, [{"method": None, "value": 0, "more": []}], "rows")


@pytest.mark.parametrize(
    ("name", "path", "to", "message"),
    [
        (
            "hpatches-matches",
            ("curves", -1, "mma"),
            [0.5],
            "a figure of 'last' was all, 4 pairs, limits, 1",
        ),
        ("pair-score", ("reliability", -1), _DROP, "'reliability' must have a row for each of 'figures'"),
        ("pair-score", ("reliability", -1, "counts"), [1], "'reliability' must have 10 bins, got [10, 1, 10"),
        ("reconstruction", ("cameras_sha256",), _DROP, "it has no 'cameras_sha256', so an older version"),
        ("reconstruction", ("camera_errors", 0, "errors"), [1.0], "must have as many 'errors' as 'images'"),
        ("kitti-raw-points", ("seconds_at_keypoints",), _DROP, "it has no 'seconds_at_keypoints'"),
        ("kitti-raw-points", ("curves",), [], "'curves' must be an object"),
        ("kitti-raw-points", ("points_at_keypoints",), 3, "points_at_keypoints was 3, and is 180 now"),
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
    earlier = keep(bench.measure({"mine": 0, "last": 1}), tmp_path / "out")
    values = json.loads(earlier.path.read_text())
    _set(*path, to=to)(values)
    earlier.path.write_text(json.dumps(values))
    with pytest.raises(DataError, match=re.escape(message)):
        bench.measure({"mine": 0}, read_earlier(earlier.path, name))
