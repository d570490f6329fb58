"""Imports go one way: each room uses only the rooms before it."""

import ast
import subprocess
import sys
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
ALLOWED_WITHIN_LEVEL = {("types", "errors"), ("config", "errors"), ("files", "errors")}


def _level(room: str) -> int:
    for index, rooms in enumerate(LEVELS):
        if room in rooms:
            return index
    raise AssertionError(f"'{room}' has no level: add it to LEVELS and to docs/architecture.md")


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "ucn"
                else [node.module or ""]
            )
        else:
            continue
        rooms |= {name.split(".")[1] for name in names if name.startswith("ucn.")}
    return rooms


MODULES = sorted(
    p for p in SOURCE.rglob("*.py") if p.name not in ("__main__.py",) and p != SOURCE / "__init__.py"
)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_module_imports_only_earlier_rooms(path: Path) -> None:
    room = _room(path)
    for imported in _imported_rooms(path) - {room, "__version__"}:
        is_earlier = _level(imported) < _level(room)
        assert is_earlier or (room, imported) in ALLOWED_WITHIN_LEVEL, f"{room} must not import {imported}"


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
