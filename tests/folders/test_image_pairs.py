"""Pairs of image files, and the names of their outputs."""

from itertools import product
from pathlib import Path

import pytest

from support.pair_cases import write_tiny_images
from support.remedy_rule import refused
from ucn.folders.image_pairs import name_outputs, order_by_images, pair_folders, read_image_pairs
from ucn.folders.pairing import pair_by_stem


class TestLists:
    def test_names_are_relative_to_the_root(self, tmp_path: Path) -> None:
        write_tiny_images(tmp_path / "images", "a.png", "below/b.png")
        (tmp_path / "pairs.txt").write_text(
            "# note\na.png below/b.png\n\nbelow/b.png a.png\na.png none.png\n"
        )
        pairs = read_image_pairs(tmp_path / "pairs.txt", tmp_path / "images")
        assert [pair.names for pair in pairs] == [("a.png", "below/b.png"), ("a.png", "none.png")]
        assert pairs[0].paths == (tmp_path / "images/a.png", tmp_path / "images/below/b.png")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "names no pair; expected two names of images per line"),
            ("a.png\n", r"pairs.txt:1: expected the names of two images, got 'a.png'"),
            (
                "a.png b.png c.png\n",
                r"pairs.txt:1: expected the names of two images, got 'a.png b.png c.png'",
            ),
            ("a.png a.png\n", r"pairs.txt:1: expected the names of two images"),
            ("a.png ../b.png\n", r"expected a path inside .*, got '../b.png'"),
            ("/a.png b.png\n", r"expected a path inside .*, got '/a.png'"),
        ],
    )
    def test_wrong_lists(self, tmp_path: Path, text: str, message: str) -> None:
        write_tiny_images(tmp_path, "a.png", "b.png")
        (tmp_path / "pairs.txt").write_text(text)
        with refused(message):
            read_image_pairs(tmp_path / "pairs.txt", tmp_path)

    def test_a_wrong_root_is_told_from_missing_images(self, tmp_path: Path) -> None:
        (tmp_path / "pairs.txt").write_text("a.png b.png\n")
        with refused(r"no image of .*pairs.txt is in the folder .* \(the first one is 'a.png'\)"):
            read_image_pairs(tmp_path / "pairs.txt", tmp_path)

    def test_missing_list(self, tmp_path: Path) -> None:
        with refused("cannot read the list of pairs .*: no such file"):
            read_image_pairs(tmp_path / "pairs.txt", tmp_path)


class TestFolders:
    def test_equal_names_and_equal_stems(self, tmp_path: Path) -> None:
        write_tiny_images(tmp_path / "a", "1.png", "2.png", "below/3.png", "only.png")
        write_tiny_images(tmp_path / "b", "1.png", "2.jpg", "below/3.bmp", "3.png")
        found = pair_folders(tmp_path / "a", tmp_path / "b")
        assert [pair.names for pair in found.pairs] == [
            ("1.png", "1.png"),
            ("2.png", "2.jpg"),
            ("below/3.png", "below/3.bmp"),
        ]
        assert found.pairs[1].paths == (tmp_path / "a/2.png", tmp_path / "b/2.jpg")
        assert (found.unpaired0, found.unpaired1) == (("only.png",), ("3.png",))

    def test_all_pairs(self, tmp_path: Path) -> None:
        write_tiny_images(tmp_path / "a", "1.png", "2.png")
        write_tiny_images(tmp_path / "b", "x.png", "y.png")
        found = pair_folders(tmp_path / "a", tmp_path / "b", all_pairs=True)
        assert [pair.names for pair in found.pairs] == [
            ("1.png", "x.png"),
            ("1.png", "y.png"),
            ("2.png", "x.png"),
            ("2.png", "y.png"),
        ]
        write_tiny_images(tmp_path / "a", "3.png")
        one = pair_folders(tmp_path / "a", tmp_path / "b" / ".." / "a", all_pairs=True)
        assert [pair.names for pair in one.pairs] == [
            ("1.png", "2.png"),
            ("1.png", "3.png"),
            ("2.png", "3.png"),
        ]
        assert not one.unpaired0

    def test_no_name_agrees(self, tmp_path: Path) -> None:
        write_tiny_images(tmp_path / "a", "1.png", "2.png", "3.png")
        write_tiny_images(tmp_path / "b", "x.png")
        message = r"no image of .*a \(1.png, 2.png, …\) has the name of one of .*b \(x.png\); rename them"
        with pytest.raises(ValueError, match=message):
            pair_folders(tmp_path / "a", tmp_path / "b")

    def test_one_folder_twice(self, tmp_path: Path) -> None:
        write_tiny_images(tmp_path, "1.png")
        with refused("is given twice, and an image is not matched with itself"):
            pair_folders(tmp_path, tmp_path)
        with pytest.raises(ValueError, match="no image of"):
            pair_folders(tmp_path, tmp_path, all_pairs=True)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with refused("none does not exist"):
            pair_folders(tmp_path / "none", tmp_path)

    def test_stems_that_fit_twice(self) -> None:
        with refused("the images 1.bmp and 1.jpg of one folder differ in the suffix alone"):
            pair_by_stem(["1.bmp", "1.jpg"], ["1.png"])
        with refused("the images 1.bmp and 1.jpg of one folder differ in the suffix alone"):
            pair_by_stem(["1.png"], ["1.bmp", "1.jpg"])
        assert pair_by_stem(["1.bmp", "1.jpg"], ["1.jpg"]) == [("1.jpg", "1.jpg")]
        assert pair_by_stem([], ["1.jpg"]) == []


