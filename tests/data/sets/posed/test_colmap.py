"""COLMAP reconstructions: text and binary, written here as COLMAP documents them, give the same pairs."""

import pickle
import re
import struct
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import torch

from support.colmap_cases import FakeModel
from support.remedy_rule import assert_remedy
from ucn.data.catalogue import open_data
from ucn.data.checking import check_data, skip_bad
from ucn.data.sets.posed.colmap import ColmapData, find_covisible, open_folder
from ucn.data.sets.posed.colmap_model import read_model
from ucn.errors import DataError


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


def open_model(
    folder: Path, min_shared: int = 1, max_error: float = 0.0, image_folder: str = ""
) -> ColmapData:
    return open_folder(folder, "all", min_shared=min_shared, max_error=max_error, image_folder=image_folder)


@pytest.fixture(params=["bin", "txt"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, model: FakeModel, form: str) -> Path:
    """COLMAP's habit: images and sparse/0 side by side, in a folder with a blank and another letter."""
    root = tmp_path / "mein Modell ß"
    model.write(root / "sparse" / "0", form)
    model.write_photographs(root / "images")
    return root


class TestReading:
    def test_positions_of_points(self, tmp_path: Path, model: FakeModel, form: str) -> None:
        model.positions = {5: (1.0, 2.0, 3.0), 70: (-4.5, 0.0, 1e-3)}
        model.write(tmp_path, form)
        found = read_model(tmp_path)
        assert found.point_ids.tolist() == [5, 6, 70, 100]
        other = [1.5, 2.5, -3.5]
        assert found.point_positions.tolist() == [[1, 2, 3], other, [-4.5, 0, 1e-3], other]
        assert found.point_errors.tolist() == [0.5, -1, 3, 1.5]

    def test_triangulation_angles(self, tmp_path: Path, model: FakeModel, form: str) -> None:
        # b.png is at the origin. The quarter turn of "a ü.png" about z takes its centre (-2, 1, -3) to
        # -t = (-1, -2, -3).
        model.positions = {5: (0.0, 0.0, -3.0), 100: (-2.0, 1.0, 0.0), 70: (0.0, 0.0, 0.0)}
        model.write(tmp_path / "sparse" / "0", form)
        model.write_photographs(tmp_path / "images")
        data = open_model(tmp_path, min_shared=3)
        assert data.pair_name(0) == "a ü.png--b.png"
        found = data.triangulation_angles(0)  # of points 5, 70 and 100
        assert found[[0, 2]].tolist() == pytest.approx([90, 90])
        assert found[1].isnan()  # at a camera
        swapped = pickle.loads(pickle.dumps(data)).triangulation_angles(0)
        assert torch.equal(swapped[[0, 2]], found[[0, 2]])

    def test_files_of_a_pair_include_the_model(self, folder: Path, form: str) -> None:
        data = open_model(folder)
        names = [path.name for path in data.pair_files(0)]
        assert names == ["a ü.png", "b.png", f"images.{form}", f"points3D.{form}"]
        assert all(path.is_file() for path in data.pair_files(0))

    def test_pairs_and_points(self, folder: Path) -> None:
        data = open_data("colmap", folder, None, {"min_shared": 1, "max_error": 0})
        assert data.problems == []
        assert [data.pair_name(i) for i in range(len(data))] == ["a ü.png--b.png", "a ü.png--sub/c.png"]
        assert data.image_paths(1) == (folder / "images" / "a ü.png", folder / "images" / "sub" / "c.png")
        sample = data.read(0)
        assert sample.image0.shape == (3, 30, 40)
        # By 3D point 5, 70, 100; half a pixel less than in the files.
        assert sample.points0.tolist() == [[6.5, 7.5], [2.5, 3.5], [5, 6]]
        assert sample.points1.tolist() == [[39.5, 29.5], [7.75, 1.5], [0, 0]]
        assert sample.points0.dtype == torch.float32
        assert data.read(1).points1.tolist() == [[0.5, 0.5]]

    def test_few_points_in_common(self, folder: Path) -> None:
        assert len(open_model(folder, min_shared=3)) == 1
        with pytest.raises(
            DataError,
            match=r"no two of 3 images in .* have 4 3D points in common; lower the option min_shared",
        ):
            open_model(folder, min_shared=4)
        with pytest.raises(DataError, match="have 20 3D points"):
            open_folder(folder, "all")

    def test_large_errors_are_excluded_and_unknown_ones_kept(self, folder: Path) -> None:
        data = open_model(folder, max_error=2.0)
        assert data.read(0).points0.tolist() == [[6.5, 7.5], [5, 6]]
        assert len(data.read(1)) == 1, "an error of -1 is not computed yet"

    def test_relative_pose(self, folder: Path) -> None:
        rotation, translation = open_model(folder).relative_pose(0)
        # Image 0 is turned by 90 degrees about z, (x, y, z) -> (-y, x, z), and moved by (1, 2, 3).
        expected = torch.tensor([[0, 1, 0], [-1, 0, 0], [0, 0, 1]], dtype=torch.float64)
        torch.testing.assert_close(rotation, expected)
        torch.testing.assert_close(translation, torch.tensor([-2, 1, -3], dtype=torch.float64))
        point = torch.tensor([4.0, 5, 6], dtype=torch.float64)
        in_camera0 = torch.stack([-point[1], point[0], point[2]]) + torch.tensor([1.0, 2, 3])
        torch.testing.assert_close(rotation @ in_camera0 + translation, point)

    def test_a_point_seen_twice_in_an_image_is_excluded(
        self, tmp_path: Path, model: FakeModel, form: str
    ) -> None:
        model.images[2][3].append((20, 20, 100))
        model.write(tmp_path, form)
        model.write_photographs(tmp_path / "images")
        assert open_model(tmp_path).read(0).points0.tolist() == [[6.5, 7.5], [2.5, 3.5]]

    def test_images_without_keypoints(self, tmp_path: Path, model: FakeModel, form: str) -> None:
        model.images = {1: ([1, 0, 0, 0, 0, 0, 0], 3, "empty.png", []), **model.images}
        model.write(tmp_path, form)
        model.write_photographs(tmp_path / "images")
        data = open_model(tmp_path)
        assert data.problems == []
        assert len(data) == 2

    def test_binary_comes_first(self, folder: Path, form: str, model: FakeModel) -> None:
        other = FakeModel()
        del other.images[4]
        other.write(folder / "sparse" / "0", "txt" if form == "bin" else "bin")
        assert len(open_model(folder)) == (2 if form == "bin" else 1)

    def test_files_are_listed_once_and_really_read(self, folder: Path) -> None:
        data = open_model(folder)
        assert sorted(file.path.name for file in data.files()) == ["a ü.png", "b.png", "c.png"]
        report = check_data(data)
        assert report.is_good
        assert report.point_count == 4
        (folder / "images" / "b.png").write_bytes(b"")
        report = check_data(data)
        assert [problem.path.name for problem in report.problems] == ["b.png"]
        assert [data.pair_name(1)] == [skip_bad(data, report).pair_name(0)]

    def test_no_such_pair(self, folder: Path) -> None:
        with pytest.raises(IndexError, match="the set has 2"):
            open_model(folder).read(2)

    def test_it_travels_to_other_processes(self, folder: Path) -> None:
        data = open_model(folder)
        assert torch.equal(pickle.loads(pickle.dumps(data)).read(0).points1, data.read(0).points1)


class TestImages:
    def test_places(self, tmp_path: Path, model: FakeModel) -> None:
        model.write_text(tmp_path / "model")
        with pytest.raises(DataError, match=r"no folder of images .*; set the option image_folder"):
            open_model(tmp_path / "model")
        model.write_photographs(tmp_path / "elsewhere")
        assert len(open_model(tmp_path / "model", image_folder="../elsewhere")) == 2
        assert len(open_model(tmp_path / "model", image_folder=str(tmp_path / "elsewhere"))) == 2
        model.write_photographs(tmp_path / "images")
        assert len(open_model(tmp_path / "model")) == 2

    def test_smaller_copies(self, folder: Path, model: FakeModel) -> None:
        model.write_photographs(folder / "images_2", (20, 15))
        sample = open_model(folder, image_folder="images_2").read(0)
        assert sample.image0.shape == (3, 15, 20)
        # (7, 8) is at (3.5, 4) in half of the size, still from the corner.
        assert sample.points0.tolist() == [[3, 3.5], [1, 1.5], [2.25, 2.75]]

    def test_another_shape(self, folder: Path, model: FakeModel) -> None:
        model.write_photographs(folder / "cropped", (30, 30))
        data = open_model(folder, image_folder="cropped")
        message = "has 30 × 30 pixels, its camera 40 × 30; set the option image_folder"
        with pytest.raises(DataError, match=message):
            data.read(0)
        assert len(check_data(data).problems) == 3

    def test_missing(self, folder: Path) -> None:
        (folder / "images" / "b.png").unlink()
        data = open_model(folder)
        assert len(data) == 1
        message = r"images\.(bin|txt).*: no image 'b.png' in .*images; copy it there"
        assert re.search(message, str(data.problems[0]))

    @pytest.mark.parametrize("name", ["../b.png", "/etc/passwd", "x" * 3000])
    def test_names_stay_inside(self, tmp_path: Path, model: FakeModel, form: str, name: str) -> None:
        model.write_photographs(tmp_path / "images")
        pose, camera, _, keypoints = model.images[7]
        model.images[7] = (pose, camera, name, keypoints)
        model.write(tmp_path, form)
        data = open_model(tmp_path)
        assert len(data) == 1
        assert len(data.problems) == 1

    def test_an_image_rotated_by_exif(self, folder: Path, model: FakeModel) -> None:
        straight = open_model(folder).read(0)
        path = folder / "images" / "a ü.png"
        image = PIL.Image.open(path).copy()
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(path, exif=exif)
        sample = open_model(folder).read(0)
        assert sample.image0.shape == (3, 40, 30)
        x, y = straight.points0.unbind(-1)
        assert torch.equal(sample.points0, torch.stack([29 - y, x], dim=-1))
        # Where the model was made of upright photographs, its points are right as they are.
        model.size = (30, 40)
        model.images = {n: values for n, values in model.images.items() if n != 7}
        for name in ("images.bin", "images.txt"):
            (folder / "sparse" / "0" / name).unlink(missing_ok=True)
        model.write_text(folder / "sparse" / "0")
        model.write_photographs(folder / "images" / "sub" / "..", (30, 40))
        image.save(path, exif=exif)
        assert open_model(folder).read(0).points0.tolist() == [[8.5, 8.5]]


class TestWrongModels:
    def test_options(self, folder: Path) -> None:
        with pytest.raises(DataError, match="min_shared must be 1 or more"):
            open_model(folder, min_shared=0)
        with pytest.raises(DataError, match="max_error 0 or more"):
            open_model(folder, max_error=float("nan"))

    def test_a_file_is_missing(self, folder: Path, form: str) -> None:
        (folder / "sparse" / "0" / f"cameras.{form}").unlink()
        with pytest.raises(DataError, match=rf"no file .*cameras\.{form}; a reconstruction has"):
            open_model(folder)

    def test_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(
            DataError, match=r"no points3D.bin or points3D.txt in it or in its sparse/0, sparse"
        ):
            open_model(tmp_path)

    def test_other_models_are_noted(self, folder: Path, model: FakeModel) -> None:
        model.write_text(folder / "sparse" / "1")
        data = open_model(folder)
        assert len(data.notes) == 1
        assert "other reconstructions, too: 1" in data.notes[0]
        assert len(open_model(folder / "sparse" / "1")) == 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("camera", "image 'b.png' has the unknown camera 55"),
            ("pose", "image 'b.png' has an invalid pose"),
            ("outside", "1 observations of 'b.png' lie outside its 40 × 30 pixels"),
            ("point", "1 observations of 'b.png' are of 3D points that points3D does not have"),
        ],
    )
    def test_an_entry(self, tmp_path: Path, model: FakeModel, form: str, change: str, message: str) -> None:
        model.write_photographs(tmp_path / "images")
        pose, camera, name, keypoints = model.images[7]
        if change == "camera":
            camera = 55
        elif change == "pose":
            pose = [0, 0, 0, 0, 1, 1, 1]
        elif change == "outside":
            keypoints = [*keypoints, (40.5, 3, 6)]
        else:
            keypoints = [*keypoints, (4, 3, 999)]
        model.images[7] = (pose, camera, name, keypoints)
        model.write(tmp_path, form)
        data = open_model(tmp_path)
        assert [message in str(problem) for problem in data.problems] == [True]
        assert len(data) == (1 if change in ("camera", "pose") else 2)

    @pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
    def test_truncated_anywhere(self, tmp_path: Path, model: FakeModel, name: str) -> None:
        model.write_binary(tmp_path)
        path = tmp_path / f"{name}.bin"
        content = path.read_bytes()
        for length in range(len(content)):
            path.write_bytes(content[:length])
            with pytest.raises(DataError, match=rf"{name}\.bin(: expected a name| ends too early)"):
                read_model(tmp_path)
        path.write_bytes(content + b"\0")
        with pytest.raises(DataError, match="1 bytes follow what its counts announce"):
            read_model(tmp_path)

    @pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
    def test_enormous_counts_are_not_believed(self, tmp_path: Path, model: FakeModel, name: str) -> None:
        model.write_binary(tmp_path)
        path = tmp_path / f"{name}.bin"
        path.write_bytes(struct.pack("<Q", 2**63) + path.read_bytes()[8:])
        with pytest.raises(DataError, match="ends too early: expected 9,223,372,036,854,775,808"):
            read_model(tmp_path)

    def test_an_unknown_camera_model(self, tmp_path: Path, model: FakeModel) -> None:
        model.cameras[3] = (99, [1.0])
        model.write_binary(tmp_path)
        with pytest.raises(DataError, match="camera 3 has the unknown model 99; export as text instead"):
            read_model(tmp_path)

    def test_a_camera_without_pixels(self, tmp_path: Path, model: FakeModel, form: str) -> None:
        model.size = (0, 30)
        model.write(tmp_path, form)
        with pytest.raises(DataError, match="expected width and height in 1 … 10,000,000, got 0 and 30"):
            read_model(tmp_path)

    @pytest.mark.parametrize(
        ("name", "line", "message"),
        [
            ("images.txt", "8 1 0 0 0 0 0 0 3\n1 2 3\n", r"images.txt:8: expected IMAGE_ID QW"),
            ("images.txt", "8 1 0 0 x 0 0 0 3 d.png\n\n", r"images.txt:8: expected IMAGE_ID QW"),
            (
                "images.txt",
                "8 1 0 0 0 0 0 0 3 d.png\n1 2 3 4\n",
                r"images.txt:9: expected X Y POINT3D_ID .*'d.png'",
            ),
            ("images.txt", "8 1 0 0 0 0 0 0 3 d.png\n1 2 5.5\n", r"images.txt:9: expected X Y POINT3D_ID"),
            ("images.txt", "8 1 0 0 0 0 0 0 3 d.png\n1 2 nan\n", r"images.txt:9: expected X Y POINT3D_ID"),
            ("images.txt", "7 1 0 0 0 0 0 0 3 d.png\n1 2 5\n", "image 'd.png' has the id 7 of another"),
            ("points3D.txt", "8 1 2 3\n", r"points3D.txt:6: expected POINT3D_ID X Y Z"),
            ("points3D.txt", f"{2**63} 1 2 3 4 5 6 7\n", r"points3D.txt:6: expected POINT3D_ID X Y Z"),
        ],
    )
    def test_a_line_of_text(
        self, tmp_path: Path, model: FakeModel, name: str, line: str, message: str
    ) -> None:
        model.write_text(tmp_path)
        model.write_photographs(tmp_path / "images")
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(line)
        data = open_model(tmp_path)
        assert len(data) == 2
        assert len(data.problems) == 1
        assert re.search(message, str(data.problems[0]))

    @pytest.mark.parametrize("wrong", ["camera", "photograph", "outside", "point"])
    def test_a_model_that_is_wrong_throughout_gives_few_problems(
        self, tmp_path: Path, model: FakeModel, form: str, wrong: str
    ) -> None:
        pose, _, _, keypoints = model.images[7]
        model.write_photographs(tmp_path / "images")
        if wrong == "outside":
            keypoints = [(50, 50, 5)]
        if wrong == "point":
            keypoints = [(5, 5, 555)]
        for number in range(100, 300):
            name = f"{number}.png" if wrong == "photograph" else "b.png"
            model.images[number] = (pose, 55 if wrong == "camera" else 3, name, keypoints)
        model.write(tmp_path, form)
        problems = open_model(tmp_path).problems
        assert len(problems) == 51
        assert "150 more problems" in problems[-1].message
        assert_remedy(problems[0].message)

    def test_a_file_of_zeros_is_refused_at_once(self, tmp_path: Path, model: FakeModel) -> None:
        model.write_binary(tmp_path)
        with (tmp_path / "images.bin").open("wb") as file:
            file.write(struct.pack("<Q", 4_000_000))
            file.truncate(8 + 73 * 4_000_000)  # sparse: it takes no room on the disk
        with pytest.raises(DataError, match=r"images\.bin: expected a name at byte 72, got an empty one"):
            read_model(tmp_path)

    def test_text_that_is_none(self, tmp_path: Path, model: FakeModel) -> None:
        model.write_text(tmp_path)
        (tmp_path / "images.txt").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(DataError, match=r"images.txt:1: it is not UTF-8 text"):
            read_model(tmp_path)
        model.write_text(tmp_path)
        (tmp_path / "cameras.txt").write_text("1 PINHOLE wide 3\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"cameras.txt:1: expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS"):
            read_model(tmp_path)

    def test_random_bytes_never_crash(self, tmp_path: Path, model: FakeModel) -> None:
        model.write_binary(tmp_path)
        generator = np.random.default_rng(0)
        for name in ("cameras", "images", "points3D"):
            path = tmp_path / f"{name}.bin"
            content = path.read_bytes()
            for _ in range(150):
                damaged = bytearray(content)
                for place in generator.integers(0, len(content), 3):
                    damaged[place] = int(generator.integers(0, 256))
                path.write_bytes(damaged)
                try:
                    read_model(tmp_path)
                except DataError:
                    continue
            path.write_bytes(content)


class TestCovisible:
    def test_against_counting_one_by_one(self) -> None:
        generator = np.random.default_rng(1)
        seen = [np.unique(generator.integers(0, 60, 30)) for _ in range(25)]
        pairs, share = find_covisible(seen, 60, 10)
        expected = [
            [i, j] for i in range(25) for j in range(i + 1, 25) if len(np.intersect1d(seen[i], seen[j])) >= 10
        ]
        assert pairs.tolist() == expected
        assert 0 < len(expected) < 300
        assert share == 1

    def test_nothing(self) -> None:
        assert find_covisible([], 0, 1)[0].shape == (0, 2)
        assert find_covisible([np.zeros(0, np.int64)] * 3, 0, 1)[0].shape == (0, 2)

    def test_long_tracks_are_thinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ucn.data.sets.posed.colmap._MAX_WORK", 100 * 10 * 10 / 4)
        monkeypatch.setattr("ucn.data.sets.posed.colmap._BLOCK_ENTRIES", 30)
        pairs, share = find_covisible([np.arange(100)] * 10, 100, 90)
        assert share == 0.25
        assert len(pairs) == 45
