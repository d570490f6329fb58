from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ucn.errors import ConfigError, DataError, OutputError
from ucn.features.lightglue import LightGlueMethod
from ucn.folders.pair_matching import match_image_features, match_image_pairs
from ucn.folders.pairing import (
    pair_by_retrieval,
    pair_exhaustively,
    pair_sequentially,
    read_global_descriptors,
)
from ucn.formats.hloc import ImageFeatures, open_features, read_pair_matches, write_features


def make_features(descriptors: object, seed: int = 0) -> ImageFeatures:
    rows = np.asarray(descriptors, np.float32)
    points = np.random.default_rng(seed).uniform(0, 30, (len(rows), 2)).astype(np.float32)
    whole = rows.mean(axis=0) if len(rows) else np.zeros(rows.shape[1], np.float32)
    return ImageFeatures(points, rows, np.ones(len(rows), np.float32), (40, 40), whole)


class TestPairs:
    def test_all(self) -> None:
        assert pair_exhaustively("abc") == [("a", "b"), ("a", "c"), ("b", "c")]
        assert pair_exhaustively("a") == pair_exhaustively("") == []

    def test_neighbours(self) -> None:
        assert pair_sequentially("abcd", 1) == [("a", "b"), ("b", "c"), ("c", "d")]
        assert pair_sequentially("abcd", 2) == [("a", "b"), ("a", "c"), ("b", "c"), ("b", "d"), ("c", "d")]
        assert pair_sequentially("abc", 99) == pair_exhaustively("abc")
        with pytest.raises(ConfigError, match="overlap must be"):
            pair_sequentially("ab", 0)

    def test_similar(self) -> None:
        angles = np.radians([0, 5, 80, 87])
        descriptors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        assert pair_by_retrieval("abcd", descriptors, 1) == [("a", "b"), ("c", "d")]
        assert pair_by_retrieval("abcd", descriptors, 9) == pair_exhaustively("abcd")
        with pytest.raises(ConfigError, match="neighbours must be"):
            pair_by_retrieval("ab", descriptors[:2], 0)

    def test_equal_images_and_single_ones(self) -> None:
        same = np.ones((3, 4), np.float32)
        found = pair_by_retrieval("abc", same, 1)
        assert found == sorted(set(found))
        assert all(first < second for first, second in found)
        assert {name for pair in found for name in pair} == set("abc")
        assert pair_by_retrieval("a", same[:1], 3) == []

    def test_globals_in_the_order_of_names(self, tmp_path: Path) -> None:
        write_features(tmp_path / "f.h5", {"b": make_features([[0.0, 1]]), "a": make_features([[1.0, 0]])})
        with open_features(tmp_path / "f.h5") as file:
            np.testing.assert_array_equal(read_global_descriptors(file), [[1, 0], [0, 1]])

    def test_globals_of_no_images_and_of_different_methods(self, tmp_path: Path) -> None:
        write_features(tmp_path / "none.h5", {})
        with open_features(tmp_path / "none.h5") as file:
            assert pair_by_retrieval(file.names, read_global_descriptors(file), 1) == []
        write_features(tmp_path / "f.h5", {"a": make_features([[0.0, 1]]), "b": make_features([[1.0, 0, 0]])})
        with (
            open_features(tmp_path / "f.h5") as file,
            pytest.raises(DataError, match="must have one dimension, got 2 and 3"),
        ):
            read_global_descriptors(file)


