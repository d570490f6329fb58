"""Files made to hang, crash or exhaust memory: each is read, or refused by an error of ucn, within limits.

`make test` reads the hand-made bombs, paths that are no files, and `UCN_FUZZ` damaged files (by default 100);
`make fuzz` reads thousands. docs/security.md states what is promised.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL.Image
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.hostile_files import (
    Case,
    list_sound_files,
    make_bombs,
    make_damaged,
    make_mat,
    make_merge_bomb,
    make_png,
    make_scan_bomb,
    make_special,
    make_tag_bomb,
    make_tile_bomb,
    place,
)
from support.hostile_worker import HANG_SECONDS, Worker, run_cases
from ucn.config.strict_yaml import load_yaml
from ucn.data import decoding, image_limits, io
from ucn.data.decoding import load_frugally
from ucn.data.image_limits import check_structure
from ucn.data.io import decode_image, decode_reduced_image, read_header_hw, read_image, read_reduced_image
from ucn.data.sets.semantic import matlab
from ucn.errors import DataError, ImageReadError, WeightsError
from ucn.files.reading import open_regular, read_binary, shorten
from ucn.nn.tiling import reduce_image
from ucn.train import checkpoint
from ucn.weights.store import load_weights, read_weights_header

_COUNT = int(os.environ.get("UCN_FUZZ", "100"))
_SEED = int(os.environ.get("UCN_FUZZ_SEED", "0"))

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the guards of memory need Linux")


def assert_contained(cases: Sequence[Case], folder: Path) -> None:
    """Each case is read or refused, in time and within its memory, with a short message and no noise."""
    paths = [(case.reader, place(case, folder, number)) for number, case in enumerate(cases)]
    wrong = []
    for case, (_, path), found in zip(cases, paths, run_cases(paths), strict=True):
        is_long = len(found.text.replace(str(path), "")) > 1000  # keys of a recipe are listed
        if found.kind not in ("read", "refused") or found.is_over or is_long or found.noise:
            wrong.append(f"{case.family} {path.name} for {case.reader}: {found}")
    assert not wrong, "\n".join(wrong[:10])


def test_bombs_are_contained(tmp_path: Path) -> None:
    assert_contained(make_bombs(), tmp_path)


def test_paths_that_are_no_files_are_refused(tmp_path: Path) -> None:
    cases = make_special()
    assert_contained(cases, tmp_path)
    assert {case.content for case in cases} >= {"fifo", "device", "device link", "loop", "socket"}


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    started = time.monotonic()
    for first in range(0, _COUNT, 500):
        folder = tmp_path / str(first)
        folder.mkdir()
        cases = list(make_damaged(min(500, _COUNT - first), _SEED + first, folder))
        assert_contained(cases, folder)
        if time.monotonic() - started > 1200:  # of `make fuzz`
            break


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str, bytes]]:
    return list_sound_files(tmp_path_factory.mktemp("sound"))


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_nested = st.recursive(
    _scalars, lambda each: st.lists(each, max_size=5) | st.dictionaries(st.text(max_size=8), each, max_size=5)
)
_table = st.text(st.sampled_from("0123456789.,;-+eE\"'\n\r\t xyname\0é#"), max_size=300)
_edit = st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40))
_examples = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=max(40, _COUNT // 10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_read_or_refused(worker: Worker, reader: str, path: Path, content: bytes) -> None:
    path.write_bytes(content)
    found = worker.read(reader, path)
    assert found.kind in ("read", "refused"), found
    assert not found.is_over, found
    assert not found.noise, found


@_examples
@given(value=_nested, reader=st.sampled_from(["recipe", "points", "own", "camera"]))
def test_nested_values(worker: Worker, tmp_path: Path, value: object, reader: str) -> None:
    suffix = {"recipe": ".yaml", "points": ".json", "own": ".jsonl", "camera": ".yml"}[reader]
    text = yaml.safe_dump(value) if suffix in (".yaml", ".yml") else json.dumps(value)
    assert_read_or_refused(worker, reader, tmp_path / f"a{suffix}", text.encode(errors="surrogatepass"))


@_examples
@given(text=_table, reader=st.sampled_from(["points", "pairs", "matches", "camera"]))
def test_tables_of_text(worker: Worker, tmp_path: Path, text: str, reader: str) -> None:
    suffix = ".txt" if reader in ("pairs", "camera") else ".csv"
    assert_read_or_refused(worker, reader, tmp_path / f"a{suffix}", text.encode())


@_examples
@given(edits=st.lists(_edit, min_size=1, max_size=6), choice=st.floats(0, 1, exclude_max=True))
def test_edited_files(
    worker: Worker,
    sound: list[tuple[str, str, str, bytes]],
    tmp_path: Path,
    edits: list[tuple[float, int, bytes]],
    choice: float,
) -> None:
    """Parts of a sound file are replaced; a failing case is reduced to the fewest and smallest edits."""
    _, reader, suffix, content = sound[int(choice * len(sound))]
    data = bytearray(content)
    for where, size, part in edits:
        start = int(where * len(data))
        data[start : start + size] = part
    assert_read_or_refused(worker, reader, tmp_path / f"a{suffix}", bytes(data))


def test_worker_notices_what_is_wrong(tmp_path: Path) -> None:
    """A guard that never fires would let everything pass."""
    code = (
        "import sys, time\n"
        "sys.path.insert(0, 'tests')\n"
        "from support import hostile_worker as worker\n"
        "worker.READERS.clear()\n"
        "worker.READERS['foreign'] = lambda path: {}['x']\n"
        "worker.READERS['slow'] = lambda path: time.sleep(60 * (path.name == 'x'))\n"
        "worker.READERS.update(large=lambda path: len(bytearray(400_000_000)))\n"
        "worker._main()"
    )
    patch = pytest.MonkeyPatch()
    root = Path(__file__).parents[2]
    start = subprocess.Popen

    def start_other(command: Sequence[str], **settings: object) -> subprocess.Popen[bytes]:
        return start([sys.executable, "-c", code], cwd=root, **settings)  # type: ignore[call-overload, no-any-return]

    with patch.context() as context:
        context.setattr(subprocess, "Popen", start_other)
        found = run_cases([(name, tmp_path / "x") for name in ("foreign", "large", "slow")], seconds=5)
    assert [each.kind for each in found] == ["foreign", "read", "hang"]
    assert [each.is_over for each in found] == [False, True, False]


class TestOpenRegular:
    def test_reads_files_and_links_to_them(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"abc")
        (tmp_path / "b").symlink_to("a")
        with open_regular(tmp_path / "b", 3) as file:
            assert file.read() == b"abc"
        with pytest.raises(OSError, match="3 bytes, the limit is 2"):
            open_regular(tmp_path / "a", 2)

    def test_refuses_what_would_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "zero").symlink_to("/dev/zero")
        for name in ("pipe", "zero"):
            with pytest.raises(OSError, match="not a regular file"):
                open_regular(tmp_path / name)
        with pytest.raises(DataError, match=r"cannot read list .*pipe: it is not a regular file"):
            read_binary(tmp_path / "pipe", "list")
        assert read_header_hw(tmp_path / "pipe") is None

    def test_null_in_a_name(self) -> None:
        with pytest.raises(OSError, match="null"):
            open_regular(Path("a\0b"))

    def test_messages_of_libraries_are_shortened(self) -> None:
        assert shorten("a\n  b") == "a b"
        assert len(shorten("x" * 5000)) == 161
        assert shorten("bad header: '" + "x" * 100 + "'") == "bad header: '" + "x" * 80 + "…"
        assert shorten("a\x1b[2Jb") == "a\ufffd[2Jb"

    def test_message_of_safetensors_is_shortened(self, tmp_path: Path) -> None:
        """It quotes a type that it does not know, however long that is."""
        path = tmp_path / "w.safetensors"
        header = {"a": {"dtype": "\x1bX" * 50_000, "shape": [1], "data_offsets": [0, 4]}}
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
        for read in (load_weights, read_weights_header, checkpoint._read):
            with pytest.raises(WeightsError, match="unknown variant") as caught:
                read(path)
            assert len(str(caught.value)) < 300 + len(str(path))
            assert str(caught.value).isprintable()


class TestImageLimits:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (make_scan_bomb(64, 200), "101 scans or more"),
            (make_scan_bomb(64, 200, progressive=False), "101 scans or more"),
            (make_tile_bomb(46_336), r"tiles of 46,336 × 46,336 pixels for an image of 64 × 64"),
            (make_tag_bomb(300, 2**16), "tags hold more bytes than the file"),
            (make_png(1, 160_000_000, b""), "limit for a side is 100,000"),
            (make_png(14_000, 14_000, b""), "196,000,000 pixels, the limit"),
            (b"P3 1 1 255" + b" " * 2**25, "values as text"),
            (b"GIF89a" + bytes(7) + b"!\xfe" + b"\x01a" * 20_000, "10,000 blocks"),
            (b"\xff\xd8" + b"\xff\xfe\0\x02" * 20_000, "segments are not in order"),
            (b"\x89PNG\r\n\x1a\n" + b"\0\0\0\0tEXtcrc " * 200_001, "200,000 chunks"),
        ],
    )
    def test_is_refused_by_its_structure(self, content: bytes, message: str) -> None:
        with pytest.raises(ImageReadError, match=message):
            decode_image(content)

    def test_sound_files_pass(self, tmp_path: Path) -> None:
        image = PIL.Image.new("RGB", (300, 200), "red")
        for name, options in (
            *(("a.jpg", {"progressive": True}), ("b.png", {}), ("c.gif", {})),
            *(("d.tif", {"compression": "tiff_lzw"}), ("e.tif", {"tile": (64, 64)}), ("f.webp", {})),
        ):
            image.save(tmp_path / name, **options)
            with (tmp_path / name).open("rb") as file:
                check_structure(file)
                assert file.tell() == 0
            assert read_image(tmp_path / name).shape == (3, 200, 300)


def save_photo(path: Path, width: int, height: int, orientation: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8)
    image = PIL.Image.fromarray(values).resize((width, height), PIL.Image.Resampling.BICUBIC)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    image.save(path, exif=exif, compress_level=0, quality=95)


class TestDecoders:
    """Images whose decoders hold more than one copy."""

    @pytest.mark.parametrize("name", ["a.webp", "lossless.webp", "transparent.webp", "a.heic", "grey.heic"])
    def test_frugal_decoder_gives_the_same_pixels(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        if name.endswith("heic"):
            pytest.importorskip(
                "pillow_heif", reason="the extra 'heif' is not installed"
            ).register_heif_opener()
        colours = np.random.default_rng(0).integers(0, 256, (9, 12, 4), dtype=np.uint8)
        mode = {"transparent": "RGBA", "grey": "L"}.get(name.partition(".")[0], "RGB")
        image = PIL.Image.fromarray(colours).convert(mode).resize((240, 180))
        exif = PIL.Image.Exif()
        exif[0x0112] = 6
        image.save(tmp_path / name, exif=exif, lossless=name.startswith("lossless"))
        expected = read_image(tmp_path / name)
        used = []
        monkeypatch.setattr(io, "choose_decoder", lambda image, file: True)

        def load(image: PIL.Image.Image, file: BinaryIO) -> decoding.PixelArray:
            used.append(1)
            return load_frugally(image, file)

        monkeypatch.setattr(io, "load_frugally", load)
        assert torch.equal(read_image(tmp_path / name), expected)
        assert torch.equal(read_reduced_image(tmp_path / name, 64).pixels, reduce_image(expected, 64))
        assert used == [1, 1]

    @pytest.mark.parametrize(
        ("name", "mode", "settings", "megapixels"),
        [
            ("a.png", "RGBA", {}, None),
            ("a.tif", "RGB", {"compression": "tiff_lzw", "tiffinfo": {278: 8}}, None),
            ("turned.tif", "RGB", {"tiffinfo": {274: 6}}, 45),
            ("strip.tif", "RGB", {"compression": "tiff_lzw", "tiffinfo": {278: 999}}, 60),
            ("a.jpg", "RGB", {}, None),
            ("progressive.jpg", "RGB", {"progressive": True}, None),
            ("full.jpg", "RGB", {"progressive": True, "subsampling": 0}, 90),
            ("a.webp", "RGB", {}, 78),
            ("transparent.webp", "RGBA", {}, 38),
            ("lossless.webp", "RGB", {"lossless": True}, 40),
            ("animated.webp", "RGB", {"save_all": True}, 14.6),
            ("a.avif", "RGB", {}, 24.3),
            ("transparent.avif", "RGBA", {}, 16.3),
            ("a.jp2", "RGB", {}, 12),
            ("tiled.jp2", "RGB", {"tile_size": (64, 64)}, None),
            ("a.heic", "RGB", {}, 52.9),
            ("full.heic", "RGB", {"chroma": 444}, 32),
        ],
    )
    def test_limits(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        mode: str,
        settings: dict[str, Any],
        megapixels: float | None,
    ) -> None:
        """By the same image with a thousandth of the pixels, of which the limit is a thousandth."""
        if name.endswith("heic"):
            pytest.importorskip(
                "pillow_heif", reason="the extra 'heif' is not installed"
            ).register_heif_opener()
        monkeypatch.setattr(decoding, "MAX_EXTRA_BYTES", 180_000)
        monkeypatch.setattr(image_limits, "MAX_EXTRA_BYTES", 180_000)
        for factor in (0.93, 1.1):
            side = int((1000 * factor * (megapixels or 160)) ** 0.5)
            image = PIL.Image.new(mode, (side, side), (200, 100, 50, 128)[: len(mode)])
            other = PIL.Image.new(mode, (side, side))
            more: dict[str, Any] = {"append_images": [other]} if "save_all" in settings else {}
            image.save(tmp_path / name, **settings, **more)
            if factor < 1 or megapixels is None:
                assert read_header_hw(tmp_path / name) == (side, side)
            else:
                with pytest.raises(ImageReadError, match=r"the limit is"):
                    read_image(tmp_path / name)

    @pytest.mark.parametrize("mode", ["RGB", "RGBA"])
    def test_frames_larger_than_their_avif(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
    ) -> None:
        """The boxes of 2 kB claim 64 × 48 pixels; its decoder would take 463 MB for 120 megapixels."""
        monkeypatch.setattr(decoding, "MAX_EXTRA_BYTES", 180_000)
        path = tmp_path / "a.avif"
        PIL.Image.new(mode, (200, 100), "red").save(path)
        assert read_header_hw(path) == (100, 200)
        content = path.read_bytes()
        declared = b"ispe" + bytes(4) + struct.pack(">II", 200, 100)
        path.write_bytes(content.replace(declared, b"ispe" + bytes(4) + struct.pack(">II", 64, 48)))
        with pytest.raises(ImageReadError, match="its decoder would take"):
            read_image(path)

    def test_chroma_that_a_heic_understates(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("pillow_heif", reason="the extra 'heif' is not installed").register_heif_opener()
        monkeypatch.setattr(decoding, "MAX_EXTRA_BYTES", 180_000)
        path = tmp_path / "a.heic"
        PIL.Image.new("RGB", (220, 200), "red").save(path, chroma=444)
        content = bytearray(path.read_bytes())
        content[content.index(b"hvcC") + 20] &= 0b1111_1101
        path.write_bytes(content)
        with pytest.raises(ImageReadError, match="44,000 pixels as HEIF, the limit is 31,"):
            read_image(path)

    def test_compressed_tiff_is_mapped(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decoding, "MAX_EXTRA_BYTES", 180_000)
        noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
        path = tmp_path / "a.tif"
        PIL.Image.fromarray(noise).save(path)
        assert read_image(path).shape == (3, 300, 300)
        PIL.Image.fromarray(noise).save(path, compression="tiff_lzw")
        with pytest.raises(ImageReadError, match=r"it is compressed to .* bytes, the limit is"):
            read_image(path)

    def test_range_of_a_ppm(self, tmp_path: Path) -> None:
        (tmp_path / "a.ppm").write_bytes(b"P6 2000 1500 100\n" + bytes(9_000_000))
        with pytest.raises(ImageReadError, match="9,000,000 values of another range than 0 to 255"):
            read_image(tmp_path / "a.ppm")


class TestReducedReading:
    @pytest.mark.parametrize("orientation", [1, 6, 7, 8])
    def test_equals_reading_and_reducing(self, tmp_path: Path, orientation: int) -> None:
        save_photo(tmp_path / "a.png", 2600, 1801, orientation)
        whole = read_image(tmp_path / "a.png")
        found = read_reduced_image(tmp_path / "a.png", 320)
        assert found.image_hw == tuple(whole.shape[-2:])
        assert found.orientation == orientation
        torch.testing.assert_close(found.pixels, reduce_image(whole, 320), atol=2e-5, rtol=0)

    @pytest.mark.parametrize("width", [2600, 2607])  # sides that a draft divides, and that it rounds up
    def test_draft_of_a_jpeg_is_registered(self, tmp_path: Path, width: int) -> None:
        save_photo(tmp_path / "a.jpg", width, 1801, 6)
        expected = reduce_image(read_image(tmp_path / "a.jpg"), 160)
        found = read_reduced_image(tmp_path / "a.jpg", 160)
        assert found.image_hw == (width, 1801)
        difference = (found.pixels - expected).mean(dim=0)[1:-1, 1:-1]
        grey = expected.mean(dim=0)
        slopes = (grey[1:-1, 2:] - grey[1:-1, :-2], grey[2:, 1:-1] - grey[:-2, 1:-1])
        system = torch.stack([slope.flatten() / 2 for slope in slopes], dim=1)
        shift = torch.linalg.lstsq(system, difference.flatten()[:, None]).solution
        assert shift.abs().max() < 0.01  # pixels
        assert difference.abs().max() < 0.02

    def test_small_image_is_kept(self, tmp_path: Path) -> None:
        save_photo(tmp_path / "a.png", 120, 80, 1)
        found = decode_reduced_image((tmp_path / "a.png").read_bytes(), 320)
        assert torch.equal(found.pixels, read_image(tmp_path / "a.png"))


class TestYaml:
    @pytest.mark.parametrize(
        "text", ["!!bool foo", "!!int ''", "!!float ''", "!!timestamp foo", "!!python/name:os.system", "!x y"]
    )
    def test_tags_are_refused(self, text: str) -> None:
        with pytest.raises(Exception, match="the tag") as caught:
            load_yaml(f"a: {text}")
        assert type(caught.value).__name__ == "YAMLError"

    def test_plain_values(self) -> None:
        text = "a: 1e-3\nb: [yes, null, 0x10, 2001-01-01]\nc: &x {d: 1.5}\ne: *x\n"
        expected = {"a": 1e-3, "b": [True, None, 16, "2001-01-01"], "c": {"d": 1.5}, "e": {"d": 1.5}}
        assert load_yaml(text) == expected

    @pytest.mark.parametrize(
        "text", [make_merge_bomb(12, 9).decode(), "a: &a [*a]", "[" * 50, "a: " + "1" * 99]
    )
    def test_bombs_are_refused_at_once(self, text: str) -> None:
        started = time.monotonic()
        with pytest.raises(Exception, match=r"values|nested|digits|end"):
            load_yaml(text)
        assert time.monotonic() - started < HANG_SECONDS / 10


class TestMat:
    def test_other_variables_are_not_kept(self, tmp_path: Path) -> None:
        wanted = make_mat("kps", (2, 1), np.arange(2.0).tobytes(), 9)
        (tmp_path / "a.mat").write_bytes(make_mat("other", (2**25, 1), bytes(2**25)) + wanted[128:])
        assert matlab.read_mat(tmp_path / "a.mat", ["kps"])["kps"].tolist() == [[0.0], [1.0]]

    @pytest.mark.parametrize("shape", [(1,) * 40, (0, 2**31 - 1, 2**31 - 1), (2**23, 1)])
    def test_sizes_are_checked(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        (tmp_path / "a.mat").write_bytes(make_mat("kps", shape, bytes(int(np.prod(shape)) % 2**24)))
        with pytest.raises(DataError, match=r"too large|unpacks to more|40 axes"):
            matlab.read_mat(tmp_path / "a.mat", ["kps"])
