"""Labels carried to a folder: what is written, resumed, kept and reported."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from support.pair_cases import QueryShiftMatcher, write_tiny_images
from ucn.data.io import read_image
from ucn.errors import DataError, OutputError, UcnError
from ucn.folders.labelled_images import LabelledImages, read_labelled_images
from ucn.folders.transfer import COLUMNS, JOURNAL_ENDING, FolderTransfer, transfer_folder


def carry(matcher: Any, *arguments: Any, **options: Any) -> FolderTransfer:
    """`transfer_folder` by a stand-in."""
    return transfer_folder(matcher, *arguments, **options)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_tiny_images(tmp_path / "photos", "img10.png", "img2.png", "below/b.png")
    write_tiny_images(tmp_path, "ref.png", "ref2.png")
    (tmp_path / "p.csv").write_text("part,x,y,colour\nbeak,10,20,red\ntail,30.5,40,blue\n")
    return tmp_path / "photos"


@pytest.fixture
def labels(photos: Path, tmp_path: Path) -> LabelledImages:
    return read_labelled_images([tmp_path / "p.csv"], [tmp_path / "ref.png"])


def read_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_row_for_each_image_and_part(photos: Path, labels: LabelledImages, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    out = tmp_path / "labels.csv"
    made = carry(
        QueryShiftMatcher(), labels, photos, out, progress=lambda done, total: seen.append((done, total))
    )
    rows = read_rows(out)
    assert [row["image"] for row in rows[::2]] == ["below/b.png", "img2.png", "img10.png"]
    assert list(rows[0]) == [*COLUMNS, "colour"]
    assert list(rows[2].values()) == ["img2.png", "beak", "15", "18", "0.7500", "1", "red"]
    assert list(rows[3].values()) == ["img2.png", "tail", "35.5", "38", "0.1250", "0", "blue"]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert len(made.table) == 6 and not made.failures


def test_coco_has_no_place_of_what_is_not_visible(
    photos: Path, labels: LabelledImages, tmp_path: Path
) -> None:
    carry(QueryShiftMatcher(), labels, photos, tmp_path / "l.coco.json")
    values = json.loads((tmp_path / "l.coco.json").read_text())
    assert values["categories"][0]["keypoints"] == ["beak", "tail"]
    assert values["annotations"][0]["keypoints"] == [15, 18, 2, 0, 0, 0]
    assert values["annotations"][0]["attributes"]["score"] == [0.75, 0.125]
    assert (values["images"][0]["width"], values["images"][0]["height"]) == (80, 64)
    # As labels of another run, in the folder that they name.
    again = read_labelled_images([tmp_path / "l.coco.json"], folder=photos)
    assert [each.path for each in again.images] == [
        photos / row for row in ("below/b.png", "img2.png", "img10.png")
    ]
    assert again.parts == ("beak", "tail")
    np.testing.assert_array_equal(again.images[0].points, [(15, 18), (np.nan, np.nan)])


def test_json_has_the_places_of_the_csv(photos: Path, labels: LabelledImages, tmp_path: Path) -> None:
    carry(QueryShiftMatcher(), labels, photos, tmp_path / "l.json")
    row = json.loads((tmp_path / "l.json").read_text())["points"][1]
    assert (row["x"], row["y"], row["score"]) == (35.5, 38, 0.125)
    assert row["visible"] is False and row["colour"] == "blue"


def test_the_same_run_again_does_what_is_new(photos: Path, labels: LabelledImages, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    carry(QueryShiftMatcher(), labels, photos, out, sheet=tmp_path / "s.png")
    assert (tmp_path / f"labels.csv{JOURNAL_ENDING}").is_file()
    write_tiny_images(photos, "new.png")
    PIL.Image.new("RGB", (90, 70)).save(photos / "img2.png")
    matcher = QueryShiftMatcher()
    made = carry(matcher, labels, photos, out, sheet=tmp_path / "s.png", min_score=0.1)
    assert (made.resumed, matcher.matched) == (2, 2)
    assert len(matcher.encoded) == 3  # two images, and the labelled one once
    assert {row["visible"] for row in read_rows(out)} == {"1"}  # the threshold is applied anew
    nothing = QueryShiftMatcher()
    carry(nothing, labels, photos, out)
    assert nothing.encoded == []


def test_other_labels_or_foreign_outputs_are_refused(
    photos: Path, labels: LabelledImages, tmp_path: Path
) -> None:
    out = tmp_path / "labels.csv"
    carry(QueryShiftMatcher(), labels, photos, out)
    (tmp_path / "p.csv").write_text("part,x,y\nbeak,11,20\n")
    other = read_labelled_images([tmp_path / "p.csv"], [tmp_path / "ref.png"])
    with pytest.raises(DataError, match=r"other settings \(other labels\).*another output, or start over"):
        carry(QueryShiftMatcher(), other, photos, out)
    assert len(carry(QueryShiftMatcher(), other, photos, out, overwrite=True).table) == 3
    (tmp_path / "mine.csv").write_text("mine")
    with pytest.raises(OutputError, match=r"mine\.csv exists already"):
        carry(QueryShiftMatcher(), labels, photos, tmp_path / "mine.csv")


def test_a_bad_image_is_a_failure_and_a_labelled_one_keeps_its_points(photos: Path, tmp_path: Path) -> None:
    (photos / "bad.png").write_bytes(b"no image")
    (tmp_path / "k.csv").write_text(
        "image,part,x,y\nimg2.png,beak,1,2\nimg10.png,beak,3,4\nimg10.png,eye,5,6\n"
    )
    labels = read_labelled_images([tmp_path / "k.csv"], folder=photos)
    made = carry(QueryShiftMatcher(), labels, photos, tmp_path / "l.csv", sheet=tmp_path / "s.jpg")
    assert list(made.failures) == ["bad.png"]
    rows = {(row["image"], row["part"]): row for row in read_rows(tmp_path / "l.csv")}
    own, missing = rows["img2.png", "beak"], rows["img2.png", "eye"]
    assert (own["x"], own["y"], own["score"], own["visible"]) == ("1", "2", "1.0000", "1")
    assert (missing["x"], missing["score"], missing["visible"]) == ("", "0.0000", "0")
    assert rows["below/b.png", "eye"]["score"] == "0.1250"  # the labelled image without it does not count
    assert read_image(tmp_path / "s.jpg").shape[-1] > 300


@pytest.mark.parametrize(("hidden", "score"), [("img2.png,eye,,,0\n", "0.0625"), ("", "0.1250")])
def test_an_image_that_shows_a_point_hidden_counts(
    photos: Path, tmp_path: Path, hidden: str, score: str
) -> None:
    shown = "image,part,x,y,visible\nimg2.png,beak,1,2,1\nimg10.png,beak,3,4,1\nimg10.png,eye,5,6,1\n"
    (tmp_path / "k.csv").write_text(shown + hidden)
    labels = read_labelled_images([tmp_path / "k.csv"], folder=photos)
    carry(QueryShiftMatcher(), labels, photos, tmp_path / "l.csv")
    rows = {(row["image"], row["part"]): row for row in read_rows(tmp_path / "l.csv")}
    assert rows["below/b.png", "eye"]["score"] == score


class TestLabelledImages:
    def test_a_file_for_each_image(self, photos: Path, tmp_path: Path) -> None:
        (tmp_path / "q.csv").write_text("part,x,y\ntail,1,2\neye,3,4\n")
        found = read_labelled_images(
            [tmp_path / "p.csv", tmp_path / "q.csv"], [tmp_path / "ref.png", tmp_path / "ref2.png"]
        )
        assert found.parts == ("beak", "tail", "eye")
        np.testing.assert_array_equal(found.images[1].points, [(np.nan, np.nan), (1, 2), (3, 4)])
        assert found.columns == {"colour": ("red", "blue", "")}

    def test_points_without_names_are_numbered(self, photos: Path, tmp_path: Path) -> None:
        (tmp_path / "q.csv").write_text("1 2\n3 4\n")
        assert read_labelled_images([tmp_path / "q.csv"], [tmp_path / "ref.png"]).parts == ("1", "2")

    def test_two_objects_of_an_image_vote_both(self, photos: Path, tmp_path: Path) -> None:
        (tmp_path / "q.csv").write_text("object,part,x,y\na,eye,1,2\nb,eye,3,4\n")
        found = read_labelled_images([tmp_path / "q.csv"], [tmp_path / "ref.png"])
        assert [each.points.tolist() for each in found.images] == [[[1, 2]], [[3, 4]]]

    @pytest.mark.parametrize(
        ("text", "images", "message"),
        [
            (
                "part,x,y\neye,1,2\neye,3,4\n",
                ["ref.png"],
                r"q\.csv:3: part 'eye' of this object is there twice",
            ),
            ("part,x,y\neye,1,200\n", ["ref.png"], r"q\.csv:2: point \(1, 200\) lies outside the image"),
            ("part,x,y\neye,1,2\n", ["ref.png", "ref2.png"], "does not tell which of the 2 labelled images"),
            ("part,x,y\neye,1,2\n", [], "does not name the labelled image"),
            (
                "image,part,x,y\nno.png,eye,1,2\n",
                [],
                r"no image 'no\.png' of .*q\.csv beside it or in .*photos",
            ),
            ("part,x,y\n", ["ref.png"], "there is no point of the labelled image"),
        ],
    )
    def test_errors(self, photos: Path, tmp_path: Path, text: str, images: list[str], message: str) -> None:
        (tmp_path / "q.csv").write_text(text)
        with pytest.raises(UcnError, match=message):
            read_labelled_images([tmp_path / "q.csv"], [tmp_path / name for name in images], photos)

    def test_a_wrong_number_of_files(self, photos: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="one, or one for each of the 3 labelled images; got 2"):
            read_labelled_images([tmp_path / "p.csv"] * 2, [tmp_path / "ref.png"] * 3)
