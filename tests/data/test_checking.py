import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.data_cases import MemoryData
from ucn.data.checking import check_data, skip_bad, spread
from ucn.data.pairs import Problem
from ucn.errors import DataError, ImageReadError, OutputError, UcnError
from ucn.types import PairSample


class FailingData(MemoryData):
    """Files are good, but reading some pairs raises."""

    def __init__(self, count: int, errors: Mapping[int, UcnError]) -> None:
        super().__init__(count)
        self.errors = errors

    def read(self, index: int) -> PairSample:
        sample = super().read(index)
        if index in self.errors:
            raise self.errors[index]
        return sample


def test_good_data() -> None:
    seen: list[tuple[int, int]] = []
    report = check_data(MemoryData(4), lambda done, total: seen.append((done, total)))
    assert report.is_good
    assert report.file_counts == {"image": 5, "points": 4}
    assert (report.pair_count, report.read_count, report.point_count) == (4, 4, 20)
    assert seen == [(i + 1, 13) for i in range(13)]


def test_bad_file_is_named_once_and_its_pairs_are_skipped() -> None:
    data = MemoryData(4, bad=["2.png"])
    report = check_data(data)
    assert report.problems == (Problem(Path("memory/2.png"), "expected a number, got 'x'", 7),)
    assert report.read_count == 2  # pairs 1 and 2 hold the image
    kept = skip_bad(data, report)
    assert [kept.pair_name(i) for i in range(len(kept))] == ["pair-0", "pair-3"]


def test_problems_of_indexing_count() -> None:
    data = MemoryData(2)
    data.problems.append(Problem(Path("list.txt"), "unknown image", 3))
    data.notes.append("one point left out")
    report = check_data(data)
    assert not report.is_good
    assert report.bad_files == {Path("list.txt")}
    assert report.notes == ("one point left out",)


def test_points_outside_are_a_problem_of_the_pairs_own_file() -> None:
    report = check_data(MemoryData(1, shift=5.0))  # images are 10 x 8, points up to 5 + 5
    (problem,) = report.problems
    assert problem.path.name == "0.csv"
    # Points are (0, 1), (2, 3), (4, 5), (0, 1), (2, 3), moved by 5: of them (9, 10), (7, 8), (7, 8) are out.
    assert "0 points of image 0 and 3 of image 1 lie outside" in problem.message


def test_pairs_without_points_are_said_but_no_problem() -> None:
    report = check_data(MemoryData(3, points=0))
    assert report.is_good
    assert report.empty_names == ("pair-0", "pair-1", "pair-2")


def test_at_most_so_many_pairs_are_read() -> None:
    data = MemoryData(100)
    report = check_data(data, max_pairs=4)
    assert data.reads == [0, 25, 50, 75]
    assert report.read_count == 4
    assert check_data(MemoryData(3), max_pairs=0).read_count == 0


def test_spread() -> None:
    assert spread(3, 5) == [0, 1, 2]
    assert spread(10, 3) == [0, 3, 6]
    assert spread(0, 3) == []


def test_what_indexing_excluded_does_not_make_its_file_bad() -> None:
    data = MemoryData(3)
    data.problems.append(
        Problem(Path("memory/1.csv"), "expected 4 lines, got 3; get it again", is_excluded=True)
    )
    report = check_data(data)
    assert not report.is_good and report.bad_files == frozenset()
    assert report.read_count == 3 and len(skip_bad(data, report)) == 3
    data.problems.append(Problem(Path("memory/1.csv"), "is damaged"))
    report = check_data(data)
    assert report.bad_files == {Path("memory/1.csv")} and len(skip_bad(data, report)) == 2


def test_a_pair_that_cannot_be_read_blames_no_file_that_others_share() -> None:
    wrong = DataError("the two images differ in size; remove one")
    data = FailingData(5, {1: wrong, 3: wrong})
    report = check_data(data)
    assert [(problem.path.name, problem.message) for problem in report.problems] == [
        ("1.csv", str(wrong)),
        ("3.csv", str(wrong)),
    ]
    assert report.bad_files == frozenset() and report.bad_pairs == {1, 3}
    kept = skip_bad(data, report)
    assert [kept.pair_name(i) for i in range(len(kept))] == ["pair-0", "pair-2", "pair-4"]


def test_an_error_of_a_pair_names_its_file() -> None:
    image, path = Path("memory/2.png"), Path("memory/poses.txt")
    data = FailingData(
        6,
        {
            1: ImageReadError(f"cannot read image {image}: odd size", path=image),
            2: ImageReadError(f"cannot read image {image}: odd size", path=image),
            4: DataError(f"{path}:3: no rotation", path=path),
            5: DataError(f"{path}:3: no rotation", path=path),
        },
    )
    report = check_data(data)
    assert report.problems == (
        Problem(image, "cannot read image: odd size"),
        Problem(path, "no rotation", 3),
    )
    # 2.png is part of pairs 1 and 2; the poses are no pair's file, so that their pairs are bad themselves.
    assert image in report.bad_files and report.bad_pairs == {4, 5}
    kept = skip_bad(data, report)
    assert [kept.pair_name(i) for i in range(len(kept))] == ["pair-0", "pair-3"]


def test_a_pair_with_points_outside_is_excluded_alone() -> None:
    data = MemoryData(2, shift=5.0)
    report = check_data(data)
    assert report.bad_pairs == {0, 1} and report.bad_files == frozenset()


@pytest.mark.parametrize(
    ("message", "text", "line"),
    [
        ("cannot read image memory/0.png: no such file", "cannot read image: no such file", None),
        ("cannot read list memory/0.png:12: no number", "cannot read list: no number", 12),
        ("memory/0.png is not a .flo file", "it is not a .flo file", None),
        ("memory/0.png has 9 bytes, the limit is 3", "it has 9 bytes, the limit is 3", None),
        ("memory/0.png:4: expected 2 numbers", "expected 2 numbers", 4),
        ("memory/0.png: expected 2 numbers", "expected 2 numbers", None),
        ("cannot read memory/0.png as .mat: damaged", "cannot read it as .mat: damaged", None),
        ("memory/0.png.gz: damaged", "memory/0.png.gz: damaged", None),
        ("expected a flow", "expected a flow", None),
    ],
)
def test_a_problem_does_not_name_its_file_twice(message: str, text: str, line: int | None) -> None:
    report = check_data(FailingData(1, {0: DataError(message, path=Path("memory/0.png"))}))
    assert report.problems == (Problem(Path("memory/0.png"), text, line),)


def test_a_file_that_another_files_check_finds_bad_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = MemoryData(1, bad=["0.csv"])
    blamed = DataError("memory/0.csv: no number", path=Path("memory/0.csv"))

    def refuse() -> None:
        raise blamed

    monkeypatch.setattr(data, "_reader", lambda path: refuse)
    assert check_data(data).problems == (Problem(Path("memory/0.csv"), "no number"),)


def test_errors_keep_their_file_between_processes() -> None:
    for kind in (DataError, ImageReadError, OutputError):
        error = pickle.loads(pickle.dumps(kind("wrong", path=Path("a.txt"))))
        assert isinstance(error, kind)
        assert (str(error), error.path) == ("wrong", Path("a.txt"))
    assert DataError("wrong").path is None
