"""The recipes that come with the package: each parses and builds, and the paper's are the paper's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from support.bird_cases import write_birds, write_photo
from support.dense_cases import write_png
from support.photo_cases import make_photo
from support.semantic_files import write_text
from ucn.cli.app import app
from ucn.config import TrainConfig
from ucn.data.catalogue import find_info
from ucn.data.sets.semantic.faces import mirror_points
from ucn.nn import build_model
from ucn.train import loop
from ucn.train.recipe import find_recipe, read_recipe
from ucn.train.sources import batches as sources
from ucn.weights import load_weights

FOLDER = find_recipe("own").parent
RECIPES = sorted(FOLDER.rglob("*.y*ml"))
TASKS = ("geometric", "semantic")
VARIANTS = ("rn", "hn", "hn-st")
DATA_SETS = ("kitti-flow", "kitti-raw", "sintel", "pascal-berkeley", "flowweb")
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
    assert {"birds", "faces", "geometric", "universal"} <= {*names}
    variants = {f"{task}-{variant}" for task in TASKS for variant in VARIANTS}
    expected = {*variants, "semantic-hn-st-branch", *DATA_SETS}
    assert {name for name in names if "/" in name} == {f"paper/{name}" for name in expected}


@pytest.mark.parametrize("path", RECIPES, ids=_name)
def test_every_recipe_parses_and_builds_its_network(path: Path) -> None:
    config = read_recipe(path)
    assert config.name == _name(path).replace("/", "-")
    assert TrainConfig.from_dict(config.to_dict()) == config
    model = build_model(config.model)
    with torch.no_grad():
        features = model.encode(torch.rand(1, 3, 64, 96)).features
    assert features.shape[1] == config.model.dimensions
    assert torch.allclose(features.norm(dim=1), torch.ones(()), atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_recipes_of_the_paper(task: str, variant: str) -> None:
    config = read_paper(task, variant)
    check_paper_settings(config, 20.0 if task == "geometric" else 0.05 * 150, variant)
    assert config.loss.random_negatives == (1 if task == "semantic" and variant != "rn" else 0)
    if task == "geometric":
        real = config.sources[1:]
        assert [source.name for source in config.sources] == ["synthetic", "own", "own", "own", "multiview"]
        assert {(source.fit, source.points, source.mirror) for source in real} == {("crop", 1000, 0.5)}
    else:
        (source,) = config.sources
        assert (source.name, source.fit, source.crop_hw) == ("cub", "resize", (150, 150))
        assert (source.points, source.mirror) == (15, 0.5)


def check_paper_settings(config: TrainConfig, distance: float, variant: str) -> None:
    model, loss = config.model, config.loss
    assert config.init == TRUNK
    assert (model.strides, model.dim, model.head_norm) == ((2, 2, 1, 1), None, "none")
    assert (model.transformer != "none") == (variant == "hn-st")
    assert (loss.kind, loss.margin, loss.direction) == ("contrastive", 1.0, "0to1")
    mining = ("random", distance) if variant == "rn" else ("nearest", min(16.0, distance))
    assert (loss.mining, loss.radius, loss.negatives) == (*mining, 1)


@pytest.mark.parametrize("task", TASKS)
def test_variants_differ_in_one_thing_each(task: str) -> None:
    rn, hn, hn_st = (read_paper(task, variant) for variant in VARIANTS)
    assert replace(rn, name=hn.name, loss=hn.loss) == hn
    hard = {key: getattr(hn.loss, key) for key in ("mining", "radius", "random_negatives")}
    assert replace(rn.loss, **hard) == hn.loss
    assert replace(hn, name=hn_st.name, model=hn_st.model) == hn_st
    assert replace(hn.model, transformer=hn_st.model.transformer) == hn_st.model


def test_the_transformer_stands_after_the_trunk_or_in_its_branches() -> None:
    after, branch = (read_paper("semantic", variant) for variant in ("hn-st", "hn-st-branch"))
    assert (after.model.transformer, branch.model.transformer) == ("after_trunk", "in_branch")
    assert replace(branch, name=after.name, model=after.model) == after


@pytest.mark.parametrize("name", DATA_SETS)
def test_recipes_of_one_data_set_become_variants_as_their_heads_say(name: str) -> None:
    path = FOLDER / "paper" / f"{name}.yaml"
    head = path.read_text(encoding="utf-8").partition("\nname:")[0]
    assert f"ucn train paper/{name} --data {name}=DIR" in head
    distance = 7.5 if name in ("pascal-berkeley", "flowweb") else 20.0
    for variant, line in (("hn", ""), ("rn", "RN: "), ("hn-st", "HN-ST:")):
        (row,) = [row for row in head.splitlines() if line and row.startswith(f"# {line}")] or [""]
        changes = [part.strip() for part in row.split("--set ")[1:]]
        config = read_recipe(path, changes, [f"{name}=mine"])
        check_paper_settings(config, distance, variant)
        (source,) = config.sources
        assert (source.name, source.folder, source.split) == (name, "mine", "train")
        assert source.split in find_info(name).splits and config.batch == 4


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few validation pairs, and torch's precision as it was: the command sets it for the whole process."""
    monkeypatch.setattr(sources, "_VALIDATION_PAIRS", 2)
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)


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
    return write_birds(tmp_path / "birds ö")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("recipe", ["kitti-flow", "semantic-rn", "semantic-hn-st", "semantic-hn-st-branch"])
