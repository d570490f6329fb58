"""A local HTTP server with as much of the Hugging Face hub's interface as `ucn.formats.hub` needs."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeHub:
    """What the hub holds: files of commits by repository, newest last; and the requests to it.

    Attributes:
        commits: repository to its commits, each a name and its files.
        requests: methods and paths, in order.
        lies: wrong values that the hub announces of a file: "size", "sha256".
    """

    commits: dict[str, list[tuple[str, dict[str, bytes]]]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lies: dict[str, Any] = field(default_factory=dict)
    endpoint: str = ""

    def commit(self, repository: str, files: dict[str, bytes]) -> str:
        """Adds a commit and returns its name."""
        before = self.commits.setdefault(repository, [])
        merged = {**(before[-1][1] if before else {}), **files}
        name = hashlib.sha1(repr((len(before), sorted(merged))).encode()).hexdigest()
        before.append((name, merged))
        return name

    def find(self, repository: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit that a revision names."""
        commits = self.commits.get(repository, [])
        if revision == "main":
            return commits[-1] if commits else None
        return next((commit for commit in commits if commit[0] == revision), None)


def start_hub() -> tuple[FakeHub, ThreadingHTTPServer]:
    """Starts a hub at a free port of this machine; `shutdown` the server in the end."""
    hub = FakeHub()

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return hub, server


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        """Where a file is."""
        self.do_GET()

    def do_GET(self) -> None:
        """A file."""
        path = self.path.split("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if file:
            self._send_file(file[1], file[2], file[3])
        else:
            self._refuse("EntryNotFound")

    def do_POST(self) -> None:
        """A new repository, or a commit."""
        path = self.path.split("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'user'}/{asked['name']}"
            self.hub.commits.setdefault(name, [])
            self._send_json({"url": f"{self.hub.endpoint}/{name}", "private": asked.get("private")})
        elif "/preupload/" in path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(body)["files"]
            ]
            self._send_json({"files": files})
        elif "/commit/" in path:
            lines = [json.loads(line) for line in body.splitlines()]
            values = [line["value"] for line in lines if line["key"] == "file"]
            files_of = {value["path"]: base64.b64decode(value["content"]) for value in values}
            repository = "/".join(path.split("/")[3:5])
            name = self.hub.commit(repository, files_of)
            url = f"{self.hub.endpoint}/{repository}/commit/{name}"
            self._send_json({"success": True, "commitOid": name, "commitUrl": url})
        else:
            self._send_json({})

    def _send_file(self, repository: str, revision: str, path: str) -> None:
        if repository not in self.hub.commits:
            self._refuse("RepoNotFound", 401)
            return
        found = self.hub.find(repository, revision)
        if found is None or path not in found[1]:
            self._refuse("RevisionNotFound" if found is None else "EntryNotFound")
            return
        content = found[1][path]
        sha256 = hashlib.sha256(content).hexdigest()
        self.send_response(200)
        self.send_header("X-Repo-Commit", found[0])
        self.send_header("X-Linked-Size", str(self.hub.lies.get("size", len(content))))
        self.send_header("X-Linked-ETag", f'"{self.hub.lies.get("sha256", sha256)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _refuse(self, code: str, status: int = 404) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
