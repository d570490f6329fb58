import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from support.bird_cases import write_birds
from support.dense_cases import write_flat_image, write_flo, write_png
from support.evaluation_cases import write_sequence
from support.semantic_files import write_flat_image as write_grey
from support.semantic_files import write_mat, write_text
from ucn.data.catalogue import open_data
from ucn.data.sets.semantic.pascal_berkeley import PART_NAMES
from ucn.errors import ConfigError, DataError
from ucn.evaluate.core.benchmark_pairs import CUB_PAIRS, sample_pair_list, sample_rows
from ucn.evaluate.points import benchmarks
from ucn.evaluate.points.benchmarks import BENCHMARKS, FLOW_SPLITS, find_benchmark


def write_flow_set(root: Path) -> Path:
    for frame in ("frame10", "frame11"):
        write_flat_image(root / "other-data" / "Door" / f"{frame}.png", 40, 30)
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
    pairs = find_benchmark("hpatches").open(tmp_path)
    assert [pair.group for pair in pairs] == ["viewpoint"] * 5 + ["illumination"] * 5
    assert {pair.category for pair in pairs} == {"i_one", "v_two"}
    assert pairs[0].data.pair_name(pairs[0].index) == pairs[0].name == "v_two/1-2"


def test_problems_stop_a_benchmark(tmp_path: Path) -> None:
    write_sequence(tmp_path, "v_one")
    (tmp_path / "v_one" / "3.png").unlink()
    with pytest.raises(DataError, match=r"3\.ppm: no such file.*`ucn data check` lists all 1 problems"):
        find_benchmark("hpatches").open(tmp_path)


def test_another_data_set_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="it looks like 'middlebury-flow'"):
        find_benchmark("hpatches").open(write_flow_set(tmp_path))


def test_flow_takes_every_set_it_finds(tmp_path: Path) -> None:
    write_flow_set(tmp_path / "my flow")
    pairs = find_benchmark("flow").open(tmp_path)
    assert [(pair.group, pair.name) for pair in pairs] == [
        ("motorcycle", "motorcycle/motorcycle"),
        ("Middlebury flow", "Middlebury flow/Door"),
    ]
    alone = find_benchmark("middlebury-flow").open(tmp_path / "my flow")
    assert [pair.name for pair in alone] == ["Middlebury flow/Door"]


def write_kitti(root: Path, *numbers: int) -> Path:
    for number in numbers:
        for frame in (10, 11):
            write_flat_image(root / "training" / "image_2" / f"{number:06}_{frame}.png", 4, 3)
        write_png(
            root / "training" / "flow_noc" / f"{number:06}_10.png", np.full((3, 4, 3), 2**15, np.uint16)
        )
    return root


def test_flow_measures_what_no_recipe_trains_on(tmp_path: Path) -> None:
    benchmark = find_benchmark("kitti-flow")
    both = write_kitti(tmp_path / "both", 3, 170)
    (pair,) = benchmark.open(both)
    assert (pair.name, pair.part) == ("KITTI flow/000170", "kitti-flow val")
    names = {split: [p.name[-6:] for p in benchmark.with_split(split).open(both)] for split in FLOW_SPLITS}
    assert names == {
        "held-out": ["000170"],
        "val": ["000170"],
        "train": ["000003"],
        "training": ["000003", "000170"],
    }
    # A sample of training scenes alone is measured whole, and says so.
    (pair,) = benchmark.open(write_kitti(tmp_path / "sample", 3))
    assert pair.part == "kitti-flow training"
    assert [p.part for p in find_benchmark("flow").with_split("train").open(tmp_path)] == [
        "",
        "kitti-flow train",
    ]
    with pytest.raises(ConfigError, match=r"no split 'vall'; did you mean 'val'\?"):
        benchmark.with_split("vall")
    with pytest.raises(ConfigError, match="motorcycle has no choice of splits"):
        find_benchmark("motorcycle").with_split("val")


