"""Names, metadata and loading of all methods."""

import pickle
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.trunk_cases import make_arrays, write_npz
from ucn.config import ModelConfig
from ucn.errors import ConfigError, WeightsError
from ucn.features.method import DenseMethod, MethodFiles, MethodInfo, UnavailableError
from ucn.features.names import MethodKind
from ucn.features.network import SPARSE_CONFIG, VIEWS, MatcherViews
from ucn.features.pair_matcher import CONSENSUS_SHA256, NearestNeighbours
from ucn.matching.matcher import Matcher
from ucn.nn import CorrespondenceNetwork, build_model
from ucn.paper.deep_matching import DeepMatching
from ucn.paper.registry import METHODS, is_nearest
from ucn.paper.results import find_systems
from ucn.paper.sift_flow import SiftFlow
from ucn.weights import list_weights, load_weights, save_weights

WITHOUT_FEATURES = {"nn-transfer", "siamese", "sift-flow", "dsp", "deepmatching"}

VIEW_KEY = {VIEWS: [1.4, 30.0, 0.15, 0.3]}


@pytest.fixture(autouse=True)
def no_sample_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_DATA", raising=False)


def save_mine(folder: Path) -> tuple[Path, str]:
    path = folder / "mine.safetensors"
    return path, save_weights(path, build_model(ModelConfig(dim=16)))


class TestNames:
    def test_lists(self) -> None:
        assert {"geometric", "sift", "daisy", "kaze", "hog", "trunk", "xfeat"} <= set(METHODS.list_names())
        assert set(METHODS.systems) == {"sift-flow", "dsp", "deepmatching"}
        assert {*METHODS.systems, "pixel-sift", "nn-transfer", "surf"} <= set(METHODS.list_names())
        assert set(METHODS.list_features()) == set(METHODS.list_names()) - WITHOUT_FEATURES
        matches = {"geometric", "sift", "sift-ratio", "daisy", "kaze", "surf", "trunk", "xfeat", "disk"}
        lightglue = {"disk-lightglue", "aliked-lightglue", "xfeat-lighterglue"}
        assert matches | lightglue <= set(METHODS.list_names("sparse"))

    def test_default_methods(self) -> None:
        loaded = METHODS.load_dense(None)
        names = {*(method.name for method in loaded.methods), *loaded.skipped}
        assert not names & {*METHODS.systems, "pixel-sift", "nn-transfer", "siamese", "vgg"}
        assert {"geometric", "sift", "surf"} <= names

    def test_unknown_names_list_the_legal_ones(self) -> None:
        with pytest.raises(
            ConfigError, match=r"no method 'shift'; did you mean 'sift'\? \(there are geometric, "
        ):
            METHODS.load_dense(["sift", "shift"])
        with pytest.raises(ConfigError, match=r"no method 'sfit'; did you mean 'sift'\?"):
            METHODS.load_sparse(["sfit"])
        for name in ("dsp", "sift+dsp", "sift+consensus", "disk+consensus"):
            with pytest.raises(ConfigError, match=re.escape(f"no method '{name}'")):
                METHODS.load_sparse([name])
        with pytest.raises(ConfigError, match=r"did you mean 'geometric\+nearest'\?"):
            METHODS.load_sparse(["geometric+nearst"])
        for name in ("geometric+nearest", "sift+consensus"):
            with pytest.raises(ConfigError, match=re.escape(f"no method '{name}'")):
                METHODS.find_features(name)

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("sift+siftflow", r"did you mean 'sift\+sift-flow'"),
            ("sift-flow+sift", r"no method 'sift-flow\+sift'"),
            ("dsp+sift-flow", r"no method"),
            ("nn-transfer+dsp", r"no method"),
            ("siamese+dsp", r"no method 'siamese\+dsp'"),
            ("sift+", r"no method 'sift\+'"),
            ("geometric+consensus", r"no method 'geometric\+consensus'"),
            ("sift+nearest", r"weights without consensus are NAME\+nearest, others with it NAME\+consensus"),
            ("geometric+nearst", r"did you mean 'geometric\+nearest'"),
            ("sift+concensus", r"did you mean 'sift\+consensus'"),
            ("siamese+consensus", r"no method 'siamese\+consensus'"),
            ("mine+dsp", r"also work on features of others, as trunk\+sift-flow"),
        ],
    )
    def test_unknown_combinations(self, name: str, hint: str) -> None:
        for load in (METHODS.find, lambda name: METHODS.load_dense([name])):
            with pytest.raises(ConfigError, match=hint):
                load(name)

    def test_order_and_repetition(self) -> None:
        loaded = METHODS.load_dense(["hog", "sift", "hog", "geometric"])
        assert [method.name for method in loaded.methods] == ["hog", "sift", "geometric"]
        assert len({str(method.key) for method in loaded.methods}) == 3
        assert "9 px" in loaded.methods[1].title

    def test_names_of_the_paper(self) -> None:
        names = ["sift-flow", "dsp", "deepmatching", "geometric+sift-flow", "sift", "geometric"]
        assert [find_systems(METHODS.find(name)) for name in names] == [
            *(("SIFT flow",), ("DSP",), ("DeepMatching",)),
            (),  # neither the network of the paper nor SIFT flow
            ("SIFT",),
            (),  # weights of another recipe
        ]


