"""A folder to a model: the whole way, on a scene whose cameras are known."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import PIL.Image
import pytest

from support.batch_cases import make_method, read_diary, write_images
from support.scene_cases import Array, Scene, align_centres, make_scene, turn_photograph
from ucn.errors import ConfigError, DataError, OutputError
from ucn.folders.extraction import extract_folder
from ucn.folders.pairing import PairingSettings, choose_pairs
from ucn.folders.reconstruction import ReconstructSettings, _extract, _is_reusable, reconstruct_folder
from ucn.folders.shards import ShardFolder
from ucn.folders.worker import ExtractSettings
from ucn.formats.colmap import CameraSettings, MappingSettings, quiet
from ucn.formats.colmap_sift import make_sift_model
from ucn.formats.hloc import open_features
from ucn.formats.hloc_pairs import read_pair_list

pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra reconstruct)")
EXTRACT = ExtractSettings(max_keypoints=400)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return make_scene(tmp_path_factory.mktemp("scene") / "images")


def make_settings(scene: Scene, **changes: object) -> ReconstructSettings:
    base = ReconstructSettings(EXTRACT, cameras=CameraSettings(intrinsics=scene.K))
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_model_has_the_true_cameras_and_adjustment_helps(scene: Scene, tmp_path: Path) -> None:
    method = make_method(tmp_path / "diary")
    out = tmp_path / "model"
    out.mkdir()
    stages: list[str] = []
    plain = reconstruct_folder(scene.folder, out, method, make_settings(scene, use_adjustment=False))
    adjusted = reconstruct_folder(
        scene.folder, out, method, make_settings(scene), progress=lambda what, *_: stages.append(what)
    )
    assert len(read_diary(tmp_path / "diary")) == 5, "features were not used again"
    assert list(dict.fromkeys(stages)) == ["verifying", "adjusting", "mapping"]
    names = tuple(f"{number:03}.png" for number in range(5))
    errors = []
    for made in (plain, adjusted):
        assert made.model.registered == names
        errors.append(align_centres(np.stack([made.model.centre(name) for name in names]), scene.centres))
    assert errors[1].max() < 0.02, "metres, in a scene of about 8"
    assert adjusted.model.reprojection_error < 0.6 * plain.model.reprojection_error
    assert adjusted.used <= adjusted.verified <= adjusted.matches
    assert (plain.moved, plain.used) == (None, plain.matches)
    assert adjusted.moved is not None
    assert 0 < adjusted.moved < 3
    assert sorted(path.name for path in out.iterdir()) == [
        "database.db",
        "features.h5",
        "matches.h5",
        "pairs.txt",
        "progress.json",
        "sparse",
    ]


@pytest.mark.slow
def test_same_run_gives_the_same_model(scene: Scene, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        method = make_method(tmp_path / "diary")
        made = reconstruct_folder(scene.folder, tmp_path / name, method, make_settings(scene))
        found.append(np.stack([made.model.centre(image) for image in made.model.registered]))
    np.testing.assert_array_equal(found[0], found[1])


def test_cameras_are_found_too(scene: Scene, tmp_path: Path) -> None:
    settings = make_settings(scene, cameras=CameraSettings(model="SIMPLE_PINHOLE"))
    made = reconstruct_folder(scene.folder, tmp_path, make_method(tmp_path / "diary"), settings)
    assert len(made.model.registered) == 5
    camera = next(iter(made.model.reconstruction.cameras.values()))
    assert camera.focal_length == pytest.approx(scene.K[0, 0], rel=0.02)  # the guess is 9 % off


@pytest.mark.slow
def test_sift_of_colmap(scene: Scene, tmp_path: Path) -> None:
    names = [f"{number:03}.png" for number in range(5)]
    with quiet():
        model = make_sift_model(
            tmp_path, scene.folder, names, CameraSettings(intrinsics=scene.K), MappingSettings()
        )
    found = np.stack([model.centre(name) for name in names])
    assert align_centres(found, scene.centres).max() < 0.05


@pytest.mark.slow
def test_other_settings_do_not_take_old_features(scene: Scene, tmp_path: Path) -> None:
    method = make_method(tmp_path / "diary")
    out = tmp_path / "model"
    out.mkdir()
    make = partial(reconstruct_folder, scene.folder, out, method)
    make(make_settings(scene, use_adjustment=False))
    other = make_settings(scene, extract=replace(EXTRACT, max_keypoints=300), use_adjustment=False)
    with pytest.raises(DataError, match=r"features\.h5 was extracted from other images or with other"):
        make(other)
    make(other, overwrite=True)
    with open_features(out / "features.h5") as file:
        assert max(len(file.read(name)) for name in file.names) <= 300


def test_features_of_several_scales_are_used_again_and_not_mixed(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 2, (64, 80))
    method, several = make_method(tmp_path / "diary"), replace(EXTRACT, scales=(1.0, 0.5))

    def extract(settings: ExtractSettings) -> int:
        found = _extract(
            tmp_path / "images", tmp_path, method, ReconstructSettings(settings), None, False, lambda *_: None
        )
        return found.resumed

    assert [extract(several), extract(several)] == [0, 2]
    with pytest.raises(DataError, match=r"features\.h5 was extracted from other images or with other"):
        extract(EXTRACT)


def test_images_that_have_nothing_in_common(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 3, (64, 80))
    out = tmp_path / "model"
    out.mkdir()
    settings = ReconstructSettings(EXTRACT, PairingSettings("sequential", overlap=1))
    with pytest.raises(DataError, match="no model"):
        reconstruct_folder(tmp_path / "images", out, make_method(tmp_path / "diary"), settings)
    assert not (out / "sparse").exists()
    with open_features(out / "features.h5") as file:
        assert len(read_pair_list(out / "pairs.txt", file.names)) == 2
        assert len(choose_pairs(file, PairingSettings())) == 3
        assert len(choose_pairs(file, PairingSettings("retrieval", neighbours=1))) in (2, 3)


def test_shards_of_a_run_that_was_killed_after_its_features_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "images", 2)
    out, method = tmp_path / "out", make_method(tmp_path / "diary")
    out.mkdir()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShardFolder, "_remove", stop)
        with pytest.raises(KeyboardInterrupt):
            reconstruct_folder(tmp_path / "images", out, method, ReconstructSettings(EXTRACT))
    assert {"features.h5", "features.h5.parts"} <= {path.name for path in out.iterdir()}
    with pytest.raises(DataError):  # its images have nothing in common
        reconstruct_folder(tmp_path / "images", out, method, ReconstructSettings(EXTRACT))
    assert (out / "features.h5").is_file()
    assert not (out / "features.h5.parts").exists()


def test_spaces_in_names_and_a_list_of_pairs(scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / "my images"
    folder.mkdir()
    for path in scene.folder.iterdir():
        (folder / f"my {path.name}").write_bytes(path.read_bytes())
    method = make_method(tmp_path / "diary")
    settings = make_settings(scene, use_adjustment=False)
    made = reconstruct_folder(folder, tmp_path, method, settings)
    assert made.model.registered[0] == "my 000.png"
    assert not (tmp_path / "pairs.txt").exists()

    out = tmp_path / "listed"
    out.mkdir()
    (out / "list.txt").write_text("000.png 001.png\n001.png 002.png\n002.png 000.png\n")
    listed = replace(settings, pairing=PairingSettings(path=out / "list.txt"))
    made = reconstruct_folder(scene.folder, out, method, listed)
    assert made.pairs == 3
    assert made.model.registered == ("000.png", "001.png", "002.png")


def test_one_image_is_not_enough(tmp_path: Path) -> None:
    write_images(tmp_path / "images", 1)
    out = tmp_path / "model"
    out.mkdir()
    with pytest.raises(DataError, match="at least two readable images, got 1"):
        reconstruct_folder(tmp_path / "images", out, make_method(tmp_path / "diary"))


def test_unknown_pairing() -> None:
    with pytest.raises(ConfigError, match=r"no pairing 'x' \(there are exhaustive, sequential, retrieval\)"):
        PairingSettings("x")


@pytest.mark.parametrize("name", ["database.db", "sparse", "matches.h5"])
def test_a_colmap_project_of_the_users_is_kept(tmp_path: Path, name: str) -> None:
    write_images(tmp_path / "images", 2)
    out = tmp_path / "project"
    (out / "sparse").mkdir(parents=True) if name == "sparse" else out.mkdir()
    mine = out / "sparse" / "cameras.bin" if name == "sparse" else out / name
    mine.write_text("mine")
    with pytest.raises(OutputError, match=rf"{name} exists already"):
        reconstruct_folder(tmp_path / "images", out, make_method(tmp_path / "diary"))
    assert [path.name for path in out.iterdir()] == [name]
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["database.db", "sparse", "pairs.txt", "progress.json"])
def test_what_lies_beside_our_features_may_be_of_others(tmp_path: Path, name: str) -> None:
    """`ucn extract -o project/features.h5`, then COLMAP by hand."""
    write_images(tmp_path / "images", 2)
    out, method = tmp_path / "project", make_method(tmp_path / "diary")
    out.mkdir()
    extract_folder(tmp_path / "images", out / "features.h5", method, EXTRACT)
    mine = out / name / "0" / "images.bin" if name == "sparse" else out / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(OutputError, match=rf"{name} .*was kept"):
        reconstruct_folder(tmp_path / "images", out, method, ReconstructSettings(EXTRACT))
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("kind", ["a file", "a link in it", "a link"])
def test_models_of_others_are_kept_even_where_results_are_replaced(tmp_path: Path, kind: str) -> None:
    write_images(tmp_path / "images", 2)
    out, precious = tmp_path / "project", tmp_path / "precious"
    (out if kind == "a link" else out / "sparse").mkdir(parents=True)
    (precious / "0").mkdir(parents=True)
    (precious / "0" / "images.bin").write_text("mine")
    if kind == "a file":
        (out / "sparse" / "notes.txt").write_text("mine")
    else:
        (out / "sparse" if kind == "a link" else out / "sparse" / "0").symlink_to(precious)
    with pytest.raises(OutputError, match="sparse was kept"):
        reconstruct_folder(tmp_path / "images", out, make_method(tmp_path / "diary"), overwrite=True)
    assert (precious / "0" / "images.bin").read_text() == "mine"
    assert len(list((out / "sparse").iterdir())) == 1


@pytest.mark.slow
def test_turned_photographs_are_what_colmap_reads(tmp_path: Path) -> None:
    """Cameras have the sizes of the stored images, and COLMAP undistorts these."""
    scene = make_scene(tmp_path / "images")
    for number, orientation in enumerate((1, 6, 8, 3, 1)):
        turn_photograph(scene.folder / f"{number:03}.png", orientation)
    out = tmp_path / "model"
    out.mkdir()
    made = reconstruct_folder(scene.folder, out, make_method(tmp_path / "diary"), make_settings(scene))
    assert len(made.model.registered) == 5
    centres = np.stack([made.model.centre(name) for name in made.model.registered])
    assert align_centres(centres, scene.centres).max() < 0.02
    assert made.model.reprojection_error < 0.3
    pycolmap.undistort_images(out / "undistorted", out / "sparse" / "0", scene.folder)
    for folder, model in ((scene.folder, out / "sparse" / "0"), *[(out / "undistorted",) * 2]):
        undistorted = folder != scene.folder
        read = pycolmap.Reconstruction(model / "sparse" if undistorted else model)
        for image in read.images.values():
            path = (folder / "images" if undistorted else folder) / image.name
            camera = read.cameras[image.camera_id]
            with PIL.Image.open(path) as stored:
                assert (camera.width, camera.height) == stored.size
    assert {camera.width for camera in made.model.reconstruction.cameras.values()} == {180, 240}


def test_features_before_turned_photographs_were_stored_turned(tmp_path: Path) -> None:
    """They are used again where no photograph is turned."""
    names = write_images(tmp_path / "images", 2)
    meta: dict[str, object] = {"images": "x", "version": 2}
    expected = {"images": "x", "version": 3}
    assert _is_reusable(meta, expected, tmp_path / "images", [*names, "gone.png"])
    assert not _is_reusable({**meta, "version": 1}, expected, tmp_path / "images", names)
    turn_photograph(tmp_path / "images" / names[1], 6)
    assert not _is_reusable(meta, expected, tmp_path / "images", names)
    assert _is_reusable(expected, expected, tmp_path / "images", names)


def map_as_hloc_does(folder: Path, out: Path) -> dict[str, Array]:
    """Centres of cameras from features.h5, matches.h5 and pairs.txt, imported as hloc does; one camera."""
    database = pycolmap.Database.open(out / "hloc.db")
    database.close()
    pycolmap.import_images(out / "hloc.db", folder, pycolmap.CameraMode.SINGLE)
    database = pycolmap.Database.open(out / "hloc.db")
    numbers = {image.name: image.image_id for image in database.read_all_images()}
    with h5py.File(out / "features.h5") as features, h5py.File(out / "matches.h5") as matches:
        for name, number in numbers.items():
            database.write_keypoints(number, np.asarray(features[name]["keypoints"]) + 0.5)
        for line in (out / "pairs.txt").read_text().splitlines():
            name0, name1 = line.split()
            found = np.asarray(matches[f"{name0}/{name1}"]["matches0"])
            rows = np.stack([np.flatnonzero(found >= 0), found[found >= 0]], axis=1).astype(np.uint32)
            database.write_matches(numbers[name0], numbers[name1], rows)
    database.close()
    verification, mapping = pycolmap.TwoViewGeometryOptions(), pycolmap.IncrementalPipelineOptions()
    verification.ransac.random_seed = mapping.random_seed = 0  # else it ends in one of two models
    mapping.num_threads = 1
    pycolmap.verify_matches(out / "hloc.db", out / "pairs.txt", verification)
    (out / "hloc").mkdir()
    models = pycolmap.incremental_mapping(out / "hloc.db", folder, out / "hloc", mapping)
    return {image.name: image.projection_center() for image in models[0].images.values()}


@pytest.mark.slow
def test_turned_photographs_cost_hloc_nothing(scene: Scene, tmp_path: Path) -> None:
    errors = []
    for number, orientations in enumerate(((1, 1, 1, 1, 1), (8, 6, 8, 6, 6), (3, 1, 3, 3, 1))):
        folder, out = tmp_path / f"images{number}", tmp_path / f"model{number}"
        folder.mkdir()
        out.mkdir()
        for path, orientation in zip(sorted(scene.folder.iterdir()), orientations, strict=True):
            turn_photograph(path, orientation, folder / path.name)
        method = make_method(tmp_path / f"diary{number}")
        reconstruct_folder(folder, out, method, make_settings(scene, use_adjustment=False))
        with quiet("FATAL"):
            centres = map_as_hloc_does(folder, out)
        assert len(centres) == 5
        found = np.stack([centres[name] for name in sorted(centres)])
        errors.append(align_centres(found, scene.centres).max())
    assert max(errors) < 1.5 * errors[0]
