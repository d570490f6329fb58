"""The benchmark of models: similarity, errors, scenes, and a run on a synthetic scene in Strecha's layout."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from typer.testing import CliRunner

from support.scene_cases import HW, align_centres, make_scene
from ucn.cli.app import app
from ucn.errors import ConfigError, DataError, WeightsError
from ucn.evaluate.reconstruction.predictions import (
    Scene,
    SceneModel,
    Variant,
    build_settings,
    choose_variants,
    list_scenes,
)
from ucn.evaluate.reconstruction.report import load_reconstruction_methods
from ucn.evaluate.reconstruction.scoring import (
    average_scores,
    centre_errors,
    direction_errors,
    fit_similarity,
    score_model,
)
from ucn.features import lightglue
from ucn.features.method import MethodFiles, MethodInfo
from ucn.features.names import COLMAP_SIFT
from ucn.folders.worker import OWN_DETECTOR
from ucn.paper.registry import METHODS

RNG = np.random.default_rng(0)
REFUSED = {"nn-transfer", "siamese", "sift-flow", "dsp", "deepmatching"}
TRUTH = RNG.normal(size=(6, 3)) * 3
TURN = Rotation.from_rotvec([0.3, -1.1, 0.4]).as_matrix()


class TestMetrics:
    def test_similarity_is_found_exactly(self) -> None:
        found = (TRUTH - [1, 2, 3]) @ TURN / 2.5  # truth = 2.5 TURN found + shift
        similarity = fit_similarity(found, TRUTH)
        assert similarity is not None and similarity.scale == pytest.approx(2.5)
        np.testing.assert_allclose(similarity.rotation, TURN, atol=1e-12)
        np.testing.assert_allclose(similarity.shift, [1, 2, 3], atol=1e-12)
        np.testing.assert_allclose(centre_errors(found, TRUTH), 0, atol=1e-12)

    def test_errors_are_those_of_a_slow_search(self) -> None:
        found = TRUTH @ TURN * 0.4 + RNG.normal(size=(6, 3)) * 0.02
        fast, slow = centre_errors(found, TRUTH), align_centres(found, TRUTH)
        assert (fast**2).sum() <= (slow**2).sum() * (1 + 1e-6)
        np.testing.assert_allclose(fast, slow, atol=1e-4)

    def test_no_mirror(self) -> None:
        similarity = fit_similarity(TRUTH * [1, 1, -1], TRUTH)
        assert similarity is not None and np.linalg.det(similarity.rotation) == pytest.approx(1)
        assert centre_errors(TRUTH * [1, 1, -1], TRUTH).max() > 0.1

    @pytest.mark.parametrize("rows", [0, 1, 2])
    def test_too_few(self, rows: int) -> None:
        assert fit_similarity(TRUTH[:rows], TRUTH[:rows]) is None
        assert np.isinf(centre_errors(TRUTH[:rows], TRUTH[:rows])).all()

    def test_a_line_and_one_place(self) -> None:
        line = np.outer(np.arange(5.0), [1, 2, 3])
        assert fit_similarity(line, line) is None
        assert fit_similarity(np.zeros((5, 3)), TRUTH[:5]) is None

    def test_directions(self) -> None:
        true_rotations = Rotation.from_rotvec(RNG.normal(size=(6, 3))).as_matrix()
        found = (TRUTH - [1, 2, 3]) @ TURN / 2.5
        rotations = true_rotations @ TURN
        np.testing.assert_allclose(direction_errors(found, TRUTH, rotations, true_rotations), 0, atol=1e-6)
        tilt = Rotation.from_rotvec([0, np.radians(2), 0]).as_matrix()
        errors = direction_errors(found, TRUTH, tilt @ rotations, true_rotations)
        np.testing.assert_allclose(errors, 2, atol=1e-6)
        swapped = direction_errors(found, TRUTH, true_rotations @ TURN.T, true_rotations)
        assert swapped.max() > 10
        assert (direction_errors(found[:2], TRUTH[:2], rotations[:2], true_rotations[:2]) == 180).all()


def make_strecha(folder: Path) -> None:
    """A scene of three walls, its cameras in files as Strecha's are."""
    scene = make_scene(folder / "room" / "images")
    cameras = folder / "room" / "gt_dense_cameras"
    cameras.mkdir()
    for number, (R, centre) in enumerate(zip(scene.rotations, scene.centres, strict=True)):
        rows = [*scene.K, [0, 0, 0], *R.T, centre, [HW[1], HW[0]]]
        text = "\n".join(" ".join(f"{value:.12g}" for value in row) for row in rows)
        (cameras / f"{number:03}.png.camera").write_text(text + "\n")