class TestMetadata:
    @pytest.mark.parametrize("name", [info.name for info in list_weights()])
    def test_of_weights_is_that_of_the_network(self, name: str) -> None:
        info, loaded = METHODS.find(name), load_weights(name)
        encoded = loaded.model.encode(torch.zeros(1, 3, 32, 32)).without_semantic()
        assert (info.dim, info.stride) == (encoded.features.shape[1], encoded.stride)
        assert info.max_side == loaded.max_side
        assert info.key == {"ucn": loaded.info.sha256, "consensus": CONSENSUS_SHA256, **VIEW_KEY}
        assert METHODS.find_features(name).key == {"ucn": loaded.info.sha256}

    @pytest.mark.parametrize("config", [ModelConfig(dim=None), ModelConfig(trunk="lite", dim=None)])
    def test_of_a_file(self, config: ModelConfig, tmp_path: Path) -> None:
        model = build_model(config)
        sha256 = save_weights(tmp_path / "mine.safetensors", model, max_side=320)
        info = METHODS.find_features(str(tmp_path / "mine.safetensors"))
        assert (info.name, info.key, info.max_side) == ("mine", {"ucn": sha256}, 320)
        assert (info.dim, info.stride) == (model.trunk.channels_out, model.stride)

    @pytest.mark.parametrize(
        "name", ["sift", "daisy", "kaze", "hog", "surf", "pixel-sift", "siamese", "dsp", "deepmatching"]
    )
    def test_of_baselines_is_that_of_their_features(self, name: str) -> None:
        if name == "surf":
            pytest.importorskip("mahotas", reason="mahotas is not installed (extra baselines)")
        info = METHODS.find(name)
        found = info.load("cpu").extract(torch.rand(3, 48, 48)).map
        assert (info.dim, info.stride) == (found.features.shape[1], found.stride)
        assert info.max_side == 1024

    def test_needs_no_weights(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        path, _ = save_mine(tmp_path)
        monkeypatch.setattr("ucn.weights.store.CorrespondenceNetwork", None)
        monkeypatch.setattr("ucn.weights.store.safetensors.torch.load", None)
        for name in ("geometric", "sift", "geometric+dsp", str(path)):
            info = METHODS.find_features(name) if "+" not in name else METHODS.find(name)
            copied = pickle.loads(pickle.dumps(info))
            assert (copied.name, copied.key, copied.title) == (info.name, info.key, info.title)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "expected"),
        [("geometric", set()), ("dsp", {"ucn.features.classical", "ucn.paper.dsp"})],
    )
    def test_imports_the_method_alone(self, name: str, expected: set[str]) -> None:
        code = (
            "import sys; from ucn.paper.registry import METHODS\n"
            "before = set(sys.modules); METHODS.find(sys.argv[1]).load('cpu')\n"
            "print(*(name for name in set(sys.modules) - before if name.startswith('ucn.')))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, name], check=True, timeout=300, capture_output=True, text=True
        )
        found = {item for item in done.stdout.split() if item.startswith(("ucn.features", "ucn.paper"))}
        shared = {"ucn.paper.belief_propagation", "ucn.paper.cell_flow", "ucn.paper.distances"}
        assert found - shared == expected

    def test_keys_differ(self) -> None:
        names = ["sift", "pixel-sift", "sift+dsp", "hog+dsp", "sift+sift-flow", "pixel-sift+sift-flow"]
        keys = {str(METHODS.find(name).key) for name in (*METHODS.systems, *names)}
        assert len(keys) == len(METHODS.systems) + len(names)
        matches = {str(METHODS.find(name, kind="sparse").key) for name in ("sift", "sift-ratio", "geometric")}
        assert len(matches) == 3

    @pytest.mark.parametrize("kind", ["dense", "sparse"])
    def test_weights_with_and_without_consensus(self, kind: MethodKind, tmp_path: Path) -> None:
        path, sha256 = save_mine(tmp_path)
        files = MethodFiles(weights=[path])
        for name in ("geometric-lite", "mine"):
            guided, plain = (METHODS.find(f"{name}{end}", files, kind=kind) for end in ("", "+nearest"))
            assert (guided.name, plain.name) == (name, f"{name}+nearest")
            assert guided.uses_consensus and not plain.uses_consensus
            assert guided.title.startswith(f"{plain.title}; guided by neighbourhood consensus")
            assert f"weights {name}," in plain.title
            assert guided.key == {**plain.key, "consensus": CONSENSUS_SHA256, **VIEW_KEY}
            assert is_nearest(guided) and is_nearest(plain)
            assert "consensus" not in plain.key.get("config", {})
            methods = [info.load("cpu") for info in (guided, plain)]
            if kind == "dense":
                assert [method.matcher for method in methods] == [
                    MatcherViews(extractor=methods[0].extractor),
                    NearestNeighbours(),
                ]
                assert methods[0].extractor is methods[1].extractor
            else:
                assert [method.extractor.config.consensus for method in methods] == [True, False]
                assert replace(methods[0].extractor.config, consensus=True) == SPARSE_CONFIG
        loaded = METHODS._load(["mine+nearest", "sift"], files, "cpu", kind)[0]
        assert [method.name for method in loaded] == ["mine+nearest", "sift"]
        assert loaded[0].key["ucn"] == sha256 and not loaded[0].uses_consensus

    def test_consensus_for_other_features(self, tmp_path: Path) -> None:
        plain, guided = METHODS.load_dense(["sift", "sift+consensus"]).methods
        assert (guided.name, guided.matcher) == ("sift+consensus", NearestNeighbours(consensus=True))
        assert guided.key == {**plain.key, "consensus": CONSENSUS_SHA256}
        assert plain.matcher == NearestNeighbours() and not plain.uses_consensus
        assert find_systems(guided) == ()
        files = MethodFiles(trunk=write_npz(tmp_path / "trunk.npz", make_arrays()))
        trunk, with_consensus = METHODS.load_sparse(["trunk", "trunk+consensus"], files).methods
        assert isinstance(trunk, DenseMethod) and isinstance(with_consensus, DenseMethod)
        assert with_consensus.max_corners == trunk.max_corners == 4096
        assert with_consensus.matcher == NearestNeighbours(consensus=True)

    def test_nearest_neighbours_by_key(self) -> None:
        for name in ("sift", "siamese", *METHODS.systems, "sift+dsp"):
            info = METHODS.find(name)
            assert is_nearest(info) == info.load("cpu").is_nearest == (name == "sift")
        assert not is_nearest(MethodInfo("nn-transfer", "", {"transfer": {}}))

    def test_without_a_loader(self) -> None:
        with pytest.raises(ConfigError, match="'other' has no loader"):
            MethodInfo("other", "", {}).load()


