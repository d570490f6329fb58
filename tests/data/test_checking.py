from pathlib import Path

from data_cases import MemoryData
from ucn.data.checking import check_data, skip_bad, spread
from ucn.data.pairs import Fault


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
    assert report.faults == (Fault(Path("memory/2.png"), "expected a number, got 'x'", 7),)
    assert report.read_count == 2  # pairs 1 and 2 hold the image
    kept = skip_bad(data, report)
    assert [kept.pair_name(i) for i in range(len(kept))] == ["pair-0", "pair-3"]


def test_faults_of_indexing_count() -> None:
    data = MemoryData(2)
    data.faults.append(Fault(Path("list.txt"), "unknown image", 3))
    data.notes.append("one point left out")
    report = check_data(data)
    assert not report.is_good
    assert report.bad_files == {Path("list.txt")}
    assert report.notes == ("one point left out",)


def test_points_outside_are_a_fault_of_the_pairs_own_file() -> None:
    report = check_data(MemoryData(1, shift=5.0))  # images are 10 x 8, points up to 5 + 5
    (fault,) = report.faults
    assert fault.path.name == "0.csv"
    # Points are (0, 1), (2, 3), (4, 5), (0, 1), (2, 3), moved by 5: of them (9, 10), (7, 8), (7, 8) are out.
    assert "0 points of image 0 and 3 of image 1 lie outside" in fault.message


def test_pairs_without_points_are_said_but_no_fault() -> None:
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
