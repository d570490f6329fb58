"""Bad input gets one clear line and a non-zero exit, never a traceback, and nothing is written."""

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from typer.testing import CliRunner

from ucn.cli.app import app
from ucn.errors import WeightsError

runner = CliRunner()


def read_all(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


def assert_refused(*arguments: str | Path, parts: list[str], out: Path, code: int = 1) -> None:
    before = read_all(out)
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert result.stdout == ""
    if code == 1:
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    text = " ".join(result.stderr.replace("│", " ").split())  # typer folds usage errors into a box
    for words in parts:
        assert words in text
    assert read_all(out) == before


def make_missing(path: Path) -> None:
    pass


def make_folder(path: Path) -> None:
    path.mkdir()


def make_text(path: Path) -> None:
    path.write_text("this is a text file\n" * 20)


def make_empty(path: Path) -> None:
    path.touch()


def make_truncated(path: Path) -> None:
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def make_bomb(path: Path) -> None:
    """A PNG, 129 bytes long, that claims 30,000 × 30,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b""))


BAD_IMAGES = [
    (make_missing, "no such file"),
    (make_folder, "it is a folder"),
    (make_text, "damaged or not an image"),
    (make_empty, "the file is empty"),
    (make_truncated, "truncated"),
    (make_bomb, "900,000,000 pixels, the limit is 160,000,000 pixels"),
]


@pytest.mark.usefixtures("shift_matchers")
class TestBadFiles:
    @pytest.mark.parametrize(("make", "parts"), BAD_IMAGES)
    @pytest.mark.parametrize("verb", ["match", "flow"])
    @pytest.mark.parametrize("place", [0, 1])
    def test_bad_image(
        self,
        pair: tuple[str, str],
        out: Path,
        tmp_path: Path,
        make: object,
        parts: str,
        verb: str,
        place: int,
    ) -> None:
        assert callable(make)
        bad = tmp_path / "bad.jpg"
        make(bad)
        images = [*pair]
        images[place] = str(bad)
        expected = [f"cannot read image {bad}", parts]
        output = ("-o", out / "o.npz", "--draw", out / "o.png")
        assert_refused(verb, *images, *output, parts=expected, out=out)

    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ("x,y\n1,2\n80,3\n", "p.csv:3: point (80, 3) lies outside the image; the image is 80 × 64"),
            ("1,nan\n", "p.csv:1: expected a finite number, got 'nan'"),
            ("", "p.csv holds no points"),
            ("x,y\n", "p.csv holds no points"),
            ("1,2\n1,two\n", "p.csv:2: expected a number, got 'two'"),
            ("1,2\n1,2,3\n", "p.csv:2: expected 2 columns"),
        ],
    )
    def test_bad_points(
        self, pair: tuple[str, str], out: Path, tmp_path: Path, text: str, parts: str
    ) -> None:
        points = tmp_path / "p.csv"
        points.write_text(text)
        assert_refused("match", *pair, "--points", points, "-o", out / "o.npz", parts=[parts], out=out)

    def test_missing_points(self, pair: tuple[str, str], out: Path) -> None:
        parts = ["cannot read points no.csv: no such file"]
        assert_refused("match", *pair, "--points", "no.csv", "-o", out / "o.npz", parts=parts, out=out)

    def test_mask_of_another_size(self, pair: tuple[str, str], out: Path, tmp_path: Path) -> None:
        PIL.Image.new("L", (10, 10)).save(tmp_path / "m.png")
        parts = ["must be as large as its image, 80 × 64, got 10 × 10"]
        assert_refused(
            "match", *pair, "--mask0", tmp_path / "m.png", "-o", out / "o.npz", parts=parts, out=out
        )

    def test_masks_and_points_are_checked_before_torch_is_imported(
        self, pair: tuple[str, str], tmp_path: Path
    ) -> None:
        PIL.Image.new("L", (10, 10)).save(tmp_path / "m.png")
        (tmp_path / "p.csv").write_text("x,y\n900,3\n")
        code = (
            "import sys\n"
            "from ucn.cli._command import PairCommand\n"
            "from ucn.cli._options import PairOptions\n"
            "from ucn.errors import UcnError\n"
            "from pathlib import Path\n"
            "a, b, mask, points = map(Path, sys.argv[1:])\n"
            "for more in ({'masks': (None, mask)}, {'points': points}):\n"
            "    try:\n"
            "        PairCommand('match', PairOptions()).check_images(a, b, **more)\n"
            "    except UcnError as error:\n"
            "        print(type(error).__name__, 'torch' in sys.modules)\n"
        )
        files = [*pair, str(tmp_path / "m.png"), str(tmp_path / "p.csv")]
        done = subprocess.run(
            [sys.executable, "-c", code, *files], capture_output=True, text=True, check=True
        )
        assert done.stdout.split("\n")[:2] == ["ImageReadError False", "PointsError False"]

    def test_both_kinds_of_mask(self, pair: tuple[str, str], out: Path) -> None:
        arguments = ("match", *pair, "--mask", "m.png", "--mask1", "m.png", "-o", out / "o.npz")
        assert_refused(*arguments, parts=["not both kinds"], out=out, code=2)


OUTPUTS = [
    ("match", "-o", "o.npz"),
    ("match", "--draw", "o.png"),
    ("flow", "-o", "o.flo"),
    ("flow", "--draw", "o.png"),
]


@pytest.mark.usefixtures("shift_matchers")
class TestBadOutputs:
    @pytest.mark.parametrize(("verb", "option", "name"), OUTPUTS)
    @pytest.mark.parametrize(
        ("place", "parts"),
        [
            ("no", ["does not exist; create it first"]),
            ("file", ["file is not a folder"]),
            ("locked", ["locked is not writable"]),
            ("full", ["exists already", "--overwrite"]),
        ],
    )
    def test_outputs_that_cannot_be_written(
        self,
        pair: tuple[str, str],
        out: Path,
        monkeypatch: pytest.MonkeyPatch,
        verb: str,
        option: str,
        name: str,
        place: str,
        parts: list[str],
    ) -> None:
        (out / "file").touch()
        (out / "locked").mkdir()
        (out / "full").mkdir()
        (out / "full" / name).write_bytes(b"mine")
        if place == "locked":
            monkeypatch.setattr(os, "access", lambda *_: False)  # as root every folder is writable
        assert_refused(verb, *pair, option, out / place / name, parts=parts, out=out)

    def test_one_existing_output_stops_the_other(self, pair: tuple[str, str], out: Path) -> None:
        (out / "o.png").write_bytes(b"mine")
        outputs = ("-o", out / "o.npz", "--draw", out / "o.png")
        assert_refused("match", *pair, *outputs, parts=["o.png exists already"], out=out)

    @pytest.mark.parametrize(
        ("verb", "option", "name", "parts"),
        [
            ("match", "-o", "o.txt", "must end in .npz, .csv, .h5"),
            ("match", "-o", "o", "must end in .npz, .csv, .h5"),
            ("match", "--draw", "o.svg", "must end in .png"),
            ("flow", "-o", "o.csv", "must end in .flo, .npz"),
            ("flow", "--draw", "o.gif", "must end in .png"),
        ],
    )
    def test_unknown_format(
        self, pair: tuple[str, str], out: Path, verb: str, option: str, name: str, parts: str
    ) -> None:
        assert_refused(verb, *pair, option, out / name, parts=[parts], out=out)

    def test_output_is_an_input(self, pair: tuple[str, str], tmp_path: Path) -> None:
        parts = ["it is an input; give another name"]
        assert_refused("match", *pair, "--draw", pair[0], "--overwrite", parts=parts, out=tmp_path)

    def test_outputs_are_checked_before_the_work(self, pair: tuple[str, str], out: Path) -> None:
        (out / "o.npz").touch()
        parts = ["o.npz exists already"]
        assert_refused(
            "match", "no.jpg", pair[1], "--weights", "no", "-o", out / "o.npz", parts=parts, out=out
        )

    def test_disk_full_leaves_nothing(
        self, pair: tuple[str, str], out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "link", fail)
        monkeypatch.setattr(Path, "replace", fail)
        assert_refused("match", *pair, "-o", out / "o.npz", parts=["no space left on device"], out=out)


class TestBadValues:
    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            (["--ratio", "0"], "--ratio must be in (0, 1], got 0"),
            (["--min-score", "2"], "--min-score must be in [0, 1], got 2"),
            (["--max-keypoints", "0"], "--max-keypoints must be at least 1"),
            (["--max-keypoints", "3000000000"], "--max-keypoints must be at most 1000000, got 3000000000"),
            (["--device", "toaster"], "--device must be cpu, cuda, cuda:N or mps, got 'toaster'"),
        ],
    )
    def test_values_out_of_range(
        self, pair: tuple[str, str], out: Path, options: list[str], parts: str
    ) -> None:
        assert_refused("match", *pair, *options, "-o", out / "o.npz", parts=[parts], out=out)

    @pytest.mark.parametrize(
        "options",
        [
            *(["--max-side", side] for side in ("-1", "0", "8", "large", "1e3", "")),
            ["--keypoints", "edges"],
            ["--ratio", "half"],
        ],
    )
    def test_wrong_usage(self, pair: tuple[str, str], out: Path, options: list[str]) -> None:
        assert_refused("match", *pair, *options, "-o", out / "o.npz", parts=[options[0]], out=out, code=2)

    def test_full_size_is_none_and_not_0(self, pair: tuple[str, str], out: Path) -> None:
        parts = ["--max-side must be auto, none (full size) or a number of pixels from 32 on, got '0'"]
        for command in (("match", *pair), ("extract", str(Path(pair[0]).parent))):
            assert_refused(*command, "--max-side", "0", "-o", out / "o.h5", parts=parts, out=out, code=2)


class TestBadWeights:
    """With the real matcher."""

    def test_unknown_name_lists_the_legal_ones(self, pair: tuple[str, str], out: Path) -> None:
        parts = ["no weights 'nonsense'", "geometric"]
        assert_refused("match", *pair, "--weights", "nonsense", "-o", out / "o.npz", parts=parts, out=out)

    def test_file_that_is_no_weights(self, pair: tuple[str, str], out: Path, tmp_path: Path) -> None:
        path = tmp_path / "w.safetensors"
        path.write_bytes(b"nonsense" * 9)
        assert_refused(
            "match", *pair, "--weights", path, "-o", out / "o.npz", parts=["w.safetensors"], out=out
        )

    def test_wrong_hash(
        self, pair: tuple[str, str], out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from ucn.weights import store

        damaged = tmp_path / "geometric.safetensors"
        damaged.write_bytes(b"damaged")
        monkeypatch.setattr(store, "shipped_path", lambda _: damaged)
        parts = ["weights 'geometric'", "hash", "expected"]
        assert_refused("match", *pair, "-o", out / "o.npz", parts=parts, out=out)


class TestSmallImages:
    """With the real matcher."""

    @pytest.mark.parametrize("side", [1, 8])
    @pytest.mark.parametrize("verb", ["match", "flow"])
    @pytest.mark.parametrize("place", [0, 1])
    def test_refused_with_the_limit_named(
        self,
        pair: tuple[str, str],
        out: Path,
        tmp_path: Path,
        random_weights: Path,
        side: int,
        verb: str,
        place: int,
    ) -> None:
        PIL.Image.new("RGB", (side, side)).save(tmp_path / "small.png")
        images = [*pair]
        images[place] = str(tmp_path / "small.png")
        output = ("-o", out / "o.npz", "--weights", random_weights)
        assert_refused(verb, *images, *output, parts=["32"], out=out)


class TestApi:
    """The same at `ucn.Matcher`."""

    def test_weights(self) -> None:
        from ucn.matching.matcher import Matcher

        with pytest.raises(WeightsError, match=r"no weights 'nonsense'.*geometric"):
            Matcher.from_pretrained("nonsense")

    def test_inputs(self, pair: tuple[str, str], random_weights: Path, tmp_path: Path) -> None:
        from ucn.matching.matcher import Matcher

        matcher = Matcher.from_pretrained(random_weights, device="cpu")
        for make, parts in BAD_IMAGES:
            bad = tmp_path / f"{make.__name__}.jpg"
            make(bad)
            with pytest.raises(ValueError, match=parts):
                matcher.match(pair[0], bad)
        with pytest.raises(ValueError, match="32"):
            matcher.match(pair[0], torch.zeros(3, 8, 8))
        with pytest.raises(ValueError, match=r"row 0: point \(80, 3\) lies outside the image"):
            matcher.match(*pair, points=np.array([[80.0, 3.0]]))
        with pytest.raises(ValueError, match=r"row 1: .* is not finite"):
            matcher.match(*pair, points=np.array([[8.0, 3.0], [np.nan, 3.0]]))
        with pytest.raises(ValueError, match=r"mask must be \(H, W\) = \(64, 80\)"):
            matcher.match(*pair, mask0=np.ones((3, 3), bool))
