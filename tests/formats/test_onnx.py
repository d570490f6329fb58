"""Exported graphs: equal to torch at every size, with metadata, and kept only where they agree."""

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
import torch
from typer.testing import CliRunner

from ucn.cli.app import app
from ucn.config import Calibration, ModelConfig
from ucn.data.example import disparity_errors, example_pair
from ucn.errors import OutputError
from ucn.formats import onnx as onnx_export
from ucn.formats.onnx import export_onnx
from ucn.formats.onnx_graphs import PairGraph, match_all_cells
from ucn.formats.onnx_parity import (
    MIN_SAME_MATCHES,
    SIZES_HW,
    Parity,
    _check,
    check_network,
    find_limit,
    list_sizes,
    open_session,
)
from ucn.matching.cells import match_points
from ucn.matching.keypoints import strongest_corners
from ucn.matching.sub_cell import refine_sub_cell
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.types import FeatureMap
from ucn.weights import LoadedWeights, WeightsInfo, load_weights

onnx = pytest.importorskip("onnx", reason="exporting needs the extra 'export'")
pytest.importorskip("onnxruntime", reason="exporting needs the extra 'export'")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_match.py"
MAX_SIDE = 320


def random_model(config: ModelConfig) -> CorrespondenceNetwork:
    """A random network whose zero-initialised parameters are random too."""
    model = build_model(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def random_weights(config: ModelConfig) -> LoadedWeights:
    info = WeightsInfo.of_file(Path("folder/mine.safetensors"), "ab" * 32, 1)
    return LoadedWeights(random_model(config), Calibration(), info, {}, 192)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx_export.Export]:
    """Both graphs of the shipped weights, which are said to be for smaller images: that takes less time."""
    folder, loaded = tmp_path_factory.mktemp("onnx"), replace(load_weights("geometric"), max_side=MAX_SIDE)
    return {
        "network": export_onnx(loaded, folder / "network.onnx"),
        "pair": export_onnx(loaded, folder / "pair.onnx", kind="pair", k=300),
    }


def read_metadata(path: Path) -> dict[str, str]:
    session = open_session(path.read_bytes())
    return dict(session.get_modelmeta().custom_metadata_map)