class TestNames:
    def test_readable_where_nothing_collides(self) -> None:
        pairs = [("a.jpg", "b.jpg"), ("left/1.jpg", "right/1.jpg"), ("Häuser/1 (2).png", "x.tar.gz")]
        assert name_outputs(pairs) == ["a__b", "left-1__right-1", "Häuser-1 (2)__x.tar"]
        assert name_outputs([]) == []

    def test_colliding_names_get_a_hash_of_the_pair(self) -> None:
        pairs = [("a.jpg", "b.jpg"), ("a.png", "b.jpg"), ("A.jpg", "b.jpg"), ("a__b.jpg", "c.jpg")]
        pairs += [("a.jpg", "b__c.jpg"), ("d.jpg", "e.jpg")]
        names = name_outputs(pairs)
        assert len({name.casefold() for name in names}) == len(pairs)
        assert names[0].startswith("a__b-") and names[5] == "d__e"
        assert name_outputs(pairs[:2])[0] == names[0]  # the hash is of the pair alone
        assert (
            name_outputs([("é.jpg", "b"), ("e\u0301.jpg", "b")])[0] != "é__b"
        )  # one name to some file systems

    @pytest.mark.parametrize(
        "name", ["../../x.jpg", "/etc/x.jpg", ".hidden.jpg", "-rf.jpg", 'a\\b:c*"<|\n.jpg', ".."]
    )
    def test_no_name_leaves_the_folder(self, name: str) -> None:
        (stem,) = name_outputs([(name, name + "2")])
        assert stem[0] not in ".-"
        assert not set(stem) & set('/\\:*?"<>|\n\0')
        assert Path("folder", stem + ".npz").resolve().parent == Path("folder").resolve()

    def test_long_names_are_cut(self) -> None:
        names = name_outputs([("ä" * 120 + ".jpg", "b.jpg"), ("ä" * 119 + ".jpg", "b.jpg")])
        assert names[0] != names[1]
        assert all(len(name.encode()) <= 200 for name in names)

    def test_a_pair_that_comes_twice(self) -> None:
        with refused("have one name for their outputs"):
            name_outputs([("a", "b"), ("a", "b")])


def count_encodings(pairs: list[tuple[str, str]], kept: int) -> int:
    """Images encoded where the `kept` last used are kept."""
    recent: list[str] = []
    count = 0
    for pair in pairs:
        for name in pair:
            count += name not in recent
            recent = [*(other for other in recent if other != name), name][-kept:]
    return count


class TestOrder:
    def test_images_recur_soon(self) -> None:
        pairs = [(f"a{i}", f"b{j}") for i, j in product(range(64), repeat=2)]
        order = order_by_images(pairs)
        assert sorted(order) == list(range(len(pairs)))
        assert count_encodings(pairs, 40) == 64 + 64 * 64
        assert count_encodings([pairs[row] for row in order], 40) < 700

    def test_lists_that_are_in_order_stay(self) -> None:
        pairs = [(str(i), str(i + 1)) for i in range(100)] + [("100", "99")]
        assert order_by_images(pairs[:15]) == list(range(15))
        assert count_encodings([pairs[row] for row in order_by_images(pairs)], 32) == 101
        assert order_by_images([]) == []
