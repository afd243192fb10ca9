"""A stand-in for the Hugging Face hub: the endpoints that a download needs, over real HTTP.

Knows file names and bytes; can break off, gate a model and count what was asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What it holds and what happened."""

    files: dict[str, dict[str, bytes]]
    """By model id and file name."""
    gated: tuple[str, ...] = ()
    """Ids that want a token."""
    cuts: int = 0
    """How many transfers of weights still break off half-way."""
    fetched: list[tuple[str, int]] = field(default_factory=list)
    """File and first byte of every transfer."""
    url: str = ""


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0].lstrip("/")
            if found := re.fullmatch(r"api/models/([^/]+/[^/]+)(/revision/[^/]+)?(/tree/[^/]+)?", path):
                self.api(found[1], tree=bool(found[3]))
            elif found := re.fullmatch(r"([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                self.file(found[1], found[2], body=body)
            else:
                self.refuse(404, "EntryNotFound")

        def allowed(self, model: str) -> bool:
            if model not in hub.files:
                self.refuse(401 if "authorization" not in self.headers else 404, "RepoNotFound")
                return False
            if model in hub.gated and self.headers.get("authorization") != "Bearer hf_right":
                self.refuse(401, "GatedRepo")
                return False
            return True

        def api(self, model: str, *, tree: bool) -> None:
            if not self.allowed(model):
                return
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in hub.files[model].items()
            ]
            info = {"id": model, "sha": SHA, "siblings": [{"rfilename": entry["path"]} for entry in entries]}
            data = json.dumps(entries if tree else info).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def file(self, model: str, name: str, *, body: bool) -> None:
            if not self.allowed(model):
                return
            if name not in hub.files[model]:
                self.refuse(404, "EntryNotFound")
                return
            data = hub.files[model][name]
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            first = int(wanted[1]) if wanted else 0
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - first))
            self.send_header("ETag", f'"{_etag(data)}"')
            self.send_header("X-Repo-Commit", SHA)
            self.end_headers()
            if not body:
                return
            hub.fetched.append((name, first))
            if hub.cuts and name.endswith(("safetensors", "npz")):
                hub.cuts -= 1
                self.wfile.write(data[first : first + (len(data) - first) // 2])
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(2)
                return
            self.wfile.write(data[first:])

        def refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
