import itertools
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.semantic_files import write_flat_image, write_text
from ucn.data.pairs import PairData, Problem, limit_problems
from ucn.data.sets.semantic.image_lists import OUTSIDE_SPLIT, find_table, read_image_list, read_table
from ucn.data.sets.semantic.keypoint_pairs import (
    GroupPairs,
    KeypointData,
    ListedPairs,
    training_count,
    unrank_pair,
)
from ucn.data.sets.semantic.parts import Example, Keypoints, clamp_to_image, mirror_by_names, object_window
from ucn.errors import DataError, ImageReadError

Spots = list[tuple[float, float] | None]


class MemoryParts(KeypointData):
    """Three parts an image, of which the first two are left and right; kept in memory."""

    def __init__(self, root: Path, spots: dict[str, Spots], **options: object) -> None:
        examples = [
            Example(name, name.split("/")[0], root / f"{name}.png", root / "parts.txt", is_shared=True)
            for name in spots
        ]
        super().__init__(root, examples, **options)  # type: ignore[arg-type]
        self.spots = spots

    def keypoints(self, example: Example) -> Keypoints:
        spots = self.spots[example.name]
        points = np.array([(math.nan, math.nan) if spot is None else spot for spot in spots]).reshape(-1, 2)
        return Keypoints(points, np.isfinite(points[:, 0]), example.annotation, range(1, len(spots) + 1))

    def pck_length(self, keypoints: Keypoints, size_hw: tuple[int, int]) -> float:
        return size_hw[1] + 100.0 * size_hw[0]

    def mirror_table(self, category: str) -> NDArray[np.int64] | None:
        return None if category == "nameless" else np.array([1, 0, 2])


def _memory(root: Path, spots: dict[str, Spots], **options: object) -> MemoryParts:
    for i, name in enumerate(spots):
        write_flat_image(root / f"{name}.png", 8 + i, 6 + i, grey=10 * i)
    return MemoryParts(root, spots, **options)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 40])
def test_pairs_are_counted_as_combinations(count: int) -> None:
    expected = list(itertools.combinations(range(count), 2))
    assert [unrank_pair(rank, count) for rank in range(len(expected))] == expected


def test_counting_is_exact_where_a_float_root_is_not() -> None:
    count = 3_000_000_001
    last = math.comb(count, 2) - 1
    assert unrank_pair(0, count) == (0, 1)
    assert unrank_pair(count - 2, count) == (0, count - 1)
    assert unrank_pair(count - 1, count) == (1, 2)
    assert unrank_pair(last, count) == (count - 2, count - 1)
    assert unrank_pair(last - 1, count) == (count - 3, count - 1)


def test_groups_follow_each_other() -> None:
    sizes = [3, 0, 1, 5, 2]
    expected: list[tuple[int, int]] = []
    for first, size in zip(itertools.accumulate([0, *sizes]), sizes, strict=False):
        expected += itertools.combinations(range(first, first + size), 2)
    pairs = GroupPairs(sizes)
    assert len(pairs) == 3 + 0 + 0 + 10 + 1
    assert [pairs[index] for index in range(len(pairs))] == expected


def test_groups_without_a_pair() -> None:
    assert len(GroupPairs([])) == 0
    assert len(GroupPairs([1, 0, 1])) == 0
    assert len(ListedPairs([])) == 0


def test_mirror_follows_the_words_left_and_right() -> None:
    names = ["left eye", "belly", "right eye", "L_HeadLight", "R_HeadLight", "Left_Wing", "Leg_Left_Back"]
    assert mirror_by_names(names).tolist() == [2, 1, 0, 4, 3, 5, 6]
    assert mirror_by_names(["Hull_Mid_Left_Bot", "Hull_Mid_Right_Bot"]).tolist() == [1, 0]
    assert mirror_by_names([]).tolist() == []


def _points(*spots: tuple[float, float], hidden: tuple[int, ...] = ()) -> Keypoints:
    is_visible = np.array([i not in hidden for i in range(len(spots))])
    return Keypoints(np.array(spots), is_visible, Path("a.pts"), range(11, 11 + len(spots)))


def test_points_near_the_border_are_moved_onto_it() -> None:
    placed, note = clamp_to_image(_points((-1.4, 2), (10.5, 6.5), (0, 0), (9.5, -0.5)), (6, 10))
    assert placed.points.tolist() == [[-0.5, 2], [9.5, 5.5], [0, 0], [9.5, -0.5]]
    assert placed.is_visible.all() and not note


