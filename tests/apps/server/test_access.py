"""Who may read: hosts, origins, tokens; and what a server without them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardstore.apps.server import serve
from shardstore.errors import InvalidInput, StorageError
from tests.apps.server.conftest import Client, connected

CHUNK = "zarr3/ct/c/0/0/0"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8080", "[::1]", "[::1]:1"])
def test_names_of_this_machine_are_right(client: Client, host: str) -> None:
    assert client.get(CHUNK, host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::2]", "", "localhost@evil.example", "127.1"]
)
def test_other_names_are_misdirected(client: Client, host: str) -> None:
    """A page whose own name leads here reads nothing (DNS rebinding)."""
    for path in (CHUNK, "", "zarr3/", "stored/ct/zarr.json"):
        found = client.get(path, host=host)
        assert found.status_code == 421
        assert b"zarr_format" not in found.content


def test_another_name_can_be_given(store: Path) -> None:
    with serve(store, port=0, hosts=["viewer.lab"]) as serving, connected(serving) as http:
        assert http.get(CHUNK, headers={"host": "Viewer.Lab:80"}).status_code == 200
        assert http.get(CHUNK, headers={"host": "other.lab"}).status_code == 421


def test_without_cors_no_page_may_read(client: Client) -> None:
    found = client.get(CHUNK, origin="https://viewer.example")
    assert not [name for name in found.headers if name.startswith("access-control")]
    assert found.headers["cross-origin-resource-policy"] == "same-origin"
    preflight = client.get(CHUNK, "OPTIONS", origin="https://viewer.example", access_control_request_method="GET")
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_cors_is_for_the_origins_that_are_named(store: Path) -> None:
    origin = "https://viewer.example"
    with serve(store, port=0, cors=[origin]) as serving, connected(serving) as http:
        for path in (CHUNK, "zarr3/ct/c/9/9/9", "", "healthz", "zarr3/"):
            found = http.get(path, headers={"origin": origin})
            assert found.headers["access-control-allow-origin"] == origin, path
            assert "ETag" in found.headers["access-control-expose-headers"]
            assert "Origin" in found.headers["vary"]
        for other in ("https://evil.example", "https://viewer.example.evil.example", "null"):
            found = http.get(CHUNK, headers={"origin": other})
            assert "access-control-allow-origin" not in found.headers
            assert "Origin" in found.headers["vary"]
        asked = {
            "origin": origin,
            "access-control-request-method": "GET",
            "access-control-request-headers": "range",
            "access-control-request-private-network": "true",
        }
        allowed = http.options(CHUNK, headers=asked)
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
        assert allowed.headers["access-control-allow-headers"] == "range"
        assert allowed.headers["access-control-allow-private-network"] == "true"
        assert "access-control-allow-credentials" not in allowed.headers
        refused = http.options(CHUNK, headers=asked | {"origin": "https://evil.example"})
        assert not [name for name in refused.headers if name.startswith("access-control")]
    with serve(store, port=0, cors=["*"]) as serving, connected(serving) as http:
        assert http.get(CHUNK, headers={"origin": "https://any.example"}).headers["access-control-allow-origin"] == "*"


def test_token(store: Path) -> None:
    with serve(store, port=0, token="s3cret") as serving, connected(serving) as http:
        for path in (CHUNK, "", "zarr3/", "zarr3?list-type=2", "stored/ct/zarr.json", "nothing"):
            refused = http.get(path)
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"
        assert http.get("healthz").status_code == 200
        signed = "AWS4-HMAC-SHA256 Credential={}/20261126/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        for headers, status in (
            ({"authorization": "Bearer s3cret"}, 200),
            ({"authorization": "bearer s3cret"}, 200),
            ({"authorization": "Bearer s3cre"}, 401),
            ({"authorization": "Bearer s3cret2"}, 401),
            ({"authorization": "Basic s3cret"}, 401),
            ({"authorization": signed.format("s3cret")}, 200),
            ({"authorization": signed.format("other")}, 403),
        ):
            assert http.get(CHUNK, headers=headers).status_code == status, headers
        assert http.get(f"{CHUNK}?token=s3cret").status_code == 200
        assert http.get(f"{CHUNK}?token=other").status_code == 401
        assert http.options(CHUNK).status_code == 204  # browsers send none


@pytest.mark.parametrize(
    "given",
    [
        {"cors": ["viewer.example"]},
        {"cors": ["https://viewer.example/path"]},
        {"token": ""},
        {"token": "two words"},
        {"token": "schlüssel"},
        {"port": 70000},
        {"port": True},
        {"max_age": -1},
        {"in_flight": 0},
        {"piece_nbytes": 1.5},
    ],
    ids=str,
)
def test_arguments_that_cannot_be_right(store: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        serve(store, **{"port": 0, **given})


def test_port_that_is_taken(client: Client, store: Path) -> None:
    port = int(client.serving.url.rstrip("/").rpartition(":")[2])
    with pytest.raises(StorageError, match=rf"nothing can listen at 127.0.0.1, port {port}: .*0 takes a free one"):
        serve(store, port=port)


def test_credentials_are_never_shown(store: Path) -> None:
    with serve(f"file://{store}", port=0) as serving, connected(serving) as http:
        assert str(store) in http.get("").text
        assert "Serving" in repr(serving)
