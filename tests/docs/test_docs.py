"""The pages stay true: links lead somewhere, rooms and dependencies are as described, weights have cards."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from test_layers import LEVELS
from ucn.config import TrainConfig
from ucn.data.catalogue import list_data
from ucn.train.recipe import read_recipe
from ucn.weights import list_weights, load_weights

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ucn"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _section(title: str) -> str:
    """A part of the architecture page, from its heading to the next of the same level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", ARCHITECTURE, flags=re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no section '{title}'"
    return found[1]


def _first_cells(text: str) -> list[str]:
    """What the first column of a section's tables names."""
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


def _existing_rooms() -> set[str]:
    paths = [path for path in SOURCE.iterdir() if path.name != "__pycache__"]
    return {f"{path.name}/" if path.is_dir() else path.name for path in paths}


def _dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [item for items in project.get("optional-dependencies", {}).values() for item in items]
    names = [re.match(r"[\w.-]+", requirement) for requirement in [*project["dependencies"], *extras]]
    return sorted({name[0] for name in names if name})


def _anchor(heading: str) -> str:
    """The name a heading has in a link, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        assert path.exists(), f"{_name(page)}: {link} leads nowhere"
        assert path.resolve().is_relative_to(ROOT), f"{_name(page)}: {link} leaves the repository"
        if anchor:
            text_there = path.read_text(encoding="utf-8")
            headings = {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", text_there, re.MULTILINE)}
            described = set(re.findall(r"^::: (\S+)$", text_there, re.MULTILINE))  # of the API reference
            assert anchor in headings | described, f"{_name(page)}: {link} names no heading"


def test_start_page_lists_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \|", page, flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert project["optional-dependencies"].keys() - {"dev"} <= listed


def test_comparison_gives_a_source_for_every_claim() -> None:
    claims, _, sources = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8").partition("## Sources")
    named = set(re.findall(r"^\| ([A-Z]\d) \| \S", sources, flags=re.MULTILINE))
    assert named == set(re.findall(r"\[([A-Z]\d)\]", claims))
    table = [line for line in claims.splitlines() if line.startswith("| ")]
    columns = table[0].strip("| ").split(" | ")
    assert columns[1:] == ["LightGlue", "hloc", "XFeat", "vismatch", "DenseMatching"]
    assert len(table) > 20
    for row in table[1:]:
        what, _, *cells = row.removeprefix("| ").removesuffix(" |").split(" | ")
        assert len(cells) == 5, what
        for cell in cells:  # nothing is claimed of others without saying where it was read
            is_open = cell == "–" or cell.startswith(("not described", "not checked"))
            assert is_open or re.search(r"\[[A-Z]\d\]", cell), f"{what}: {cell}"


def test_rooms_are_those_that_exist() -> None:
    assert sorted(_first_cells(_section("Rooms"))) == sorted(_existing_rooms())


def test_planned_rooms_do_not_exist() -> None:
    line = re.search(r"^Planned, not there yet: (.*)$", _section("Rooms"), flags=re.MULTILINE)
    planned = set(re.findall(r"`([^`]+)`", line[1])) if line else set()
    assert not planned & _existing_rooms()


def test_modules_named_in_the_table_exist() -> None:
    for room, description in re.findall(r"^\| `(\w+)/` \| (.*) \|$", _section("Rooms"), flags=re.MULTILINE):
        for module in re.findall(r"(?:^|[;,:] | and )`(\w+)`(?=[:, ]|$)", description):
            path = SOURCE / room / module
            is_there = path.with_suffix(".py").is_file() or path.is_dir()
            assert is_there, f"docs/architecture.md: there is no {_name(path)}"


def test_paths_named_in_the_text_exist() -> None:
    for path in re.findall(r"`((?:[a-z_]+/)+[\w.]*|[a-z_]+\.(?:py|toml|txt))`", ARCHITECTURE):
        if f"{path.split('/')[0]}/" in _section("Rooms").split("Planned")[-1]:
            continue
        assert (SOURCE / path).exists() or (ROOT / path).exists(), f"docs/architecture.md: there is no {path}"


def test_import_order_is_the_tested_one() -> None:
    block = re.search(r"```text\n(.*?)```", _section("Import order"), flags=re.DOTALL)
    assert block
    written = [set(line.split(", ")) for line in block[1].splitlines()]
    existing = {room.rstrip("/").removesuffix(".py") for room in _existing_rooms()}
    tested = [rooms & existing for rooms in LEVELS]
    assert written == [rooms for rooms in tested if rooms]


@pytest.mark.parametrize("name", _dependencies())
def test_dependency_is_justified_and_pinned(name: str) -> None:
    row = re.search(
        rf"^\| `{re.escape(name)}` \| (.+) \| (.+) \|$", _section("Dependencies"), flags=re.MULTILINE
    )
    assert row, f"docs/architecture.md gives no reason and licence for {name}"
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(name)}==[\w.]+$", pins, flags=re.MULTILINE), f"{name} is not pinned"


def test_no_other_dependency_is_described() -> None:
    assert sorted(_first_cells(_section("Dependencies"))) == _dependencies()


def test_data_page_has_every_set_as_its_reader_describes_it() -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    for info in list_data():
        where = f"[site]({info.source})" if info.source else "–"
        cells = (
            f"`{info.name}`",
            info.title,
            info.task,
            info.truth,
            ", ".join(info.splits),
            info.licence,
            where,
        )
        assert f"| {' | '.join(cells)} |\n" in page, (
            f"docs/data.md lacks the row of {info.name}, or it is old"
        )
        assert page.count(f"\n| `{info.name}` | ") >= 2, f"docs/data.md does not say how {info.name} holds"


def test_every_convention_names_a_test_and_every_such_test_is_named() -> None:
    page = (ROOT / "docs" / "conventions.md").read_text(encoding="utf-8")
    tests = (ROOT / "tests" / "geometry" / "test_coords.py").read_text(encoding="utf-8")
    named = re.findall(r"^\| .+ \| `(test_\w+)` \|$", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(re.findall(r"^def (test_convention_\w+)", tests, flags=re.MULTILINE))


def test_every_shipped_weight_has_a_card_with_its_hash() -> None:
    assert list_weights()
    for info in list_weights():
        card = ROOT / "docs" / "models" / f"{info.name}.md"
        assert card.is_file(), f"weights '{info.name}' have no card {_name(card)}"
        assert info.sha256 in card.read_text(encoding="utf-8"), f"{_name(card)} lacks {info.sha256}"


def test_shipped_weights_are_those_of_their_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCN_DATA", "data")  # where the trunk lay is nobody's business
    for info in list_weights():
        recipe = read_recipe(ROOT / "recipes" / f"{info.name}.yaml")
        record = {key: value for key, value in load_weights(info.name).training.items() if key != "best_step"}
        assert not Path(record["init"]).is_absolute(), "a path of the machine it was trained on"
        # Settings that have come since have their defaults, which change nothing; folders are kept by name.
        sources = tuple(replace(source, folder=Path(source.folder).name) for source in recipe.sources)
        # A teacher may have been replaced since; the record keeps the hash of the one that taught.
        teacher = recipe.teacher and replace(
            recipe.teacher, weights=record["teacher"]["weights"], sha256=record["teacher"]["sha256"]
        )
        expected = replace(recipe, init=record["init"], sources=sources, teacher=teacher)
        assert TrainConfig.from_dict(record) == expected
        card = (ROOT / "docs" / "models" / f"{info.name}.md").read_text(encoding="utf-8")
        assert f"recipes/{info.name}.yaml" in card
        if record.get("teacher"):  # which the recipe may name another one for
            assert f"`{record['teacher']['sha256'][:8]}…`" in card
        assert f"{recipe.steps:,} steps" in card
