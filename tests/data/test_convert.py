"""Conversion of any data set: the same samples come back, and no folder is ever lost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from ucn.data.catalogue import find_info, open_data
from ucn.data.checking import check_data
from ucn.data.convert import ConvertSummary, convert_pairs
from ucn.data.io import read_image
from ucn.data.pairs import DataFile, PairData, Selection, check_index
from ucn.data.sets.own.folder import open_folder
from ucn.errors import DataError, OutputError, UcnError
from ucn.types import PairSample


class Scenes(PairData):
    """Three pairs of four images with odd names: plain, cut out by the reader, and one that is no file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        generator = np.random.default_rng(0)
        names = ["images/ä, b.png", "A/1.jpg", "images/a/1.jpg", "images/c.png"]
        self.paths = [root / name for name in names]
        for path in self.paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(generator.integers(0, 255, (12, 16, 3), dtype=np.uint8)).save(path)
        self.mirrors = [torch.tensor([1, 0, 2]), torch.tensor([0]), torch.tensor([1, 0, 2])]
        self.bad = -1

    def __len__(self) -> int:
        return 3

    def pair_name(self, index: int) -> str:
        return f"pair {index}"

    def image_paths(self, index: int) -> tuple[Path, Path]:
        check_index(index, 3)
        return self.paths[index], self.paths[index + 1] if index < 2 else self.root / "clip.mp4" / "000007"

    def files(self) -> Sequence[DataFile]:
        return []

    def read(self, index: int) -> PairSample:
        if index == self.bad:
            raise DataError("pair is bad")
        generator = torch.Generator().manual_seed(index)
        image0 = read_image(self.paths[index])
        image1 = read_image(self.paths[index + 1])
        if index == 1:
            image0 = image0[:, 2:10, 3:15]
        size = torch.tensor([image0.shape[2], image0.shape[1]])
        count = 50 + index
        points0 = torch.rand(count, 2, generator=generator) * size - 0.5
        points1 = torch.rand(count, 2, generator=generator) * torch.tensor([16, 12]) - 0.5
        mirror = self.mirrors[index]
        parts = torch.randint(len(mirror), (count,), generator=generator)
        return PairSample(
            image0, image1, points0, points1, self.pair_name(index), 10.1 + index, parts, mirror
        )


def assert_same(found: PairSample, expected: PairSample) -> None:
    assert torch.equal(found.image0, expected.image0)
    assert torch.equal(found.image1, expected.image1)
    assert torch.equal(found.points0, expected.points0)
    assert torch.equal(found.points1, expected.points1)
    assert found.pck_length == expected.pck_length


def convert(
    data: PairData, output: Path, overwrite: bool = False, max_points: int | None = None
) -> ConvertSummary:
    return convert_pairs(data, output, source="scenes", overwrite=overwrite, max_points=max_points)


@pytest.fixture
def data(tmp_path: Path) -> Scenes:
    return Scenes(tmp_path / "source")


