from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dense_cases import write_flo, write_picture
from evaluation_cases import write_sequence
from ucn.data.catalogue import open_data
from ucn.errors import ConfigError, DataError
from ucn.evaluate.benchmarks import BENCHMARKS, find_benchmark
from ucn.evaluate.pair_lists import CUB_PAIRS, draw_rows, write_pair_list


def write_flow_set(root: Path) -> Path:
    for frame in ("frame10", "frame11"):
        write_picture(root / "other-data" / "Door" / f"{frame}.png", 40, 30)
    write_flo(root / "other-gt-flow" / "Door" / "flow10.flo", np.full((30, 40, 2), (2, 1)))
    return root


def test_unknown_names_list_the_legal_ones() -> None:
    with pytest.raises(ConfigError, match=r"no benchmark 'hpatch'; did you mean 'hpatches'\? \(there are "):
        find_benchmark("hpatch")
    with pytest.raises(ConfigError, match=", ".join(BENCHMARKS)):
        find_benchmark("zzz")


def test_hpatches_groups(tmp_path: Path) -> None:
    for name in ("i_one", "v_two"):
        write_sequence(tmp_path, name)
    entries = find_benchmark("hpatches").open(tmp_path)
    assert [entry.group for entry in entries] == ["viewpoint"] * 5 + ["illumination"] * 5
    assert {entry.category for entry in entries} == {"i_one", "v_two"}
    assert entries[0].data.pair_name(entries[0].index) == entries[0].name == "v_two/1-2"


def test_faults_stop_a_benchmark(tmp_path: Path) -> None:
    write_sequence(tmp_path, "v_one")
    (tmp_path / "v_one" / "3.png").unlink()
    with pytest.raises(DataError, match=r"3\.ppm: no such file.*`ucn data check` lists all 1 faults"):
        find_benchmark("hpatches").open(tmp_path)


def test_another_data_set_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it looks like 'middlebury-flow'"):
        find_benchmark("hpatches").open(write_flow_set(tmp_path))


def test_flow_takes_every_set_it_finds(tmp_path: Path) -> None:
    write_flow_set(tmp_path / "my flow")
    entries = find_benchmark("flow").open(tmp_path)
    assert [(entry.group, entry.name) for entry in entries] == [
        ("motorcycle", "motorcycle/motorcycle"),
        ("Middlebury flow", "Middlebury flow/Door"),
    ]
    alone = find_benchmark("middlebury-flow").open(tmp_path / "my flow")
    assert [entry.name for entry in alone] == ["Middlebury flow/Door"]


def test_flow_without_sets(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no flow set in .*: expected it to hold folders of middlebury-flow, "
    ):
        find_benchmark("flow").open(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        find_benchmark("flow").open(tmp_path / "missing")


def test_bundled_benchmarks_need_no_folder() -> None:
    bundled = [benchmark for benchmark in BENCHMARKS.values() if not benchmark.needs_folder]
    assert {benchmark.name for benchmark in bundled} == {"motorcycle", "self"}
    for benchmark in bundled:
        assert benchmark.open(Path("nowhere"))


def test_self_has_a_group_for_each_change() -> None:
    entries = find_benchmark("self").open(Path())
    assert {(e.axis, e.value) for e in entries} >= {("rotation", 45.0), ("scale", 2.0)}
    assert len({e.group for e in entries}) * len({e.category for e in entries}) == len(entries)


def test_names_are_unique(data_folder: Path) -> None:
    folders = {
        "hpatches": "hpatches",
        "flow": "",
        "cub": "cub",
        "faces": "helen_faces",
        "pf-willow": "pf_willow",
    }
    counts = {}
    for name, folder in folders.items():
        entries = find_benchmark(name).open(data_folder / folder)
        assert len({entry.name for entry in entries}) == len(entries)
        counts[name] = len(entries)
    assert counts == {"hpatches": 245, "flow": 12, "cub": 2000, "faces": 1000, "pf-willow": 135}


def test_rows_are_drawn_by_the_seed() -> None:
    rows = draw_rows(100, 10)
    assert rows == sorted(set(rows)) == draw_rows(100, 10)
    assert rows != draw_rows(100, 10, seed=1)
    assert draw_rows(3, 10) == [0, 1, 2]


def test_cub_list_is_the_drawn_one(data_folder: Path) -> None:
    data = open_data("cub", data_folder / "cub", "test")
    assert CUB_PAIRS.read_text(encoding="utf-8") == write_pair_list(data, 2000)


def test_cub_list_pairs_birds_of_one_class() -> None:
    lines = [line.split(",") for line in CUB_PAIRS.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 2000
    assert all(one.split("/")[0] == other.split("/")[0] and one != other for one, other in lines)
    assert len({tuple(sorted(line)) for line in lines}) == 2000
    assert min(Counter(one.split("/")[0] for one, _ in lines).values()) >= 2
