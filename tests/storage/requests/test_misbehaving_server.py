"""The proxy that misbehaves on demand: what it forwards, and what each behaviour makes of it."""

from __future__ import annotations

import gc
import gzip
import http.client
import json
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.harness import misbehaviours as mis
from tests.harness.misbehaving_server import MisbehavingServer
from tests.storage.http.http_servers import WebServer

DATA = bytes(range(100))


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked for; ``/gzip`` compressed, ``/moved`` with an address of its own."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self) -> None:
        self.asked.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        document = {"method": self.command, "path": self.path, "headers": self.headers.items(), "body": body.hex()}
        data = json.dumps(document).encode()
        if self.path.startswith("/gzip"):
            data = gzip.compress(data)
        self.send_response(307 if self.path == "/moved" else 200)
        if self.path.startswith("/gzip"):
            self.send_header("Content-Encoding", "gzip")
        if self.path == "/moved":
            self.send_header("Location", f"http://{self.headers['X-Upstream']}/elsewhere?upload_id=1")
        self.send_header("Set-Cookie", "a=1")
        self.send_header("Set-Cookie", "b=2")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815  # names of the base class


@dataclass
class Got:
    status: int
    headers: Message
    body: bytes


class Client:
    """Requests as they are written here, and no retries."""

    def __init__(self, url: str, timeout: float = 30) -> None:
        self.host = urlsplit(url).netloc
        self.timeout = timeout

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Got:
        connection = http.client.HTTPConnection(self.host, timeout=self.timeout)
        try:
            connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return Got(response.status, response.headers, response.read())
        finally:
            connection.close()


