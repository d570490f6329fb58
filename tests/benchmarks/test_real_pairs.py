"""The script that measures weights on real pairs: which pairs it takes, and errors by hand."""

from types import ModuleType

import pytest
import torch

from support.benchmark_scripts import load_script, run_script
from support.photo_cases import make_photo
from ucn.types import PairSample
from ucn.weights import load_weights


class Pairs:
    """As many pairs as asked for, each with its number for its only point."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> PairSample:
        point = torch.full((1, 2), float(index))
        return PairSample(torch.zeros(3, 8, 8), torch.zeros(3, 8, 8), point, point, str(index))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("real_pairs")


@pytest.mark.parametrize(("count", "last"), [(1, 0), (3, 2), (30, 29), (59, 57), (132, 127)])
def test_pairs_are_spread_over_the_set(script: ModuleType, count: int, last: int) -> None:
    chosen = [int(sample.name) for sample, _ in script.choose_pairs(Pairs(count))]
    assert len(set(chosen)) == min(count, 30) and chosen[0] == 0 and chosen[-1] == last


def test_errors_of_an_image_with_itself_are_those_of_cells(script: ModuleType) -> None:
    image = make_photo(96, 128)
    # Cells lie at 4i + 2: the first two points on one, the last 1 px across and 1 px down from it.
    points = torch.tensor([[30.0, 42.0], [66.0, 50.0], [91.0, 67.0]])
    sample = PairSample(image, image, points, points + torch.tensor([3.0, 4.0]), "message to have moved")
    model = load_weights("geometric-lite").model.eval()
    errors = script.measure_errors(model, (sample, torch.tensor([0, 2])))
    torch.testing.assert_close(errors, torch.tensor([5.0, (4.0**2 + 5.0**2) ** 0.5]))


def test_the_data_folder_is_required(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)
    with pytest.raises(SystemExit, match="UCN_DATA"):
        run_script(script, "geometric-lite")
    monkeypatch.setenv("UCN_DATA", "nowhere")
    with pytest.raises(SystemExit, match="error: no folder nowhere"):
        run_script(script, "geometric-lite")