@pytest.mark.slow
class TestFiles:
    @pytest.mark.parametrize("kind", ["network", "pair"])
    def test_agreement_was_measured_at_the_size_of_matching_too(
        self, files: dict[str, onnx_export.Export], kind: str
    ) -> None:
        export = files[kind]
        assert [parity.size_hw for parity in export.parity] == [*SIZES_HW, (213, MAX_SIDE)]
        assert all(parity.max_difference <= parity.limit for parity in export.parity)
        assert min(parity.same_matches for parity in export.parity) >= 0.995
        assert export.file_bytes == export.path.stat().st_size

    @pytest.mark.parametrize("shape", [(1, 3, 32, 32), (3, 3, 33, 47), (2, 3, 64, 200)])
    def test_network_of_other_sizes_than_were_compared(
        self, files: dict[str, onnx_export.Export], shape: tuple[int, ...]
    ) -> None:
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        session = open_session(files["network"].path.read_bytes())
        found = session.run(None, {"images": images.numpy()})[0]
        with torch.no_grad():
            expected = load_weights("geometric").model(images).numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert [axis for axis in session.get_inputs()[0].shape if isinstance(axis, str)] == [
            "batch",
            "height",
            "width",
        ]

    def test_pair_gives_k_rows_for_small_and_blank_images(self, files: dict[str, onnx_export.Export]) -> None:
        session = open_session(files["pair"].path.read_bytes())
        assert [item.shape for item in session.get_outputs()] == [[300, 2], [300, 2], [300], [300]]
        for level in (0.0, 0.5):
            images = [np.full((1, 3, 32, width), level, np.float32) for width in (32, 45)]
            points0, points1, scores, is_mutual = session.run(
                None, dict(zip(("image0", "image1"), images, strict=True))
            )
            assert points0.shape == points1.shape == (300, 2)
            assert scores.shape == is_mutual.shape == (300,)
            assert not scores.any()
            assert not is_mutual.any()

    @pytest.mark.parametrize("kind", ["network", "pair"])
    def test_metadata(self, files: dict[str, onnx_export.Export], kind: str) -> None:
        facts = read_metadata(files[kind].path)
        loaded = load_weights("geometric")
        assert facts == files[kind].metadata
        assert facts["format"] == "ucn-onnx-1"
        assert facts["kind"] == kind
        assert facts["weights"] == "geometric"
        assert facts["weights_sha256"] == loaded.info.sha256
        assert facts["licence"] == loaded.info.licence
        assert "RGB in [0, 1]" in facts["preprocessing"]
        assert (int(facts["stride"]), float(facts["offset"])) == (loaded.model.stride, loaded.model.offset)
        assert int(facts["max_side"]) == MAX_SIDE
        assert "height" not in facts
        assert json.loads(facts["model"]) == loaded.model.config.to_dict()
        assert json.loads(facts["calibration"]) == loaded.calibration.to_dict()
        assert facts.get("k") == ("300" if kind == "pair" else None)

    def test_same_weights_give_the_same_file(
        self, files: dict[str, onnx_export.Export], tmp_path: Path
    ) -> None:
        loaded = replace(load_weights("geometric"), max_side=MAX_SIDE)
        again = export_onnx(loaded, tmp_path / "again.onnx")
        assert again.path.read_bytes() == files["network"].path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(transformer="none", dim=None, head_norm="none", use_standard_light=True),
        ModelConfig(transformer="in_branch", dim=24, head_norm="channel", context_layers=1),
        ModelConfig(transformer="after_trunk", dim=16, strides=(2, 2, 2, 1), head_norm="batch", levels=2),
        ModelConfig(trunk="lite", transformer="none", dim=16, head_norm="none"),
        ModelConfig(transformer="none", dim=16, semantic_dim=12),
    ],
    ids=lambda config: f"{config.trunk}, {config.transformer}, {config.semantic_dim}",
)
def test_every_kind_of_network(config: ModelConfig, tmp_path: Path) -> None:
    export = export_onnx(random_weights(config), tmp_path / "n.onnx")
    facts = read_metadata(export.path)
    assert facts["weights"] == "mine.safetensors"
    assert facts["dimension"] == str(config.dim or 512)  # of the fine level, which alone is exported


SIZE = (64, 96)


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> onnx_export.Export:
    """A graph of one image size."""
    path = tmp_path_factory.mktemp("fixed") / "n.onnx"
    return export_onnx(random_weights(ModelConfig(dim=8)), path, size_hw=SIZE)


class TestFixedSize:
    """A graph of one image size, from which everything but pixels is folded away."""

    def test_shapes_and_metadata(self, fixed: onnx_export.Export) -> None:
        session = open_session(fixed.path.read_bytes())
        assert session.get_inputs()[0].shape == [1, 3, *SIZE]
        assert session.get_outputs()[0].shape == [1, 8, 16, 24]
        assert (fixed.metadata["height"], fixed.metadata["width"]) == ("64", "96")
        (parity,) = fixed.parity
        assert (parity.size_hw, parity.limit) == (SIZE, 1e-4)
        model = onnx.load(fixed.path)
        assert not {"Shape", "Constant", "Gather"} & {node.op_type for node in model.graph.node}
        assert [item.domain for item in model.opset_import] == [""]

    def test_opencv_agrees(self, fixed: onnx_export.Export) -> None:
        if int(cv2.__version__.split(".")[0]) < 5:
            pytest.skip(f"OpenCV 5 is needed, this is {cv2.__version__}")
        network = cv2.dnn.readNetFromONNX(str(fixed.path))
        image = torch.rand(1, 3, *SIZE, generator=torch.Generator().manual_seed(0)).numpy()
        network.setInput(image)
        expected = open_session(fixed.path.read_bytes()).run(None, {"images": image})[0]
        np.testing.assert_allclose(network.forward(), expected, atol=1e-5)

    @pytest.mark.slow
    def test_pair(self, tmp_path: Path) -> None:
        loaded = random_weights(ModelConfig(dim=8, trunk="lite", transformer="none", head_norm="none"))
        export = export_onnx(loaded, tmp_path / "p.onnx", kind="pair", k=20, size_hw=SIZE)
        session = open_session(export.path.read_bytes())
        assert [item.shape for item in session.get_inputs()] == [[1, 3, *SIZE]] * 2
        assert session.get_outputs()[0].shape == [20, 2]

    @pytest.mark.parametrize("size_hw", [(31, 64), (64, 2**24)])
    def test_wrong_sizes(self, tmp_path: Path, size_hw: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match="size_hw must have sides of at least 32 and at most"):
            export_onnx(random_weights(ModelConfig(dim=8)), tmp_path / "n.onnx", size_hw=size_hw)