class TestContent:
    def test_the_same_samples_come_back(self, data: Scenes, tmp_path: Path) -> None:
        calls: list[tuple[int, int]] = []
        output = tmp_path / "out put"
        summary = convert_pairs(data, output, source="scenes", progress=lambda *call: calls.append(call))
        assert calls == [(1, 3), (2, 3), (3, 3)]
        found = open_folder(output, "all")
        assert check_data(found).is_good
        assert len(found) == 3
        for index in range(3):
            assert_same(found.read(index), data.read(index))
        # The second image is used whole and cut out, the third twice; the last one has no file.
        assert summary == ConvertSummary(3, 5, 3, 50 + 51 + 52)

    def test_names_are_readable_and_unique_on_systems_that_ignore_case(
        self, data: Scenes, tmp_path: Path
    ) -> None:
        convert(data, tmp_path / "out")
        folder = tmp_path / "out" / "images"
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        assert sorted(names) == ["A/1.jpg", "A/1.png", "a/1_2.jpg", "clip.mp4/000007.png", "ä_ b.png"]

    def test_images_are_copied_byte_for_byte(self, data: Scenes, tmp_path: Path) -> None:
        convert(data, tmp_path / "out")
        assert (tmp_path / "out" / "images" / "ä_ b.png").read_bytes() == data.paths[0].read_bytes()

    def test_parts_of_several_tables(self, data: Scenes, tmp_path: Path) -> None:
        convert(data, tmp_path / "out")
        found = open_folder(tmp_path / "out", "all")
        assert found.part_names == ("part_0", "part_1", "part_2", "part_3")
        for index, first in enumerate((0, 3, 0)):
            sample, expected = found.read(index), data.read(index)
            assert sample.parts is not None and expected.parts is not None
            assert torch.equal(sample.parts, expected.parts + first)
            assert sample.mirror_parts is not None
            assert sample.mirror_parts.tolist() == [1, 0, 2, 3]

    def test_own_data_keep_names_of_parts_and_classes(self, tmp_path: Path, data: Scenes) -> None:
        convert(data, tmp_path / "first")
        folder = tmp_path / "first"
        for path in (folder / "parts.csv", *(folder / "points").iterdir()):
            text = path.read_text(encoding="utf-8").replace("part_0", '"left, eye"')
            path.write_text(text.replace("part_1", "right eye"), encoding="utf-8")
        table = (folder / "pairs.csv").read_text(encoding="utf-8").splitlines()
        rows = [f"{table[0]},class", *(f"{row},cat" for row in table[1:])]
        (folder / "pairs.csv").write_text("\n".join(rows), encoding="utf-8")
        convert(open_folder(folder, "all"), tmp_path / "second")
        second = open_folder(tmp_path / "second", "all")
        assert second.part_names == ("left, eye", "right eye", "part_2", "part_3")
        assert [second.pair_class(index) for index in range(3)] == ["cat"] * 3
        assert_same(second.read(1), data.read(1))

    def test_names_of_parts_classes_and_splits_are_kept(self, tmp_path: Path) -> None:
        class Named(Scenes):
            def pair_class(self, index: int) -> str:
                return ("cat", "bus", "dog")[index]

            def pair_split(self, index: int) -> str:
                return ("train", "", "val")[index]

            def pair_part_names(self, index: int) -> Sequence[str]:
                return (
                    ["left eye", "right eye", "nose"],
                    ["wheel", "door"],
                    ["left ear", "right ear", "nose"],
                )[index]

        data = Named(tmp_path / "source")
        convert(data, tmp_path / "out")
        found = open_folder(tmp_path / "out", "all")
        # The table of the bus has one part, not two: its names are of no use. The dog has a nose of its own.
        expected = ("left eye", "right eye", "nose", "part_3", "left ear", "right ear", "dog nose")
        assert found.part_names == expected
        assert [found.pair_class(index) for index in range(3)] == ["cat", "bus", "dog"]
        assert [found.pair_split(index) for index in range(3)] == ["train", "", "val"]
        sample = found.read(2)
        assert sample.mirror_parts is not None and sample.mirror_parts.tolist() == [1, 0, 2, 3, 5, 4, 6]
        assert len(open_folder(tmp_path / "out", "val")) == 1

    def test_folders_keep_their_whole_names(self, tmp_path: Path) -> None:
        class Birds(Scenes):
            def image_paths(self, index: int) -> tuple[Path, Path]:
                folder = self.root / "images" / "001.Black_footed_Albatross"
                return folder / f"{'a' * 130}.{index}.jpg", folder / f"b.{'c' * 30}"

        convert(Birds(tmp_path / "source"), tmp_path / "out")
        (folder,) = (tmp_path / "out" / "images").iterdir()
        assert folder.name == "001.Black_footed_Albatross"
        stem = "a" * 100
        assert sorted(path.name for path in folder.iterdir())[:3] == [
            f"{stem}.png",
            f"{stem}_2.png",
            f"{stem}_3.png",
        ]

    def test_the_default_split_is_recorded(self, data: Scenes, tmp_path: Path) -> None:
        convert_pairs(data, tmp_path / "out", source="cub")
        assert json.loads((tmp_path / "out/source.json").read_text())["split"] == find_info("cub").splits[0]
        convert_pairs(data, tmp_path / "test", source="cub", split="test")
        assert json.loads((tmp_path / "test/source.json").read_text())["split"] == "test"

    def test_without_parts_and_lengths(self, data: Scenes, tmp_path: Path) -> None:
        class Plain(Scenes):
            def read(self, index: int) -> PairSample:
                return replace(super().read(index), parts=None, mirror_parts=None, pck_length=None)

        convert(Plain(data.root), tmp_path / "out")
        assert not (tmp_path / "out" / "parts.csv").exists()
        assert (
            (tmp_path / "out" / "pairs.csv").read_text(encoding="utf-8").startswith("image0,image1,points\n")
        )
        assert open_folder(tmp_path / "out", "all").read(0).parts is None

    def test_fewer_pairs_and_points(self, data: Scenes, tmp_path: Path) -> None:
        for folder in ("a", "b"):
            summary = convert_pairs(data, tmp_path / folder, max_pairs=2, max_points=7, seed=3)
            assert (summary.pair_count, summary.point_count) == (2, 14)
        other = convert_pairs(data, tmp_path / "c", max_pairs=2, max_points=7, seed=4)
        assert other.point_count == 14
        first, second, third = (open_folder(tmp_path / name, "all").read(0) for name in "abc")
        assert torch.equal(first.points0, second.points0)
        assert not torch.equal(first.points0, third.points0)
        whole = data.read(0).points0.tolist()
        rows = [whole.index(point) for point in first.points0.tolist()]
        assert rows == sorted(rows)

    def test_source_names_its_origin_without_local_paths(self, data: Scenes, tmp_path: Path) -> None:
        convert_pairs(data, tmp_path / "out", source="scenes", split="val", options={"gap": 3}, seed=5)
        text = (tmp_path / "out" / "source.json").read_text(encoding="utf-8")
        record = json.loads(text)
        assert record["set"] == "scenes"
        assert record["split"] == "val"
        assert record["options"] == {"gap": 3}
        assert record["seed"] == 5
        assert record["pair_count"] == 3
        assert record["ucn"]
        assert str(tmp_path) not in text

    @pytest.mark.parametrize(
        ("name", "folder"), [("faces", "helen_faces"), ("hpatches", "hpatches"), ("cub", "cub")]
    )
    def test_real_data(self, data_folder: Path, tmp_path: Path, name: str, folder: str) -> None:
        data = open_data(name, data_folder / folder)
        convert_pairs(data, tmp_path / "out", max_pairs=3, max_points=500)
        found = open_folder(tmp_path / "out", "all")
        assert check_data(found).is_good
        chosen = [index * len(data) // 3 for index in range(3)]
        for sample, expected in zip(map(found.read, range(3)), map(data.read, chosen), strict=True):
            assert torch.equal(sample.image0, expected.image0)
            if len(expected) <= 500:
                assert_same(sample, expected)


class TestOutput:
    def test_nothing_half_written(self, data: Scenes, tmp_path: Path) -> None:
        data.bad = 2
        with pytest.raises(UcnError, match="pair is bad"):
            convert(data, tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["source"]

    def test_a_full_disk(self, data: Scenes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("ucn.data.convert_folder.shutil.copyfile", fail)
        with pytest.raises(OutputError, match=r"cannot write .*out: no space left on device"):
            convert(data, tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["source"]

    def test_existing_is_kept(self, data: Scenes, tmp_path: Path) -> None:
        convert(data, tmp_path / "out")
        with pytest.raises(OutputError, match="exists already and was kept; use overwrite=True"):
            convert(data, tmp_path / "out")

    def test_overwrite_replaces_what_is_ours(self, data: Scenes, tmp_path: Path) -> None:
        convert(data, tmp_path / "out")
        convert(Selection(data, [0]), tmp_path / "out", overwrite=True)
        assert len(open_folder(tmp_path / "out", "all")) == 1
        assert len(list((tmp_path / "out" / "points").iterdir())) == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]

    def test_a_failure_keeps_the_old_one(self, data: Scenes, tmp_path: Path) -> None:
        convert(data, tmp_path / "out")
        data.bad = 1
        with pytest.raises(UcnError, match="pair is bad"):
            convert(data, tmp_path / "out", overwrite=True)
        assert len(open_folder(tmp_path / "out", "all")) == 3

    @pytest.mark.parametrize("content", [None, "{", "[]", '{"format": "other"}', "[" * 100_000])
    def test_overwrite_never_removes_another_folder(
        self, data: Scenes, tmp_path: Path, content: str | None
    ) -> None:
        folder = tmp_path / "precious"
        folder.mkdir()
        (folder / "thesis.txt").write_text("years", encoding="utf-8")
        if content is not None:
            (folder / "source.json").write_text(content, encoding="utf-8")
        with pytest.raises(OutputError, match=r"was kept: it is not empty, and no source\.json shows"):
            convert(data, folder, overwrite=True)
        assert (folder / "thesis.txt").read_text(encoding="utf-8") == "years"

    @pytest.mark.parametrize("name", ["notes.txt", "images/mine.png", "pairs.csv"])
    def test_what_was_added_to_ours_is_kept(self, data: Scenes, tmp_path: Path, name: str) -> None:
        convert(data, tmp_path / "out")
        with (tmp_path / "out" / name).open("a", encoding="utf-8") as file:
            file.write("mine")
        with pytest.raises(OutputError, match="was kept: it is not empty, and no source"):
            convert(data, tmp_path / "out", overwrite=True)
        assert (tmp_path / "out" / name).read_text(encoding="utf-8").endswith("mine")

    def test_a_link_is_not_followed(self, data: Scenes, tmp_path: Path) -> None:
        convert(data, tmp_path / "real")
        (tmp_path / "out").symlink_to(tmp_path / "real")
        with pytest.raises(OutputError, match="it is a link"):
            convert(data, tmp_path / "out", overwrite=True)
        assert len(open_folder(tmp_path / "real", "all")) == 3

    def test_an_empty_folder_may_be_replaced(self, data: Scenes, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        with pytest.raises(OutputError, match="exists already"):
            convert(data, tmp_path / "out")
        convert(data, tmp_path / "out", overwrite=True)
        assert len(open_folder(tmp_path / "out", "all")) == 3

    def test_not_over_its_own_source(self, data: Scenes, tmp_path: Path) -> None:
        convert(data, tmp_path / "out")
        with pytest.raises(OutputError, match="the data set to convert lies in it"):
            convert(open_folder(tmp_path / "out", "all"), tmp_path / "out", overwrite=True)

    def test_no_such_place(self, data: Scenes, tmp_path: Path) -> None:
        with pytest.raises(OutputError, match="is not a folder; create it first"):
            convert(data, tmp_path / "missing" / "out")
        (tmp_path / "file").write_text("x", encoding="utf-8")
        with pytest.raises(OutputError, match="it is a file; give the name of a folder"):
            convert(data, tmp_path / "file", overwrite=True)

    def test_no_pairs(self, data: Scenes, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no pairs to convert"):
            convert(Selection(data, []), tmp_path / "out")
