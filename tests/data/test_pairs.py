from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from support.data_cases import MemoryData
from ucn.data.pairs import PairData, Problem, Selection, check_choice, check_index
from ucn.errors import DataError
from ucn.types import PairSample


def test_problem_names_file_and_line() -> None:
    assert str(Problem(Path("a/b.txt"), "wrong", 3)) == f"{Path('a/b.txt')}:3: wrong"
    assert str(Problem(Path("b.txt"), "wrong")) == "b.txt: wrong"


def test_split_off_shares_no_image() -> None:
    # Images 0..10 by name: 0, 1, 10, 2, ... 9; the last 30 % of 11 (4 of them) are 6, 7, 8, 9.
    training, validation = MemoryData(10).split_off(0.3)
    assert [validation.pair_name(i) for i in range(len(validation))] == ["pair-6", "pair-7", "pair-8"]
    assert [training.pair_name(i) for i in range(len(training))] == [f"pair-{i}" for i in range(5)]
    images = [{path for i in range(len(d)) for path in d.image_paths(i)} for d in (training, validation)]
    assert images[0].isdisjoint(images[1])


def test_split_off_of_a_lone_pair_serves_both() -> None:
    training, validation = MemoryData(1).split_off(0.1)
    assert len(training) == len(validation) == 1


class ListedData(MemoryData):
    """Pairs of images that are given by name."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        super().__init__(len(pairs))
        self.pairs = pairs

    def image_paths(self, index: int) -> tuple[Path, Path]:
        name0, name1 = self.pairs[index]
        return self.root / name0, self.root / name1


def held_out_names(data: PairData, share: float) -> tuple[list[str], list[str]]:
    training, validation = data.split_off(share)
    images = [{path for i in range(len(d)) for path in d.image_paths(i)} for d in (training, validation)]
    assert images[0].isdisjoint(images[1])
    names = [[part.pair_name(i) for i in range(len(part))] for part in (training, validation)]
    return names[0], names[1]


def test_split_off_holds_out_whole_pairs_where_no_two_last_images_are_a_pair() -> None:
    data = ListedData([(f"left_{i:02}.png", f"right_{i:02}.png") for i in range(60)])
    training, validation = held_out_names(data, 0.05)  # every 20th
    assert validation == ["pair-0", "pair-20", "pair-40"] and len(training) == 57


def test_split_off_holds_out_whole_folders() -> None:
    pairs = [(f"{scene}/1.ppm", f"{scene}/{i}.ppm") for scene in "abcd" for i in range(2, 7)]
    training, validation = held_out_names(ListedData(pairs), 0.3)  # every third scene: a and d
    assert validation == [f"pair-{i}" for i in (*range(5), *range(15, 20))]
    assert training == [f"pair-{i}" for i in range(5, 15)]


def test_split_off_follows_chains_of_pairs_and_trains_on_the_larger_part() -> None:
    chain = [(f"a{i}.png", f"b{i // 2}.png") for i in range(6)] + [("b0.png", "b1.png"), ("b1.png", "b2.png")]
    training, validation = held_out_names(ListedData([*chain, ("z0.png", "z1.png")]), 0.05)
    assert validation == ["pair-8"] and training == [f"pair-{i}" for i in range(8)]


def test_split_off_of_one_chain_serves_both() -> None:
    star = ListedData([("1.png", f"{i}.png") for i in range(2, 7)])
    training, validation = star.split_off(0.2)
    assert len(training) == len(validation) == 5


def test_pairs_say_nothing_of_classes_unless_their_set_does() -> None:
    data = MemoryData(1)
    assert (data.pair_class(0), data.pair_split(0), tuple(data.pair_part_names(0))) == ("", "", ())

    class Named(MemoryData):
        def pair_class(self, index: int) -> str:
            return f"class {index}"

        def pair_split(self, index: int) -> str:
            return "val"

        def pair_part_names(self, index: int) -> Sequence[str]:
            return [f"part of {index}"]

    chosen = Selection(Named(3), [2])
    assert (chosen.pair_class(0), chosen.pair_split(0)) == ("class 2", "val")
    assert chosen.pair_part_names(0) == ["part of 2"]


def test_without_pairs() -> None:
    kept = MemoryData(4).without_pairs({1, 2})
    assert [kept.pair_name(i) for i in range(len(kept))] == ["pair-0", "pair-3"]


def test_selection_reads_the_chosen_pairs_and_their_files() -> None:
    data = MemoryData(5)
    chosen = Selection(data, [3, 1])
    assert len(chosen) == 2
    assert chosen.pair_name(0) == chosen.read(0).name == "pair-3"
    assert chosen.image_paths(1) == data.image_paths(1)
    names = {file.path.name for file in chosen.files()}
    assert names == {"1.png", "2.png", "3.png", "4.png", "1.csv", "3.csv"}


def test_check_index_and_choice() -> None:
    with pytest.raises(IndexError, match="no pair 2: the set has 2"):
        check_index(2, 2)
    with pytest.raises(IndexError):
        check_index(-1, 2)
    with pytest.raises(DataError, match="truth must be one of noc, occ, got 'all'"):
        check_choice("all", ("noc", "occ"), "truth")


def test_sample_select_keeps_rows_together() -> None:
    image = torch.zeros(3, 4, 4)
    points = torch.tensor([[0.0, 0], [1, 1], [2, 2]])
    sample = PairSample(image, image, points, points + 1, "a", parts=torch.tensor([5, 6, 7]))
    kept = sample.select(torch.tensor([2, 0]))
    assert len(kept) == 2
    assert kept.points1.tolist() == [[3, 3], [1, 1]]
    assert kept.parts is not None and kept.parts.tolist() == [7, 5]
    assert len(sample.select(torch.zeros(3, dtype=torch.bool))) == 0
