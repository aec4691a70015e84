"""Sets of references that mean harm: they lead where they may not, or would fill the memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.references.pins import PinnedObject, PinnedStore, SetDigest, encode_pins
from shardstore.opening.open import open_storage
from shardstore.testing.storage_suite import SyncStorage
from tests.storage.http.http_servers import WebServer
from tests.storage.references.reference_sets import open_set, write_set

DATA = bytes(range(256))


FORBIDDEN = {
    "file": "file:///etc/passwd",
    "local": "local:///etc/passwd",
    "absolute": "/etc/passwd",
    "memory": "memory://secret",
    "s3": "s3://bucket/x",
    "gs": "gs://bucket/x",
    "ftp": "ftp://127.0.0.1/x",
    "sftp": "sftp://127.0.0.1/x",
    "github": "github://a:b@c/x",
    "archive": "zip://x::file:///etc/x.zip",
    "dir": "dir::file:///etc/passwd",
    "cache": "simplecache::file:///etc/passwd",
    "cached": "simplecache::https://host/x",
    "above": "../../../../../../etc/passwd",
}


@pytest.fixture
def server(server: WebServer) -> WebServer:
    server.objects["/x/data"] = DATA
    return server


def test_a_set_from_a_network_leads_to_its_own_kind_only(server: WebServer, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/secret", b"mine")
    refs: dict[str, Any] = {name: [url, 0, 4] for name, url in FORBIDDEN.items()} | {
        f"{name}/whole": [url] for name, url in FORBIDDEN.items()
    }
    refs |= {"good": [f"{server.url}/x/data", 1, 4], "near": ["data", 1, 4]}
    server.objects["/x/refs.json"] = json.dumps({"version": 1, "refs": refs}).encode()
    url = f"reference::{server.url}/x/refs.json"
    for target in (url, f"simplecache::{server.url}/x/refs.json"):
        cache = {} if target is url else {"target_options": {"simplecache": {"cache_storage": str(tmp_path)}}}
        options = {} if target is url else {"fo": target, **cache}
        s = SyncStorage(open_storage(url if target is url else "reference://", options))
        for key in ("good", "near"):
            assert s.get(key) == DATA[1:5]
        for key in refs.keys() - {"good", "near"} - ({"cached", "cached/whole"} if target is not url else set()):
            with pytest.raises((InvalidInput, Corruption), match=rf"refers for '{key}' to ") as caught:
                s.get(key)
            if not key.startswith("above"):
                assert "allow_protocols" in str(caught.value), key
    allowed = open_storage(url, {"allow_protocols": ["file", "memory"]})
    assert SyncStorage(allowed).get("memory") == b"mine"
    assert SyncStorage(allowed).get("file") == Path("/etc/passwd").read_bytes()[:4]
    grants: list[dict[str, Any]] = [{"remote_protocol": "memory"}, {"memory": {"global_store": True}}, {"fs": {"memory": {}}}]
    for options in grants:
        assert SyncStorage(open_storage(url, options)).get("memory") == b"mine", options
        with pytest.raises(InvalidInput):
            SyncStorage(open_storage(url, options)).get("file")


def test_pins_allow_the_servers_that_they_name_and_no_local_files(server: WebServer) -> None:
    server.objects["/x/refs.json"] = json.dumps({"a": ["s3://bucket/x"], "b": ["file:///etc/passwd"]}).encode()
    for base, key in (("s3://bucket/", "a"), ("file:///etc/", "b"), ("memory://x/", "b")):
        objects = [PinnedObject("x", "1", 1)]
        digest = SetDigest(0, 0).extended(server.objects["/x/refs.json"])
        server.objects["/x/refs.json.pins"] = encode_pins(PinnedStore(base, base), digest, objects)
        storage = open_storage(f"reference::{server.url}/x/refs.json")
        with pytest.raises(InvalidInput, match="allow_protocols"):
            SyncStorage(storage).get("b")
        if key == "a":
            storage.targets.target("s3://bucket/y")  # type: ignore[attr-defined]  # of ReferenceStorage


def test_a_local_set_may_lead_anywhere(server: WebServer, tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/secret", b"mine")
    path = write_set(tmp_path / "refs.json", {"a": [f"{server.url}/x/data", 1, 4], "b": ["memory://secret"], "c": ["/etc/passwd", 0, 2]})
    for fo in (path, json.loads(path.read_text())):
        s = open_set(fo)
        assert (s.get("a"), s.get("b"), len(s.get("c") or b"")) == (DATA[1:5], b"mine", 2)


BOMBS: dict[str, Any] = {
    "keys": {"version": 1, "gen": [{"key": "{{i}}", "url": "u", "dimensions": {"i": {"stop": 10**15}}}], "refs": {}},
    "dimensions": {"version": 1, "gen": [{"key": "x", "url": "u", "dimensions": {f"i{n}": {"stop": 10} for n in range(300)}}]},
    "text": {"version": 1, "templates": {"u": "x" * 60_000}, "refs": {"a": ["{{u}}" * 60_000]}},
    "product": {"version": 1, "templates": {"u": "x"}, "refs": {"a": ["{{u * 100000000000}}"]}},
    "long keys": {"version": 1, "gen": [{"key": "{{i}}" + "x" * 60_000, "url": "u", "dimensions": {"i": {"stop": 10**7}}}]},
    "size": {"version": 1, "refs": {"a": ["u", 0, 2**63]}},
    "offset": {"version": 1, "refs": {"a": ["u", -1, 2]}},
    # A beginning, and what follows it so many times: it is made where it is used.
    "nesting": ('{"version": 1, "refs": {"a": ', "[", 50_000_000),
    "objects": ("", '{"a": ', 10_000_000),
    "open text": ('{"a": "', "x", 400_000_000),
}

_OPEN = """
import resource, sys
from shardstore.opening.open import open_storage
from shardstore.errors import ShardStoreError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_storage("reference::" + sys.argv[1])
except ShardStoreError as exc:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, type(exc).__name__)
"""


@pytest.mark.gate
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_an_error_with_bounded_memory(name: str, tmp_path: Path) -> None:
    bomb = BOMBS[name]
    path = tmp_path / "refs.json.gz"
    text = bomb[0] + bomb[1] * bomb[2] if isinstance(bomb, tuple) else json.dumps(bomb)
    path.write_bytes(gzip.compress(text.encode(), 1))
    done = subprocess.run([sys.executable, "-c", _OPEN, str(path)], capture_output=True, text=True, timeout=120, check=True)
    kib, error = done.stdout.split()
    assert error in ("Corruption", "Unsupported")
    assert int(kib) < (1_200_000 if name in ("long keys", "open text") else 200_000)
