"""The pages stay true: links resolve, packages and dependencies are as described, weights have cards."""

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


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _section(title: str) -> str:
    """A section of the architecture page, from its heading to the next of the same level."""
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", ARCHITECTURE, flags=re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no section '{title}'"
    return found[1]


def _first_cells(text: str) -> list[str]:
    """The code spans in the first column of a section's tables."""
    return re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)


def _existing_packages() -> set[str]:
    paths = [path for path in SOURCE.iterdir() if path.name != "__pycache__"]
    return {f"{path.name}/" if path.is_dir() else path.name for path in paths}


def _dependencies() -> list[str]:
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    extras = [item for items in project.get("optional-dependencies", {}).values() for item in items]
    names = [re.match(r"[\w.-]+", requirement) for requirement in [*project["dependencies"], *extras]]
    return sorted({name[0] for name in names if name})


def _anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        assert path.exists(), f"{_name(page)}: {link} does not exist"
        assert path.resolve().is_relative_to(ROOT), f"{_name(page)}: {link} leaves the repository"
        if anchor:
            linked = path.read_text(encoding="utf-8")
            headings = {_anchor(heading) for heading in re.findall(r"^#+ (.*)$", linked, re.MULTILINE)}
            documented = set(re.findall(r"^::: (\S+)$", linked, re.MULTILINE))  # of the API reference
            assert anchor in headings | documented, f"{_name(page)}: {link} names no heading"