def test_recipes_of_the_paper_train(recipe: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = "kitti-flow" if recipe == "kitti-flow" else "cub"
    folder = request.getfixturevalue("kitti" if recipe == "kitti-flow" else "cub")
    path, output = FOLDER / "paper" / f"{recipe}.yaml", tmp_path / "weights.safetensors"
    changes = ["steps=2", "init=random", "warmup_steps=0", "batch=4", "trunk_learning_rate=1.0e-4"]
    changes += ["sources.0.crop_hw=[48, 64]", "sources.0.workers=0"]
    options = [word for change in changes for word in ("--set", change)]
    command = ["train", str(path), "-o", str(output), "--device", "cpu", "--data", f"{name}={folder}"]
    result = CliRunner().invoke(app, [*command, *options])
    assert result.exit_code == 0, result.stderr
    trained = load_weights(output)
    assert trained.model.config == read_recipe(path).model
    start = build_model(trained.model.config, torch.Generator().manual_seed(0))
    moved = (next(trained.model.trunk.parameters()) - next(start.trunk.parameters())).abs().max()
    assert moved > 5e-5  # AdamW moves a weight by its rate, 1e-4, where there is a gradient


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Ten faces whose point p and its mirror image stand symmetrically about the middle of the picture."""
    folder, table = tmp_path / "faces", mirror_points()
    for face in range(10):
        write_photo(folder / f"{face}.png", make_photo(64, 64, seed=face))
        places = []
        for point, other in enumerate(table.tolist()):
            side = 0 if point == other else 20 if point < other else -20
            places.append(f"{31.5 - side} {4 + 0.8 * min(point, other)}")
        write_text(folder / f"{face}.pts", *places)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_faces_train(faces: Path, tmp_path: Path) -> None:
    output = tmp_path / "weights.safetensors"
    changes = ["steps=2", "init=random", "warmup_steps=0", "batch=2", "sources.0.crop_hw=[48, 48]"]
    options = [word for change in changes for word in ("--set", change)]
    command = ["train", str(FOLDER / "faces.yaml"), "-o", str(output), "--device", "cpu"]
    result = CliRunner().invoke(app, [*command, "--data", f"faces={faces}", *options])
    assert result.exit_code == 0, result.stderr
    trained = load_weights(output)
    assert trained.max_side == 192 and trained.model.config == read_recipe(FOLDER / "faces.yaml").model


def test_faces_change_left_and_right_in_a_mirror(faces: Path) -> None:
    changes = ["sources.0.crop_hw=[64, 64]", "sources.0.photometric=0", "sources.0.mirror_view=1"]
    changes += [f"sources.0.{name}" for name in ("rotation=0", "scale=1", "shift=0")]
    config = read_recipe(FOLDER / "faces.yaml", changes, [f"faces={faces}"])
    with sources.open_sources(config, None, torch.device("cpu")) as mixture:
        batch = mixture.sample_batch(1, torch.Generator().manual_seed(0))
    # One view of each pair is mirrored; of these faces every point is then where it was before.
    torch.testing.assert_close(batch.points0, batch.points1)
    assert batch.is_valid.all() and len({*batch.points0[0, :, 0].tolist()}) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_geometric_trains_on_photographs_and_images_of_birds(
    cub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_CALIBRATION_PAIRS", 2)
    for seed in range(3):
        write_photo(tmp_path / "photos" / f"{seed}.png", make_photo(70, 80, seed=seed))
    output = tmp_path / "weights.safetensors"
    changes = ["steps=2", "init=random", "warmup_steps=0", "batch=2", "synthetic.side=64"]
    options = [word for change in [*changes, "synthetic.points=50"] for word in ("--set", change)]
    command = ["train", str(FOLDER / "geometric.yaml"), "-o", str(output), "--device", "cpu"]
    folders = ["--images", str(tmp_path / "photos"), "--data", f"cub={cub}"]
    result = CliRunner().invoke(app, [*command, *folders, *options])
    assert result.exit_code == 0, result.stderr
    assert load_weights(output).model.config == read_recipe(FOLDER / "geometric.yaml").model