class TestScenes:
    def test_scene(self, tmp_path: Path) -> None:
        make_strecha(tmp_path)
        (scene,) = list_scenes(tmp_path)
        truth = make_scene(tmp_path / "again")
        assert (scene.name, len(scene.images)) == ("room", 5)
        np.testing.assert_allclose(scene.K, truth.K, atol=1e-9)
        np.testing.assert_allclose(scene.centres, truth.centres, atol=1e-9)
        np.testing.assert_allclose(scene.rotations, truth.rotations, atol=1e-9)
        assert list_scenes(tmp_path / "room")[0].name == "room"

    def test_wrong_folders(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="expected layout"):
            list_scenes(tmp_path)
        make_strecha(tmp_path)
        camera = tmp_path / "room" / "gt_dense_cameras" / "002.png.camera"
        text = camera.read_text()
        camera.write_text(text.replace("264", "265", 1))
        with pytest.raises(DataError, match="one camera"):
            list_scenes(tmp_path)
        camera.unlink()
        with pytest.raises(DataError, match=r"002\.png has no camera"):
            list_scenes(tmp_path)

    def test_fountain(self, data_folder: Path) -> None:
        (scene,) = list_scenes(data_folder / "strecha")
        assert (scene.name, len(scene.images)) == ("fountain-P11", 11)
        assert np.linalg.norm(np.diff(scene.centres, axis=0), axis=1).max() < 5


def make_model(count: int) -> SceneModel:
    is_registered = np.arange(5) < count
    centres = np.where(is_registered[:, None], TRUTH[:5], np.nan)
    return SceneModel(is_registered, centres, np.stack([np.eye(3)] * 5), 7, 3.0, 0.5)


class TestScores:
    scene = Scene("s", Path(), tuple("abcde"), np.eye(3), np.stack([np.eye(3)] * 5), TRUTH[:5])
    variant = Variant(MethodInfo("m", "title", {}), True, False)

    def test_registered_ones_count(self) -> None:
        figure = score_model(self.scene, self.variant, make_model(4))
        assert (figure.registered, figure.images, figure.cameras) == (4, 5, "given")
        assert figure.centre_max == pytest.approx(0, abs=1e-9)
        assert figure.direction_mean == pytest.approx(0, abs=1e-5)

    def test_errors_are_in_millimetres(self) -> None:
        model = make_model(5)
        model.centres[0] += [0.1, 0, 0]
        figure = score_model(self.scene, self.variant, model)
        assert figure.centre_mean == pytest.approx(
            1000 * align_centres(model.centres, TRUTH[:5]).mean(), rel=1e-3
        )
        assert figure.centre_median <= figure.centre_max

    def test_average_over_seeds(self) -> None:
        first = score_model(self.scene, self.variant, make_model(5))
        moved = replace(make_model(4), points=10, is_refined=True)
        moved.centres[0] += [0.1, 0, 0]
        second = score_model(self.scene, self.variant, moved)
        found = average_scores([first, second])
        assert (found.seeds, found.refined, found.registered) == (2, 1, 4)
        assert found.points == round((7 + 10) / 2)
        assert found.centre_mean == pytest.approx((first.centre_mean + second.centre_mean) / 2)
        assert found.centre_range == (first.centre_mean, second.centre_mean)
        assert first.centre_range == (first.centre_mean, first.centre_mean)
        nothing = score_model(self.scene, self.variant, make_model(2))
        assert np.isnan([*average_scores([first, nothing]).centre_range]).all()

    @pytest.mark.parametrize("count", [0, 2])
    def test_too_few_cameras_have_no_error(self, count: int) -> None:
        figure = score_model(self.scene, self.variant, make_model(count))
        assert figure.registered == count
        assert np.isnan([figure.centre_mean, figure.centre_max, figure.direction_mean]).all()


