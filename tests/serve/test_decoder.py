"""Uploads are decoded in a child process: with the same result, and none harms the server or the next one."""

import io
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from support.serve_cases import make_image
from ucn.data.io import decode_image
from ucn.errors import ImageReadError
from ucn.serve import decoder, decoder_child
from ucn.serve.decoder import Decoders
from ucn.serve.images import decode_upload


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    decoders = Decoders(1, 10**6)
    yield decoders
    decoders.close()


def _deep_grey() -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(np.arange(40 * 50, dtype=np.uint16).reshape(40, 50) * 30).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("content", [make_image(64, 48), make_image(70, 33, 1, "JPEG"), _deep_grey()])
def test_a_child_decodes_as_this_process(decoders: Decoders, content: bytes) -> None:
    image = decoders.show("a", content)
    assert image == decode_upload("a", content, 10**6)
    assert torch.equal(decoders.read(image), decode_image(content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged or not an image"),
        (b"GIF89a", "damaged or not an image"),
        (make_image(2000, 600), "the limit is 1,000,000 pixels"),
        (make_image(40, 20), "at least 32 pixels a side"),
        (make_image(200, 200)[:900], "get it again"),
    ],
)
def test_errors_are_those_of_this_process(decoders: Decoders, content: bytes, words: str) -> None:
    with pytest.raises(ImageReadError, match=words) as found:
        decoders.show("a", content)
    with pytest.raises(ImageReadError) as expected:
        decode_upload("a", content, 10**6)
    assert str(found.value) == str(expected.value)
    decoders.show("b", make_image())


def test_a_child_that_is_killed_is_replaced(decoders: Decoders) -> None:
    process = decoders._children[0]._start()
    process.kill()
    process.wait()
    assert decoders.show("a", make_image()).image_hw == (48, 64)


def test_a_child_without_an_answer_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    def start(*_: object, **__: object) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        return popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    decoders = Decoders(1, 10**6, wall_seconds=0.2)
    with pytest.raises(ImageReadError, match="it takes too long to decode; save it again"):
        decoders.show("a", make_image())
    decoders.close()


@pytest.mark.skipif(decoder.list_missing_limits() != [], reason="this system cannot limit a process")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("decoder_child.limit_seconds(0.1)\nwhile True: pass", "takes too long to decode"),
        ("decoder_child.limit_memory(10**6)\nbytearray(2**30)", "crashed"),
        ("import os; os.abort()", "crashed"),
        ("print('not JSON', flush=True)", "crashed"),
        ("print('[]', flush=True)", "crashed"),
    ],
)
def test_what_a_child_does_wrong_costs_one_upload(
    monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    def start(command: list[str], **options: Any) -> "subprocess.Popen[bytes]":
        before = f"import sys, io; sys.path[:0] = {sys.path!r}\nfrom ucn.serve import decoder_child\n"
        return popen([command[0], "-c", before + code], **options)

    popen = subprocess.Popen
    decoders = Decoders(1, 10**6)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        with pytest.raises(ImageReadError, match=words):
            decoders.show("a", make_image())
    assert decoders.show("a", make_image()).image_hw == (48, 64)
    decoders.close()


def test_the_child_imports_no_torch() -> None:
    code = "import sys, ucn.serve.decoder_child, ucn.serve.images; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_answers_of_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's code in this process, without its limits."""
    monkeypatch.setattr(decoder_child, "limit_seconds", lambda seconds: None)
    requests = io.BytesIO(b'{"task": "show", "bytes": 3}\nabc{"task": "read", "bytes": 0}\n')
    answers = io.BytesIO()
    decoder_child.serve(requests, answers, 10**6)
    lines = answers.getvalue().splitlines()
    assert len(lines) == 2
    assert all(b'"error": "cannot read the image: it is damaged or not' in line for line in lines)
