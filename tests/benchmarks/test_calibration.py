"""The script that fits the scores of shipped weights: its pairs, its fit, and the files it writes."""

import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch

from support.benchmark_scripts import load_script, run_script
from ucn.config import Calibration
from ucn.matching.cells import PointMatches
from ucn.weights import load_weights
from ucn.weights.table import SHIPPED

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("calibration")


def test_curves_are_written_with_their_hash(script: ModuleType, tmp_path: Path) -> None:
    for name in ("src/ucn/weights/table.py", "docs/models/birds.md", "docs/models/universal.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    curves = Calibration(match_bias=-1.25, pair_support=70.0)
    sha256 = script.write_curves("birds", curves, tmp_path)
    written = load_weights(tmp_path / "src" / "ucn" / "weights" / "birds.safetensors")
    assert written.calibration == curves and written.info.sha256 == sha256
    shipped = load_weights("birds")
    assert (written.max_side, written.training) == (shipped.max_side, shipped.training)
    tensors = shipped.model.state_dict()
    assert all(torch.equal(value, tensors[name]) for name, value in written.model.state_dict().items())
    table = (tmp_path / "src/ucn/weights/table.py").read_text(encoding="utf-8")
    card = (tmp_path / "docs/models/birds.md").read_text(encoding="utf-8")
    assert sha256 in table and sha256 in card
    assert SHIPPED["birds"].sha256 not in table + card
    assert SHIPPED["universal"].sha256 in table
    other = "docs/models/universal.md"
    assert (tmp_path / other).read_bytes() == (REPOSITORY / other).read_bytes()


def make_found(script: ModuleType, similarity: float, visibility: float = 1.0) -> object:
    """Matches of a grid that all move alike."""
    axis = torch.arange(5.0) * 20
    points = torch.cartesian_prod(axis, axis)
    matches = PointMatches(
        points1=points + 3,
        similarities=torch.full((25,), similarity),
        second_best=torch.full((25,), 0.2),
        round_trip_errors=torch.zeros(25),
    )
    return script.Found(points, matches, torch.full((25,), visibility))


def test_pairs_are_separated(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    related = [make_found(script, value) for value in (0.8, 0.9, 0.95)]
    unrelated = [("noise", make_found(script, value)) for value in (0.1, 0.2)]
    unrelated += [("blank", make_found(script, 0.9, visibility=0.0))]
    curves = Calibration()
    assert script.measure_pair(unrelated[-1][1], curves, 3.0) == (0.0, 0.0, 0.0)  # there is nothing to see
    found = script.fit_pairs(related, unrelated, curves, 3.0)
    assert found.match_bias == curves.match_bias and found.pair_support > 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == ["3 pairs that match", "2 noise", "1 blank"]
    assert "100.0% at 0.5" in lines[0] and "100.0% below 0.2" in lines[1]


def test_two_photographs_score_low(script: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    related = 0.1 + 0.5 * torch.rand(40, generator=generator)
    unrelated = 0.2 * torch.rand(200, generator=generator)  # overlaps with related pairs
    inputs = torch.stack([torch.cat([related, unrelated]), *torch.zeros(2, 240)], dim=1)
    kinds = ["photograph and photograph"] * 100 + ["noise and noise"] * 100
    low = {}
    for name, given in (("photographs", kinds), ("others", ["noise and noise"] * 200)):
        found = script.fit_pair_curve(inputs, 40, given, Calibration())
        scores = torch.sigmoid(found.pair_bias + found.pair_support * unrelated[:100])
        low[name] = int((scores < 0.2).sum())
    assert low["photographs"] == 99 and low["others"] < 95


def test_real_data(
    script: ModuleType, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCN_DATA", str(data_folder))
    kinds = [
        [kind for kind, *_ in script.read_unrelated(known, data_folder, 5)]
        for known in (("birds",), ("scenes",))
    ]
    assert [kinds[0].count(kind) for kind in ("bird and photograph", "noise and noise")] == [5, 1]
    assert kinds[0].count("photograph and photograph") == 5
    assert kinds[1].count("two birds") == 2 and len(set(kinds[1])) == 11
    path = tmp_path / "curves.json"
    run_script(script, str(path), "--weights", "birds", "--pairs", "2")
    found = Calibration.from_dict(json.loads(path.read_text(encoding="utf-8"))["birds"])
    assert found.match_similarity >= 0 >= found.match_round_trip and found.pair_support >= 1