class TestMethods:
    def test_variants(self) -> None:
        sift = METHODS.find_features("sift")
        methods = [
            sift,
            MethodInfo(COLMAP_SIFT, "t", {}),
        ]
        labels = [(item.label, item.are_cameras_known) for item in choose_variants(methods, (True, False))]
        assert labels[:2] == [("sift", True), ("sift, adjusted", True)]
        assert labels[2:4] == [(COLMAP_SIFT, True), (f"{COLMAP_SIFT}, stricter", True)]
        assert labels[4:] == [(label, False) for label, _ in labels[:4]]

    @pytest.mark.parametrize("has_own", [True, False])
    def test_own_keypoints_are_used_where_there_are_any(self, has_own: bool) -> None:
        variant = Variant(MethodInfo("m", "title", {}, has_own_keypoints=has_own), True, False)
        settings = build_settings(variant, np.eye(3), 0)
        assert (settings.extract.detector == OWN_DETECTOR) == has_own

    def test_unknown_and_whole_image_methods(self) -> None:
        with pytest.raises(ConfigError, match="no method 'nothing'"):
            load_reconstruction_methods(["nothing"], MethodFiles())
        with pytest.raises(ConfigError, match="matches whole images"):
            load_reconstruction_methods(["dsp"], MethodFiles())

    def test_what_is_offered_is_accepted(self) -> None:
        with pytest.raises(ConfigError, match=r"no method 'geometrc'; did you mean 'geometric'\?") as refused:
            load_reconstruction_methods(["geometrc"], MethodFiles())
        listed = str(refused.value).partition("(there are ")[2].partition(";")[0].split(", ")
        assert {"geometric", "sift", "vgg", COLMAP_SIFT} <= set(listed)
        dense = [name for name in METHODS.list_names() if name not in REFUSED]
        assert listed == [*dense, *lightglue.LIGHTGLUE, COLMAP_SIFT]
        for name in (*REFUSED, "daisy+dsp"):
            with pytest.raises(ConfigError, match=f"'{re.escape(name)}' matches whole images.*{COLMAP_SIFT}"):
                load_reconstruction_methods([name], MethodFiles())
        with pytest.raises(ConfigError, match=r"no method 'colmap-sift'.* or give a \.safetensors file"):
            METHODS.find_features(COLMAP_SIFT)

    @pytest.mark.parametrize("name", sorted({*METHODS.list_names()} - REFUSED))
    def test_offered_names_load(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("UCN_DATA", raising=False)
        try:
            assert METHODS.find_features(name).name == name
        except ConfigError as reason:
            assert "cannot run here" in str(reason)

    def test_method_without_its_files_is_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("UCN_DATA", raising=False)
        found, skipped = load_reconstruction_methods(["trunk", "sift"], MethodFiles())
        assert [method.name for method in found] == ["sift"]
        assert list(skipped) == ["trunk"]
        with pytest.raises(DataError, match="no method can be evaluated"):
            load_reconstruction_methods(["trunk"], MethodFiles())

    def test_methods_of_lightglue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigError, match="did you mean 'disk-lightglue'"):
            load_reconstruction_methods(["disk-lightglu"], MethodFiles())
        monkeypatch.setattr(lightglue, "explain_unavailable", lambda _name: "not here")
        found, skipped = load_reconstruction_methods(["sift", "disk-lightglue"], MethodFiles())
        assert [method.name for method in found] == ["sift"]
        assert "not here" in skipped["disk-lightglue"]

    def test_given_files_reach_their_methods(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="`vgg` must be a file with torchvision's vgg16"):
            METHODS.find_features("vgg", MethodFiles(vgg=tmp_path / "missing.pth"))

    def test_weights_by_name_and_file(self, tmp_path: Path) -> None:
        from ucn.weights.table import SHIPPED, shipped_path

        shutil.copy(shipped_path(SHIPPED["geometric"]), tmp_path / "mine.safetensors")
        named, own = (
            METHODS.find_features("geometric"),
            METHODS.find_features(str(tmp_path / "mine.safetensors")),
        )
        assert (named.name, own.name) == ("geometric", "mine")
        assert named.key == own.key
        assert named.max_side == own.max_side == 1024
        assert METHODS.find_features("birds").max_side == 160


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
    make_strecha(tmp_path / "data")
    out = tmp_path / "results"
    arguments = ["evaluate", "reconstruction", "--data", str(tmp_path / "data"), "-o", str(out)]
    arguments += ["--methods", f"sift,{COLMAP_SIFT}", "--no-refinement", "--seeds", "2"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "reconstruction.json").read_text())
    assert report["scenes"] == ["room"]
    page = (out / "reconstruction.md").read_text()
    assert "Room, given intrinsics" in page
    assert "| colmap-sift | 5 of 5 |" in page
    assert report["seeds"] == 2
    assert all(figure["seeds"] == 2 for figure in report["figures"])
    for suffix in (".png", ".svg", ".csv", ".tex"):
        assert (out / f"reconstruction{suffix}").stat().st_size > 100
    again = CliRunner().invoke(app, [*arguments, "--overwrite"])
    assert again.exit_code == 0, again.output
    assert json.loads((out / "reconstruction.json").read_text())["figures"] == report["figures"]
