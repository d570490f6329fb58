"""Small runs of every kind that can be updated, with synthetic methods, so that each can be made in parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.driving_cases import make_benchmark
from support.evaluation_cases import BlankExtractor, ColourExtractor, make_method, write_sequence
from ucn.config import MatchConfig, ModelConfig
from ucn.data.io import to_tensor
from ucn.evaluate.core import predictions as core_predictions
from ucn.evaluate.core.benchmark_pairs import ORIGINAL_SIZE
from ucn.evaluate.core.predictions import RunSettings
from ucn.evaluate.core.report import Report
from ucn.evaluate.core.update import Page, update_report
from ucn.evaluate.driving.report import build_driving_report, run_driving
from ucn.evaluate.matches import report as matches_report
from ucn.evaluate.pair_score import report as pair_score_report
from ucn.evaluate.pair_score.predictions import PairScores
from ucn.evaluate.points import predictions
from ucn.evaluate.points.benchmarks import find_benchmark
from ucn.evaluate.points.report import build_report, run_benchmark
from ucn.evaluate.reconstruction import report as reconstruction_report
from ucn.evaluate.reconstruction.predictions import Scene, SceneModel, Variant
from ucn.features.method import DenseMethod, LoadedMethods, MethodInfo
from ucn.matching.matcher import Matcher
from ucn.nn import build_model
from ucn.paper.registry import METHODS
from ucn.types import Features, ImageLike
from ucn.weights import save_weights

KINDS = ("hpatches", "hpatches-matches", "pair-score", "reconstruction", "kitti-raw-points")


class HalfExtractor(ColourExtractor):
    """Reads the red only, so that rows of the picture look alike."""

    def extract(self, image: ImageLike) -> Features:
        """Colours without the green."""
        pixels = to_tensor(image).clone()
        pixels[1] = 0.5
        return super().extract(pixels)


@dataclass
class Bench:
    """Makes reports of a kind.

    Attributes:
        name: of the evaluation.
        folder: where its data and predictions are.
        runs: how many were made; each has predictions of its own, so that none can help another.
        masks: of classes, for driving scenes.
    """

    name: str
    folder: Path
    runs: int = 0
    masks: Path | None = None

    def measure(self, methods: Mapping[str, int], page: Page | None = None, **settings: Any) -> Report:
        """A report of methods by name; the number says which of several a method of that name is."""
        self.runs += 1
        command = f"ucn evaluate {self.name} --data DIR --methods {','.join(methods)} -o out"
        options: dict[str, Any] = {"cache": self.folder / f"cache{self.runs}", "command": command}
        if self.name == "hpatches-matches":
            options["limit"] = 4
        run = getattr(self, f"_{self.name.replace('-', '_')}")
        report: Report = run(methods, RunSettings(page=page, **{**options, **settings}))
        return report if page is None else update_report(report, page)

    def _hpatches(self, methods: Mapping[str, int], settings: RunSettings) -> Report:
        # At their own size, since a canvas is a hundred times as large.
        benchmark = replace(find_benchmark("hpatches"), preparation=ORIGINAL_SIZE)
        return build_report(run_benchmark(benchmark, self.folder / "planes", _load_fakes(methods), settings))

    def _hpatches_matches(self, methods: Mapping[str, int], settings: RunSettings) -> Report:
        return matches_report.run_matches(self.folder / "planes", _load_fakes(methods), settings)

    def _pair_score(self, methods: Mapping[str, int], settings: RunSettings) -> Report:
        loaded = LoadedMethods([_load_network(self.folder, name, which) for name, which in methods.items()])
        return pair_score_report.run_pair_score(self.folder, loaded, settings)

    def _reconstruction(self, methods: Mapping[str, int], settings: RunSettings) -> Report:
        chosen = [MethodInfo(name, f"the method {name}", {"w": number}) for name, number in methods.items()]
        skipped = {"xfeat": "not here"}
        return reconstruction_report.run_reconstruction(self.folder, chosen, skipped, settings)

    def _kitti_raw_points(self, methods: Mapping[str, int], settings: RunSettings) -> Report:
        loaded = _load_fakes({name: which for name, which in methods.items() if name != "sift"})
        if "sift" in methods:  # which is evaluated at keypoints, too
            loaded.methods.insert(list(methods).index("sift"), METHODS.load_dense(["sift"]).methods[0])
        benchmark = make_benchmark(self.folder / "wall")
        return build_driving_report(run_driving(benchmark, Path(), loaded, settings, self.masks))


def make_bench(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The data of a kind; what would take long is synthetic, and no time passes."""
    for module in (core_predictions, predictions):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    monkeypatch.setattr(pair_score_report, "predict_scores", _make_up_scores)
    monkeypatch.setattr(reconstruction_report, "list_scenes", lambda _: _make_scenes())
    monkeypatch.setattr(reconstruction_report, "make_models", _make_up_models)
    for sequence in ("i_one", "v_two"):
        write_sequence(folder / "planes", sequence)
    return Bench(name, folder)


def _load_fakes(methods: Mapping[str, int]) -> LoadedMethods[DenseMethod]:
    kinds = (ColourExtractor, HalfExtractor, BlankExtractor)
    made = [make_method(name, kinds[which]()) for name, which in methods.items()]
    return LoadedMethods(made, {"xfeat": "not here"})


def _load_network(folder: Path, name: str, which: int) -> DenseMethod:
    path = folder / f"network{which}" / f"{name}.safetensors"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        save_weights(path, build_model(ModelConfig(dim=8 * (which + 1))))
    matcher = Matcher.from_pretrained(path, config=MatchConfig(max_side=None), device="cpu")
    return DenseMethod(name, f"network {which}", {"ucn": matcher.weights.sha256}, extractor=matcher)


def _make_up_scores(
    pairs: Sequence[Any], chosen: Sequence[int], matchers: Mapping[DenseMethod, Matcher], *_: Any
) -> dict[str, list[PairScores]]:
    scores = {}
    for method in matchers:
        generator = np.random.default_rng(int(method.key["ucn"][:8], 16))
        drawn = generator.uniform(0, 1, (len(pairs), 3))[list(chosen)]
        scores[method.name] = [PairScores(row[0], row[1:], row[1:] > 0.5) for row in drawn]
    return scores


def _make_scenes() -> list[Scene]:
    scenes: list[Scene] = []
    for name in ("one", "two"):
        centres = np.random.default_rng(len(scenes)).normal(size=(5, 3))
        scenes.append(Scene(name, Path(), tuple("abcde"), np.eye(3), np.stack([np.eye(3)] * 5), centres))
    return scenes


def _make_up_models(
    scenes: Sequence[Scene], variants: Sequence[Variant], *_: Any
) -> dict[tuple[int, int], SceneModel]:
    models = {}
    for place, scene in enumerate(scenes):
        for number, variant in enumerate(variants):
            which = variant.method.key["w"]
            seed = [which, place, variant.are_cameras_known, variant.is_adjusted]
            noise = np.random.default_rng(seed).normal(size=(5, 3))
            is_registered = np.arange(5) < 5 - which  # the last of three registers three, others more
            centres = np.where(is_registered[:, None], scene.centres + 0.01 * noise, np.nan)
            models[number, place] = SceneModel(is_registered, centres, scene.rotations, 7, 3.0, 0.5)
    return models
