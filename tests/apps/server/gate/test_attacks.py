"""Faults that others have found by attacking the server, each once more."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from shardstore._sync import run_sync
from shardstore.apps.cli.output import ExitCode
from shardstore.apps.server import serve
from shardstore.apps.server.asgi import MOST_KEY_NBYTES, MOST_SEGMENTS
from shardstore.errors import Corruption, NotFound, ShardStoreError, StorageError
from shardstore.model.redaction import redacted
from shardstore.storage.base import Found, Read, ReadOutcome
from shardstore.storage.inferred_versions import unversioned
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage
from tests.apps.cli.running import run, succeed
from tests.apps.server.conftest import Client, connected
from tests.apps.server.gate.test_s3 import NS, listed
from tests.apps.server.test_running import address, raw

CHUNK = "zarr3/ct/c/0/0/0"
OTHER = "zarr3/ct/c/0/1/0"  # in the same shard
MISSING = "zarr3/ct/c/6/0/0"  # likewise, and it does not exist
SDK = {"amz-sdk-invocation-id": "1"}


# -- what is read ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/", "//", "/etc/", "/ct/", "..", "../", "ct/../", "ct//", "./", "\\", "%00"])
@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
@pytest.mark.parametrize("delimiter", ["", "&delimiter=/"])
def test_no_prefix_leads_out_of_the_store(client: Client, bucket: str, prefix: str, delimiter: str) -> None:
    found = client.get(f"{bucket}?list-type=2&prefix={prefix}{delimiter}")
    assert found.status_code == 200
    root = ElementTree.fromstring(found.content)
    assert root.findtext("s3:KeyCount", "", NS) == "0"


async def test_the_root_directory_of_the_machine_is_no_prefix_of_a_local_storage(made: Path) -> None:
    listed_there = await LocalStorage(made).list_dir("/")
    assert (listed_there.objects, listed_there.prefixes) == ((), ())


@pytest.mark.parametrize("prefix", [".", "ct/.", "deep/plain/."])
def test_a_prefix_is_text_not_a_path(client: Client, prefix: str) -> None:
    wanted = [key for key, _ in listed(client.http, "zarr2")[0] if key.startswith(prefix)]
    assert wanted
    assert [key for key, _ in listed(client.http, "zarr2", prefix=prefix)[0]] == wanted


@pytest.mark.parametrize("view", ["zarr3", "zarr2"])
def test_the_entity_tag_of_another_chunk_matches_nothing(client: Client, view: str) -> None:
    def name(path: str) -> str:
        return path if view == "zarr3" else path.replace("zarr3", "zarr2").replace("/c/", "/")

    etag = client.get(name(CHUNK)).headers["etag"]
    for path in (name(OTHER), name(MISSING)):
        for method in ("GET", "HEAD"):
            assert client.get(path, method, if_match=etag).status_code == 412, (path, method)
    assert client.get(name(CHUNK), if_match=etag).status_code == 200
    other = client.get(name(OTHER), range="bytes=0-9", if_range=etag)
    assert (other.status_code, other.content) == (200, client.get(name(OTHER)).content)


@pytest.fixture
def linked(store: Path) -> Path:
    """A store with links to files of others: an object, a directory, a shard and the document of an array."""
    outside = store.parent / "outside"
    shutil.copytree(store / "gz", outside / "array")
    (outside / "secret.txt").write_text("SECRET")
    (store / "file.txt").symlink_to(outside / "secret.txt")
    (store / "directory").symlink_to(outside)
    (store / "ct/c/0/0/0").unlink()
    (store / "ct/c/0/0/0").symlink_to(outside / "secret.txt")
    (store / "notes/again").symlink_to("read me.txt")
    return store


_LINKS = ["file.txt", "directory/secret.txt", "directory/array/zarr.json", "ct/c/0/0/0"]


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
def test_links_do_not_lead_out_of_the_store(linked: Path, bucket: str) -> None:
    with serve(linked, port=0) as serving, connected(serving) as http:
        names = _LINKS if bucket != "zarr2" else ["file.txt", "directory/secret.txt", "ct/0/0/0"]
        for key in names:
            for method in ("GET", "HEAD"):
                assert http.request(method, f"{bucket}/{key}").status_code == 403, key
        keys = [key for key, _ in listed(http, bucket)[0]]
        assert not [key for key in keys if key.startswith(("file.txt", "directory", "ct/c/0/0/"))]
        assert "notes/again" in keys
        assert http.get(f"{bucket}/notes/again").content == b"something else"
        assert http.get(f"{bucket}/directory/").status_code == 403
        assert "directory/" not in http.get(f"{bucket}/?format=json").json()["prefixes"]
        assert listed(http, bucket, prefix="file", delimiter="/") == ([], [])
        assert "SECRET" not in http.get("").text


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2"])
def test_shards_are_not_shown_as_chunks_where_a_document_is_a_link_out_of_the_store(store: Path, bucket: str) -> None:
    (store / "gz/zarr.json").rename(store.parent / "zarr.json")
    (store / "gz/zarr.json").symlink_to(store.parent / "zarr.json")
    document, chunk = ("gz/zarr.json", "gz/c/0/0") if bucket == "zarr3" else ("gz/.zarray", "gz/0.0")
    with serve(store, port=0) as serving, connected(serving) as http:
        for path in (f"{bucket}/{document}", f"{bucket}/{chunk}", f"{bucket}?list-type=2"):
            assert http.get(path).status_code in (403, 502), path
        assert http.get(f"{bucket}/notes/read%20me.txt").status_code == 200


def test_links_lead_out_of_the_store_if_that_is_said(linked: Path) -> None:
    with serve(linked, port=0, follow_links=True) as serving, connected(serving) as http:
        assert http.get("stored/file.txt").text == "SECRET"
        assert http.get("zarr3/directory/array/zarr.json").status_code == 200
        assert "directory/secret.txt" in [key for key, _ in listed(http, "stored")[0]]


def test_links_do_not_lead_out_of_a_versioned_store(tmp_path: Path, made: Path) -> None:
    succeed("snapshots", "init", str(tmp_path / "run.ice"))
    succeed("pack", str(made / "ct"), str(tmp_path / "run.ice@main/ct"), "-m", "all of it")
    (tmp_path / "outside").mkdir()
    for file in (tmp_path / "run.ice/c").iterdir():
        file.rename(tmp_path / "outside" / file.name)
        file.symlink_to(tmp_path / "outside" / file.name)
    with serve(f"{tmp_path}/run.ice@main", port=0, follow_links=True) as serving, connected(serving) as http:
        assert http.get(CHUNK).status_code == 200
    with serve(f"{tmp_path}/run.ice@main", port=0) as serving, connected(serving) as http:
        assert http.get("zarr3/ct/zarr.json").status_code == 200
        assert http.get(CHUNK).status_code == 403


class Replaced(LocalStorage):
    """A storage without versions, whose object is replaced after each read."""

    letter = b"A"
    reads = 0

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        found = await super().read([Read(read.key, read.ranges) if read.key == "long" else read for read in reads])
        outcomes: list[ReadOutcome] = []
        for read, outcome in zip(reads, found, strict=True):
            if isinstance(outcome, Found) and read.key == "long":
                buffers = tuple(memoryview(self.letter * len(buffer)) for buffer in outcome.buffers)
                outcome = Found(unversioned(outcome.nbytes), outcome.nbytes, buffers)
                type(self).letter = b"B" if self.letter == b"A" else b"A"
                type(self).reads += 1
            outcomes.append(outcome)
        return outcomes


def test_without_versions_a_long_value_is_read_at_once(store: Path) -> None:
    (store / "long").write_bytes(b"?" * (16 << 20))
    with serve(Replaced(store), port=0) as serving, connected(serving) as http:
        for headers, nbytes in (({}, 16 << 20), ({"range": "bytes=5-9999999"}, 9999995), ({"range": "bytes=-10000000"}, 10000000)):
            found = http.get("stored/long", headers=headers)
            assert found.status_code in (200, 206)
            assert found.content in (b"A" * nbytes, b"B" * nbytes)
            assert "etag" not in found.headers
    (store / "long").write_bytes(b"?" * (65 << 20))
    with serve(Replaced(store), port=0) as serving, connected(serving) as http:
        refused = http.get("stored/long")
        assert refused.status_code == 501
        assert "ask for ranges of at most 64.0 MiB" in refused.text
        assert http.get("stored/long", headers={"range": f"bytes=0-{(64 << 20) - 1}"}).status_code == 206


@pytest.mark.parametrize("damage", ["first byte", "bit 7", "no brace", "name of a member"])
def test_damaged_metadata_never_shows_shards_as_chunks(own: Client, store: Path, damage: str) -> None:
    file = store / "ct/zarr.json"
    text = bytearray(file.read_bytes())
    if damage == "name of a member":
        text = bytearray(bytes(text).replace(b'"codecs"', b'"kodecs"', 1))
    else:
        text[0] = {"first byte": text[0] ^ 0x80, "bit 7": text[0] | 0x80, "no brace": ord(";")}[damage]
    file.write_bytes(text)
    for path in (CHUNK, MISSING, "zarr2/ct/0/0/0"):
        found = own.get(path)
        assert found.status_code == 500, path
        assert "ct/zarr.json" in found.text


# -- what costs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["a://" + ":" * 50_000, "http://" * 8_000, "https://a" * 8_000, "memory://" + ":" * 50_000, "sig=&" * 10_000, "a://" + "@" * 50_000],
)
def test_redaction_takes_linear_time(text: str) -> None:
    began = time.process_time()
    redacted(text)
    assert time.process_time() - began < 2  # it took minutes


def test_what_clients_say_is_cut_in_messages(client: Client) -> None:
    for path, headers in (("zarr3/" + "a" * 3000, {}), ("x" * 3000, {}), ("healthz", {"host": "h" * 3000})):
        found = client.http.get(path, headers=headers)
        assert found.status_code in (400, 404, 421)
        assert len(found.content) < 1500


def test_a_request_costs_a_bounded_number_of_requests(store: Path) -> None:
    storage = TraceStorage(LocalStorage(store))
    with serve(storage, port=0) as serving, connected(serving) as http:
        for path in ("0/" * 30_000, "0/" * (MOST_SEGMENTS + 1) + "0", "a" * (MOST_KEY_NBYTES + 1)):
            storage.events.clear()
            assert http.get(f"zarr3/{path[:60_000]}").status_code == 400
            assert storage.events == []
        assert http.get("zarr3/" + "0/" * MOST_SEGMENTS + "0").status_code == 404
        assert len(storage.events) <= 2 * MOST_SEGMENTS
        assert len([event for event in storage.events if event.op == "list_dir"]) <= 1


# -- what is logged --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["x%0aFORGED%20line%0d%1b[31mred", "%0aFORGED", "x%e2%80%a8FORGED", "x%c2%85FORGED", "a%e2%80%aeb"])
@pytest.mark.parametrize(
    "error", [StorageError("of {}"), Corruption("in {}"), ValueError("a mistake with {}")], ids=lambda e: type(e).__name__
)
def test_clients_write_no_lines_into_the_log(own: Client, caplog: pytest.LogCaptureFixture, path: str, error: Exception) -> None:
    async def fails(read: Read) -> object:
        raise type(error)(str(error).format(read.key)) from OSError(f"because of {read.key}")

    own.serving.application.served.buckets["zarr3"].read = fails  # type: ignore[assignment, method-assign]
    assert own.get(f"zarr3/{path}").status_code in (500, 502)
    (record,) = caplog.records
    lines = record.getMessage().splitlines()
    assert not [line for line in lines if line.startswith(("FORGED", "b"))]
    assert all(line.isprintable() for line in lines)
    assert len(lines) == 1 or not isinstance(error, ShardStoreError)
    assert "FORGED" in lines[0] or "b" in lines[0]


def test_what_is_not_served_is_not_logged_and_named_in_short(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    long = "n" * 5000
    for path in (
        f"{CHUNK}?{long}",
        f"{CHUNK}?x%0aFORGED",
        f"zarr3?{long}&list-type=2",
        f"zarr3?list-type=2&delimiter={long}",
        f"zarr3?list-type={long}",
    ):
        found = client.get(path)
        assert found.status_code in (400, 501), path[:40]
        assert len(found.content) < 500
        assert "\nFORGED" not in found.text
    assert caplog.records == []


# -- connections -----------------------------------------------------------------------------------------------------------


def closes(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


def test_empty_lines_do_not_keep_a_connection(store: Path) -> None:
    with serve(store, port=0) as serving:
        serving.limits.header_seconds = 1.0
        for begin in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with socket.create_connection(address(serving)) as connection:
                if begin:
                    connection.sendall(begin)
                    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
                connection.sendall(b"\r\n")
                assert closes(connection, 10)


def test_a_closing_connection_whose_bytes_are_not_taken_ends(store: Path) -> None:
    (store / "large").write_bytes(b"x" * 4_450_000)
    with serve(store, port=0) as serving:
        serving.limits.stalled_seconds = 1.0
        connections = []
        for nbytes in range(1_800_000, 4_450_000, 300_000):
            (store / f"of{nbytes}").write_bytes(b"x" * nbytes)
            connection = socket.create_connection(address(serving))
            connections.append(connection)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET /stored/of%d HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % nbytes)
        deadline = time.monotonic() + 20
        while serving._server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not serving._server.server_state.connections
        for connection in connections:
            connection.close()


@pytest.mark.parametrize("second", [b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000])
def test_an_error_is_not_written_into_an_answer_under_way(store: Path, second: bytes) -> None:
    (store / "large").write_bytes(b"x" * (64 << 20))
    with serve(store, port=0) as serving, socket.create_connection(address(serving)) as connection:
        connection.sendall(b"GET /stored/large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.2)
        found: list[bytes] = []
        try:
            connection.sendall(second)
            time.sleep(0.2)
            connection.settimeout(10)
            while data := connection.recv(1 << 20):
                found.append(data)
        except ConnectionError:
            found.append(b"")  # broken off, as it should be
        body = b"".join(found).partition(b"\r\n\r\n")[2]
        assert set(body) <= set(b"x")


def test_a_request_line_with_a_host_stands_for_the_header(client: Client) -> None:
    ask = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b" 421 " in raw(client.serving, ask % b"http://evil.example/healthz").partition(b"\r\n")[0]
    assert b" 200 " in raw(client.serving, ask % b"http://localhost/healthz").partition(b"\r\n")[0]
    two = b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b" 421 " in raw(client.serving, two).partition(b"\r\n")[0]


def test_lists_in_several_lines_are_one(client: Client) -> None:
    etag = client.get(CHUNK).headers["etag"]
    lines = [("If-Match", etag), ("If-Match", '"other"')]
    assert client.http.get(CHUNK, headers=lines).status_code == 200
    assert client.http.get(CHUNK, headers=[("If-None-Match", '"other"'), ("If-None-Match", etag)]).status_code == 304


def test_idle_connections_are_closed_for_others(store: Path) -> None:
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve(store, port=0) as serving, ExitStack() as opened:

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection(address(serving), 30))

        def answered(connection: socket.socket, request: bytes) -> bool:
            connection.sendall(request)
            found = b""
            while not found.endswith(b"ok") and (data := connection.recv(65536)):
                found += data
            return found.startswith(b"HTTP/1.1 200")

        serving.limits.connections = 8
        bucket = serving.application.served.buckets["zarr3"]
        gate, has_come, real = asyncio.Event(), threading.Event(), bucket.read

        async def held(read: Any) -> Any:
            has_come.set()
            await gate.wait()
            return await real(read)

        async def go_on() -> None:
            gate.set()

        kept = connect()
        assert answered(kept, health)
        bucket.read = held  # type: ignore[method-assign]  # stands for a slow storage
        under_way = connect()
        under_way.sendall(b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % CHUNK.encode())
        assert has_come.wait(20)
        idle = [connect() for _ in range(6)]
        idle[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: lo")  # half a request is none
        for _ in range(20):
            idle.append(connect())
            with connect() as other:
                assert answered(other, health)
                assert len(serving._server.server_state.connections) <= 10  # some have been closed, and are about to end
        assert closes(idle[0], 10)
        assert answered(kept, health)  # those that have asked for nothing go first
        assert all(answered(connect(), health) for _ in range(20))
        assert closes(kept, 10)
        run_sync(go_on())
        assert under_way.recv(65536).startswith(b"HTTP/1.1 200")  # and those that are being answered stay


def test_connection_whose_response_is_still_being_sent_is_not_idle(store: Path) -> None:
    nbytes = 240_000  # more than the buffers of the system hold here, and one piece for the server
    (store / "notes/large").write_bytes(bytes(nbytes))
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve(store, port=0) as serving, ExitStack() as opened:
        serving.limits.connections = 4
        with connected(serving) as http:
            assert http.get("healthz").status_code == 200  # it listens
        listening = serving._server.servers[0].sockets[0]
        with socket.socket(fileno=os.dup(listening.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        slow = opened.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(address(serving))
        slow.sendall(b"GET /stored/notes/large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head, _, body = slow.recv(4096).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        for _ in range(8):
            other = opened.enter_context(socket.create_connection(address(serving), 30))
            other.sendall(health)
            other.recv(4096)
        came = len(body)
        while came < nbytes and (data := slow.recv(65536)):
            came += len(data)
        assert came == nbytes


def test_connections_leave_descriptors_for_files(store: Path) -> None:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serve(store, port=0) as serving:
        assert serving.limits.connections <= 1000
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
        with serve(store, port=0) as serving:
            assert serving.limits.connections == 1024 - 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


# -- S3 --------------------------------------------------------------------------------------------------------------------


def test_a_directory_is_no_object_for_clients_of_s3(client: Client) -> None:
    assert client.http.get("zarr3/ct/").headers["content-type"].startswith("text/html")
    for method in ("GET", "HEAD"):
        assert client.http.request(method, "zarr3/ct/", headers=SDK).status_code == 404
    assert client.http.head("zarr3").status_code == 200  # HeadBucket, unsigned
    assert b"NoSuchBucket" in client.http.get("nothing/x", headers=SDK).content


@pytest.mark.parametrize("name", ["start-after", "marker"])
def test_common_prefixes_are_those_with_keys_behind_the_marker(client: Client, name: str) -> None:
    keys = [key for key, _ in listed(client.http, "stored")[0]]
    kind = {"list-type": "2"} if name == "start-after" else {}
    for after in ["", "a", "ct/~", "ct/c/0/0/0", "ct/", "ct0", "deep/plain/~", "zzz", *keys]:
        root = ElementTree.fromstring(client.http.get("stored", params={**kind, "delimiter": "/", name: after}).content)
        prefixes = [one.text for one in root.findall("s3:CommonPrefixes/s3:Prefix", NS)]
        behind = {key.partition("/")[0] + "/" for key in keys if key > after and "/" in key}
        assert prefixes == sorted(behind - {after}), after


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("list-type=2&prefix=%ff", 400),
        ("x-id=%ff", 400),
        ("list-type=2&max-keys=" + "9" * 5000, 400),
        ("list-type=3", 400),
        ("list-type=2&continuation-token=", 400),
        ("&".join(f"a{number}=1" for number in range(3000)), 501),
    ],
)
def test_queries_that_are_none(client: Client, query: str, status: int) -> None:
    assert client.get(f"zarr3?{query}").status_code == status


@pytest.mark.parametrize("text", ["bytes=0-" + "9" * 4301, "bytes=" + "0" * 9000 + "-5", "bytes=-" + "9" * 5000])
def test_ranges_of_thousands_of_digits(client: Client, text: str) -> None:
    assert client.get(CHUNK, range=text).status_code == 206


def test_names_that_no_client_could_ask_for_are_not_listed(own: Client, store: Path) -> None:
    (store / "odd").mkdir()
    Path(str(store / "odd") + "/a\udcff").write_bytes(b"x")
    Path(str(store / "odd") + "/d\udcff").mkdir()
    (store / "odd/line\rbreak").write_bytes(b"x")
    for path in ("stored/odd/", "stored/odd/?format=json", "stored?list-type=2&encoding-type=url"):
        assert own.get(path).status_code == 200, path
    keys = [key for key, _ in listed(own.http, "stored", prefix="odd/")[0]]
    assert keys == ["odd/line\rbreak"]


# -- opening ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_snapshot_whose_catalog_is_damaged_is_not_served_as_an_empty_store(tmp_path: Path, made: Path, damage: str) -> None:
    succeed("snapshots", "init", str(tmp_path / "run.ice"))
    succeed("pack", str(made / "ct"), str(tmp_path / "run.ice@main/ct"), "-m", "all of it")
    catalog = tmp_path / "run.ice/catalog.json"
    data = catalog.read_bytes()
    if damage == "gone":
        catalog.unlink()
    else:
        catalog.write_bytes(data[:20] if damage == "cut" else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(NotFound, match="what is before the @ is no versioned store that can be read"):
        serve(str(tmp_path / "run.ice@main"), port=0)
    assert run("serve", str(tmp_path / "run.ice@main")).code == ExitCode.NOT_FOUND


def test_a_place_with_nothing_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is nothing at"):
        serve(tmp_path / "none.zarr", port=0)


def test_a_client_that_leaves_the_queue_makes_room(store: Path) -> None:
    with serve(store, port=0, in_flight=1) as serving:
        bucket = serving.application.served.buckets["zarr3"]
        real = bucket.read
        gate = asyncio.Event()

        async def wait(read: Any) -> Any:
            await gate.wait()
            return await real(read)

        bucket.read = wait  # type: ignore[method-assign]  # stands for a slow storage
        held = socket.create_connection(address(serving))
        ask = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % CHUNK.encode()
        held.sendall(ask)
        time.sleep(0.3)
        gone = socket.create_connection(address(serving))
        gone.sendall(ask)
        time.sleep(0.3)
        gone.close()
        deadline = time.monotonic() + 20
        while serving.application.load._queue and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not serving.application.load._queue
        held.close()


def test_loopback_addresses_check_the_host(store: Path) -> None:
    with serve(store, host="127.0.0.2", port=0) as serving:
        assert httpx.get(serving.url + "healthz", trust_env=False).status_code == 200
        assert httpx.get(serving.url + "healthz", headers={"host": "evil.example"}, trust_env=False).status_code == 421


def test_redirection_keeps_the_query(client: Client) -> None:
    assert client.http.get("zarr3?token=T").headers["location"] == "zarr3/?token=T"
    assert client.http.get("healthz/").status_code == 404
