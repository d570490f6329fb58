"""Images by class that a network matches: fixed by a seed, inside the object, mirrored where that fits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch
from torch import Tensor

from support.photo_cases import make_photo
from support.train_cases import CPU, make_config, train_on
from ucn.config import ModelConfig, SourceConfig
from ucn.errors import ConfigError, DataError
from ucn.geometry.sampling import sample_image
from ucn.nn import build_model
from ucn.train.checkpoint import record_config
from ucn.train.recipe import read_recipe
from ucn.train.sources.batches import Mixture, open_sources
from ucn.train.sources.classes import ClassSource
from ucn.train.teacher import record_teacher_hash
from ucn.types import PairBatch
from ucn.weights import load_weights, save_weights

SIDE = 64


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "teacher.safetensors"
    save_weights(path, build_model(ModelConfig(dim=16, transformer="none")))
    return path


def write(path: Path, image: Tensor) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (image * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    PIL.Image.fromarray(pixels).save(path, lossless=True)
    return path


def write_mask(path: Path, columns: slice, rows: slice = slice(0, SIDE)) -> None:
    mask = torch.zeros(SIDE, SIDE, dtype=torch.uint8)
    mask[rows, columns] = 255
    PIL.Image.fromarray(mask.numpy()).save(path)


def write_copies(folder: Path, count: int, seed: int = 0, suffix: str = "png") -> None:
    for number in range(count):
        write(folder / f"{folder.name}{number}.{suffix}", make_photo(SIDE, SIDE, seed=seed, grain=5))


def make_source(folder: Path, teacher: Path, **changes: Any) -> SourceConfig:
    base = {"name": "classes", "folder": str(folder), "teacher": str(teacher), "crop_hw": [SIDE, SIDE]}
    return SourceConfig.from_dict(base | {"points": 40} | changes)


def open_classes(source: SourceConfig, use_skipping: bool = False, **changes: Any) -> Mixture:
    config = make_config(sources=[source], batch=4, **changes)
    return open_sources(config, None, CPU, use_skipping=use_skipping)


def draw(mixture: Mixture, step: int = 1, seed: int | None = None) -> PairBatch:
    return mixture.sample_batch(step, torch.Generator().manual_seed(step if seed is None else seed))


def colours(images: Tensor, points: Tensor) -> Tensor:
    return sample_image(images, points[:, :, None], "border")[..., 0].transpose(1, 2)  # (B, P, 3)


def test_copies_match_where_they_are_the_same(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2)
    batch = draw(open_classes(make_source(tmp_path, teacher)))
    assert batch.image0.shape == (4, 3, SIDE, SIDE) and batch.points0.shape == (4, 40, 2)
    assert batch.is_valid.float().mean() > 0.9
    assert torch.equal(batch.image0, batch.image1)
    torch.testing.assert_close(batch.points0[batch.is_valid], batch.points1[batch.is_valid], atol=0.5, rtol=0)
    assert set(batch.names) <= {"cat0.png--cat1.png", "cat1.png--cat0.png"}


def test_points_move_with_the_views(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2)
    changes = {"rotation": 25, "scale": 1.3, "shift": 0.1, "mirror": 0.5}
    mixture = open_classes(make_source(tmp_path, teacher, **changes))
    seen = 0
    for step in range(1, 5):
        batch = draw(mixture, step)
        valid = batch.is_valid
        for points in (batch.points0[valid], batch.points1[valid]):
            assert ((points >= -0.5) & (points <= SIDE - 0.5)).all()
        differences = (colours(batch.image0, batch.points0) - colours(batch.image1, batch.points1))[valid]
        assert differences.abs().mean() < 0.06  # random points of the texture differ by 0.25
        seen += int(valid.sum())
        assert not torch.equal(batch.image0, batch.image1)
    assert seen > 200


def test_a_mirrored_partner_is_mirrored_back(tmp_path: Path, teacher: Path) -> None:
    photo = make_photo(SIDE, SIDE, grain=5)
    write(tmp_path / "cat/left.png", photo)
    write(tmp_path / "cat/right.png", photo.flip(-1))
    batch = draw(open_classes(make_source(tmp_path, teacher)))
    torch.testing.assert_close(batch.image0, batch.image1, atol=1e-4, rtol=0)
    assert batch.is_valid.float().mean() > 0.9
    torch.testing.assert_close(batch.points0[batch.is_valid], batch.points1[batch.is_valid], atol=0.5, rtol=0)
    # With `mirror`, both views are mirrored, and their points with them.
    flipped = draw(open_classes(make_source(tmp_path, teacher, mirror=1.0)))
    torch.testing.assert_close(flipped.image0, batch.image0.flip(-1), atol=1e-4, rtol=0)
    torch.testing.assert_close(flipped.image1, batch.image1.flip(-1), atol=1e-4, rtol=0)
    torch.testing.assert_close(flipped.points1[..., 0], SIDE - 1 - batch.points1[..., 0], atol=1e-3, rtol=0)


def test_masks_are_respected(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2, suffix="webp")
    for number in range(2):
        write_mask(tmp_path / f"cat/cat{number}.png", slice(20, 48))
    batch = draw(open_classes(make_source(tmp_path, teacher, points=256)))
    assert batch.is_valid.any(dim=1).all()
    x = batch.points0[batch.is_valid][:, 0]
    assert x.min() >= 19.5 and x.max() <= 47.5
    assert x.min() < 24 and x.max() > 43  # up to the borders of the object


def test_masks_are_mirrored_with_their_images(tmp_path: Path, teacher: Path) -> None:
    photo = make_photo(SIDE, SIDE, grain=5)
    write(tmp_path / "cat/left.webp", photo)
    write(tmp_path / "cat/right.webp", photo.flip(-1))
    write_mask(tmp_path / "cat/left.png", slice(4, 36))
    write_mask(tmp_path / "cat/right.png", slice(SIDE - 36, SIDE - 4))
    batch = draw(open_classes(make_source(tmp_path, teacher, points=256)))
    assert set(batch.names) == {"left.webp--right.webp", "right.webp--left.webp"}
    torch.testing.assert_close(batch.image0, batch.image1, atol=1e-4, rtol=0)
    for name, points0, points1, valid in zip(
        batch.names, batch.points0, batch.points1, batch.is_valid, strict=True
    ):
        x = points0[valid][:, 0] if name.startswith("left") else SIDE - 1 - points0[valid][:, 0]
        assert len(x) > 60 and x.min() >= 3.5 and x.max() <= 35.5
        assert x.min() < 8 and x.max() > 31
        torch.testing.assert_close(points0[valid], points1[valid], atol=1.0, rtol=0)


@pytest.mark.parametrize("columns", [slice(0, 0), slice(10, 24)])
def test_objects_with_too_few_matches_have_no_points(tmp_path: Path, teacher: Path, columns: slice) -> None:
    write_copies(tmp_path / "cat", 2, suffix="webp")
    for number in range(2):
        write_mask(tmp_path / f"cat/cat{number}.png", columns, slice(31, 43))  # at most 4 × 3 cells
    mixture = open_classes(make_source(tmp_path, teacher))
    assert not draw(mixture).is_valid.any()
    batch = next(iter(mixture.sources[0].validation_batches()))
    assert not batch.is_valid.any() and batch.points0.isfinite().all() and batch.points1.isfinite().all()


def test_partners_are_of_one_class(tmp_path: Path, teacher: Path) -> None:
    for seed, name in enumerate(("cat", "dog", "owl")):
        write_copies(tmp_path / name, 3, seed)
    mixture = open_classes(make_source(tmp_path, teacher, options=["exclude=owl"]))
    pairs = [name.split("--") for step in range(1, 21) for name in draw(mixture, step).names]
    assert {first[:3] for first, _ in pairs} == {"cat", "dog"}
    assert all(first[:3] == second[:3] and first != second for first, second in pairs)


def test_images_of_any_shape(tmp_path: Path, teacher: Path) -> None:
    for name, size in {"a": (20, 90), "b": (150, 40), "c": (3, 5)}.items():
        write(tmp_path / f"cat/{name}.png", make_photo(*size, grain=5))
    mixture = open_classes(make_source(tmp_path, teacher, rotation=10))
    for step in range(1, 5):
        batch = draw(mixture, step)
        for values in (batch.image0, batch.image1, batch.points0, batch.points1):
            assert values.isfinite().all()


def test_the_generator_alone_determines_a_batch(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 3)
    source = make_source(tmp_path, teacher, rotation=20, photometric=1.0, mirror=0.5)
    first, again = open_classes(source), open_classes(source)
    batches = [draw(first, step) for step in range(1, 5)]
    for step in (3, 4, 1):  # as a run that is resumed
        found, expected = draw(again, step), batches[step - 1]
        assert list(found.names) == list(expected.names)
        for name in ("image0", "image1", "points0", "points1", "is_valid"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert not torch.equal(draw(first, 1, seed=9).image0, batches[0].image0)


def test_images_are_held_out(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 6)
    write_copies(tmp_path / "dog", 3, seed=1)  # too few to hold any out
    mixture = open_classes(make_source(tmp_path, teacher), validation_share=0.4)
    (source,) = mixture.sources
    trained = {
        name for step in range(1, 31) for pair in draw(mixture, step).names for name in pair.split("--")
    }
    batches = list(source.validation_batches())
    held_out = {name for batch in batches for pair in batch.names for name in pair.split("--")}
    assert held_out == {"cat3.png", "cat4.png", "cat5.png"}
    assert trained == {"cat0.png", "cat1.png", "cat2.png", "dog0.png", "dog1.png", "dog2.png"}
    assert sum(len(batch.names) for batch in batches) == 64
    for batch, again in zip(batches, source.validation_batches(), strict=True):
        assert batch.pck_length is not None and batch.pck_length.tolist() == [SIDE] * 4
        assert torch.equal(batch.image0, again.image0) and torch.equal(batch.points1, again.points1)
    assert mixture.warnings == (
        "classes: validation compares with the matches of its teacher, not with ground truth",
    )


def test_few_images_serve_training_and_validation(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2)
    mixture = open_classes(make_source(tmp_path, teacher))
    assert mixture.warnings[0].endswith("and on the training images: no class has four")
    assert {*next(iter(mixture.sources[0].validation_batches())).names} <= {
        "cat0.png--cat1.png",
        "cat1.png--cat0.png",
    }


def test_what_cannot_be_read(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 3)
    (tmp_path / "cat/cat1.png").write_bytes(b"no image")
    with pytest.raises(
        DataError,
        match=r"classes in .* has 1 problems: .*cat1.png.*\. Correct them, or leave their pairs out",
    ):
        open_classes(make_source(tmp_path, teacher))
    mixture = open_classes(make_source(tmp_path, teacher), use_skipping=True)
    (skipped,) = mixture.skipped
    assert (skipped.label, skipped.pairs) == ("classes", 1)
    assert {name for step in range(1, 9) for name in draw(mixture, step).names} == {
        "cat0.png--cat2.png",
        "cat2.png--cat0.png",
    }


def test_progress_is_reported(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 4)
    seen: list[tuple[str, int, int]] = []
    config = make_config(sources=[make_source(tmp_path, teacher)])
    open_sources(config, None, CPU, watch=lambda *report: seen.append(report))
    assert seen == [("classes", 1, 2), ("classes", 2, 2)] * 2  # for training, and held out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": ""}, "teacher must name weights where name is classes, and be empty elsewhere, got ''"),
        ({"name": "cub"}, "teacher must name weights where name is classes, and be empty elsewhere"),
        ({"crop_hw": [64, 96]}, r"crop_hw must be a square where name is classes, got \(64, 96\)"),
        ({"across": 0.1}, "across must be 0 unless on_device is true"),
    ],
)
def test_settings_are_checked(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    base = make_source(tmp_path, Path("geometric")).to_dict()
    with pytest.raises(ConfigError, match=message):
        SourceConfig.from_dict(base | changes)


def test_shifts_need_images_on_the_device() -> None:
    with pytest.raises(ConfigError, match="shift must be 0 unless on_device is true"):
        SourceConfig("cub", shift=0.1)
    assert SourceConfig("classes", teacher="geometric", shift=0.1).shift == 0.1


def test_folders_and_options_are_checked(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2)
    with pytest.raises(DataError, match=r"classes has no option 'excluded' \(there are: exclude\)"):
        open_classes(make_source(tmp_path, teacher, options=["excluded=cat"]))
    with pytest.raises(DataError, match=r"no class 'dog' in .* to exclude \(there are cat\)"):
        open_classes(make_source(tmp_path, teacher, options=["exclude=dog"]))
    with pytest.raises(DataError, match="expected a folder per class with at least two images each, got 1"):
        open_classes(make_source(tmp_path, teacher, options=["exclude=cat"]))
    with pytest.raises(DataError, match="no folder"):
        open_classes(make_source(tmp_path / "missing", teacher))


def test_the_teacher_is_recorded_and_another_one_refused(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2)
    config = record_teacher_hash(make_config(sources=[make_source(tmp_path, teacher)]))
    (source,) = config.sources
    assert source.teacher_sha256 == load_weights(teacher).info.sha256
    assert record_teacher_hash(config) is config
    record = record_config(config)["sources"][0]
    assert (record["teacher"], record["teacher_sha256"]) == ("teacher.safetensors", source.teacher_sha256)
    assert str(tmp_path) not in str(record_config(config))
    with pytest.raises(ConfigError, match=r"the teacher of classes .* the recorded one is 0000000000000000…"):
        open_classes(replace(source, teacher_sha256="0" * 64))


def test_recipes_fill_in_variables_and_the_hash(
    tmp_path: Path, teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "run.yaml"
    recipe.write_text(
        "name: a\nsteps: 1\nsources:\n  - {name: classes, teacher: '${TAUGHT}/teacher.safetensors'}\n"
    )
    with pytest.raises(ConfigError, match=r"sources\[0\].teacher is .* TAUGHT is not set"):
        read_recipe(recipe, data=[f"classes={tmp_path}"])
    monkeypatch.setenv("TAUGHT", str(teacher.parent))
    config = read_recipe(recipe, data=[f"classes={tmp_path}"])
    (source,) = config.sources
    assert (source.folder, source.teacher) == (str(tmp_path), str(teacher))
    assert source.teacher_sha256 == load_weights(teacher).info.sha256


@pytest.mark.usefixtures("few_pairs")
def test_a_network_learns_from_it(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2)
    model = ModelConfig(dim=8, transformer="none", semantic_dim=6)
    config = make_config(sources=[make_source(tmp_path, teacher, rotation=10)], model=model)
    trained = train_on(None, config)
    assert trained.model.config == model
    start = build_model(model, torch.Generator().manual_seed(config.seed)).state_dict()
    moved = {
        name for name, value in trained.model.state_dict().items() if not torch.equal(value, start[name])
    }
    assert {"semantic.trunk.conv1.weight", "semantic.projection.weight", "trunk.conv1.weight"} <= moved


def test_a_source_of_its_own_has_nothing_to_end(tmp_path: Path, teacher: Path) -> None:
    write_copies(tmp_path / "cat", 2)
    with open_classes(make_source(tmp_path, teacher)) as mixture:
        assert isinstance(mixture.sources[0], ClassSource)
    assert draw(mixture).is_valid.any()  # as long as somebody holds it
