"""Recipe files become configurations, or one clear error."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ucn.config import SourceConfig, TrainConfig
from ucn.errors import ConfigError
from ucn.train.recipe import find_recipe, list_recipes, read_recipe

RECIPES = [find_recipe(name) for name in list_recipes() if "/" not in name]
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a recipe and returns its path."""

    def write_text(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_text


def test_there_are_recipes() -> None:
    assert "geometric.yaml" in [path.name for path in RECIPES]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_parses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCN_DATA", "some/folder")
    config = read_recipe(path)
    assert config.name == path.stem
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_the_geometric_recipe_finds_the_trunk_in_the_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCN_DATA", "some/folder")
    (path,) = [path for path in RECIPES if path.name == "geometric.yaml"]
    config = read_recipe(path)
    assert config.init == "some/folder/googlenet/bvlc_googlenet_conv1_to_inception_4a.npz"
    assert config.loss.kind == "infonce"


def test_values_come_from_defaults_then_file_then_overrides(write: Write) -> None:
    path = write("name: a\nsteps: 10\nbatch: 4\nloss:\n  radius: 3\n")
    config = read_recipe(path, ["steps=20", "loss.margin=0.5", "model.dim=null", "synthetic.zoom=[0.5, 2]"])
    assert config == TrainConfig.from_dict(
        {
            "name": "a",
            "steps": 20,
            "batch": 4,
            "loss": {"radius": 3, "margin": 0.5},
            "model": {"dim": None},
            "synthetic": {"zoom": [0.5, 2.0]},
        }
    )
    assert config.seed == TrainConfig.seed


def test_a_later_override_wins_and_may_hold_an_equals_sign(write: Write) -> None:
    path = write("steps: 10\n")
    assert read_recipe(path, ["name=a", "name=b=c"]).name == "b=c"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("2E+2", 200.0), ("-0", 0.0), ("5", 5.0), (".5e1", 5.0), ("1.0e-3", 1e-3)],
)
def test_numbers_as_people_write_them(write: Write, text: str, value: float) -> None:
    # YAML 1.1 takes 1e-3 for text.
    assert read_recipe(write(f"name: a\nsteps: 1\nhead_learning_rate: {text}\n")).head_learning_rate == value
    assert (
        read_recipe(write("name: a\nsteps: 1\n"), [f"head_learning_rate={text}"]).head_learning_rate == value
    )


def test_words_that_begin_like_numbers_stay_words(write: Write) -> None:
    assert read_recipe(write("name: 1e-3b\nsteps: 1\n")).name == "1e-3b"


