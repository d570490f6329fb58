"""`ucn extract`, `ucn pairs` and `ucn reconstruct`."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import PIL.features
import PIL.Image
import pytest
from typer.testing import CliRunner, Result

from support.batch_cases import write_images
from support.scene_cases import HW, make_scene
from ucn.cli.app import app
from ucn.evaluate.reconstruction.predictions import list_scenes
from ucn.evaluate.reconstruction.scoring import centre_errors
from ucn.formats.hloc import open_features, read_pair_matches_meta


def run(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_images(tmp_path / "images", 3)
    return tmp_path / "images"


class TestExtract:
    def test_network(self, images: Path, out: Path, random_weights: Path) -> None:
        result = run(
            "extract", images, "-o", out / "f.h5", "--weights", random_weights, "--max-keypoints", 30
        )
        assert result.exit_code == 0, result.output
        assert "images   3" in result.stdout
        assert "images per second" in result.stdout
        with open_features(out / "f.h5") as file:
            assert file.names == ("000.png", "001.png", "below/002.png")
            assert file.read("000.png").descriptors.shape == (30, 128)
            assert file.meta["settings"]["max_side"] == 1024  # from the weights

    def test_baseline_and_json(self, images: Path, out: Path) -> None:
        (images / "bad.png").write_bytes(b"x")
        options = ("--method", "sift", "--detector", "blobs", "--json", "--shard", 2, "--max-side", "none")
        result = run("extract", images, "-o", out / "f.h5", *options)
        report = json.loads(result.stdout)
        assert (report["images"], report["resumed"], report["executor"]) == (3, 0, "local")
        assert report["method"]["name"] == "sift"
        assert report["settings"] == {
            "max_side": None,
            "max_keypoints": 4096,
            "detector": "blobs",
            "batch": 4,
            "scales": [1.0],
        }
        assert list(report["failures"]) == ["bad.png"]
        assert report["images_per_second"] > 0

    def test_several_scales(self, tmp_path: Path, out: Path) -> None:
        write_images(tmp_path / "images", 2, (96, 128))
        options = ("--method", "sift", "--max-keypoints", 80, "--scales", "1,0.5")
        assert run("extract", tmp_path / "images", "-o", out / "f.h5", *options).exit_code == 0
        with open_features(out / "f.h5") as file:
            assert file.meta["settings"]["scales"] == [1.0, 0.5]
            levels = file.read("000.png").levels
        assert levels is not None and np.bincount(levels).tolist() == [80, 20]

    def test_bad_images_are_named(self, images: Path, out: Path) -> None:
        for number in range(7):
            (images / f"bad{number}.png").write_bytes(b"x")
        result = run("extract", images, "-o", out / "f.h5", "--method", "sift")
        assert result.exit_code == 0
        assert result.stderr.count("left out: cannot read image") == 5
        assert "left out: 2 more" in result.stderr

    def test_existing_output(self, images: Path, out: Path) -> None:
        arguments = ("extract", images, "-o", out / "f.h5", "--method", "sift")
        assert run(*arguments).exit_code == 0
        before = (out / "f.h5").stat()
        again = run(*arguments)  # as after a kill at the very end
        assert again.exit_code == 0
        assert "3, 3 of them by an earlier run" in again.stdout
        assert (out / "f.h5").stat().st_mtime_ns == before.st_mtime_ns
        other = run(*arguments, "--max-keypoints", 7)
        assert other.exit_code == 1
        assert "exists already" in other.stderr
        assert run(*arguments, "--max-keypoints", 7, "--overwrite").exit_code == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("-o", "f.npz"), "must end in .h5"),
            (("--method", "sfit"), "did you mean 'sift'"),
            (("--method", "sift-flow"), "matches whole images"),
            (("--method", "xfeat"), "put it in $UCN_DATA/peers/xfeat_vga.onnx (UCN_DATA is not set)"),
            (("--weights", "nonsense"), "nonsense"),
            (("--workers", "2"), "--workers is for --executor ray"),
            (
                ("--scales", "1;0.5"),
                "--scales must be numbers separated by commas, such as 1,0.5,0.25, got '1;0.5'",
            ),
            (("--scales", "0.5,1"), "scales must be at most 4 positive numbers that fall from 1"),
            (("--method", "sift", "--detector", "own"), "no keypoints of its own"),
        ],
    )
    def test_errors_are_one_line(
        self,
        images: Path,
        out: Path,
        options: tuple[str, ...],
        message: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.delenv("UCN_DATA", raising=False)
        result = run("extract", images, "-o", out / "f.h5", *options)
        assert result.exit_code == 1
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not (out / "f.h5").exists()

    @pytest.mark.parametrize("options", [("--detector", "fast"), ("--batch", "0"), ("--executor", "spark")])
    def test_wrong_usage(self, images: Path, options: tuple[str, ...]) -> None:
        assert run("extract", images, *options).exit_code == 2


class TestPairs:
    @pytest.fixture
    def features(self, images: Path, out: Path) -> Path:
        assert run("extract", images, "-o", out / "f.h5", "--method", "sift").exit_code == 0
        return out / "f.h5"

    def test_pairs_and_matches(self, features: Path, out: Path) -> None:
        result = run("pairs", features, "-o", out / "p.txt", "--matches", out / "m.h5")
        assert result.exit_code == 0, result.output
        assert "pairs    3, exhaustive" in result.stdout
        assert len((out / "p.txt").read_text().splitlines()) == 3
        with h5py.File(out / "m.h5") as file:
            assert set(file["000.png/below-002.png"]) == {"matches0", "matching_scores0"}
        assert read_pair_matches_meta(out / "m.h5")["consensus"] is True

    def test_without_consensus(self, features: Path, out: Path) -> None:
        arguments = ("pairs", features, "-o", out / "p.txt", "--matches", out / "m.h5", "--no-consensus")
        assert run(*arguments).exit_code == 0
        assert read_pair_matches_meta(out / "m.h5")["consensus"] is False

    @pytest.mark.parametrize(("pairing", "count"), [("sequential", 2), ("retrieval", None)])
    def test_json(self, features: Path, out: Path, pairing: str, count: int | None) -> None:
        options = ("--pairing", pairing, "--overlap", 1, "--neighbours", 1, "--json")
        report = json.loads(run("pairs", features, "-o", out / "p.txt", *options).stdout)
        assert (report["images"], report["matches"]) == (3, None)
        assert report["pairs"] == count or (count is None and report["pairs"] in (2, 3))

    def test_no_list_without_its_matches(
        self, features: Path, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(*_: object, **__: object) -> int:
            raise KeyboardInterrupt

        arguments = ("pairs", features, "-o", out / "p.txt", "--matches", out / "m.h5")
        with monkeypatch.context() as patch:
            patch.setattr("ucn.folders.pair_matching.match_image_pairs", stop)
            assert run(*arguments).exit_code == 130
        assert [path.name for path in out.iterdir()] == ["f.h5"]
        assert run(*arguments).exit_code == 0  # the same command can be repeated

    def test_errors(self, features: Path, out: Path, tmp_path: Path) -> None:
        for arguments, message in [
            ((tmp_path / "no.h5",), "no file of features"),
            ((features, "-o", features), "it is an input"),
            ((features, "-o", out / "no" / "p.txt"), "does not exist"),
        ]:
            result = run("pairs", *arguments)
            assert result.exit_code == 1
            assert message in result.stderr


class TestReconstruct:
    @pytest.mark.slow
    def test_model(self, tmp_path: Path) -> None:
        pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
        scene = make_scene(tmp_path / "images")
        K = scene.K
        given = f"{K[0, 0]},{K[1, 1]},{K[0, 2]},{K[1, 2]}"
        out = tmp_path / "new" / "model"
        options = ("--method", "sift", "--max-keypoints", 400, "--intrinsics", given)
        result = run("reconstruct", scene.folder, "-o", out, *options)
        assert result.exit_code == 0, result.output
        assert "registered    5 of 5 images" in result.stdout
        for name in (
            "features.h5",
            "pairs.txt",
            "matches.h5",
            "database.db",
            "sparse/0/images.bin",
            "above.png",
            "points.ply",
            "cameras.ply",
            "view.html",
        ):
            assert (out / name).is_file(), name
        assert b"element vertex 25\n" in (out / "cameras.ply").read_bytes()
        assert '"title": "images", "point_count": ' in (out / "view.html").read_text(encoding="utf-8")
        summary = json.loads((out / "summary.json").read_text())
        assert summary["registered"] == summary["images"] == 5
        assert summary["points"] > 200
        assert summary["track_length"] > 2.5
        assert 0 < summary["reprojection_error_px"] < 1
        again = run("reconstruct", scene.folder, "-o", out, *options)
        assert again.exit_code == 1
        assert "exists already" in again.stderr
        quick = run("reconstruct", scene.folder, "-o", out, *options, "--overwrite", "--json", "--no-adjust")
        report = json.loads(quick.stdout)
        assert report["median_move_px"] is None
        assert report["registered_images"] == [f"{number:03}.png" for number in range(5)]
        assert HW == (180, 240)

    @pytest.mark.slow
    def test_principal_point(self, tmp_path: Path, out: Path) -> None:
        pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
        scene = make_scene(tmp_path / "scene")
        size = ("-o", out, "--method", "sift", "--max-keypoints", 400)
        found = []
        for choice in ("never", "always"):
            options = ("--refine-principal-point", choice, "--overwrite")
            result = run("reconstruct", scene.folder, *size, *options)
            assert f"({choice} refined)" in result.stdout
            (point,) = json.loads((out / "summary.json").read_text())["principal_points"]
            assert point["is_refined"] == (choice == "always")
            (camera,) = pycolmap.Reconstruction(str(out / "sparse" / "0")).cameras.values()
            found.append((camera.principal_point_x, camera.principal_point_y))
        assert found[0] == (120, 90)
        assert 0 < float(np.linalg.norm(np.subtract(found[1], found[0]))) < 30
        both = run("reconstruct", scene.folder, *size, *options, "--intrinsics", "200,200,120,90")
        assert both.exit_code == 1
        assert "give either them or --refine-principal-point always" in both.stderr
        assert run("reconstruct", scene.folder, *size, "--overwrite").exit_code == 0
        (point,) = json.loads((out / "summary.json").read_text())["principal_points"]
        assert point["reason"] == "5 images, 6 are needed"

    @pytest.mark.slow
    def test_all_views_of_the_fountain(self, data_folder: Path, out: Path) -> None:
        """Small and few keypoints, so that it takes seconds; cameras guessed."""
        pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
        (scene,) = list_scenes(data_folder / "strecha")
        size = ("--max-side", 384, "--max-keypoints", 800)
        pairing = ("--pairing", "sequential", "--overlap", 3)
        photographs = data_folder / "strecha" / "fountain-P11" / "images"
        result = run("reconstruct", photographs, "-o", out / "m", *size, *pairing, "--json")
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        assert report["registered_images"] == sorted(scene.images)
        model = pycolmap.Reconstruction(str(out / "m" / "sparse" / "0"))
        found = [model.find_image_with_name(name).projection_center() for name in scene.images]
        errors = centre_errors(np.stack(found), scene.centres)
        # Metres, of cameras up to 15 m apart; other weights change it by less than what is left to the limit.
        assert errors.mean() < 0.05

    @pytest.mark.slow
    def test_database_of_colmap_3(self, tmp_path: Path, out: Path) -> None:
        pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
        scene = make_scene(tmp_path / "images")
        options = ("--method", "sift", "--max-keypoints", 400, "--no-adjust", "--colmap", "3")
        result = run("reconstruct", scene.folder, "-o", out / "m", *options)
        assert result.exit_code == 0, result.output
        assert json.loads((out / "m" / "summary.json").read_text())["registered"] == 5
        with closing(sqlite3.connect(out / "m" / "database.db")) as database:
            tables = {
                name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
        assert "two_view_geometries" in tables
        assert not tables & {"rigs", "frames", "pose_priors"}
        assert not list((out / "m").glob(".*"))
        assert run("reconstruct", scene.folder, "--colmap", "5").exit_code == 2

    @pytest.mark.slow
    def test_photographs_that_colmap_does_not_read(self, tmp_path: Path, out: Path) -> None:
        pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
        if not PIL.features.check("avif"):
            pytest.skip("this Pillow was built without AVIF")
        scene = make_scene(tmp_path / "images")
        for path in list(scene.folder.iterdir()):
            PIL.Image.open(path).save(path.with_suffix(".avif"), quality=95)
            path.unlink()
        options = ("--method", "sift", "--max-keypoints", 400, "--no-adjust")
        result = run("reconstruct", scene.folder, "-o", out / "m", *options)
        assert result.exit_code == 0, result.output
        assert "COLMAP does not read HEIC, AVIF and WebP, of which 5 images are" in result.stderr
        model = pycolmap.Reconstruction(out / "m" / "sparse" / "0")
        colours = np.array([point.color for point in model.points3D.values()])
        assert colours.std(axis=0).min() > 10

    def test_missing_package(self, images: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ucn.formats.colmap.find_obstacle", lambda: "it needs pycolmap: pip install it")
        result = run("reconstruct", images, "-o", out / "m")
        assert result.exit_code == 1
        assert result.stderr == "error: reconstruction: it needs pycolmap: pip install it\n"
        assert not (out / "m").exists()

    @pytest.mark.parametrize("name", ["model", "."])
    def test_the_model_does_not_lie_among_the_images(self, images: Path, name: str) -> None:
        """Or the next run would read above.png as a photograph."""
        pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
        result = run("reconstruct", images, "-o", images / name, "--method", "sift")
        assert result.exit_code == 1
        assert "it lies in the folder of images" in result.stderr
        assert not (images / "model").exists()

    def test_no_model_is_an_error(self, images: Path, out: Path, capfd: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
        result = run("reconstruct", images, "-o", out / "m", "--method", "sift")
        assert result.exit_code == 1
        assert "no model: no two images share enough verified matches" in result.stderr
        assert capfd.readouterr().err == ""  # COLMAP writes to the terminal itself
        wrong = run("reconstruct", images, "-o", out / "m", "--method", "sift", "--camera-model", "FISH")
        assert "no camera model 'FISH'" in wrong.stderr
