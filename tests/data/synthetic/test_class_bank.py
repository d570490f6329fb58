"""Images by class: listed with their masks, held at any size, mapped between views and images."""

from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

from ucn.data.synthetic.class_bank import ClassBank, list_classes
from ucn.errors import DataError

SIDE = 48


def write(path: Path, width: int = 40, height: int = 30, value: int = 100) -> Path:
    """A grey image whose left half is red."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((height, width, 3), value, np.uint8)
    pixels[:, : width // 2] = (255, 0, 0)
    PIL.Image.fromarray(pixels).save(path, quality=95)
    return path


def write_mask(path: Path, width: int = 40, height: int = 30, columns: slice = slice(0, 10)) -> Path:
    pixels = np.zeros((height, width), np.uint8)
    pixels[:, columns] = 255
    PIL.Image.fromarray(pixels).save(path)
    return path


def index_of(bank: ClassBank, name: str) -> Tensor:
    return torch.tensor([bank.images.names.index(name)])


PLAIN, MIRRORED = torch.tensor([False]), torch.tensor([True])


class TestListing:
    def test_images_by_class_without_masks(self, tmp_path: Path) -> None:
        for name in ("cat/a.jpg", "cat/b.jpg", "dog/a.png", "dog/b.png", "dog/c.jpg"):
            write(tmp_path / name)
        write_mask(tmp_path / "cat/b.png")
        write_mask(tmp_path / "dog/c.PNG")
        (tmp_path / "dog/notes.txt").write_text("none")
        write(tmp_path / "stray.jpg")
        found = list_classes(tmp_path)
        names = {name: [path.name for path in images] for name, images in found.items()}
        assert names == {"cat": ["a.jpg", "b.jpg"], "dog": ["a.png", "b.png", "c.jpg"]}
        assert list(list_classes(tmp_path, ["cat"])) == ["dog"]

    def test_a_class_with_one_image_is_left_out(self, tmp_path: Path) -> None:
        for name in ("cat/a.jpg", "cat/b.jpg", "dog/a.jpg"):
            write(tmp_path / name)
        write_mask(tmp_path / "dog/a.png")  # a mask is no second image
        assert list(list_classes(tmp_path)) == ["cat"]

    def test_errors(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"no folder .*missing: check the path"):
            list_classes(tmp_path / "missing")
        with pytest.raises(
            DataError, match=r"expected a folder per class with at least two images each, got 0"
        ):
            list_classes(tmp_path)
        file = write(tmp_path / "cat/a.jpg")
        with pytest.raises(DataError, match="is a file; expected a folder of images per class"):
            list_classes(file)
        with pytest.raises(DataError, match=r"no class 'cta' in .* to exclude \(there are cat\)"):
            list_classes(tmp_path, ["cta"])


class TestBank:
    def test_classes_are_sorted_and_counted(self, tmp_path: Path) -> None:
        names = ("dog/b.png", "cat/a.png", "dog/a.png", "cow/z.png", "dog/c.png", "cat/b.png")
        seen: list[tuple[int, int]] = []
        bank = ClassBank(
            [write(tmp_path / name) for name in names],
            SIDE,
            "cpu",
            lambda done, total: seen.append((done, total)),
        )
        assert bank.images.names == ["a.png", "b.png", "z.png", "a.png", "b.png", "c.png"]
        assert bank.first.tolist() == [0, 0, 2, 3, 3, 3]
        assert bank.count.tolist() == [2, 2, 1, 3, 3, 3]
        assert seen == [(number, 6) for number in range(1, 7)]
        assert bank.problems == ()

    def test_masks_and_their_absence(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / f"cat/{name}") for name in ("a.jpg", "b.jpg", "c.jpg", "d.png")]
        write_mask(tmp_path / "cat/a.png")
        write_mask(tmp_path / "cat/b.png", columns=slice(0, 0))
        write_mask(tmp_path / "cat/c.PNG", columns=slice(30, 40))
        bank = ClassBank(paths, SIDE, "cpu")
        a, b, c, d = bank.masks
        assert a[:30, :10].all() and a.sum() == 30 * 10
        assert not b.any()
        assert c[:30, 30:40].all() and c.sum() == 30 * 10
        assert d[:30, :40].all() and d.sum() == 30 * 40  # the whole image, and nothing beyond it

    @pytest.mark.parametrize(("width", "height"), [(200, 100), (7, 5), (48, 3), (1, 1), (30, 171)])
    def test_images_of_any_size(self, tmp_path: Path, width: int, height: int) -> None:
        path = write(tmp_path / "cat/a.jpg", width, height)
        write_mask(tmp_path / "cat/a.png", width, height, slice(0, width))
        bank = ClassBank([path], SIDE, "cpu")
        held = tuple(bank.images.sizes[0].int().tolist())
        scale = min(1.0, SIDE / max(width, height))
        assert held == (max(1, round(width * scale)), max(1, round(height * scale)))
        assert bank.masks[0, : held[1], : held[0]].all() and bank.masks.sum() == held[0] * held[1]
        view = bank.render(torch.tensor([0]), PLAIN, 64)
        assert view.shape == (1, 3, 64, 64) and view.isfinite().all()

    def test_what_cannot_be_read_is_left_out(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / f"cat/{name}") for name in ("a.jpg", "b.jpg", "c.jpg")]
        paths[0].write_bytes(b"no image")
        write_mask(tmp_path / "cat/b.png", 20, 30)
        bank = ClassBank(paths, SIDE, "cpu")
        assert bank.images.names == ["c.jpg"] and len(bank) == 1
        assert bank.masks.shape == (1, SIDE, SIDE) and bank.masks.sum() == 30 * 40
        assert (bank.first.tolist(), bank.count.tolist()) == ([0], [1])
        first, second = bank.problems
        assert first.path == paths[0]
        assert second.path == tmp_path / "cat/b.png" and "must be as large as its image" in second.message
        with pytest.raises(DataError, match="none of 1 images could be read"):
            ClassBank(paths[:1], SIDE, "cpu")

    def test_no_images(self) -> None:
        with pytest.raises(DataError, match="no images to make pairs from"):
            ClassBank([], SIDE, "cpu")


class TestGeometry:
    @pytest.fixture
    def bank(self, tmp_path: Path) -> ClassBank:
        paths = [write(tmp_path / "cat/wide.png"), write(tmp_path / "cat/tall.png", 20, 60)]
        return ClassBank(paths, SIDE, "cpu")

    def test_a_mirrored_view_is_a_view_mirrored(self, bank: ClassBank) -> None:
        index = index_of(bank, "wide.png")
        plain, mirrored = (bank.render(index, flag, 80) for flag in (PLAIN, MIRRORED))
        torch.testing.assert_close(mirrored, plain.flip(-1), atol=1e-4, rtol=0)
        assert plain[0, 0, 40, 10] > 0.9 and mirrored[0, 0, 40, 10] < 0.5  # red is left, then right

    def test_points_by_hand(self, bank: ClassBank) -> None:
        # 40 × 30 pixels in 80: enlarged by 2 about the centres (19.5, 14.5) and (39.5, 39.5).
        points = torch.tensor([[[39.5, 39.5], [79.5, 39.5], [0.5, 11.5]]])
        index = index_of(bank, "wide.png")
        expected = torch.tensor([[[19.5, 14.5], [39.5, 14.5], [0, 0.5]]])
        torch.testing.assert_close(bank.to_image(points, index, PLAIN, 80), expected)
        mirrored = torch.tensor([[[19.5, 14.5], [-0.5, 14.5], [39, 0.5]]])
        torch.testing.assert_close(bank.to_image(points, index, MIRRORED, 80), mirrored)

    @pytest.mark.parametrize("name", ["wide.png", "tall.png"])
    @pytest.mark.parametrize("is_mirrored", [PLAIN, MIRRORED])
    def test_points_are_where_the_view_shows_them(
        self, bank: ClassBank, name: str, is_mirrored: Tensor
    ) -> None:
        index = index_of(bank, name)
        view = bank.render(index, is_mirrored, 64)
        points = torch.tensor([[[24.0, 31], [39, 31], [30, 20], [34, 45]]])
        pixels = bank.to_image(points, index, is_mirrored, 64)
        shown = bank.images.sample(index, pixels[:, None])[0, :, 0]  # (3, P)
        columns, rows = points[0].long().unbind(-1)
        torch.testing.assert_close(view[0][:, rows, columns], shown, atol=1e-3, rtol=0)

    def test_object_pixels(self, tmp_path: Path) -> None:
        path = write(tmp_path / "cat/a.jpg")
        write_mask(tmp_path / "cat/a.png", columns=slice(5, 10))
        bank = ClassBank([path], SIDE, "cpu")
        points = torch.tensor([[[4.4, 3], [4.6, 3], [9.4, 29.4], [9.6, 3], [7, -0.6], [7, 30], [-9, 400]]])
        found = bank.is_object(points, torch.tensor([0]))
        assert found.tolist() == [[False, True, True, False, False, False, False]]