class TestParity:
    def test_sizes_and_limits(self) -> None:
        assert list_sizes(1024) == (*SIZES_HW, (683, 1024))
        assert list_sizes(40)[-1] == (32, 40)
        assert find_limit((96, 128)) == find_limit((160, 240)) == 1e-4
        assert find_limit((320, 480)) == pytest.approx(4e-4)

    @pytest.mark.slow
    def test_at_the_size_of_matching(self, tmp_path: Path) -> None:
        """Of the smallest weights, with their own size."""
        loaded = load_weights("geometric-lite")
        assert loaded.max_side == 1024
        export = export_onnx(loaded, tmp_path / "n.onnx")
        assert export.parity[-1].size_hw == (683, 1024)
        assert export.parity[-1].limit == pytest.approx(1e-4 * 683 * 1024 / (160 * 240))

    def test_a_larger_difference_at_another_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = random_weights(ModelConfig(dim=8, trunk="lite", transformer="none", head_norm="none"))
        content = onnx_export._trace(loaded.model, 1, ["images"], {"features": onnx_export._CELLS})
        monkeypatch.setattr("ucn.formats.onnx_parity.MAX_DIFFERENCE", 0.0)
        with pytest.raises(OutputError, match="differs from torch at 128 × 96: expected values within 0 "):
            list(check_network(content, loaded))


class TestGraphs:
    def test_matches_are_those_of_the_library(self) -> None:
        model = random_model(ModelConfig(dim=16))
        generator = torch.Generator().manual_seed(0)
        image0 = torch.rand(1, 3, 48, 64, generator=generator)
        image1 = image0.roll((4, 8), (2, 3))[..., :61]
        points = torch.tensor([[20.0, 20.0], [33.3, 17.2], [0.0, 0.0], [63.0, 47.0]])
        with torch.no_grad():
            maps = model.encode(image0), model.encode(image1)
            found = match_all_cells(*maps, points)
            expected = match_points(*maps, points, second_best_radius=16.0)
        for name in ("points1", "similarities", "second_best", "round_trip_errors"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-4, rtol=1e-4)

    def test_rows_beyond_the_corners_are_no_matches(self) -> None:
        graph = PairGraph(random_model(ModelConfig(dim=8)), Calibration(), 5)
        image = torch.zeros(1, 3, 32, 40)
        image[..., 14:18, 15:20] = 1
        with torch.no_grad():
            points0, points1, scores, is_mutual = graph(image, image)
        corners = strongest_corners(image, 5)[1][0] > 0
        assert not scores[~corners].any()
        assert not is_mutual[~corners].any()
        assert points0.shape == points1.shape == (5, 2)