def test_points_farther_out_count_as_not_visible_with_a_note() -> None:
    placed, note = clamp_to_image(_points((-4, 5), (3, 3), (99, 54.5)), (50, 100))
    assert placed.is_visible.tolist() == [False, True, False]
    assert note == (
        "a.pts:11: part 0 at (-4, 5) (and 1 more parts) lies 3.5 px outside its image of 100 × 50 pixels; "
        "it counts as not visible"
    )


def test_points_far_out_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"^a.pts:12: part 1 at \(-6, 5\) lies 5.5 px outside its image of 100 × 50"
    ):
        clamp_to_image(_points((3, 3), (-6, 5)), (50, 100))
    with pytest.raises(
        DataError, match=r"outside its image of .*; the image was resized or is another one: put"
    ):
        clamp_to_image(_points((math.nan, 5)), (50, 100))


def test_points_that_are_not_visible_may_lie_anywhere() -> None:
    placed, note = clamp_to_image(_points((-600, 5), (math.nan, 0), (1, 1), hidden=(0, 1)), (50, 100))
    assert placed.is_visible.tolist() == [False, False, True] and not note


def test_an_unlimited_share_hides_without_a_word() -> None:
    placed, note = clamp_to_image(_points((-600, 5), (1, 1)), (50, 100), math.inf)
    assert placed.is_visible.tolist() == [False, True] and not note


def test_window_holds_box_and_visible_points() -> None:
    points = Keypoints(
        np.array([[2.4, 3.5], [90, 90.0]]), np.array([True, False]), Path("a"), box=(4, 1, 6.6, 3)
    )
    assert object_window(points, (50, 100)) == (2, 1, 8, 5)  # pixel 7 holds x = 6.6, pixel 4 holds y = 3.5
    border = Keypoints(np.array([[-0.5, -0.5], [99.5, 49.5]]), np.array([True, True]), Path("a"))
    assert object_window(border, (50, 100)) == (0, 0, 100, 50)
    nothing = Keypoints(np.zeros((0, 2)), np.zeros(0, np.bool_), Path("a"))
    assert object_window(nothing, (50, 100)) == (0, 0, 100, 50)


def test_a_pair_has_the_parts_visible_in_both(tmp_path: Path) -> None:
    data = _memory(tmp_path, {"a/1": [(1, 2), None, (3.25, 4)], "a/2": [(5, 0), (2, 2), (7, 6)]})
    assert len(data) == 1
    sample = data.read(0)
    assert sample.points0.tolist() == [[1, 2], [3.25, 4]] and sample.points1.tolist() == [[5, 0], [7, 6]]
    assert sample.parts is not None and sample.parts.tolist() == [0, 2]
    assert sample.mirror_parts is not None and sample.mirror_parts.tolist() == [1, 0, 2]
    assert sample.image0.shape == (3, 6, 8) and sample.image1.shape == (3, 7, 9)
    assert sample.name == "a/1--a/2" == data.pair_name(0)
    assert sample.pck_length == 9 + 100 * 7  # of image 1
    assert data.image_paths(0) == (tmp_path / "a/1.png", tmp_path / "a/2.png")
    assert data.pair_files(0) == data.image_paths(0)  # the list of all parts is no pair's own file


def test_a_set_that_does_not_say_left_and_right_has_no_parts(tmp_path: Path) -> None:
    sample = _memory(tmp_path, {"nameless/1": [(1, 2)], "nameless/2": [(5, 0)]}).read(0)
    assert sample.parts is None and sample.mirror_parts is None and len(sample) == 1


def test_a_pair_may_have_nothing_in_common(tmp_path: Path) -> None:
    data = _memory(tmp_path, {"a/1": [(1, 2), None, None], "a/2": [None, (2, 2), None], "a/3": []})
    for index in range(3):
        sample = data.read(index)
        assert sample.points0.shape == (0, 2) == sample.points1.shape
    assert data.read(0).points0.dtype == data.read(0).image0.dtype