def test_cub_takes_a_list_of_images_or_pairs(tmp_path: Path) -> None:
    folder = write_birds(tmp_path)
    split = folder / "CUB_200_2011" / "train_test_split.txt"
    split.write_text(split.read_text(encoding="utf-8").replace(" 1\n", " 0\n"), encoding="utf-8")
    images, pairs = tmp_path / "images.txt", tmp_path / "pairs.txt"
    write_text(images, "001.Kind/0.png", "001.Kind/2.png", "001.Kind/5.png", "002.Kind/1.png")
    write_text(pairs, "001.Kind/3 001.Kind/1")
    chosen = find_benchmark("cub").with_subset(images)
    names = {pair.name for pair in chosen.open(folder)}
    assert names == {"001.Kind/0--001.Kind/2", "001.Kind/0--001.Kind/5", "001.Kind/2--001.Kind/5"}
    assert "those of images.txt (sha256 " in chosen.title and "listed" not in chosen.title
    (pair,) = find_benchmark("cub").with_subset(pairs).open(folder)
    assert (pair.name, pair.part) == ("001.Kind/3--001.Kind/1", "cub test")
    with pytest.raises(ConfigError, match="hpatches takes no list of its images"):
        find_benchmark("hpatches").with_subset(images)


def test_flow_without_sets(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no flow set in .*: expected it to hold folders of middlebury-flow, "
    ):
        find_benchmark("flow").open(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        find_benchmark("flow").open(tmp_path / "missing")


def test_flow_suggests_what_else_a_folder_looks_like(tmp_path: Path) -> None:
    write_sequence(tmp_path / "planes", "v_one")
    for name in ("flow", "middlebury"):
        with pytest.raises(DataError, match=r"no flow set in .*; it looks like 'hpatches'"):
            find_benchmark(name).open(tmp_path / "planes")
    for place in ("clean", "flow"):
        (tmp_path / "film" / "training" / place / "alley_1").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no flow set in .*; it looks like 'sintel'"):
        find_benchmark("middlebury").open(tmp_path / "film")


def test_middlebury_takes_flow_and_stereo(tmp_path: Path, data_folder: Path) -> None:
    with pytest.raises(DataError, match="folders of middlebury-flow, middlebury-stereo"):
        find_benchmark("middlebury").open(tmp_path)
    write_flow_set(tmp_path / "my flow")
    assert {pair.group for pair in find_benchmark("middlebury").open(tmp_path)} == {"Middlebury flow"}
    groups = [pair.group for pair in find_benchmark("middlebury").open(data_folder)]
    assert Counter(groups) == {"Middlebury flow": 2, "Middlebury stereo": 6}


def write_berkeley(root: Path, counts: Mapping[str, int]) -> Path:
    """Objects with one part each; about a fifth of the images are for testing."""
    for category, count in counts.items():
        part = PART_NAMES[category].split()[0]
        for number in range(count):
            name = f"2008_{number:06}"
            write_grey(root / "JPEGImages" / f"{name}.jpg", 50, 40)
            write_text(
                root / "annotations" / category / f"{name}_1.xml",
                f"<annotation><image>{name}</image><visible_bounds xmin='5' ymin='6' width='30' height='20'/>"
                f"<keypoints><keypoint name='{part}' visible='1' x='10' y='9'/></keypoints></annotation>",
            )
    return root


def test_berkeley_draws_pairs_of_each_class(tmp_path: Path) -> None:
    benchmark = find_benchmark("pascal-berkeley")
    pairs = benchmark.open(write_berkeley(tmp_path, {"cat": 90, "boat": 30}))
    counts = Counter(pair.group for pair in pairs)
    assert counts["cat"] == 100
    assert 1 < counts["boat"] < 100
    assert len({pair.name for pair in pairs}) == len(pairs)
    assert all(pair.name.startswith(f"{pair.group}/") for pair in pairs)
    # Without the boats the same cats are drawn.
    for path in (tmp_path / "annotations" / "boat").iterdir():
        path.unlink()
    again = benchmark.open(tmp_path)
    assert [e.name for e in again] == [e.name for e in pairs if e.group == "cat"]
    pair = again[0]
    prepared = benchmark.preparation.apply(pair.data.read(pair.index)).sample
    assert prepared.image0.shape == (3, 108, 160)
    assert prepared.pck_length == pytest.approx(160, abs=0.5)


def test_flowweb_counts_sets_of_a_class_together(tmp_path: Path) -> None:
    for folder in ("car_set_1", "car_set_2", "bus_set_1"):
        for number in range(10):
            write_grey(tmp_path / folder / f"{number}.jpg", 30, 25)
            values = {"keypts": np.full((2, 12), 4.0), "keypts_status": np.ones((1, 12), np.uint8)}
            write_mat(tmp_path / folder / f"{number}.mat", values)
    pairs = find_benchmark("flowweb").open(tmp_path)
    assert Counter(pair.group for pair in pairs) == {"car": 2, "bus": 1}  # two test images a set
    assert pairs[0].name == "bus_set_1/8--bus_set_1/9"
    assert find_benchmark("flowweb").main_limit == 0.05


def test_pf_pascal_needs_its_table(tmp_path: Path) -> None:
    for name in ("bird/2008_01", "bird/2008_02"):
        write_grey(tmp_path / "JPEGImages" / f"{name.split('/')[1]}.jpg", 40, 50)
        write_mat(
            tmp_path / "Annotations" / f"{name}.mat",
            {"kps": np.array([[1.0, 2], [5, 6]]), "bbox": np.array([[1, 2, 11, 7]])},
        )
    with pytest.raises(DataError, match=r"test_pairs\.csv"):
        find_benchmark("pf-pascal").open(tmp_path)
    write_text(tmp_path / "test_pairs.csv", "source,target,class", "2008_01.jpg,2008_02.jpg,3")
    (pair,) = find_benchmark("pf-pascal").open(tmp_path)
    assert (pair.group, pair.name) == ("bird", "bird/2008_01--bird/2008_02")
    assert find_benchmark("pf-pascal").headline == "pair"


def test_spair_groups_by_class(tmp_path: Path) -> None:
    pair = "000001-2008_01-2008_02:dog"
    values = {
        "src_imname": "2008_01.jpg",
        "trg_imname": "2008_02.jpg",
        "category": "dog",
        "src_kps": [[1, 2]],
        "trg_kps": [[3, 4]],
        "kps_ids": ["0"],
        "trg_bndbox": [2, 4, 12, 19],
    }
    for name in ("2008_01", "2008_02"):
        write_grey(tmp_path / "JPEGImages" / "dog" / f"{name}.jpg", 40, 50)
    write_text(tmp_path / "Layout" / "large" / "test.txt", pair)
    write_text(tmp_path / "PairAnnotation" / "test" / f"{pair}.json", json.dumps(values))
    (opened,) = find_benchmark("spair").open(tmp_path)
    assert (opened.group, opened.category) == ("dog", "dog")


def write_own(root: Path, *lines: str) -> Path:
    write_text(root / "pairs.csv", *lines)
    write_text(root / "points.csv", "x0,y0,x1,y1", "3,4,5,6")
    for name in "abc":
        write_grey(root / f"{name}.png", 40, 50)
    return root


def test_own_pairs(tmp_path: Path) -> None:
    benchmark = find_benchmark("own")
    plain = write_own(tmp_path / "plain", "image0,image1,points", "a.png,b.png,points.csv")
    (pair,) = benchmark.open(plain)
    assert (pair.group, pair.name) == ("pairs", "a.png--b.png")
    assert benchmark.adapt is not None and benchmark.adapt(benchmark, [pair]).unit == "px"
    split = write_own(
        tmp_path / "split",
        "image0,image1,points,class,split,pck_length",
        "a.png,b.png,points.csv,mug,train,20",
        "a.png,c.png,points.csv,mug,test,20",
    )
    (pair,) = benchmark.open(split)
    assert (pair.group, pair.name) == ("mug", "a.png--c.png")
    adapted = benchmark.adapt(benchmark, [pair])
    assert (adapted.unit, adapted.limits, adapted.length) == (
        "alpha",
        (0.025, 0.05, 0.1),
        "the pck_length of each pair",
    )


def test_own_images_are_sampled_by_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "OWN_PAIRS", 2)
    benchmark = find_benchmark("own")
    names = "abcdef"
    for name in names:
        write_grey(tmp_path / f"{name}.png", 40, 50)
    rows = [f"{name}.png,rim,3,4,{'mug' if name in 'abcd' else 'jug'}" for name in names]
    write_text(tmp_path / "keypoints.csv", "image,part,x,y,class", *rows)
    pairs = benchmark.open(tmp_path)
    assert [pair.group for pair in pairs] == ["mug", "mug", "jug"]
    assert benchmark.adapt is not None and benchmark.adapt(benchmark, pairs).unit == "alpha"
    rows = [f"{name}.png,rim,3,4,{'test' if name in 'ab' else 'train'}" for name in names]
    write_text(tmp_path / "keypoints.csv", "image,part,x,y,split", *rows)
    (pair,) = benchmark.open(tmp_path)
    assert (pair.name, pair.group) == ("a.png--b.png", "pairs")


