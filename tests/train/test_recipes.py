"""The recipes that come with the package: each parses and builds, and the paper's are the paper's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from dense_cases import write_png
from photo_cases import make_photo
from semantic_files import write_text
from ucn.cli.app import app
from ucn.config import TrainConfig
from ucn.nn import build_model
from ucn.train import sources
from ucn.train.recipe import read_recipe
from ucn.weights import load_weights

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(FOLDER.rglob("*.y*ml"))
TASKS = ("geometric", "semantic")
VARIANTS = ("rn", "hn", "hn-st")
TRUNK = "data/googlenet/bvlc_googlenet_conv1_to_inception_4a.npz"


def _name(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


@pytest.fixture(autouse=True)
def data_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCN_DATA", "data")


def read_paper(task: str, variant: str) -> TrainConfig:
    return read_recipe(FOLDER / "paper" / f"{task}-{variant}.yaml")


def test_recipes_are_there() -> None:
    names = [_name(path) for path in RECIPES]
    assert "geometric" in names
    assert {name for name in names if "/" in name} == {f"paper/{t}-{v}" for t in TASKS for v in VARIANTS}


@pytest.mark.parametrize("path", RECIPES, ids=_name)
def test_every_recipe_parses_and_builds_its_network(path: Path) -> None:
    config = read_recipe(path)
    assert config.name == _name(path).replace("/", "-")
    assert TrainConfig.from_dict(config.to_dict()) == config
    model = build_model(config.model)
    with torch.no_grad():
        features = model.encode(torch.rand(1, 3, 64, 96)).features
    assert features.shape[1] == (config.model.dim or 512)
    assert torch.allclose(features.norm(dim=1), torch.ones(()), atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_recipes_of_the_paper(task: str, variant: str) -> None:
    config = read_paper(task, variant)
    assert (config.init, config.batch) == (TRUNK, 4)
    model, loss = config.model, config.loss
    assert (model.strides, model.dim, model.head_norm) == ((2, 2, 1, 1), None, "none")
    assert (model.transformer != "none") == (variant == "hn-st")
    assert (loss.kind, loss.margin, loss.direction) == ("contrastive", 1.0, "0to1")
    distance = 20.0 if task == "geometric" else 0.05 * 150
    mining = ("random", distance) if variant == "rn" else ("nearest", 16.0)
    assert (loss.mining, loss.radius, loss.negatives) == (*mining, 1)
    assert loss.random_negatives == (1 if task == "semantic" and variant != "rn" else 0)
    (source,) = config.sources
    if task == "geometric":
        assert (source.name, source.fit, source.crop_hw) == ("kitti-flow", "crop", (321, 769))
        assert (source.points, source.min_points, source.mirror) == (1000, 200, 0.5)
    else:
        assert (source.name, source.fit, source.crop_hw) == ("cub", "resize", (150, 150))
        assert (source.points, source.mirror) == (15, 0.5)


@pytest.mark.parametrize("task", TASKS)
def test_variants_differ_in_one_thing_each(task: str) -> None:
    rn, hn, hn_st = (read_paper(task, variant) for variant in VARIANTS)
    assert replace(rn, name=hn.name, loss=hn.loss) == hn
    hard = {key: getattr(hn.loss, key) for key in ("mining", "radius", "random_negatives")}
    assert replace(rn.loss, **hard) == hn.loss
    assert replace(hn, name=hn_st.name, model=hn_st.model) == hn_st
    assert replace(hn.model, transformer=hn_st.model.transformer) == hn_st.model


def test_the_geometric_ones_train_on_kitti_raw_as_their_heads_say() -> None:
    path = FOLDER / "paper" / "geometric-hn.yaml"
    head = path.read_text(encoding="utf-8")
    changes = ["sources.0.name=kitti-raw", "sources.0.folder=${UCN_DATA}/kitti_raw", "sources.0.points=3000"]
    assert all(f"--set {change}" in head or f"--set '{change}'" in head for change in changes)
    (source,) = read_recipe(path, changes).sources
    assert (source.name, source.folder, source.split) == ("kitti-raw", "data/kitti_raw", "train")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few validation pairs, and torch's precision as it was: the command sets it for the whole process."""
    monkeypatch.setattr(sources, "_VALIDATION_PAIRS", 2)
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)


def write_photo(path: Path, photo: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray((photo * 255).byte().permute(1, 2, 0).numpy()).save(path)


@pytest.fixture
def kitti(tmp_path: Path) -> Path:
    """Scenes of 96 × 64 pixels in which everything moves by 4 pixels to the left."""
    training = tmp_path / "kitti flow" / "training"
    flow = np.full((64, 96, 3), 2**15, np.uint16)
    flow[..., 0] -= 4 * 64
    flow[..., 2] = 1
    for scene in range(4):
        photo = make_photo(64, 100, seed=scene)
        write_photo(training / "image_2" / f"{scene:06}_10.png", photo[..., :96])
        write_photo(training / "image_2" / f"{scene:06}_11.png", photo[..., 4:])
        write_png(training / "flow_noc" / f"{scene:06}_10.png", flow)
    return training.parent


@pytest.fixture
def cub(tmp_path: Path) -> Path:
    """Two kinds of birds, six images each, three parts on every image."""
    root = tmp_path / "birds ö" / "CUB_200_2011"
    names = [f"{kind:03}.Kind/{image}.png" for kind in (1, 2) for image in range(6)]
    for seed, name in enumerate(names):
        write_photo(root / "images" / name, make_photo(48, 64, seed=seed))
    ids = range(1, len(names) + 1)
    write_text(root / "images.txt", *(f"{i} {name}" for i, name in zip(ids, names, strict=True)))
    write_text(root / "image_class_labels.txt", *(f"{i} {1 + (i > 6)}" for i in ids))
    write_text(root / "train_test_split.txt", *(f"{i} 1" for i in ids))
    write_text(root / "classes.txt", "1 001.Kind", "2 002.Kind")
    write_text(root / "bounding_boxes.txt", *(f"{i} 4 4 50 40" for i in ids))
    write_text(root / "parts" / "parts.txt", "1 back", "2 left eye", "3 right eye")
    places = [(i, part, 8 * part + i, 10 * part) for i in ids for part in (1, 2, 3)]
    write_text(root / "parts" / "part_locs.txt", *(f"{i} {part} {x} {y} 1" for i, part, x, y in places))
    return root.parent


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_recipes_of_the_paper_train(
    task: str, variant: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = "kitti-flow" if task == "geometric" else "cub"
    folder = request.getfixturevalue("kitti" if task == "geometric" else "cub")
    recipe, output = FOLDER / "paper" / f"{task}-{variant}.yaml", tmp_path / "weights.safetensors"
    changes = [
        "steps=2",
        "init=random",
        "warmup_steps=0",
        "sources.0.crop_hw=[48, 64]",
        "sources.0.workers=0",
    ]
    options = [word for change in changes for word in ("--set", change)]
    command = ["train", str(recipe), "-o", str(output), "--device", "cpu", "--data", f"{name}={folder}"]
    result = CliRunner().invoke(app, [*command, *options])
    assert result.exit_code == 0, result.stderr
    trained = load_weights(output)
    assert trained.model.config == read_paper(task, variant).model
    start = build_model(trained.model.config, torch.Generator().manual_seed(0))
    moved = (trained.model.trunk.conv1.weight - start.trunk.conv1.weight).abs().max()
    assert moved > 5e-5  # AdamW moves a weight by its rate, 1e-4, where there is a gradient