class TestMatches:
    def test_mutual_nearest_by_hand(self) -> None:
        first = make_features([[1.0, 0, 0], [0, 1, 0], [0.6, 0.8, 0]])
        second = make_features([[0, 1.0, 0], [1, 0, 0]])
        found = match_image_features(first, second)
        assert found.rows.tolist() == [[0, 1], [1, 0]]
        np.testing.assert_allclose(found.scores, [1, 1])
        turned = match_image_features(second, first)
        assert sorted(turned.rows[:, ::-1].tolist()) == found.rows.tolist()

    def test_scores_and_their_limit(self) -> None:
        first = make_features([[1.0, 0], [0, 1]])
        second = make_features([[0.6, 0.8], [1, 0]])
        found = match_image_features(first, second)
        assert found.rows.tolist() == [[0, 1], [1, 0]]
        np.testing.assert_allclose(found.scores, [1, 0.9], atol=1e-6)  # (1 + 0.8) / 2
        assert match_image_features(first, second, min_similarity=0.9).rows.tolist() == [[0, 1]]

    def test_against_the_slow_rule(self) -> None:
        rng = np.random.default_rng(0)
        sets = [rng.normal(size=(size, 6)) for size in (30, 41)]
        sets = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in sets]
        similarity = sets[0] @ sets[1].T
        expected = [
            [i, j]
            for i in range(30)
            for j in range(41)
            if similarity[i].argmax() == j and similarity[:, j].argmax() == i
        ]
        first, second = map(make_features, sets)
        assert match_image_features(first, second).rows.tolist() == expected

    def test_no_keypoints(self) -> None:
        nothing = make_features(np.zeros((0, 3)))
        for pair in ((nothing, make_features([[1.0, 0, 0]])), (make_features([[1.0, 0, 0]]), nothing)):
            assert match_image_features(*pair).rows.shape == (0, 2)

    def test_other_lengths(self) -> None:
        with pytest.raises(DataError, match="must have one dimension, got 3 and 2"):
            match_image_features(make_features([[1.0, 0, 0]]), make_features([[1.0, 0]]))

    def test_a_method_with_a_matcher_of_its_own(self, tmp_path: Path) -> None:
        class Backwards:
            device = torch.device("cpu")

            def __call__(self, images: dict[str, dict[str, torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
                self.sizes = [images[name]["image_size"].tolist() for name in ("image0", "image1")]
                return {"matches": [torch.tensor([[1, 0], [0, 2]])], "scores": [torch.tensor([0.9, 0.5])]}

        own: Any = Backwards()
        method = LightGlueMethod(name="own", title="", key={}, extractor=own, matcher=own)
        first, second = make_features([[1.0, 0], [0, 1]]), make_features([[0, 1.0]] * 3)
        write_features(tmp_path / "f.h5", {"a.jpg": first, "b.jpg": second})
        pairs = [("a.jpg", "b.jpg")]
        assert match_image_pairs(tmp_path / "f.h5", pairs, tmp_path / "m.h5", matcher=method) == 2
        found = next(read_pair_matches(tmp_path / "m.h5", pairs))
        assert found.rows.tolist() == [[0, 2], [1, 0]]
        assert found.scores.tolist() == pytest.approx([0.5, 0.9], abs=1e-3)
        assert own.sizes == [[list(each.image_hw[::-1])] for each in (first, second)]

    def test_file(self, tmp_path: Path) -> None:
        items = {"a.jpg": make_features([[1.0, 0], [0, 1]]), "s/b.jpg": make_features([[0, 1.0]])}
        write_features(tmp_path / "f.h5", items)
        seen: list[tuple[int, int]] = []
        total = match_image_pairs(
            tmp_path / "f.h5",
            [("a.jpg", "s/b.jpg")],
            tmp_path / "m.h5",
            progress=lambda done, count: seen.append((done, count)),
        )
        assert (total, seen) == (1, [(1, 1)])
        assert next(read_pair_matches(tmp_path / "m.h5", [("a.jpg", "s/b.jpg")])).rows.tolist() == [[1, 0]]
        with pytest.raises(OutputError, match="exists already"):
            match_image_pairs(tmp_path / "f.h5", [], tmp_path / "m.h5")
        with pytest.raises(ConfigError, match="min_similarity must be"):
            match_image_pairs(tmp_path / "f.h5", [], tmp_path / "n.h5", min_similarity=2)