@pytest.fixture
def upstream() -> Iterator[str]:
    handler = type("Handler", (Echo,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(upstream: str) -> Iterator[MisbehavingServer]:
    with MisbehavingServer(upstream) as running:
        yield running


@pytest.fixture
def client(server: MisbehavingServer) -> Client:
    return Client(server.url)


@pytest.fixture
def files() -> Iterator[tuple[MisbehavingServer, Client, WebServer]]:
    """Before a server of files that knows ranges and ``If-Match``."""
    web = WebServer()
    web.objects["/a"] = DATA
    with MisbehavingServer(web.url) as running:
        yield running, Client(running.url), web
    web.close()


# -- forwarding --------------------------------------------------------------------------------------------------------


def test_requests_arrive_as_they_were_sent(server: MisbehavingServer, client: Client) -> None:
    body = gzip.compress(b"not to be touched")
    target = "/a%2Fb/c%20d/%C3%A9+?x=1%2F2&y&z=%25"
    got = client.ask("PUT", target, body, Content_Encoding="gzip", Host="bucket.example:81", X_Signed="yes")
    seen = json.loads(got.body)
    assert (seen["method"], seen["path"], bytes.fromhex(seen["body"])) == ("PUT", target, body)
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert (headers["host"], headers["content-encoding"], headers["x-signed"]) == ("bucket.example:81", "gzip", "yes")
    assert headers["content-length"] == str(len(body))
    assert "user-agent" not in headers  # nothing is added
    (asked,) = server.requests
    assert (asked.method, asked.target, asked.path, asked.body) == ("PUT", target, "/a%2Fb/c%20d/%C3%A9+", body)
    assert asked.header("x-signed") == "yes"


def test_a_request_without_body_stays_one(client: Client) -> None:
    assert "content-length" not in {name.lower() for name, _ in json.loads(client.ask("GET", "/").body)["headers"]}
    assert ["Content-Length", "0"] in json.loads(client.ask("PUT", "/", b"").body)["headers"]


def test_large_bodies_pass(client: Client) -> None:
    body = bytes(3 << 20)
    assert bytes.fromhex(json.loads(client.ask("PUT", "/", body).body)["body"]) == body


def test_answers_arrive_as_they_were_sent(client: Client, upstream: str) -> None:
    got = client.ask("GET", "/gzip")
    assert got.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(got.body))["path"] == "/gzip"
    assert got.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    head = client.ask("HEAD", "/")
    assert (head.body, int(head.headers["Content-Length"]) > 50) == (b"", True)
    moved = client.ask("GET", "/moved", X_Upstream=upstream.removeprefix("http://"))
    assert moved.status == 307
    assert moved.headers["Location"] == f"http://{client.host}/elsewhere?upload_id=1"


def test_a_server_that_is_not_there() -> None:
    with MisbehavingServer("http://127.0.0.1:9") as server:
        assert Client(server.url).ask("GET", "/").status == 502


# -- rules -------------------------------------------------------------------------------------------------------------


def test_which_requests_a_rule_is_for(server: MisbehavingServer, client: Client) -> None:
    rule = server.on(mis.refuse(503), method=("PUT", "POST"), target=r"/a\?x", header="if-match", where=lambda r: r.body == b"1", nth=2)

    def put(method: str = "PUT", target: str = "/a?x", body: bytes = b"1", match: str = "If_Match") -> int:
        return client.ask(method, target, body, **{match: "*"}).status

    assert put() == 200
    for other in (put(method="DELETE"), put(target="/a?y"), put(body=b"2"), put(match="If_None_Match")):
        assert other == 200
    assert (rule.matched, rule.acted) == (1, 0)
    assert put(method="POST") == 503
    assert put() == 200
    assert (rule.matched, rule.acted) == (3, 1)
    assert len(server.requests) == 7
    server.behave()
    assert server.requests == []
    assert put() == 200


def test_rules_are_behind_each_other(server: MisbehavingServer, client: Client) -> None:
    inner = server.on(mis.ignore_conditions())
    outer = server.on(mis.twice(), method="PUT", nth={1, 3})
    assert [client.ask("PUT", "/", b"", If_Match="*").status for _ in range(3)] == [200] * 3
    assert (outer.matched, outer.acted, inner.acted) == (3, 2, 5)
    server.on(mis.drop_reply())
    server.on(mis.delay(0.0))  # hands on what is no answer
    with pytest.raises(http.client.RemoteDisconnected):
        client.ask("GET", "/")
    server.on(mis.refuse(503))
    assert client.ask("GET", "/").status == 503


def test_a_behaviour_of_ones_own(server: MisbehavingServer, client: Client) -> None:
    async def lie(request: mis.Request, send: mis.Send) -> mis.Outcome:
        return replace(await send(replace(request, method="GET")), status=201)

    server.on(lie)
    got = client.ask("PUT", "/x", b"")
    assert (got.status, json.loads(got.body)["method"]) == (201, "GET")


def test_a_behaviour_that_fails_is_seen(server: MisbehavingServer, client: Client, upstream: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    server.on(mis.meanwhile(fail))
    with pytest.raises(ConnectionResetError):
        client.ask("GET", "/")
    with pytest.raises(ZeroDivisionError):
        server.behave()
    server.behave()
    with pytest.raises(ZeroDivisionError), MisbehavingServer(upstream) as another:  # noqa: PT012
        another.on(mis.meanwhile(fail))
        with pytest.raises(ConnectionResetError):
            Client(another.url).ask("GET", "/")


# -- faults ------------------------------------------------------------------------------------------------------------


def carried_out(server: MisbehavingServer, act: Any) -> int:
    """How many requests the server behind got while ``act`` had one made."""
    sent = 0

    async def counted(request: mis.Request, send: mis.Send) -> mis.Outcome:
        async def sending(asked: mis.Request) -> mis.Answer:
            nonlocal sent
            sent += 1
            return await send(asked)

        outcome: mis.Outcome = await behaviour(request, sending)
        return outcome

    behaviour, ask = act
    server.on(counted)
    ask()
    return sent


@pytest.mark.parametrize("dialect", ["s3", "gcs"])
@pytest.mark.parametrize("status", [403, 404, 409, 412, 416, 429, 500, 503])
def test_refusals(server: MisbehavingServer, client: Client, status: int, dialect: mis.Dialect) -> None:
    def ask() -> None:
        got = client.ask("GET", "/")
        assert got.status == status
        assert (b"<Code>" if dialect == "s3" else b'{"error": {"code": %d' % status) in got.body

    assert carried_out(server, (mis.refuse(status, dialect), ask)) == 0
    assert client.ask("HEAD", "/").body == b""


@pytest.mark.parametrize(
    ("behaviour", "error", "requests"),
    [
        (mis.break_off(), ConnectionResetError, 0),
        (mis.drop_reply(), http.client.RemoteDisconnected, 1),
        (mis.drop_reply(is_reset=True), ConnectionResetError, 1),
        (mis.never_answer(), TimeoutError, 1),
        (mis.never_answer(is_carried_out=False), TimeoutError, 0),
        (mis.cut_body(), http.client.IncompleteRead, 1),
    ],
    ids=["break off", "drop", "drop by reset", "silence", "silence without", "cut"],
)
def test_connections_that_fail(server: MisbehavingServer, behaviour: mis.Behaviour, error: type[Exception], requests: int) -> None:
    client = Client(server.url, timeout=0.3)

    def ask() -> None:
        with pytest.raises(error) as caught:
            client.ask("GET", "/")
        assert caught.type is error

    assert carried_out(server, (behaviour, ask)) == requests
    server.behave()
    assert client.ask("GET", "/").status == 200


def test_a_body_that_is_cut_in_secret(server: MisbehavingServer, client: Client) -> None:
    whole = client.ask("GET", "/").body
    server.on(mis.cut_body(is_announced=False, keep=0.25))
    got = client.ask("GET", "/")
    assert got.body == whole[: len(whole) // 4]
    assert got.headers["Content-Length"] == str(len(got.body))


def test_twice_and_meanwhile(server: MisbehavingServer, client: Client) -> None:
    assert carried_out(server, (mis.twice(), lambda: client.ask("PUT", "/", b"1"))) == 2
    server.behave()
    server.on(mis.meanwhile(lambda: client.ask("GET", "/other")), target="^/$")
    assert client.ask("PUT", "/", b"1").status == 200
    assert [request.target for request in server.requests] == ["/", "/other"]


def test_a_delay(server: MisbehavingServer, client: Client) -> None:
    server.on(mis.delay(0.1))
    began = time.monotonic()
    assert client.ask("GET", "/").status == 200
    assert time.monotonic() - began >= 0.1


def test_the_end_does_not_wait_for_clients(upstream: str) -> None:
    failures: list[BaseException] = []

    def ask(url: str) -> None:
        try:
            Client(url).ask("GET", "/")
        except OSError as exc:
            failures.append(exc)

    with MisbehavingServer(upstream) as server:
        server.on(mis.never_answer())
        waiting = threading.Thread(target=ask, args=(server.url,))
        waiting.start()
        while not server.requests:
            time.sleep(0.01)
    waiting.join(30)
    assert len(failures) == 1


# -- hostility ---------------------------------------------------------------------------------------------------------


def test_conditions_ignored(server: MisbehavingServer, client: Client) -> None:
    server.on(mis.ignore_conditions())
    seen = json.loads(client.ask("PUT", "/?a=1&ifGenerationMatch=5&b=", b"", If_Match='"1"', if_none_match="*", If_Range='"2"').body)
    assert seen["path"] == "/?a=1&b="
    assert [name for name, _ in seen["headers"] if name.lower().startswith("if-")] == ["If-Range"]


Files = tuple[MisbehavingServer, Client, WebServer]


def test_ranges_ignored(files: Files) -> None:
    server, client, _ = files
    assert client.ask("GET", "/a", Range="bytes=5-6").body == DATA[5:7]
    server.on(mis.ignore_range())
    got = client.ask("GET", "/a", Range="bytes=5-6")
    assert (got.status, got.body) == (200, DATA)


@pytest.mark.parametrize(
    ("fault", "body", "says"),
    [("whole", DATA, "bytes 0-99/100"), ("first", DATA[:4], "bytes 0-3/100"), ("first, as if last", DATA[:4], "bytes 96-99/100")],
)
def test_wrong_suffixes(files: Files, fault: mis.SuffixFault, body: bytes, says: str) -> None:
    server, client, _ = files
    server.on(mis.wrong_suffix(fault))
    got = client.ask("GET", "/a", Range="bytes=-4")
    assert (got.status, got.headers["Content-Range"], got.body) == (206, says, body)
    assert client.ask("GET", "/a", Range="bytes=4-5").body == DATA[4:6]
    assert client.ask("GET", "/nothing", Range="bytes=-4").status == 404


def test_ranges_from_elsewhere(files: Files) -> None:
    server, client, _ = files
    server.on(mis.shift_ranges(3))
    got = client.ask("GET", "/a", Range="bytes=5-6")
    assert (got.status, got.headers["Content-Range"], got.body) == (206, "bytes 8-9/100", DATA[8:10])
    assert client.ask("GET", "/a", Range="bytes=-2").body == DATA[-2:]
    server.behave()
    server.on(mis.whole_as_range())
    got = client.ask("GET", "/a", Range="bytes=5-6")
    assert (got.status, got.headers["Content-Range"], got.body) == (206, "bytes 5-6/100", DATA)


def test_suffixes_refused(files: Files) -> None:
    server, client, _ = files
    server.on(mis.wrong_suffix("refused"))
    assert client.ask("GET", "/a", Range="bytes=-4").status == 416


def test_changed_headers(files: Files) -> None:
    server, client, web = files

    def answered(change: Any, name: str = "Content-Range") -> str | None:
        server.behave()
        server.on(mis.change_header(name, change))
        return client.ask("GET", "/a", Range="bytes=5-6").headers[name]

    assert answered(mis.shifted_range(1)) == "bytes 6-7/100"
    assert answered(mis.wrong_total(-1)) == "bytes 5-6/99"
    assert answered(lambda _: None) is None
    assert answered(lambda _: None, "ETag") is None
    assert answered("W/".__add__, "ETag") == "W/" + web.etag(DATA)
    each = mis.another_each_time()
    assert len({answered(each, "ETag") for _ in range(3)}) == 3
    assert {each("100"), each("100")} == {"104", "105"}  # numbers stay numbers


def test_gzipped(files: Files) -> None:
    server, client, _ = files
    server.on(mis.gzipped())
    got = client.ask("GET", "/a", Range="bytes=5-6")
    assert (got.headers["Content-Encoding"], got.headers["Content-Range"]) == ("gzip", "bytes 5-6/100")
    assert gzip.decompress(got.body) == DATA[5:7]


def test_stale(files: Files) -> None:
    server, client, web = files
    server.on(mis.Stale(), method=("GET", "HEAD"))
    old = client.ask("HEAD", "/a").headers["ETag"]
    web.objects["/a"] = b"new"
    head = client.ask("HEAD", "/a")
    assert (head.headers["ETag"], head.headers["Content-Length"]) == (old, "100")
    assert client.ask("GET", "/a").body == DATA
    assert client.ask("GET", "/a", If_Match='"other"').status == 412
    for wanted, body in {"bytes=5-6": DATA[5:7], "bytes=90-": DATA[90:], "bytes=-4": DATA[-4:], "bytes=98-200": DATA[98:]}.items():
        got = client.ask("GET", "/a", Range=wanted, If_Match=old)
        assert (got.status, got.body) == (206, body)
    assert client.ask("GET", "/a", Range="bytes=100-").status == 416
    assert client.ask("GET", "/nothing").status == 404


@pytest.mark.gate
def test_end_closes_connections_whose_clients_do_not_read() -> None:
    """What stays open is warned of when it is collected, which is in some later test."""
    web = WebServer()
    web.objects["/a"] = DATA
    gc.collect()
    with socket.socket() as client, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with MisbehavingServer(web.url) as server:
            server.on(mis.flood(announced=None, most_nbytes=96 << 20))
            client.connect(("127.0.0.1", urlsplit(server.url).port))
            client.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            while server.flooded < 1 << 20:
                time.sleep(0.01)
        gc.collect()
    web.close()
    assert [str(one.message) for one in warned] == []