def test_start_page_lists_every_extra() -> None:
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    rows = re.findall(r"^\| (`[^|]+`) \|", _read("docs/start.md"), flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert project["optional-dependencies"].keys() - {"dev"} <= listed


def test_comparison_gives_a_source_for_every_claim() -> None:
    claims, _, sources = _read("docs/comparison.md").partition("## Sources")
    named = set(re.findall(r"^\| ([A-Z]\d) \| \S", sources, flags=re.MULTILINE))
    assert named == set(re.findall(r"\[([A-Z]\d)\]", claims))
    table = [line for line in claims.splitlines() if line.startswith("| ")]
    columns = table[0].strip("| ").split(" | ")
    assert columns[1:] == ["LightGlue", "hloc", "XFeat", "vismatch", "DenseMatching"]
    assert len(table) > 20
    for row in table[1:]:
        what, _, *cells = row.removeprefix("| ").removesuffix(" |").split(" | ")
        assert len(cells) == 5, what
        for cell in cells:  # no claim about other software without its source
            assert cell in {"–", "·", "?"} or re.search(r"\[[A-Z]\d\]", cell), f"{what}: {cell}"


def test_packages_are_those_that_exist() -> None:
    assert sorted(_first_cells(_section("Packages"))) == sorted(_existing_packages())


def test_paths_named_in_the_text_exist() -> None:
    for path in re.findall(r"`((?:[a-z_]+/)+[\w.]*|[a-z_]+\.(?:py|toml|txt))`", ARCHITECTURE):
        assert (SOURCE / path).exists() or (ROOT / path).exists(), f"docs/architecture.md: there is no {path}"


def test_import_order_is_the_tested_one() -> None:
    block = re.search(r"```text\n(.*?)```", _section("Import order"), flags=re.DOTALL)
    assert block
    written = [set(line.split(", ")) for line in block[1].splitlines()]
    existing = {package.rstrip("/").removesuffix(".py") for package in _existing_packages()}
    tested = [packages & existing for packages in LEVELS]
    assert written == [packages for packages in tested if packages]


@pytest.mark.parametrize("name", _dependencies())
def test_dependency_is_justified_and_pinned(name: str) -> None:
    row = re.search(
        rf"^\| `{re.escape(name)}` \| (.+) \| (.+) \|$", _section("Dependencies"), flags=re.MULTILINE
    )
    assert row, f"docs/architecture.md gives no reason and licence for {name}"
    pins = _read("constraints.txt")
    assert re.search(rf"^{re.escape(name)}==[\w.]+$", pins, flags=re.MULTILINE), f"{name} is not pinned"


def test_no_other_dependency_is_described() -> None:
    assert sorted(_first_cells(_section("Dependencies"))) == _dependencies()


def test_glossary_names_existing_files() -> None:
    glossary = _read("CONTRIBUTING.md").partition("## Glossary")[2]
    files = re.findall(r"^\| .+ \| .+ \| `([\w/]+\.py)` \|$", glossary, flags=re.MULTILINE)
    assert len(files) == glossary.count("\n| ") - 1  # every row but the header names one
    assert not [path for path in files if not (SOURCE / path).is_file()]


def test_data_page_has_every_set_as_its_reader_describes_it() -> None:
    page = " ".join(_read("docs/data.md").split())
    for info in list_data():
        row = f"| `{info.name}` | {info.title} | {info.task} | {', '.join(info.splits)} |"
        assert row in page, f"docs/data.md: the row of {info.name} is missing or old"
        entry = f"- **`{info.name}`**. Ground truth: {info.ground_truth}. Licence: {info.licence}."
        site = f" [Site]({info.source})." if info.source else ""
        assert f"{entry}{site}" in page, f"docs/data.md: the entry of {info.name} is missing or old"


def test_overview_of_performance_quotes_the_measured_tables() -> None:
    page = _read("docs/performance.md")
    overview, _, rest = page.partition("## Measure it yourself")
    blocks = re.findall(r"<!-- bench:\w+ -->(.*?)<!-- /bench -->", rest, flags=re.DOTALL)
    measured = {cell for block in blocks for cell in re.findall(r"(?<=\| )[\d.,]+(?= \|)", block)}
    quoted = re.findall(r"([\d.,]+) (?:ms|MB) \|", overview)
    assert len(quoted) >= 10
    rounded = {f"{float(cell.replace(',', '')):.3g}" for cell in measured}
    assert not [value for value in quoted if f"{float(value.replace(',', '')):.3g}" not in rounded]


def test_every_convention_names_a_test_and_every_such_test_is_named() -> None:
    tests = _read("tests/geometry/test_coords.py")
    named = re.findall(r"^\| .+ \| `(test_\w+)` \|$", _read("docs/conventions.md"), flags=re.MULTILINE)
    assert sorted(named) == sorted(re.findall(r"^def (test_convention_\w+)", tests, flags=re.MULTILINE))


def test_every_shipped_weight_has_a_card_with_its_hash() -> None:
    assert list_weights()
    for info in list_weights():
        card = ROOT / "docs" / "models" / f"{info.name}.md"
        assert card.is_file(), f"weights '{info.name}' have no card {_name(card)}"
        assert info.sha256 in card.read_text(encoding="utf-8"), f"{_name(card)} lacks {info.sha256}"


LAST_STAGES = {"geometric": "geometric-views", "universal": "universal-classes"}
"""Recipes of the last stage of weights that were trained in two."""


def test_shipped_weights_are_those_of_their_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCN_DATA", "data")  # records keep the names of folders only
    for info in list_weights():
        name = LAST_STAGES.get(info.name, info.name)
        recipe = replace(read_recipe(name), name=info.name)
        record = load_weights(info.name).training
        assert not Path(record["init"]).is_absolute(), "a path of the machine it was trained on"
        # Settings added since have defaults that change nothing; folders are kept by name.
        sources = tuple(
            replace(
                source,
                folder=Path(source.folder).name,
                teacher=recorded["teacher"] if source.teacher else "",
                teacher_sha256=recorded["teacher_sha256"] if source.teacher else "",
            )
            for source, recorded in zip(recipe.sources, record["sources"], strict=True)
        )
        # A teacher may have been replaced since; the record keeps the hash of the original one.
        teacher = recipe.teacher and replace(
            recipe.teacher, weights=record["teacher"]["weights"], sha256=record["teacher"]["sha256"]
        )
        expected = replace(recipe, init=record["init"], sources=sources, teacher=teacher)
        assert TrainConfig.from_record(record) == expected
        card = _read(f"docs/models/{info.name}.md")
        assert f"recipes/{name}.yaml" in card
        if record.get("teacher"):
            assert f"`{record['teacher']['sha256'][:8]}…`" in card
        assert f"{recipe.steps:,} steps" in card
