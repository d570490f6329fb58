import json
from pathlib import Path

import PIL.Image
import pytest
from typer.testing import CliRunner

from ucn.cli.app import app

runner = CliRunner()


def run(*arguments: object) -> tuple[int, str]:
    result = runner.invoke(app, ["info", *map(str, arguments)])
    return result.exit_code, result.output


def test_table_and_drawing(random_weights: Path, out: Path) -> None:
    code, output = run(random_weights, "--size", "200x100", "--draw", out / "net.png")
    assert code == 0, output
    for words in (
        "inception_4a.conv_5x5",
        "512 × 25 × 50",
        "spatial transformer",
        "receptive field, px",
        "reach px",
    ):
        assert words in output
    with PIL.Image.open(out / "net.png") as image:
        assert image.width > 1000
    code, output = run(random_weights, "--draw", out / "net.png")
    assert (code, "exists already" in output) == (1, True)


def test_json() -> None:
    code, output = run("geometric", "--json")
    assert code == 0, output
    values = json.loads(output)
    assert values["parameters"] == sum(layer["parameters"] for layer in values["layers"])
    assert values["layers"][-1]["shape"][1:] == [120, 160]
    assert values["stride_px"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "no weights 'nothing'"),
        (("geometric", "--size", "big"), "--size must be WIDTHxHEIGHT such as 640x480, got 'big'"),
        (("geometric", "--size", "20x100"), "--size must be at least 32 px a side, got 20x100"),
        (("geometric", "--draw", "net.txt"), "net.txt"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    code, output = run(*arguments)
    assert code == 1
    assert message in output
    assert "Traceback" not in output
