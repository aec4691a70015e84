"""A server that speaks the part of the Hugging Face Hub's API that reading takes.

As on the Hub, the content of large files lies on another server, to which the request for a file is sent on.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

LARGE_NBYTES = 1000


@dataclass
class Repository:
    """Commits by hash, each with its files; and what branches and tags lead to."""

    token: str | None = None
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        sha = hashlib.sha1(repr((sorted(files.items()), len(self.commits))).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.revisions[branch] = sha
        return sha

    def resolved(self, revision: str) -> str | None:
        return self.revisions.get(revision, revision if revision in self.commits else None)


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    range: str | None
    has_token: bool


class Hub:
    """A running Hub, with the server of large files."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[Asked] = []
        self.lost: set[str] = set()
        """Large files whose content is gone."""
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, is_hub=is_hub)) for is_hub in (True, False)]
        self.url, self.content_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)
        self._threads = [threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True) for server in self._servers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()

    def count(self) -> list[Asked]:
        """Return the requests since the last call."""
        asked, self.asked = self.asked, []
        return asked


_API = re.compile(r"/api/datasets/(?P<name>[^/]+/[^/]+)(?:/(?P<what>revision|tree)/(?P<revision>[^/]+)(?:/(?P<path>.*))?)?")
_FILE = re.compile(r"/datasets/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


def _handler(hub: Hub, *, is_hub: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            token = self.headers.get("Authorization")
            hub.asked.append(Asked(self.command, url.path, self.headers.get("Range"), token is not None))
            if not is_hub:
                self._content(unquote(url.path).lstrip("/"))
                return
            found = _API.fullmatch(url.path) or _FILE.fullmatch(url.path)
            parts = {name: unquote(value) for name, value in (found.groupdict() if found else {}).items() if value is not None}
            repository = hub.repositories.get(parts.get("name", ""))
            if repository is None or (repository.token is not None and token != f"Bearer {repository.token}"):
                self._refuse(401 if token is None else 404, "RepoNotFound")
            elif (sha := repository.resolved(parts.get("revision", "main"))) is None:
                self._refuse(404, "RevisionNotFound")
            elif parts.get("what") == "tree":
                self._tree(repository.commits[sha], parts.get("path", ""), parse_qs(url.query).get("recursive", [""])[0].lower() == "true")
            elif found is not None and found.re is _API:
                self._send(200, json.dumps({"_id": "1", "id": parts["name"], "sha": sha, "siblings": [], "tags": []}).encode())
            else:
                self._file(repository.commits[sha], sha, parts)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _tree(self, files: dict[str, bytes], directory: str, recursive: bool) -> None:
            inside = f"{directory}/" if directory else ""
            entries: dict[str, dict[str, Any]] = {}
            for path, data in sorted(files.items()):
                if path.startswith(inside):
                    names = path[len(inside) :].split("/")
                    for depth in range(1, len(names)) if recursive else range(1, min(2, len(names))):
                        above = inside + "/".join(names[:depth])
                        entries[above] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": above}
                    if recursive or len(names) == 1:
                        entries[path] = {"type": "file", "oid": "1" * 40, "size": len(data), "path": path}
            if entries or not directory:
                self._send(200, json.dumps(list(entries.values())).encode())
            else:
                self._refuse(404, "EntryNotFound")

        def _file(self, files: dict[str, bytes], sha: str, parts: dict[str, str]) -> None:
            data = files.get(parts["path"])
            if data is None:
                self._refuse(404, "EntryNotFound")
            elif len(data) > LARGE_NBYTES:
                self._send(302, b"", Location=f"{hub.content_url}/{parts['name']}/{sha}/{parts['path']}")
            else:
                self._range(data)

        def _content(self, path: str) -> None:
            owner, name, sha, inside = path.split("/", 3)
            if inside in hub.lost:
                self._send(404, b"gone")
            else:
                self._range(hub.repositories[f"{owner}/{name}"].commits[sha][inside])

        def _range(self, data: bytes) -> None:
            wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            if wanted is None:
                self._send(200, data, ETag=etag)
                return
            first, last = wanted.groups()
            start = int(first) if first else max(0, len(data) - int(last))
            end = min(len(data), int(last) + 1) if first and last else len(data)
            if start >= end:
                self._send(416, b"", **{"Content-Range": f"bytes */{len(data)}"})
            else:
                self._send(206, data[start:end], ETag=etag, **{"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

        def _refuse(self, status: int, code: str) -> None:
            self._send(status, json.dumps({"error": code}).encode(), **{"X-Error-Code": code})

        def _send(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json" if is_hub else "application/octet-stream")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    return Handler
