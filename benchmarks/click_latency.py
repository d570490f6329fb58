"""Latency of a click on the web page once both images are encoded: over HTTP, with the similarity map.

python benchmarks/click_latency.py [--threads 2] [--clicks 30] [--json]

The pair is the bundled one (741×500), then the same at 1024×768, the largest size encoded by default.
"""

from __future__ import annotations

import http.client
import io
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import PIL.Image
from command_line import limit_to_cpu, make_parser, print_result

from ucn.data.example import example_pair


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clicks", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    environment = limit_to_cpu(arguments.threads)
    command = [sys.executable, "-m", "ucn", "serve", "--port", "0", "--json", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            results = _measure(_read_address(process), arguments.clicks)
        finally:
            process.terminate()
    print_result({**results, "clicks": arguments.clicks}, arguments.threads, arguments.json)


def _read_address(process: subprocess.Popen[str]) -> str:
    """Host and port printed by the server."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if line.startswith("}"):
            break
    return str(json.loads(text)["url"]).removeprefix("http://")


def _measure(address: str, clicks: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection(address, timeout=600)
    pair = example_pair()
    results: dict[str, Any] = {}
    for size in ((741, 500), (1024, 768)):
        session = _post(connection, "/api/sessions", b"")["session"]
        names = []
        for path in (pair.image0_path, pair.image1_path):
            file = io.BytesIO()
            PIL.Image.open(path).convert("RGB").resize(size, PIL.Image.Resampling.LANCZOS).save(file, "PNG")
            names.append(_post(connection, f"/api/sessions/{session}/images", file.getvalue())["image"])
        request = {"image0": names[0], "image1": names[1]}
        label = f"{size[0]}x{size[1]}"
        started = time.perf_counter()
        _post(connection, "/api/match", json.dumps({**request, "points": []}).encode())
        results[f"{label} first match s"] = round(time.perf_counter() - started, 2)
        milliseconds = []
        for click in range(clicks):
            point = [size[0] * (0.2 + 0.6 * click / clicks), size[1] * (0.3 + 0.01 * (click % 40))]
            body = json.dumps({**request, "points": [point], "similarities_of": 0}).encode()
            started = time.perf_counter()
            _post(connection, "/api/match", body)
            milliseconds.append(1000 * (time.perf_counter() - started))
        results[f"{label} median ms"] = round(statistics.median(milliseconds), 1)
        results[f"{label} slowest ms"] = round(max(milliseconds), 1)
    return results


def _post(connection: http.client.HTTPConnection, path: str, body: bytes) -> dict[str, Any]:
    kind = "application/json" if path.startswith("/api/match") else "application/octet-stream"
    connection.request("POST", path, body, {"Content-Type": kind})
    response = connection.getresponse()
    content = response.read()
    if response.status >= 400:
        raise SystemExit(f"{path} responded with {response.status}: {content.decode()}")
    return dict(json.loads(content))


if __name__ == "__main__":
    main()