class TestNothingIsKept:
    def test_where_the_graph_differs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = random_weights(ModelConfig(dim=8, transformer="none"))
        record = onnx_export._trace

        def record_another(module: Any, *arguments: Any) -> bytes:
            content = record(module, *arguments)
            with torch.no_grad():
                module.projection.weight[0] *= 1.2  # what torch now gives is not in the file
            return content

        monkeypatch.setattr(onnx_export, "_trace", record_another)
        with pytest.raises(OutputError, match=r"differs from torch at 128 × 96: .* no file was written"):
            export_onnx(loaded, tmp_path / "n.onnx")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.slow
    def test_where_the_cycle_check_differs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def forward(graph: PairGraph, image0: torch.Tensor, image1: torch.Tensor) -> Any:
            *found, is_mutual = original(graph, image0, image1)
            return *found, ~is_mutual

        original = PairGraph.forward
        monkeypatch.setattr(PairGraph, "forward", forward)
        with pytest.raises(OutputError, match=r"equal matches, got .* no file was written"):
            export_onnx(random_weights(ModelConfig(dim=8)), tmp_path / "n.onnx", kind="pair", k=20)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("difference", "same"), [(2e-3, 1.0), (float("nan"), 1.0), (0.0, MIN_SAME_MATCHES - 1e-3)]
    )
    def test_limits(self, difference: float, same: float) -> None:
        assert _check(Parity((8, 9), 1e-4, MIN_SAME_MATCHES, 1e-3))
        with pytest.raises(OutputError, match="9 × 8"):
            _check(Parity((8, 9), difference, same, 1e-3))

    def test_where_it_does_not_run(self) -> None:
        with pytest.raises(OutputError, match="onnxruntime cannot run the graph"):
            open_session(b"nonsense")

    def test_where_a_package_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(OutputError, match=r"needs onnx and onnxruntime: pip install 'ucn\[export\]'"):
            export_onnx(random_weights(ModelConfig(dim=8)), tmp_path / "n.onnx")

    @pytest.mark.parametrize(
        ("name", "options", "error"),
        [
            ("n.txt", {}, r"must end in \.onnx"),
            ("no/n.onnx", {}, "does not exist"),
            ("n.onnx", {"k": 0}, r"k must be in 1\.\.8192"),
            ("n.onnx", {"kind": "other"}, "kind must be network or pair"),
        ],
    )
    def test_wrong_arguments(self, tmp_path: Path, name: str, options: dict[str, Any], error: str) -> None:
        with pytest.raises((OutputError, ValueError), match=error):
            export_onnx(random_weights(ModelConfig(dim=8)), tmp_path / name, **options)