class TestFeatures:
    def test_of_single_images(self) -> None:
        for name in (*WITHOUT_FEATURES, "daisy+dsp"):
            with pytest.raises(ConfigError, match="matches whole images"):
                METHODS.find_features(name)
        with pytest.raises(ConfigError, match=r"no method 'x'.* or give a \.safetensors file"):
            METHODS.find_features("x")
        with pytest.raises(UnavailableError, match="'trunk' cannot run here"):
            METHODS.find_features("trunk")

    def test_shared_by_systems(self) -> None:
        names = ["daisy", "daisy+sift-flow", "daisy+deepmatching", "deepmatching"]
        plain, flow, deep, own = METHODS.load_dense(names).methods
        assert [method.name for method in (flow, deep, own)] == names[1:]
        assert flow.extractor is plain.extractor
        assert flow.matcher == SiftFlow(smoothness=0.4)
        assert (deep.matcher, own.matcher) == (DeepMatching(atom_cells=2, finest_pixels=4), DeepMatching())
        assert flow.key["features"] == plain.key
        assert flow.key["sift-flow"]["smoothness"] == 0.4
        assert plain.title in flow.title and "SIFT Flow" in flow.title

    def test_weights_are_loaded_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        built: list[ModelConfig] = []

        def count(config: ModelConfig) -> torch.nn.Module:
            built.append(config)
            return CorrespondenceNetwork(config)

        monkeypatch.setattr("ucn.weights.store.CorrespondenceNetwork", count)
        first, second = METHODS.load_dense(["geometric-lite", "geometric-lite+dsp"]).methods
        again = METHODS.find("geometric-lite").load("cpu")
        assert first.extractor is second.extractor is again.extractor
        assert len(built) == 1

    def test_images_keep_the_size_of_the_benchmark(self) -> None:
        (method,) = METHODS.load_dense(["geometric-lite"]).methods
        assert isinstance(method.extractor, Matcher)
        assert method.extractor.config.max_side is None


