"""The page that says where published results come from."""

from pathlib import Path
from types import ModuleType

import pytest

from support.benchmark_scripts import load_script
from ucn.evaluate.core.benchmark_pairs import CUB_PAIRS

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("result_sources")


def test_only_measured_files_are_listed(script: ModuleType, tmp_path: Path) -> None:
    first = CUB_PAIRS.read_text(encoding="utf-8").split(",")[0]
    for name in (f"{first}.jpg", "001.Black_footed_Albatross/unlisted.jpg"):
        path = tmp_path / "cub" / "CUB_200_2011" / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = script.list_files(tmp_path / "cub", ("CUB_200_2011/images/*/*",))
    assert [path.stem for path in found] == [first.split("/")[1]]
    faces = tmp_path / "helen_faces"
    faces.mkdir()
    for number in range(10):
        (faces / f"{number}.png").touch()
    assert [path.name for path in script.list_files(faces, ("*",))] == ["8.png", "9.png"]


def test_every_report_has_its_row() -> None:
    page = (RESULTS / "sources.md").read_text(encoding="utf-8")
    assert [path.stem for path in RESULTS.glob("*.json") if f"[{path.stem}]" not in page] == []
    listed = (RESULTS / "files.csv").read_text(encoding="utf-8").splitlines()
    assert listed[0] == "file,bytes,sha256" and len(listed) > 2000