class TestExample:
    """The example runs where torch and ucn cannot be imported, and finds right matches."""

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["network", "pair"])
    def test_matches_the_bundled_pair(
        self, files: dict[str, onnx_export.Export], kind: str, tmp_path: Path
    ) -> None:
        pair = example_pair()
        paths = [tmp_path / "0.png", tmp_path / "1.png"]
        for path, original in zip(paths, (pair.image0_path, pair.image1_path), strict=True):
            with PIL.Image.open(original) as image:
                image.resize((image.width // 2, image.height // 2)).save(path)
        arguments = list(map(str, [EXAMPLE, files[kind].path, *paths, tmp_path / "matches.csv"]))
        code = (
            "import runpy, sys\n"
            "sys.modules['torch'] = sys.modules['ucn'] = None\n"
            "try:\n    import torch\n"
            "except ImportError:\n    pass\n"
            "else:\n    raise SystemExit('torch was imported')\n"
            f"sys.argv = {arguments!r}\n"
            f"runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')\n"
        )
        environment = {**os.environ, "PYTHONPATH": ""}
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
        )
        assert result.returncode == 0, result.stderr
        assert "weights geometric, licence: " in result.stdout
        rows = np.loadtxt(tmp_path / "matches.csv", np.float32, delimiter=",", skiprows=1)
        points0, points1 = ((points + 0.5) * 2 - 0.5 for points in (rows[:, :2], rows[:, 2:4]))
        errors = disparity_errors(points0, points1, pair.disparity)
        errors = errors[np.isfinite(errors)]
        assert len(errors) > 50
        assert np.mean(errors <= 8) > 0.7

    def test_reading_keeps_to_the_sides_that_the_file_names(self, tmp_path: Path) -> None:
        read = runpy.run_path(str(EXAMPLE))["read_image"]
        for size, expected in (((900, 40), (720, 32)), ((300, 150), (200, 100)), ((50, 40), (50, 40))):
            PIL.Image.new("RGB", size).save(tmp_path / "a.png")
            pixels, scale = read(str(tmp_path / "a.png"), 32, 200)
            assert pixels.shape == (1, 3, expected[1], expected[0])
            np.testing.assert_allclose(scale, np.divide(size, expected))
        pixels, scale = read(str(tmp_path / "a.png"), 32, 200, (100, 64))
        assert pixels.shape == (1, 3, 64, 100)
        np.testing.assert_allclose(scale, [0.5, 40 / 64])
        PIL.Image.new("RGB", (100, 31)).save(tmp_path / "a.png")
        with pytest.raises(SystemExit, match="at least 32 pixels a side, got 100 × 31"):
            read(str(tmp_path / "a.png"), 32, 200)

    def test_refinement_is_that_of_the_library(self) -> None:
        example = runpy.run_path(str(EXAMPLE))
        generator = torch.Generator().manual_seed(0)
        features = [
            torch.nn.functional.normalize(torch.rand(1, 6, *hw, generator=generator), dim=1)
            for hw in ((5, 7), (6, 4))
        ]
        map0, map1 = (FeatureMap(each, 4, 2.0, (99, 99)) for each in features)
        cells = torch.arange(35)
        points0 = torch.stack([cells % 7, cells // 7], dim=1) * 4.0 + 2.0
        nearest1 = (features[0].flatten(2)[0].T @ features[1].flatten(2)[0]).argmax(dim=1)
        expected = refine_sub_cell(map0, map1, points0, nearest1)
        queries = features[0].flatten(2)[0].T.numpy()
        found, similarities = example["refine_cells"](queries, features[1][0].numpy(), nearest1.numpy())
        np.testing.assert_allclose(found * 4 + 2, expected.points.numpy(), atol=1e-3)
        np.testing.assert_allclose(similarities, expected.similarities.numpy(), atol=1e-5)
        points = example["match_cells"](features[0][0].numpy(), features[1][0].numpy(), 4, 2.0)[1]
        assert 0 < len(points) <= 24
        assert (points % 4 != 2).any()
        empty = example["refine_cells"](queries[:0], features[1][0].numpy(), nearest1[:0].numpy())
        assert [len(each) for each in empty] == [0, 0]

    def test_without_arguments_it_explains_itself(self) -> None:
        result = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
        assert result.returncode == 0
        assert "ucn export geometric" in result.stdout

    def test_with_too_few_arguments_it_fails(self) -> None:
        command = [sys.executable, str(EXAMPLE), "network.onnx"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 1
        assert "ucn export geometric" in result.stderr


class TestCommand:
    @pytest.mark.slow
    def test_json(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ucn.weights.load_weights", lambda _: random_weights(ModelConfig(dim=8)))
        path, weights = tmp_path / "ucn.onnx", tmp_path / "mine.safetensors"
        weights.touch()
        arguments = ["export", str(weights), "-o", str(path), "--pair", "-k", "64", "--json"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert report["kind"] == "pair"
        assert report["outputs"] == [str(path)]
        assert report["file_bytes"] == path.stat().st_size
        assert len(report["parity"]) == 4
        assert report["metadata"] == read_metadata(path)
        assert report["metadata"]["k"] == "64"

    @pytest.mark.slow
    def test_lines_and_refusals(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ucn.weights.load_weights", lambda _: random_weights(ModelConfig(dim=8)))
        path, weights = tmp_path / "ucn.onnx", tmp_path / "mine.safetensors"
        weights.touch()
        arguments = ["export", str(weights), "-o", str(path)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert "% of the matches of torch" in result.stdout
        assert re.search(r"240 × 160 +\d.\de-0\d \(at most 1.0e-04\)", result.stdout)
        assert "192 × 128" in result.stdout
        before = path.read_bytes()
        again = CliRunner().invoke(app, arguments)
        assert again.exit_code == 1
        assert "exists already" in again.stderr
        assert path.read_bytes() == before

    @pytest.mark.slow
    def test_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ucn.weights.load_weights", lambda _: random_weights(ModelConfig(dim=8)))
        path, weights = tmp_path / "ucn.onnx", tmp_path / "mine.safetensors"
        weights.touch()
        arguments = ["export", str(weights), "-o", str(path), "--size", "64x96"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert "96 × 64" in result.stdout
        assert read_metadata(path)["height"] == "64"

    def test_wrong_usage(self, tmp_path: Path) -> None:
        assert CliRunner().invoke(app, ["export", "geometric"]).exit_code == 2
        wrong = CliRunner().invoke(
            app, ["export", "geometric", "-o", str(tmp_path / "n.onnx"), "--size", "64"]
        )
        assert wrong.exit_code == 2
        assert "--size must be height x width" in wrong.output
        arguments = ["export", "geometric", "-o", str(tmp_path / "n.onnx"), "-k", "5"]
        assert CliRunner().invoke(app, arguments).exit_code == 2
        unknown = CliRunner().invoke(app, ["export", "nonsense", "-o", str(tmp_path / "n.onnx")])
        assert unknown.exit_code == 1
        assert "no weights 'nonsense'" in unknown.stderr
