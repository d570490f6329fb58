"""`ucn transfer`: what it prints, writes, resumes and refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from support.pair_cases import QueryShiftMatcher, write_tiny_images
from ucn.cli import _command
from ucn.cli.app import app
from ucn.config import MatchConfig


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Weights that commands loaded; the matcher is a stand-in."""
    names: list[str] = []

    def load(weights: str, config: MatchConfig | None = None, device: str | None = None) -> QueryShiftMatcher:
        names.append(weights)
        return QueryShiftMatcher(config)

    monkeypatch.setattr(_command, "load_matcher", load)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tiny_images(tmp_path, "ref.png", "photos/a10.png", "photos/a2.png")
    (tmp_path / "p.csv").write_text("x,y,part\n10,20,eye\n30,40,beak\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["transfer", *arguments])


def test_labels_and_sheet(here: Path, loaded: list[str]) -> None:
    result = run("ref.png", "--points", "p.csv", "photos/", "--sheet", "sheet.png")
    assert result.exit_code == 0, result.output
    lines = (here / "labels.csv").read_text().splitlines()
    assert lines[:2] == ["image,part,x,y,score,visible", "a2.png,eye,15,18,0.7500,1"]
    assert len(lines) == 5
    for words in (
        "labelled  1, with 2 points",
        "images    2",
        "50.0 % of the points",
        "labels.csv, sheet.png",
    ):
        assert words in result.stdout
    assert (here / "sheet.png").stat().st_size > 1000
    assert loaded == ["universal"]
    again = run("ref.png", "--points", "p.csv", "photos/", "--sheet", "sheet.png")
    assert "images    2, 2 of them by an earlier run" in again.stdout


def test_json_names_failures(here: Path, loaded: list[str]) -> None:
    (here / "photos" / "bad.png").write_bytes(b"")
    result = run(
        "ref.png", "--points", "p.csv", "photos", "-o", "l.coco.json", "--json", "--weights", "birds"
    )
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["images"], list(report["failed"]), report["visible_share"]) == (2, ["bad.png"], 0.5)
    assert report["points"][0] == {
        **{"image": "a2.png", "part": "eye", "score": 0.75, "visible": True},
        **{"x": 15.0, "y": 18.0},
    }
    assert loaded == ["birds"]
    assert "failed: bad.png" in run("ref.png", "--points", "p.csv", "photos", "-o", "l.csv").stderr


def test_help_names_both_arguments() -> None:
    assert "│ [REF]... FOLDER" in run("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ref.png", "--points", "no.csv", "photos"), "no.csv"),
        (("ref.png", "--points", "p.csv", "nowhere"), "no folder nowhere"),
        (("no.png", "--points", "p.csv", "photos"), "no.png"),
        (("ref.png", "--points", "p.csv", "photos", "-o", "labels.txt"), "labels.txt"),
        (("ref.png", "--points", "p.csv", "photos", "-o", "p.csv"), "it is an input"),
        (("ref.png", "--points", "p.csv", "photos", "--weights", "bird"), "did you mean 'birds'?"),
        (("--points", "p.csv", "photos"), "does not name the labelled image"),
    ],
)
def test_errors_come_before_weights(
    here: Path, loaded: list[str], arguments: tuple[str, ...], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert loaded == []
    assert not list(here.glob("labels*"))


def test_an_output_of_others_is_kept(here: Path, loaded: list[str]) -> None:
    (here / "labels.csv").write_text("mine")
    refused = run("ref.png", "--points", "p.csv", "photos")
    assert refused.exit_code == 1
    assert "labels.csv exists already" in refused.stderr and "--overwrite" in refused.stderr
    assert (here / "labels.csv").read_text() == "mine"
    assert run("ref.png", "--points", "p.csv", "photos", "--overwrite").exit_code == 0
