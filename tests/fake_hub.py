"""A hub on this machine's own address: repositories from a dict, in the few answers that huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """`repositories[name][file]` is a file's bytes; `gated` names answer 403; `stall` holds back half of each file."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.gated: set[str] = set()
        self.requests: list[str] = []
        self.stall: threading.Event | None = None
        self.url = ""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path).strip("/").split("/")
            hub.requests.append(f"{self.command} {self.path}")
            if path[:2] == ["api", "models"]:
                self.metadata("/".join(path[2:4]), path[4:])
            else:  # org/name/resolve/revision/file
                self.file("/".join(path[:2]), "/".join(path[4:]), body)

        def metadata(self, name: str, rest: list[str]) -> None:
            files = hub.repositories.get(name)
            if files is None or name in hub.gated:
                self.refuse(name)
                return
            entries = [
                {"type": "file", "path": path, "size": len(data), "oid": _oid(data)} for path, data in files.items()
            ]
            if rest[:1] == ["tree"]:
                self.send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})
                return
            siblings = [{"rfilename": path, "size": len(data), "blobId": _oid(data)} for path, data in files.items()]
            info = {"id": name, "modelId": name, "sha": REVISION, "siblings": siblings, "private": False, "tags": []}
            self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

        def file(self, name: str, path: str, body: bool) -> None:
            data = hub.repositories.get(name, {}).get(path)
            if data is None or name in hub.gated:
                self.refuse(name)
                return
            headers = {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
            self.send(200, data, headers, body)

        def refuse(self, name: str) -> None:
            gated = name in hub.gated
            self.send(403 if gated else 404, b"{}", {"X-Error-Code": "GatedRepo" if gated else "RepoNotFound"})

        def send(self, status: int, data: bytes, headers: dict[str, str], body: bool = True) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(key, value)
            self.end_headers()
            if not body:
                return
            try:
                half = len(data) // 2
                self.wfile.write(data[:half])
                self.wfile.flush()
                if hub.stall is not None and "ETag" in headers:
                    hub.stall.wait(60)
                self.wfile.write(data[half:])
            except (BrokenPipeError, ConnectionResetError):
                return  # the client was ended, which is what a test wanted

        def log_message(self, *_: object) -> None:
            """Requests are kept in `hub.requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        if hub.stall is not None:
            hub.stall.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
