from pathlib import Path

import pytest
import torch

from data_cases import MemoryData
from ucn.data.pairs import Fault, Selection, check_choice, check_index
from ucn.errors import DataError
from ucn.types import PairSample


def test_fault_names_file_and_line() -> None:
    assert str(Fault(Path("a/b.txt"), "wrong", 3)) == f"{Path('a/b.txt')}:3: wrong"
    assert str(Fault(Path("b.txt"), "wrong")) == "b.txt: wrong"


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
    assert kept.parts is not None
    assert kept.parts.tolist() == [7, 5]
    assert len(sample.select(torch.zeros(3, dtype=torch.bool))) == 0
