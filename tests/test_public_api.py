"""The public interface: names, signatures, fields, and quick import."""

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import pytest

import ucn

NAMES = {
    "FeatureMap",
    "Features",
    "Flow",
    "MatchConfig",
    "Matcher",
    "Matches",
    "ModelConfig",
    "PairContext",
    "PairSample",
    "SimilarityMap",
    "UcnError",
    "__version__",
    "build_model",
    "check_data",
    "draw_matches",
    "estimate_fundamental",
    "estimate_homography",
    "estimate_pose",
    "iterate_images",
    "list_data",
    "list_weights",
    "load_weights",
    "mutual_nearest",
    "nearest",
    "open_data",
    "track_points",
}

# To change a line here is to change the public interface: say so in CHANGELOG.md.
SIGNATURES = {
    "Matcher": "(weights: 'LoadedWeights | str | Path' = 'geometric', *, config: 'MatchConfig | None' = None,"
    " device: 'str | None' = None, engine: 'Engine' = 'auto', **settings: 'Any') -> 'None'",
    "Matcher.from_pretrained": "(name_or_path: 'str | Path' = 'geometric', *,"
    " config: 'MatchConfig | None' = None, device: 'str | None' = None, engine: 'Engine' = 'auto',"
    " **settings: 'Any') -> 'Matcher'",
    "Matcher.with_config": "(self, config: 'MatchConfig | None' = None, **settings: 'Any') -> 'Matcher'",
    "Matcher.extract": "(self, image: 'ImageLike', *, progress: 'Report | None' = None) -> 'Features'",
    "Matcher.extract_many": "(self, images: 'Iterable[ImageLike]', *, cache_bytes: 'int' = 1073741824,"
    " progress: 'CountReport | None' = None) -> 'Iterator[Features]'",
    "Matcher.describe": "(self, features: 'Features', points: 'ArrayLike | Tensor') -> 'Tensor'",
    "Matcher.match_pairs": "(self, pairs: 'Iterable[tuple[ImageLike | Features, ImageLike | Features]]', *,"
    " cache_bytes: 'int' = 1073741824, progress: 'CountReport | None' = None) -> 'Iterator[Matches]'",
    "Matcher.transfer": "(self, references: 'Sequence[tuple[ImageLike | Features, ArrayLike]]',"
    " image: 'ImageLike | Features', *, min_score: 'float' = 0.4, names: 'Sequence[str] | None' = None)"
    " -> 'TransferredPoints'",
    "Matcher.match": "(self, image0: 'ImageLike | Features', image1: 'ImageLike | Features', *,"
    " points: 'ArrayLike | Tensor | None' = None, mask0: 'MaskLike | None' = None,"
    " mask1: 'MaskLike | None' = None, progress: 'Report | None' = None) -> 'Matches'",
    "Matcher.match_features": "(self, features0: 'Features', features1: 'Features', *,"
    " points: 'ArrayLike | Tensor | None' = None, mask0: 'MaskLike | None' = None,"
    " mask1: 'MaskLike | None' = None, context: 'PairContext | None' = None,"
    " progress: 'Report | None' = None)"
    " -> 'Matches'",
    "Matcher.encode": "(self, images: 'Tensor') -> 'FeatureMap'",
    "Matcher.align_views": "(self, features0: 'Features', features1: 'Features',"
    " use0: 'Tensor | None' = None, use1: 'Tensor | None' = None, progress: 'Report | None' = None)"
    " -> 'AlignedViews'",
    "Matcher.pair_context": "(self, features0: 'Features', features1: 'Features') -> 'PairContext'",
    "Matcher.similarities": "(self, features0: 'Features', features1: 'Features', point: 'ArrayLike')"
    " -> 'SimilarityMap'",
    "Matcher.flow": "(self, image0: 'ImageLike | Features', image1: 'ImageLike | Features', *,"
    " progress: 'Report | None' = None) -> 'Flow'",
    "Matches.select": "(self, keep: 'BoolArray | NDArray[np.int64]') -> 'Matches'",
    "Matches.homography": "(self, *, threshold: 'float' = 3.0, min_inliers: 'int' = 15, seed: 'int' = 0)"
    " -> 'HomographyEstimate'",
    "Matches.fundamental": "(self, *, threshold: 'float' = 1.0, min_inliers: 'int' = 15, seed: 'int' = 0)"
    " -> 'FundamentalEstimate'",
    "Matches.pose": "(self, K0: 'ArrayLike', K1: 'ArrayLike | None' = None, *,"
    " estimator: 'Estimator' = 'poselib', threshold: 'float' = 1.0, seed: 'int' = 0) -> 'PoseEstimate'",
    "Matches.inliers": "(self, estimate: 'Estimate') -> 'Matches'",
    "Matches.to_numpy": "(self) -> 'dict[str, NDArray[Any]]'",
    "Matches.to_torch": "(self, device: 'torch.device | str' = 'cpu') -> 'dict[str, Tensor]'",
    "Matches.to_opencv": "(self) -> 'tuple[list[cv2.KeyPoint], list[cv2.KeyPoint], list[cv2.DMatch]]'",
    "Matches.save": "(self, path: 'str | Path', *, overwrite: 'bool' = False) -> 'None'",
    "Matches.load": "(path: 'str | Path') -> 'Matches'",
    "Matches.draw": "(self, image0: 'ImageLike | None' = None, image1: 'ImageLike | None' = None,"
    " path: 'str | Path | None' = None, *, overwrite: 'bool' = False, **settings: 'Any')"
    " -> 'NDArray[np.uint8]'",
    "Features.to": "(self, device: 'torch.device | str') -> 'Features'",
    "Features.save": "(self, path: 'str | Path', *, overwrite: 'bool' = False) -> 'None'",
    "Features.load": "(path: 'str | Path') -> 'Features'",
    "estimate_homography": "(points0: 'ArrayLike', points1: 'ArrayLike', *, threshold: 'float' = 3.0,"
    " min_inliers: 'int' = 15, seed: 'int' = 0) -> 'HomographyEstimate'",
    "estimate_fundamental": "(points0: 'ArrayLike', points1: 'ArrayLike', *, threshold: 'float' = 1.0,"
    " min_inliers: 'int' = 15, max_iterations: 'int' = 20000, seed: 'int' = 0) -> 'FundamentalEstimate'",
    "estimate_pose": "(points0: 'ArrayLike', points1: 'ArrayLike', K0: 'ArrayLike',"
    " K1: 'ArrayLike | None' = None, *, estimator: 'Estimator' = 'poselib', threshold: 'float' = 1.0,"
    " seed: 'int' = 0) -> 'PoseEstimate'",
    "iterate_images": "(path: 'str | Path', *, max_images: 'int' = 1000000)"
    " -> 'Iterator[tuple[Path, Tensor]]'",
    "track_points": "(matcher: 'FrameMatcher', frames: 'Iterable[Tensor]', points: 'ArrayLike', *,"
    " min_score: 'float' = 0.5, max_step: 'float' = 0.1) -> 'Iterator[TrackedFrame]'",
    "build_model": "(config: 'ModelConfig', generator: 'torch.Generator | None' = None)"
    " -> 'CorrespondenceNetwork'",
    "list_weights": "() -> 'tuple[WeightsInfo, ...]'",
    "load_weights": "(name_or_path: 'str | Path') -> 'LoadedWeights'",
    "nearest": "(queries: 'Tensor', database: 'Tensor', k: 'int' = 1, *,"
    " exclusion: 'ExclusionRadius | None' = None, memory_bytes: 'int' = 268435456,"
    " cache: 'SearchCache | None' = None) -> 'Neighbours'",
    "open_data": "(name: 'str', folder: 'str | Path', split: 'str | None' = None,"
    " options: 'Mapping[str, Option] | None' = None) -> 'PairData'",
    "list_data": "() -> 'tuple[DataInfo, ...]'",
    "check_data": "(data: 'PairData', progress: 'Callable[[int, int], None] | None' = None,"
    " max_pairs: 'int' = 200) -> 'CheckReport'",
    "mutual_nearest": "(descriptors0: 'Tensor', descriptors1: 'Tensor', *, memory_bytes: 'int' = 268435456)"
    " -> 'Tensor'",
}

