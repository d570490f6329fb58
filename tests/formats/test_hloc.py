"""hloc's files: layout, round trips, damaged and hostile ones."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ucn.errors import DataError, OutputError
from ucn.formats.hloc import (
    CoarseMap,
    ImageFeatures,
    PairMatches,
    check_pair_names,
    merge_features,
    open_features,
    pair_group_name,
    read_pair_matches,
    write_features,
    write_pair_matches,
)
from ucn.geometry.coords import apply_orientation


def make_features(count: int = 3, seed: int = 0, with_global: bool = True) -> ImageFeatures:
    rng = np.random.default_rng(seed)
    descriptors = rng.normal(size=(count, 8)).astype(np.float32)
    descriptors /= np.maximum(np.linalg.norm(descriptors, axis=1, keepdims=True), 1e-9)
    return ImageFeatures(
        rng.uniform(0, 30, (count, 2)).astype(np.float32),
        descriptors,
        rng.uniform(0.1, 1, count).astype(np.float32),
        (40, 30),
        np.eye(8, dtype=np.float32)[0] if with_global else None,
    )


def make_coarse() -> CoarseMap:
    cells = np.eye(8, dtype=np.float32)[[0, 3, 1, 1, 7, 2]].T.reshape(8, 2, 3)
    return CoarseMap(cells, first=(7.5, 8.25), step=(16.0, 16.5))


def test_layout_is_that_of_hloc(tmp_path: Path) -> None:
    features = make_features()
    write_features(tmp_path / "f.h5", {"left/a.jpg": features}, {"note": 1})
    with h5py.File(tmp_path / "f.h5") as file:
        group = file["left/a.jpg"]
        assert group["keypoints"].shape == (3, 2)
        assert group["keypoints"].dtype == np.float32
        assert group["descriptors"].shape == (8, 3)
        assert group["scores"].shape == (3,)
        assert group["image_size"][:].tolist() == [30, 40]  # width, height
        assert group["global_descriptor"].shape == (8,)
        assert group["keypoints"].attrs["uncertainty"] == 1
        # hloc lists names as the parents of data sets.
        found: set[str] = set()
        file.visititems(
            lambda _, item: found.add(item.parent.name.strip("/")) if isinstance(item, h5py.Dataset) else None
        )
        assert found == {"left/a.jpg"}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_round_trip(tmp_path: Path, count: int) -> None:
    features = make_features(count, with_global=count != 1)
    write_features(tmp_path / "f.h5", {"a.jpg": features}, {"note": [1, 2]})
    with open_features(tmp_path / "f.h5") as file:
        assert file.names == ("a.jpg",)
        assert file.meta == {"note": [1, 2]}
        back = file.read("a.jpg")
        if count == 1:
            with pytest.raises(DataError, match="no global_descriptor"):
                file.read_global("a.jpg")
        else:
            assert file.read_global("a.jpg")[0] == 1
    np.testing.assert_array_equal(back.keypoints, features.keypoints)
    np.testing.assert_allclose(back.descriptors, features.descriptors, atol=5e-4)
    np.testing.assert_allclose(back.scores, features.scores, atol=5e-4)
    assert (back.image_hw, len(back)) == ((40, 30), count)


def test_coarse_map(tmp_path: Path) -> None:
    write_features(
        tmp_path / "f.h5", {"a": replace(make_features(), coarse=make_coarse()), "b": make_features()}
    )
    merge_features(tmp_path / "m.h5", [tmp_path / "f.h5"])
    with h5py.File(tmp_path / "m.h5") as file:
        data = file["a/coarse"]
        assert (data.shape, data.dtype) == ((8, 2, 3), np.float16)
        assert data.attrs["offset"].tolist() == [7.5, 8.25]
        assert data.attrs["stride"].tolist() == [16, 16.5]
    with open_features(tmp_path / "m.h5") as file:
        back = file.read("a").coarse
        assert file.read("b").coarse is None
    assert back is not None
    assert (back.first, back.step) == ((7.5, 8.25), (16.0, 16.5))
    assert back.descriptors.dtype == np.float32
    np.testing.assert_array_equal(back.descriptors, make_coarse().descriptors)


def make_levels() -> ImageFeatures:
    """Three keypoints of two scales."""
    small = CoarseMap(make_coarse().descriptors[:, :1, :2], (15.5, 16.5), (32.0, 33.0))
    levels = np.array([0, 0, 1], np.uint8)
    return replace(make_features(), coarse=make_coarse(), levels=levels, reduced=(small,))


def test_several_scales(tmp_path: Path) -> None:
    features = make_levels()
    write_features(tmp_path / "f.h5", {"a": features})
    with h5py.File(tmp_path / "f.h5") as file:
        assert (file["a/levels"].dtype, file["a/levels"][:].tolist()) == (np.uint8, [0, 0, 1])
        assert (file["a/coarse_1"].shape, file["a/coarse_1"].dtype) == ((8, 1, 2), np.float16)
    with open_features(tmp_path / "f.h5") as file:
        back = file.read("a")
    assert back.levels is not None and back.levels.dtype == np.uint8
    assert [back.list_rows(level).tolist() for level in range(3)] == [[0, 1], [2], []]
    assert [(item.first, item.step) for item in back.coarse_maps] == [
        ((7.5, 8.25), (16.0, 16.5)),
        ((15.5, 16.5), (32.0, 33.0)),
    ]
    np.testing.assert_array_equal(back.reduced[0].descriptors, features.reduced[0].descriptors)
    assert [make_features().list_rows(level).tolist() for level in range(2)] == [[0, 1, 2], []]


def test_scales_without_coarse_maps(tmp_path: Path) -> None:
    levels = np.array([0, 1, 3], np.uint8)
    write_features(tmp_path / "f.h5", {"a": replace(make_features(), levels=levels)})
    with open_features(tmp_path / "f.h5") as file:
        back = file.read("a")
    assert back.coarse_maps == ()
    assert back.levels is not None and back.levels.tolist() == [0, 1, 3]


def test_merge_gives_the_bytes_of_one_file(tmp_path: Path) -> None:
    items = {f"{name}.jpg": make_features(seed=row) for row, name in enumerate("abcd")}
    write_features(tmp_path / "0.h5", dict(list(items.items())[:3]))
    write_features(tmp_path / "1.h5", dict(list(items.items())[3:]))
    for name in ("m.h5", "n.h5"):
        assert merge_features(tmp_path / name, [tmp_path / "0.h5", tmp_path / "1.h5"], {"x": 1}) == 4
    assert (tmp_path / "m.h5").read_bytes() == (tmp_path / "n.h5").read_bytes()
    with open_features(tmp_path / "m.h5") as file:
        assert file.names == ("a.jpg", "b.jpg", "c.jpg", "d.jpg")
        np.testing.assert_array_equal(file.read("d.jpg").keypoints, items["d.jpg"].keypoints)
    with pytest.raises(OutputError, match="exists already"):
        merge_features(tmp_path / "m.h5", [])


def test_matches_round_trip_and_are_found_in_reverse_order(tmp_path: Path) -> None:
    rows = np.array([[0, 2], [3, 1]], np.int64)
    found = PairMatches(rows, np.array([0.5, 0.75], np.float32))
    nothing = PairMatches(rows[:0], found.scores[:0])
    entries = [(("s/a.jpg", "b.jpg"), 4, found), (("b.jpg", "c.jpg"), 0, nothing)]
    assert write_pair_matches(tmp_path / "m.h5", entries) == 2
    with h5py.File(tmp_path / "m.h5") as file:
        assert file["s-a.jpg/b.jpg/matches0"][:].tolist() == [2, -1, -1, 1]
        assert file["s-a.jpg/b.jpg/matching_scores0"][:].tolist() == [0.5, 0, 0, 0.75]
    pairs = [("s/a.jpg", "b.jpg"), ("b.jpg", "s/a.jpg"), ("b.jpg", "c.jpg")]
    one, turned, empty = read_pair_matches(tmp_path / "m.h5", pairs)
    assert one.rows.tolist() == rows.tolist()
    assert turned.rows.tolist() == [[2, 0], [1, 3]]
    assert turned.scores.tolist() == [0.5, 0.75]
    assert empty.rows.shape == (0, 2)
    with pytest.raises(DataError, match="no matches of x and y"):
        list(read_pair_matches(tmp_path / "m.h5", [("x", "y")]))


def test_names_that_hloc_cannot_tell_apart() -> None:
    assert pair_group_name("a/b.jpg", "c.jpg") == "a-b.jpg/c.jpg"
    with pytest.raises(DataError, match="have the same name"):
        check_pair_names(["a/b.jpg", "a-b.jpg"])
    check_pair_names(["a/b.jpg", "a_b.jpg"])


class TestDamaged:
    def damage(self, path: Path, key: str, value: object) -> None:
        write_features(path, {"a.jpg": make_features()})
        with h5py.File(path, "a") as file:
            del file[f"a.jpg/{key}"]
            if value is not None:
                file[f"a.jpg/{key}"] = value

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("descriptors", None),
            ("descriptors", np.zeros((8, 2))),
            ("keypoints", np.zeros((3, 3))),
            ("keypoints", np.zeros(3)),
            ("keypoints", np.full((3, 2), np.nan)),
            ("keypoints", np.zeros((3, 2), "S3")),
            ("scores", np.zeros(2)),
            ("image_size", np.zeros(3)),
        ],
    )
    def test_is_refused(self, tmp_path: Path, key: str, value: object) -> None:
        self.damage(tmp_path / "f.h5", key, value)
        with pytest.raises(DataError, match=r"f\.h5.*ucn extract"), open_features(tmp_path / "f.h5") as file:
            file.read("a.jpg")

    def test_size_is_checked_before_reading(self, tmp_path: Path) -> None:
        write_features(tmp_path / "f.h5", {"a.jpg": make_features()})
        with h5py.File(tmp_path / "f.h5", "a") as file:
            del file["a.jpg/keypoints"]
            file["a.jpg"].create_dataset("keypoints", (10**9, 2), "f4", chunks=(1024, 2))  # takes no room
        message = "keypoints has 8,000,000,000 bytes, the limit"
        with pytest.raises(DataError, match=message), open_features(tmp_path / "f.h5") as file:
            file.read("a.jpg")

    @pytest.mark.parametrize(
        ("values", "place", "message"),
        [
            (np.zeros((8, 2, 3)), {}, "needs the attributes"),
            (np.zeros((8, 2, 3)), {"offset": [1.0, 1], "stride": "wide"}, "needs the attributes"),
            (np.zeros((8, 2, 3)), {"offset": [1.0, 1], "stride": [16.0, 0]}, "positive stride"),
            (np.zeros((8, 2, 3)), {"offset": [1.0, np.nan], "stride": [16.0, 16]}, "positive stride"),
            (np.zeros((8, 2, 3)), {"offset": 1.0, "stride": [16.0, 16]}, "positive stride"),
            (np.zeros((7, 2, 3)), {"offset": [1.0, 1], "stride": [16.0, 16]}, r"\(8, h, w\)"),
            (np.zeros((8, 0, 3)), {"offset": [1.0, 1], "stride": [16.0, 16]}, r"\(8, h, w\)"),
            (np.zeros((8, 6)), {"offset": [1.0, 1], "stride": [16.0, 16]}, "3 dimensions"),
            (np.full((8, 2, 3), np.inf), {"offset": [1.0, 1], "stride": [16.0, 16]}, "not finite"),
        ],
    )
    def test_coarse_map_is_refused(
        self, tmp_path: Path, values: object, place: dict[str, object], message: str
    ) -> None:
        write_features(tmp_path / "f.h5", {"a": make_features()})
        with h5py.File(tmp_path / "f.h5", "a") as file:
            file["a"].create_dataset("coarse", data=values).attrs.update(place)
        with pytest.raises(DataError, match=message), open_features(tmp_path / "f.h5") as file:
            file.read("a")

    @pytest.mark.parametrize(
        "levels",
        [
            np.array([0, 1], np.uint8),
            np.array([[0, 0, 1]], np.uint8),
            np.array([0, 0, 2], np.uint8),  # there are two coarse maps
            np.array([0, 1, 0], np.uint8),
            np.array([-1, 0, 1], np.int8),
            np.array([0, 0, 2**40]),
            np.array([0.0, 0.0, 1.0]),
            np.array([b"0", b"0", b"1"]),
        ],
    )
    def test_levels_are_refused(self, tmp_path: Path, levels: object) -> None:
        write_features(tmp_path / "f.h5", {"a": make_levels()})
        with h5py.File(tmp_path / "f.h5", "a") as file:
            del file["a/levels"]
            file["a/levels"] = levels
        with (
            pytest.raises(DataError, match=r"'levels'.*ucn extract"),
            open_features(tmp_path / "f.h5") as file,
        ):
            file.read("a")

    def test_coarse_map_of_a_further_scale_is_refused(self, tmp_path: Path) -> None:
        write_features(tmp_path / "f.h5", {"a": make_levels()})
        with h5py.File(tmp_path / "f.h5", "a") as file:
            file["a/coarse_1"].attrs["stride"] = [16.0, -1.0]
        with (
            pytest.raises(DataError, match=r"'coarse_1'.*positive stride"),
            open_features(tmp_path / "f.h5") as file,
        ):
            file.read("a")

    def test_size_of_a_coarse_map_is_checked_before_reading(self, tmp_path: Path) -> None:
        write_features(tmp_path / "f.h5", {"a": make_features()})
        with h5py.File(tmp_path / "f.h5", "a") as file:
            file["a"].create_dataset("coarse", (8, 10**5, 10**5), "f2", chunks=(8, 64, 64))  # takes no room
        with (
            pytest.raises(DataError, match="coarse has 160,000,000,000 bytes, the limit"),
            open_features(tmp_path / "f.h5") as file,
        ):
            file.read("a")

    @pytest.mark.parametrize("link", [h5py.ExternalLink("/etc/passwd", "/x"), h5py.SoftLink("/a.jpg")])
    def test_links_are_not_followed(self, tmp_path: Path, link: object) -> None:
        write_features(tmp_path / "f.h5", {"a.jpg": make_features()})
        with h5py.File(tmp_path / "f.h5", "a") as file:
            file["b.jpg"] = link
        with pytest.raises(DataError, match="is a link"), open_features(tmp_path / "f.h5"):
            pass

    @pytest.mark.parametrize("content", [b"", b"no h5 file", b"\x89HDF\r\n\x1a\n" + bytes(60)])
    def test_something_else(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "f.h5").write_bytes(content)
        with pytest.raises(DataError, match="damaged or no"), open_features(tmp_path / "f.h5"):
            pass

    def test_missing(self, tmp_path: Path) -> None:
        with (
            pytest.raises(DataError, match=r"no file of features .*f\.h5; "),
            open_features(tmp_path / "f.h5"),
        ):
            pass

    def test_unknown_image(self, tmp_path: Path) -> None:
        write_features(tmp_path / "f.h5", {"a.jpg": make_features()})
        with pytest.raises(DataError, match="no image"), open_features(tmp_path / "f.h5") as file:
            file.read("b.jpg")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_images_are_written_as_stored_and_read_upright(tmp_path: Path, orientation: int) -> None:
    features = replace(make_features(), coarse=make_coarse(), orientation=orientation)
    write_features(tmp_path / "f.h5", {"a.jpg": features})
    stored_hw = (30, 40) if orientation >= 5 else (40, 30)
    with open_features(tmp_path / "f.h5") as file:
        group = file.file["a.jpg"]
        assert group["image_size"][:].tolist() == [stored_hw[1], stored_hw[0]]
        assert ("orientation" in group["keypoints"].attrs) == (orientation != 1)
        upright = apply_orientation(torch.from_numpy(group["keypoints"][:]), stored_hw, orientation)
        np.testing.assert_allclose(upright.numpy(), features.keypoints, atol=1e-5)
        back = file.read("a.jpg")
    np.testing.assert_allclose(back.keypoints, features.keypoints, atol=1e-5)
    assert (back.image_hw, back.orientation) == (features.image_hw, orientation)
    assert back.coarse is not None and back.coarse.first == (7.5, 8.25)


@pytest.mark.parametrize("orientation", [0, 9, "6", [6, 6]])
def test_wrong_orientation(tmp_path: Path, orientation: object) -> None:
    write_features(tmp_path / "f.h5", {"a.jpg": make_features()})
    with h5py.File(tmp_path / "f.h5", "a") as file:
        file["a.jpg/keypoints"].attrs["orientation"] = orientation
    message = r"image a\.jpg: expected the attribute orientation of 'keypoints' in 1\.\.8"
    with open_features(tmp_path / "f.h5") as features, pytest.raises(DataError, match=message):
        features.read("a.jpg")