class TestFiles:
    def test_missing_files_are_reasons(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loaded = METHODS.load_dense(["trunk", "xfeat", "sift", "trunk+sift-flow", "nn-transfer"])
        assert [method.name for method in loaded.methods] == ["sift"]
        assert "put it in $UCN_DATA/googlenet/" in loaded.skipped["trunk"]
        assert "give its path as `MethodFiles.trunk`" in loaded.skipped["trunk"]
        assert "`MethodFiles.xfeat`" in loaded.skipped["xfeat"]
        for name in ("trunk+sift-flow", "nn-transfer"):
            assert "`MethodFiles.trunk`" in loaded.skipped[name]
        assert "--" not in "".join(loaded.skipped.values())
        assert set(METHODS.load_sparse(["trunk", "xfeat"]).skipped) == {"trunk", "xfeat"}
        monkeypatch.setenv("UCN_DATA", str(tmp_path))
        assert set(METHODS.load_dense(["trunk", "xfeat"]).skipped) == {"trunk", "xfeat"}

    def test_missing_packages_are_reasons(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "x.onnx").write_bytes(b"x")
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        loaded = METHODS.load_dense(["xfeat"], MethodFiles(xfeat=tmp_path / "x.onnx"))
        assert "onnxruntime, which is not installed" in loaded.skipped["xfeat"]

    def test_given_files_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="`trunk` must be a file with GoogLeNet"):
            METHODS.load_dense(["trunk"], MethodFiles(trunk=tmp_path / "missing.npz"))
        with pytest.raises(WeightsError, match="no weights"):
            METHODS.load_dense([], MethodFiles(weights=[tmp_path / "missing.safetensors"]))
        with pytest.raises(WeightsError, match="`vgg` must be a file with torchvision's vgg16"):
            METHODS.find_features("vgg", MethodFiles(vgg=tmp_path / "missing.pth"))

    def test_a_file_that_changes(self, tmp_path: Path) -> None:
        path, _ = save_mine(tmp_path)
        info = METHODS.find_features(str(path))
        save_weights(path, build_model(ModelConfig(dim=8)), overwrite=True)
        with pytest.raises(WeightsError, match="has changed since"):
            info.load("cpu")

    def test_trunk_from_a_file(self, tmp_path: Path) -> None:
        files = MethodFiles(trunk=write_npz(tmp_path / "trunk.npz", make_arrays()))
        trunk, system = METHODS.load_dense(["trunk", "trunk+sift-flow"], files).methods
        assert trunk.extractor is system.extractor
        found = system.extract(torch.zeros(3, 32, 32)).map
        assert found.features.shape == (1, trunk.dim, 8, 8) and found.stride == trunk.stride
        (transfer,) = METHODS.load_dense(["nn-transfer"], files).methods
        with pytest.raises(ConfigError, match="needs training images"):
            transfer.match(trunk.extract(torch.rand(3, 32, 32)), trunk.extract(torch.rand(3, 32, 32)))

    def test_weights_files_are_methods_named_after_them(self, tmp_path: Path) -> None:
        path, sha256 = save_mine(tmp_path)
        loaded = METHODS.load_dense(["sift"], MethodFiles(weights=[path]))
        assert [method.name for method in loaded.methods] == ["mine", "sift"]
        assert loaded.methods[0].key == {"ucn": sha256, "consensus": CONSENSUS_SHA256, **VIEW_KEY}
        (tmp_path / "other").mkdir()
        twin = path.rename(tmp_path / "other" / "sift.safetensors")
        with pytest.raises(ConfigError, match="two methods have the name 'sift'"):
            METHODS.load_dense(["sift"], MethodFiles(weights=[twin]))

    def test_weights_files_by_name(self, tmp_path: Path) -> None:
        path, sha256 = save_mine(tmp_path)
        files = MethodFiles(weights=[path])
        for names in (["mine"], ["hog", "mine"], ["mine+dsp", "mine", "hog"]):
            assert [method.name for method in METHODS.load_dense(names, files).methods] == names
        (loaded,) = METHODS.load_dense(["mine+dsp"], files).methods  # not also the file by itself
        assert loaded.name == "mine+dsp" and loaded.key["features"] == {"ucn": sha256}
        assert [m.name for m in METHODS.load_sparse(["sift", "mine"], files).methods] == ["sift", "mine"]
        for load in (METHODS.load_dense, METHODS.load_sparse):
            with pytest.raises(ConfigError, match=r"no method 'mime'.*did you mean 'mine'\?.*mine"):
                load(["mime"], files)

    def test_a_plus_in_the_name_of_a_file(self, tmp_path: Path) -> None:
        path = save_mine(tmp_path)[0].rename(tmp_path / "a+b.safetensors")
        (method,) = METHODS.load_dense(["a+b"], MethodFiles(weights=[path])).methods
        assert isinstance(method, DenseMethod) and method.is_nearest

    def test_two_files_of_one_name(self, tmp_path: Path) -> None:
        paths = [tmp_path / folder / "mine.safetensors" for folder in ("a", "b")]
        for path in paths:
            path.parent.mkdir()
            save_mine(path.parent)
        for load in (METHODS.load_dense, METHODS.load_sparse):
            for names in (["mine"], ["sift"]):
                with pytest.raises(ConfigError, match="two methods have the name 'mine'"):
                    load(names, MethodFiles(weights=paths))
