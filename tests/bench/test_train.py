import pytest
import torch

from bench_cases import CPU, check_part, make_pretended, make_settings, replace_timings
from ucn.bench import train
from ucn.bench.train import list_runs, make_bank, make_stepper
from ucn.config import ModelConfig
from ucn.nn import CorrespondenceNetwork, build_model


def test_photographs_depend_on_the_seed_alone() -> None:
    first, same, other = (make_bank(CPU, seed, count=6).canvases for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_runs_are_the_papers_and_the_shipped_one() -> None:
    paper, shipped = list_runs(make_settings()).values()
    assert paper.loss.kind == "contrastive"
    assert shipped.loss.kind == "infonce"
    assert shipped.model.levels >= 1
    assert paper.batch == shipped.batch
    assert paper.synthetic.points == shipped.synthetic.points


def test_steps_move_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[CorrespondenceNetwork] = []

    def build(config: ModelConfig) -> CorrespondenceNetwork:
        made.append(build_model(config))
        return made[-1]

    monkeypatch.setattr(train, "build_model", build)
    config = next(iter(list_runs(make_settings()).values()))
    stepper = make_stepper(config, make_bank(CPU, 0, count=2), make_settings(), is_compiled=False)
    weight = next(made[0].trunk.parameters())
    before = weight.detach().clone()
    precision = torch.get_float32_matmul_precision()
    stepper.advance()
    assert not torch.equal(weight, before)
    assert torch.get_float32_matmul_precision() == precision


@pytest.mark.parametrize("is_cuda", [False, True])
def test_table(is_cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(train, monkeypatch)
    part = train.measure(make_pretended() if is_cuda else make_settings())
    check_part(part)
    (table,) = part.tables
    assert len(table.rows) == 2
    assert table.rows[0][2:4] == (500.0, 1000.0)  # two pairs a step of 2 ms
    assert [target.value for target in part.targets] == ([500.0] if is_cuda else [])
