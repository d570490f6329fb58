from pathlib import Path
from typing import Any

import pytest
import torch

from support.bench_cases import CPU, check_part, make_fake_cuda, make_settings, replace_timings
from ucn.bench import encode
from ucn.bench.samples import PAPER, PLAIN_PAPER, load_network, measure_accuracy, read_ground_truth
from ucn.data.example import example_pair
from ucn.nn import CorrespondenceNetwork


def test_ground_truth_is_the_disparity() -> None:
    height, width = example_pair().disparity.shape
    points0, points1 = read_ground_truth((height, width))
    torch.testing.assert_close(points0[:, 1], points1[:, 1])
    columns, rows = points0.round().long().unbind(-1)
    disparity = torch.from_numpy(example_pair().disparity)[rows, columns]
    torch.testing.assert_close(points0[:, 0] - points1[:, 0], disparity)
    half0, half1 = read_ground_truth((height // 2, width // 2))
    assert float((half0[:, 0] - half1[:, 0]).mean()) == pytest.approx(float(disparity.mean()) / 2, rel=0.01)


def test_accuracy_of_shipped_weights_is_far_above_chance() -> None:
    network = load_network("geometric", CPU)
    found = measure_accuracy(network, network, (96, 128), CPU)
    assert found[1] <= found[3] <= found[5] <= found[10]
    assert found[5] > 0.5


def test_transformer_of_the_paper_network_is_not_the_identity() -> None:
    network = load_network(PAPER, CPU)
    assert network.config.transformer == "after_trunk"
    assert load_network(PLAIN_PAPER, CPU).config.transformer == "none"
    with torch.no_grad():
        theta = network.transformer.predict_theta(torch.ones(1, 128, 6, 6))  # type: ignore[operator]
    assert float((theta - torch.eye(2).view(1, 4, 1, 1)).abs().max()) > 0.01


def test_flops_by_hand() -> None:
    class Small(torch.nn.Conv2d):
        pass

    layer: Any = Small(3, 4, 1, bias=False)
    assert encode.count_flops(layer, torch.rand(1, 3, 5, 7)) == 2 * 3 * 4 * 5 * 7


def test_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(encode, monkeypatch)
    monkeypatch.setattr(encode, "list_cpu_networks", lambda: [PLAIN_PAPER, "geometric"])
    part = encode.measure(make_settings())
    check_part(part)
    speed, accuracy = part.tables
    whats = [row[0] for row in speed.rows]
    assert whats[:4] == [
        f"{PLAIN_PAPER}, eager",
        f"{PLAIN_PAPER}, fast path",
        "geometric, eager",
        "geometric, fast path",
    ]
    assert any(str(what).startswith("SIFT") for what in whats)
    assert float(speed.rows[1][4] or 0) < 1e-5
    assert [row[0] for row in accuracy.rows] == ["geometric, eager", "geometric, fast path"]
    eager, fast = ([float(cell or 0) for cell in row[1:]] for row in accuracy.rows)
    assert fast == pytest.approx(eager, abs=0.01)


def test_xfeat_runs(data_folder: Path) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'baselines' is not installed")
    path = data_folder / "peers" / "xfeat_vga.onnx"
    if not path.is_file():
        pytest.skip("the sample data has no XFeat")
    baselines = encode._list_baselines(torch.rand(3, 96, 128), path)
    baselines["XFeat's network (onnxruntime)"]()


def test_cuda_tables_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_timings(encode, monkeypatch)

    def fake_times(network: CorrespondenceNetwork, *_: object) -> dict[str, float]:
        return {encode._EAGER: 14.0, encode._FAST: 2.0}

    monkeypatch.setattr(encode, "_time_cuda", fake_times)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    part = encode.measure(make_fake_cuda())
    check_part(part)
    speed, accuracy, engines = part.tables
    assert [str(row[0]).partition(":")[0] for row in engines.rows] == [
        "plain",
        "auto, new image size",
        "auto, known image size",
    ]
    assert [row[0] for row in speed.rows][-1] == "lower bound"
    assert speed.rows[1][2] == 7.0
    assert [row[0] for row in accuracy.rows] == ["float32", "fast path"]