def test_images_with_other_numbers_of_parts_are_refused(tmp_path: Path) -> None:
    data = _memory(tmp_path, {"a/1": [(1, 2), (2, 1)], "a/2": [(1, 1), (2, 2), (3, 3)]})
    with pytest.raises(DataError, match=r"expected 2 parts as in .*, got 3"):
        data.read(0)


def test_pairs_are_of_one_class_unless_any_will_do(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {name: [(1, 1), (2, 2), (3, 3)] for name in ("a/1", "b/1", "a/2", "b/2", "a/3")}
    data = _memory(tmp_path, spots)
    names = [data.pair_name(index) for index in range(len(data))]
    assert names == ["a/1--a/2", "a/1--a/3", "a/2--a/3", "b/1--b/2"]
    assert len(MemoryParts(tmp_path, spots, pairing="any")) == 10
    with pytest.raises(DataError, match="pairing must be one of class, any, got 'none'"):
        MemoryParts(tmp_path, spots, pairing="none")
    with pytest.raises(IndexError, match="there is no pair 4"):
        data.read(4)
    with pytest.raises(IndexError, match="there is no pair -1"):
        data.pair_name(-1)


def test_listed_pairs_keep_their_order_and_only_their_images(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {f"a/{i}": [(i, 1), (2, 2), (3, 3)] for i in range(5)}
    data = _memory(tmp_path, spots, pairs=[(4, 1), (1, 3)])
    assert [data.pair_name(index) for index in range(len(data))] == ["a/4--a/1", "a/1--a/3"]
    assert data.read(0).points0[0].tolist() == [4, 1]
    assert [file.path.name for file in data.files()] == ["1.png", "3.png", "4.png"]


def _images(data: PairData) -> set[Path]:
    return {path for index in range(len(data)) for path in data.image_paths(index)}


def test_split_off_shares_no_image(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {f"{c}/{i:02}": [(1, 1), (2, 2), (3, 3)] for c in "ab" for i in range(10)}
    data = MemoryParts(tmp_path, spots)
    training, validation = data.split_off(0.2)
    assert (len(training), len(validation)) == (2 * math.comb(8, 2), 2)
    assert [validation.pair_name(index) for index in range(2)] == ["a/08--a/09", "b/08--b/09"]
    used = [_images(part) for part in (training, validation)]
    assert len(used[0]) == 16 and len(used[1]) == 4 and not used[0] & used[1]
    assert len(data) == 2 * math.comb(10, 2)


def test_split_off_holds_an_image_of_two_classes_out_of_both(tmp_path: Path) -> None:
    class Shared(MemoryParts):
        def __init__(self) -> None:
            spots: dict[str, Spots] = {f"{c}/{i}": [(1, 1)] for c in "ab" for i in range(4)}
            super().__init__(tmp_path, spots)
            # The last image of class a is the first of class b.
            self._examples = [
                Example(
                    e.name,
                    e.category,
                    tmp_path / f"{int(e.name[2:]) + 3 * (e.category == 'b')}.png",
                    tmp_path,
                )
                for e in self._examples
            ]

    training, validation = Shared().split_off(0.5)
    used = [_images(part) for part in (training, validation)]
    assert used[0] == {
        tmp_path / "0.png",
        tmp_path / "1.png",
    }  # of a; b keeps image 4 alone, without a partner
    assert used[1] == {tmp_path / f"{i}.png" for i in (2, 3, 5, 6)}


def test_split_off_of_listed_pairs_leaves_mixed_ones_out(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {f"a/{i}": [(1, 1), (2, 2), (3, 3)] for i in range(4)}
    data = MemoryParts(tmp_path, spots, pairs=[(1, 0), (0, 3), (3, 2)])
    training, validation = data.split_off(0.5)
    assert [training.pair_name(0), validation.pair_name(0)] == ["a/1--a/0", "a/3--a/2"]
    assert (len(training), len(validation)) == (1, 1)


def test_split_off_of_a_lone_pair_serves_both(tmp_path: Path) -> None:
    data = MemoryParts(tmp_path, {"a/1": [], "a/2": []})
    training, validation = data.split_off(0.2)
    assert len(training) == len(validation) == 1


def test_split_off_holds_out_two_images_of_a_class_where_one_makes_no_pair(tmp_path: Path) -> None:
    names = [*(f"{c}/{i}" for c in "ab" for i in range(6)), "c/1", "c/2"]
    spots: dict[str, Spots] = {name: [(1, 1)] for name in names}
    training, validation = MemoryParts(tmp_path, spots).split_off(0.05)
    assert [validation.pair_name(i) for i in range(len(validation))] == ["a/4--a/5", "b/4--b/5"]
    assert len(training) == 2 * math.comb(4, 2) + 1 and not _images(training) & _images(validation)


def test_split_off_holds_out_whole_classes_where_they_are_small(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {f"{c}/{i}": [(1, 1)] for c in "abcde" for i in range(3)}
    training, validation = MemoryParts(tmp_path, spots).split_off(0.3)  # every third class: a and d
    assert {path.parent.name for path in _images(validation)} == {"a", "d"}
    assert {path.parent.name for path in _images(training)} == {"b", "c", "e"}


def test_split_off_holds_out_whole_groups_of_listed_pairs(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {f"{c}/{i}": [(1, 1)] for c in "ab" for i in range(8)}
    pairs = [(row, 15 - row) for row in range(8)]  # a/0 with b/7, a/1 with b/6, …
    training, validation = MemoryParts(tmp_path, spots, pairs=[*pairs, (0, 9)]).split_off(0.25)
    # The groups are a/0 b/7 b/1 a/6, then a/1 b/6, a/2 b/5, and so on; the first and the fifth are held out.
    held_out = [validation.pair_name(i) for i in range(len(validation))]
    assert held_out == ["a/0--b/7", "a/4--b/3", "a/6--b/1", "a/0--b/1"]
    assert len(training) == 5 and not _images(training) & _images(validation)
    assert isinstance(training, KeypointData) and isinstance(validation, KeypointData)


def test_pairs_are_excluded_one_by_one_or_with_their_second_image(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {f"a/{i}": [(1, 1), (2, 2), (3, 3)] for i in range(4)}
    listed = MemoryParts(tmp_path, spots, pairs=[(0, 1), (0, 2), (3, 2)]).without_pairs({1})
    assert [listed.pair_name(i) for i in range(len(listed))] == ["a/0--a/1", "a/3--a/2"]
    kept = MemoryParts(tmp_path, spots).without_pairs({0})  # a/0--a/1: none of millions of pairs is listed
    assert [kept.pair_name(i) for i in range(len(kept))] == ["a/0--a/2", "a/0--a/3", "a/2--a/3"]
    assert isinstance(kept, KeypointData)


def test_pairs_know_class_and_part_names(tmp_path: Path) -> None:
    class Named(MemoryParts):
        def part_names_of(self, category: str) -> list[str]:
            return [f"{side} {category}" for side in ("left", "right", "mid")]

    spots: dict[str, Spots] = {f"cat/{i}": [(1, 1), (2, 2), (3, 3)] for i in range(2)}
    assert Named(tmp_path, spots).pair_class(0) == "cat"
    assert Named(tmp_path, spots).pair_part_names(0) == ["left cat", "right cat", "mid cat"]
    assert MemoryParts(tmp_path, spots).pair_part_names(0) == ()


def test_pairs_without_a_file(tmp_path: Path) -> None:
    spots: dict[str, Spots] = {f"a/{i}": [(1, 1), (2, 2), (3, 3)] for i in range(4)}
    data = MemoryParts(tmp_path, spots)
    kept = data.without({tmp_path / "a/1.png", tmp_path / "parts.txt"})
    assert [kept.pair_name(i) for i in range(len(kept))] == ["a/0--a/2", "a/0--a/3", "a/2--a/3"]
    listed = MemoryParts(tmp_path, spots, pairs=[(0, 1), (3, 2)]).without({tmp_path / "a/1.png"})
    assert [listed.pair_name(i) for i in range(len(listed))] == ["a/3--a/2"]
    expected = [kept.pair_name(i) for i in range(len(kept))]
    plain = PairData.without(data, {tmp_path / "a/1.png"})
    assert [plain.pair_name(i) for i in range(len(plain))] == expected


def test_files_are_listed_once_and_checked(tmp_path: Path) -> None:
    data = _memory(tmp_path, {"a/1": [(1, 2), (-2, 1), (0, 0)], "a/2": [(1, 2), None, (90, 1)]})
    write_text(tmp_path / "parts.txt", "1")
    data._lists = (tmp_path / "parts.txt",)
    files = data.files()
    assert [(file.path.name, file.kind) for file in files] == [
        ("parts.txt", "list"),
        ("1.png", "image"),
        ("2.png", "image"),
    ]
    files[0].check()
    with pytest.raises(DataError, match=r"part 1 at \(-2, 1\) lies 1.5 px outside"):
        files[1].check()
    with pytest.raises(DataError, match=r"parts.txt:3: part 2 at \(90, 1\) lies"):
        files[2].check()
    (tmp_path / "a/2.png").write_bytes(b"no image")
    with pytest.raises(ImageReadError, match=r"2\.png"):
        files[2].check()


def test_hidden_points_are_noted_once(tmp_path: Path) -> None:
    write_flat_image(tmp_path / "a/1.png", 100, 50)
    write_flat_image(tmp_path / "a/2.png", 100, 50)
    data = MemoryParts(tmp_path, {"a/1": [(1, 2), (-4, 1)], "a/2": [(1, 2), (1, 1)]})
    assert [len(data.read(0)) for _ in range(3)] == [1, 1, 1]
    assert len(data.notes) == 1 and "counts as not visible" in data.notes[0]


def test_a_set_can_be_handed_to_another_process(tmp_path: Path) -> None:
    data = _memory(tmp_path, {"a/1": [(1, 2)], "a/2": [(5, 0)]})
    assert pickle.loads(pickle.dumps(data)).read(0).points0.tolist() == [[1, 2]]


def test_many_problems_are_limited() -> None:
    problems = [Problem(Path("a"), "wrong", line) for line in range(200)]
    assert len(limit_problems(problems)) == 51
    assert (
        limit_problems(problems)[-1].message == "150 more problems of this kind; the first are listed above"
    )
    assert limit_problems(problems[:50]) == problems[:50]


def test_four_fifths_are_for_training() -> None:
    assert [training_count(count) for count in (0, 1, 2, 5, 20, 500)] == [0, 0, 1, 4, 16, 400]


def test_a_list_of_images(tmp_path: Path) -> None:
    path = write_text(tmp_path / "list ö.txt", "x", "2 y", "", "z", "x", "old")
    rows = {"x": 0, "2": 1, "y": 1, "old": OUTSIDE_SPLIT}
    chosen = read_image_list(tmp_path, "list ö.txt", rows)
    assert chosen.rows == [0, 1] and chosen.pairs is None
    assert [(problem.line, problem.message) for problem in chosen.problems] == [
        (4, "expected one or two images: the set has no image 'z'; correct the line")
    ]
    assert chosen.notes == [f"{path}: 1 lines name images that are not of the split; excluded"]


def test_a_list_of_pairs(tmp_path: Path) -> None:
    path = write_text(tmp_path / "list.txt", "x y", "y,x", "x y", "x", "x y z")
    chosen = read_image_list(tmp_path / "elsewhere", str(path), {"x": 0, "y": 1, "z": 2})
    assert chosen.pairs == [(0, 1), (1, 0)] and chosen.rows == []
    assert [problem.line for problem in chosen.problems] == [5, 4]


def test_lists_that_cannot_be_used(tmp_path: Path) -> None:
    write_text(tmp_path / "list.txt", "old")
    with pytest.raises(DataError, match="names no image of the split"):
        read_image_list(tmp_path, "list.txt", {"old": OUTSIDE_SPLIT})
    with pytest.raises(DataError, match="no such file"):
        read_image_list(tmp_path, "nowhere.txt", {})
    with pytest.raises(DataError, match="expected a path inside"):
        read_image_list(tmp_path, "../nowhere.txt", {})


def test_tables_of_pairs(tmp_path: Path) -> None:
    path = write_text(tmp_path / "image_pairs" / "t.csv", "source,target", 'a.png,"b.png",3', "", "c,d")
    assert list(read_table(path)) == [(2, ["a.png", "b.png", "3"]), (4, ["c", "d"])]
    bare = write_text(tmp_path / "bare.csv", "a.JPG,b.jpg")
    assert list(read_table(bare)) == [(1, ["a.JPG", "b.jpg"])]
    (tmp_path / "set").mkdir()
    assert find_table(tmp_path / "set", ["s.csv", "t.csv"], "table") == path
    with pytest.raises(DataError, match=r"no table: expected s.csv or u.csv in "):
        find_table(tmp_path / "set", ["s.csv", "u.csv"], "table")