def test_environment_variables_in_init(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("name: ${UCN_TEST_FOLDER}\nsteps: 1\ninit: ${UCN_TEST_FOLDER}/a.npz\n")
    monkeypatch.setenv("UCN_TEST_FOLDER", "/some/where")
    config = read_recipe(path)
    assert config.init == "/some/where/a.npz"
    assert config.name == "${UCN_TEST_FOLDER}"  # nowhere else
    monkeypatch.delenv("UCN_TEST_FOLDER")
    with pytest.raises(ConfigError, match="the environment variable UCN_TEST_FOLDER is not set"):
        read_recipe(path)
    assert read_recipe(path, ["init=random"]).init == "random"


SOURCES = """
name: a
steps: 1
sources:
  - {name: synthetic, folder: "${UCN_TEST_FOLDER}/photos", weight: 3}
  - {name: cub, folder: "${UCN_TEST_FOLDER}/cub", batch: 48, crop_hw: [160, 160], fit: resize}
  - {name: own}
"""


def test_sources_and_their_folders(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCN_TEST_FOLDER", "/some/where")
    config = read_recipe(write(SOURCES))
    assert config.sources == (
        SourceConfig("synthetic", "/some/where/photos", weight=3.0),
        SourceConfig("cub", "/some/where/cub", batch=48, crop_hw=(160, 160), fit="resize"),
        SourceConfig("own"),
    )
    assert TrainConfig.from_dict(config.to_dict()) == config
    changed = read_recipe(write(SOURCES), ["sources.1.weight=2", "sources.2.options=[a=b]"])
    assert changed.sources[1].weight == 2 and changed.sources[2].options == ("a=b",)


def test_folders_of_the_command_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCN_TEST_FOLDER", raising=False)
    path = write(SOURCES)
    expected = r"sources\[0\].folder is .*variable UCN_TEST_FOLDER is not set; .*data \w+=DIR"
    with pytest.raises(ConfigError, match=expected):
        read_recipe(path)
    data = ["cub=/birds", "synthetic=p=1", "own=first", "own=${UCN_TEST_FOLDER}", "sintel=/films"]
    found = read_recipe(path, data=data).sources
    assert [(source.name, source.folder) for source in found] == [
        ("synthetic", "p=1"),
        ("cub", "/birds"),
        ("own", "first"),
        ("own", "${UCN_TEST_FOLDER}"),  # a shell fills in its own variables
        ("sintel", "/films"),
    ]
    assert found[0].weight == 3 and found[1].batch == 48
    assert read_recipe(write("name: a\nsteps: 1\n"), data=["own=x"]).sources == (SourceConfig("own", "x"),)


@pytest.mark.parametrize("text", ["cub", "cub=", "=x", " = "])
def test_wrong_folders(write: Write, text: str) -> None:
    with pytest.raises(ConfigError, match="data must be NAME=DIR, got '"):
        read_recipe(write(SOURCES), data=[text])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("name", "' '", "name must not be empty"),
        ("options", "[a]", "options must each be key=value, got 'a'"),
        ("weight", "0", "weight must be above 0"),
        ("weight", "1e7", "weight must be at most 1000000"),
        ("batch", "0", "batch must be at least 1"),
        ("batch", "65537", "batch must be at most 65536"),
        ("crop_hw", "[31, 64]", "crop_hw must each be 32..8192"),
        ("crop_hw", "[64]", "crop_hw must have 2 values, got 1"),
        ("fit", "squeeze", "fit must be one of crop, resize, got 'squeeze'"),
        ("points", "0", "points must be at least 1"),
        ("min_points", "0", "min_points must be at least 1"),
        ("min_points", "1000001", "min_points must be at most 1000000"),
        ("mirror", "1.5", "mirror must be in"),
        ("mirror_view", "-1", "mirror_view must be in"),
        ("rotation", "181", "rotation must be in"),
        ("scale", "0.5", "scale must be in"),
        ("photometric", "4", "photometric must be in"),
        ("workers", "65", "workers must be in"),
        ("wieght", "1", "unknown key 'sources\\[0\\].wieght'; did you mean 'weight'"),
    ],
)
def test_wrong_sources(write: Write, key: str, value: str, message: str) -> None:
    path = write("name: a\nsteps: 1\nsources:\n  - {name: cub}\n")
    where = "" if "unknown" in message else r"sources\[0\]\."
    with pytest.raises(ConfigError, match=rf"recipe\.yaml with .*: {where}{message}"):
        read_recipe(path, [f"sources.0.{key}={value}"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sources.1.weight=2", "'sources.1.weight' has no entry 1: the list has 1, counted from 0"),
        ("sources.-1.weight=2", "'sources.-1.weight' has no entry -1"),
        ("sources.0=2", "'sources.0' is an entry of a list: set its keys, as in 'sources.0.weight'"),
        ("sources.0.name.x=2", "'name' in 'sources.0.name.x' has no keys of its own"),
    ],
)
def test_wrong_overrides_of_sources(write: Write, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(write("name: a\nsteps: 1\nsources: [{name: cub}]\n"), [override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: cub", "sources must be a list, got 'cub'"),
        ("sources: [cub]", r"sources\[0\] must be a mapping, got str"),
        ("sources: [{folder: x}]", r"sources\[0\] lacks the key 'name'"),
        ("sources: [{name: cub, folder: 3}]", r"sources\[0\]\.folder must be str, got 3"),
    ],
)
def test_sources_that_are_none(write: Write, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(write(f"name: a\nsteps: 1\n{text}\n"), data=["sintel=x"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\nstesp: 1\n", r"recipe\.yaml: unknown key 'stesp'; did you mean 'steps'\?"),
        ("name: a\nsteps: 1\nloss: {raduis: 1}\n", "unknown key 'loss.raduis'; did you mean 'radius'"),
        ("name: a\n", r"recipe\.yaml: TrainConfig lacks the key 'steps'"),
        ("steps: 1\n", r"recipe\.yaml: TrainConfig lacks the key 'name'"),
        ("name: a\nsteps: 0\n", r"recipe\.yaml: steps must be at least 1, got 0"),
        ("name: a\nsteps: 1\nloss:\n  radius: -1\n", r"loss\.radius must be at least 0, got -1\.0"),
        ("name: a\nsteps: many\n", "steps must be int, got 'many'"),
        (
            "name: a\nsteps: 1\nhead_learning_rate: .inf\n",
            "head_learning_rate must be a finite number, got inf",
        ),
        ("name: !!timestamp 2020-99-99\nsteps: 1\n", r"recipe\.yaml is not YAML: the tag"),
        ("name: [a\n", r"recipe\.yaml is not YAML: "),
        ("name: !!python/object:os.system a\n", r"recipe\.yaml is not YAML: "),
        (
            "name: a\nsteps: 1\nname: b\n",
            r"recipe\.yaml is not YAML: the key 'name' is repeated; keep one \(line 3, column 1\)",
        ),
        ("name: a\nsteps: 1\nloss: {margin: 1, 'margin': 2}\n", "the key 'margin' is repeated"),
        ("name: " + "[" * 100_000, r"recipe\.yaml is not YAML: it is nested too deeply"),
        (
            "name: a\nsteps: 1\nhead_learning_rate: 1" + "0" * 400,
            r"a number has over 64 digits \(line 3, column 21\)",
        ),
        ("- name\n", r"recipe\.yaml must hold keys and values, got list"),
        ("", r"recipe\.yaml must hold keys and values, got NoneType"),
    ],
)
def test_wrong_recipes(write: Write, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(write(text))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps", "an override must be key=value, got 'steps'"),
        ("=3", "an override must be key=value, got '=3'"),
        ("steps=[1", r"the value of 'steps=\[1' is not YAML"),
        ("loss={margin: 1, margin: 2}", "is not YAML: the key 'margin' is repeated"),
        ("steps=" + "[" * 100_000, "is not YAML: it is nested too deeply"),
        ("steps.x=1", "'steps' in 'steps.x' has no keys of its own"),
        ("stesp=1", r"recipe\.yaml with stesp=1: unknown key 'stesp'; did you mean 'steps'"),
        ("sources.0.weight=1", "'sources.0.weight' has no entry 0: the list has 0, counted from 0"),
        ("model.dmi=1", "unknown key 'model.dmi'; did you mean 'dim'"),
        ("batch=0", "batch must be at least 1, got 0"),
        ("name=3", "name must be str, got 3"),
    ],
)
def test_wrong_overrides(write: Write, override: str, message: str) -> None:
    path = write("name: a\nsteps: 1\n")
    with pytest.raises(ConfigError, match=message):
        read_recipe(path, [override])


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe at .*missing\.yaml: expected a \.yaml file"):
        read_recipe(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="no recipe at"):
        read_recipe(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read recipe .*: File name too long"):
        read_recipe(tmp_path / ("x" * 300))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(ConfigError, match=r"binary\.yaml: it is not UTF-8 text"):
        read_recipe(binary)
    large = tmp_path / "large.yaml"
    large.write_text("#" * (2**18 + 1))
    with pytest.raises(ConfigError, match=r"large\.yaml has 262,145 bytes, the limit for recipe is 262,144"):
        read_recipe(large)


def test_shipped_recipes_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"own", "geometric", "paper/semantic-hn-st"} <= set(list_recipes())
    assert find_recipe("own").name == "own.yaml"
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"
    own.write_text("steps: 3")
    assert find_recipe("own") == Path("own")  # a file of that name comes first
    with pytest.raises(ConfigError, match=r"geometrik; did you mean 'geometric'\?: expected a .yaml"):
        find_recipe("geometrik")
