import pytest
import torch

from support.bench_cases import check_part, make_fake_cuda, make_settings, replace_timings
from ucn.bench import transformer
from ucn.bench.transformer import build_inputs, measure_errors, transform_plain
from ucn.nn.transformer import transform_and_convolve


def test_definition_begins_as_a_convolution() -> None:
    x, theta, weight, bias = build_inputs(2, 5, 7, 9, torch.float64, make_settings())
    still = torch.eye(2, dtype=torch.float64).view(1, 4, 1, 1).expand_as(theta)
    x, weight, bias = (tensor.detach().double() for tensor in (x, weight, bias))
    expected = torch.nn.functional.conv2d(x, weight, bias, padding=1)
    torch.testing.assert_close(transform_plain(x, still, weight, bias), expected)


def test_errors_are_of_output_and_gradients() -> None:
    settings = make_settings()
    inputs = build_inputs(1, 4, 6, 8, torch.float32, settings)
    gradient = torch.ones(1, 4, 6, 8)
    assert measure_errors(transform_and_convolve, inputs, gradient) < 1e-4

    def doubled(*tensors: torch.Tensor) -> torch.Tensor:
        return 2 * transform_and_convolve(*tensors)

    assert measure_errors(doubled, inputs, gradient) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("is_cuda", [False, True])
def test_tables_are_complete(is_cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(transformer, monkeypatch)
    part = transformer.measure(make_fake_cuda() if is_cuda else make_settings())
    check_part(part)
    (table,) = part.tables
    if not is_cuda:
        assert [row[:2] for row in table.rows] == [("float32", "forward")]
        assert float(table.rows[0][9] or 1) < 1e-5
        return
    passes = ("forward", "forward and backward")
    assert [row[:2] for row in table.rows] == [(t, p) for t in ("bfloat16", "float32") for p in passes]
    assert float(table.rows[3][9] or 1) < 1e-4
