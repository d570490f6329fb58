"""Imports go one way: a package imports only packages of earlier levels, and no other package's fast twin."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ucn"

# Later levels may import earlier ones; packages of one level may not import each other, unless listed.
LEVELS: list[set[str]] = [
    {"errors", "types", "files", "config", "runtime"},
    {"geometry"},
    {"knn"},
    {"nn", "losses", "data"},
    {"weights"},
    {"matching"},
    {"features"},
    {"paper", "viz"},
    {"formats"},
    {"folders"},
    {"evaluate"},
    {"train"},
    {"bench", "serve"},
    {"cli"},
]
ALLOWED_WITHIN_LEVEL = {("types", "errors"), ("config", "errors"), ("files", "errors"), ("config", "files")}
ACCELERATED = {"cpu", "cuda", "triton"}
"""Folders that hold the fast twin of the reference one folder up."""
MEASURES_TWINS = {"bench"}
"""May import any fast twin: to compare it with its reference is what it is for."""
LAZY_METHODS = {"types"}
"""Its values have methods that import what does their work when they are called (`Matches.homography`)."""


def _level(package: str) -> int:
    for index, packages in enumerate(LEVELS):
        if package in packages:
            return index
    raise AssertionError(f"'{package}' has no level: add it to LEVELS and to docs/architecture.md")


def _package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imported_at_once(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a module that run when it is imported: not those of methods, nor what only types need."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_for_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        waiting += ast.iter_child_nodes(node)


@cache
def _imported_modules(path: Path) -> frozenset[str]:
    """Dotted names below `ucn` that a file imports, also inside functions; names of attributes may follow."""
    names: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _imported_at_once(tree) if _package(path) in LAZY_METHODS else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(name.removeprefix("ucn.") for name in names if name.startswith("ucn."))


MODULES = sorted(
    p for p in SOURCE.rglob("*.py") if p.name not in ("__main__.py",) and p != SOURCE / "__init__.py"
)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_module_imports_only_earlier_packages(path: Path) -> None:
    package = _package(path)
    for imported in {name.split(".")[0] for name in _imported_modules(path)} - {package, "__version__"}:
        is_earlier = _level(imported) < _level(package)
        allowed = is_earlier or (package, imported) in ALLOWED_WITHIN_LEVEL
        assert allowed, f"{package} must not import {imported}"


def test_no_package_imports_the_fast_path_of_another() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in MODULES
        for name in _imported_modules(path)
        if ACCELERATED & set(name.split(".")[1:])
        and name.split(".")[0] != _package(path)
        and _package(path) not in MEASURES_TWINS
    ]
    assert not wrong, wrong


def test_types_import_what_their_methods_need_only_when_these_are_called() -> None:
    assert _imported_modules(SOURCE / "types.py") == frozenset()
    everything = {
        node.module
        for node in ast.walk(ast.parse((SOURCE / "types.py").read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
    assert {"ucn.geometry.homography", "ucn.data.match_files", "ucn.viz.matches"} <= everything


def test_references_do_not_import_triton() -> None:
    """Triton is imported in triton/ folders only, and by what finds out whether it works."""
    users = [path for path in MODULES if "import triton" in path.read_text(encoding="utf-8")]
    wrong = [str(path) for path in users if path.parent.name != "triton"]
    assert not wrong, wrong


def test_import_sets_no_global_and_loads_no_torch() -> None:
    code = (
        "import sys, logging; before = len(logging.getLogger().handlers); import ucn; "
        "assert 'torch' not in sys.modules and 'ucn.cli' not in sys.modules; "
        "assert len(logging.getLogger().handlers) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_grid_sample_is_called_in_one_file() -> None:
    users = [p for p in MODULES if "grid_sample(" in p.read_text(encoding="utf-8")]
    assert users == [SOURCE / "geometry" / "sampling.py"]