FIELDS = {
    "Matches": [
        "points0",
        "points1",
        "scores",
        "is_mutual",
        "pair_score",
        "image0_hw",
        "image1_hw",
        "view_change",
        "sources",
    ],
    "PairContext": ["matches", "is_same_surface", "views"],
    "SimilarityMap": ["similarities", "first_cell", "cell_step"],
    "Features": ["map", "image_hw", "keypoints", "grey", "image", "view"],
    "FeatureMap": ["features", "stride", "offset", "image_hw", "semantic_dim"],
    "Flow": ["flow_0to1", "confidence"],
    "PairSample": [
        "image0",
        "image1",
        "points0",
        "points1",
        "name",
        "pck_length",
        "parts",
        "mirror_parts",
    ],
    "ModelConfig": [
        "strides",
        "dim",
        "head_norm",
        "transformer",
        "transformer_kernel",
        "context_layers",
        "context_dilation",
        "use_standard_light",
        "levels",
        "trunk",
        "semantic_dim",
    ],
    "MatchConfig": [
        "max_side",
        "tile_side",
        "keypoints",
        "max_keypoints",
        "grid_step",
        "use_mutual",
        "mutual_tolerance",
        "ratio",
        "second_best_radius",
        "min_score",
        "consensus",
        "use_views",
        "use_refinement",
        "use_alignment",
        "memory_bytes",
    ],
}


def _find(name: str) -> Any:
    value: Any = ucn
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_public_names() -> None:
    assert set(ucn.__all__) == NAMES
    assert len(ucn.__all__) == len(NAMES)
    assert set(dir(ucn)) >= NAMES


def test_every_public_name_resolves() -> None:
    for name in NAMES:
        assert getattr(ucn, name) is getattr(ucn, name)


def test_star_import_gives_the_public_names() -> None:
    namespace: dict[str, Any] = {}
    exec("from ucn import *", namespace)
    assert namespace.keys() - {"__builtins__"} == NAMES


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'ucn' has no attribute 'Matchr'"):
        _find("Matchr")


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    assert str(inspect.signature(_find(name))) == SIGNATURES[name]


def test_matcher_has_no_other_public_methods() -> None:
    methods = {name for name, _ in inspect.getmembers(ucn.Matcher, callable) if not name.startswith("_")}
    assert methods == {name.split(".")[1] for name in SIGNATURES if name.startswith("Matcher.")}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    assert [field.name for field in dataclasses.fields(_find(name))] == FIELDS[name]


def test_version_is_a_string() -> None:
    assert isinstance(ucn.__version__, str)
    assert ucn.__version__


def test_import_loads_nothing_heavy() -> None:
    code = (
        "import sys, ucn; dir(ucn); ucn.__version__; "
        "heavy = {'torch', 'numpy', 'cv2', 'PIL', 'h5py', 'typer', 'rich', 'ucn.cli'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=300)