def test_bundled_benchmarks_need_no_folder() -> None:
    bundled = [benchmark for benchmark in BENCHMARKS.values() if not benchmark.needs_folder]
    assert {benchmark.name for benchmark in bundled} == {"motorcycle", "mini", "self"}
    for benchmark in bundled:
        assert benchmark.open(Path("nowhere"))


def test_self_has_a_group_for_each_change() -> None:
    pairs = find_benchmark("self").open(Path())
    assert {(e.axis, e.value) for e in pairs} >= {("rotation", 45.0), ("scale", 2.0)}
    assert len({e.group for e in pairs}) * len({e.category for e in pairs}) == len(pairs)


def test_names_are_unique(data_folder: Path) -> None:
    folders = {
        "hpatches": "hpatches",
        "flow": "",
        "cub": "cub",
        "faces": "helen_faces",
        "pf-willow": "pf_willow",
        "flowweb": "flowweb_toy",
        "middlebury": "",
        "sintel": "sintel",
        "kitti-flow": "kitti_flow_2015",
    }
    counts = {}
    for name, folder in folders.items():
        pairs = find_benchmark(name).open(data_folder / folder)
        assert len({pair.name for pair in pairs}) == len(pairs)
        counts[name] = len(pairs)
    assert counts == {
        "hpatches": 245,
        "flow": 12,
        "cub": 2000,
        "faces": 1000,
        "pf-willow": 135,
        "flowweb": 6,
        "middlebury": 8,
        "sintel": 2,
        "kitti-flow": 1,
    }


def test_rows_are_drawn_by_the_seed() -> None:
    rows = sample_rows(100, 10)
    assert rows == sorted(set(rows)) == sample_rows(100, 10)
    assert rows != sample_rows(100, 10, seed=1)
    assert sample_rows(3, 10) == [0, 1, 2]


def test_cub_list_is_the_drawn_one(data_folder: Path) -> None:
    data = open_data("cub", data_folder / "cub", "test")
    assert CUB_PAIRS.read_text(encoding="utf-8") == sample_pair_list(data, 2000)


def test_cub_list_pairs_birds_of_one_class() -> None:
    lines = [line.split(",") for line in CUB_PAIRS.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 2000
    assert all(one.split("/")[0] == other.split("/")[0] and one != other for one, other in lines)
    assert len({tuple(sorted(line)) for line in lines}) == 2000
    assert min(Counter(one.split("/")[0] for one, _ in lines).values()) >= 2
