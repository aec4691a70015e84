"""``shardstore serve``: its options, and what it refuses. What it serves is tested in ``tests/apps/server``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardstore.apps import server
from shardstore.apps.cli.output import ExitCode
from tests.apps.cli.running import run


class Served:
    """Stands for a server that ends at once, and keeps what it was asked for."""

    url = "http://127.0.0.1:1/"

    def __init__(self, url: Any, **options: Any) -> None:
        self.given = {"url": url, **options}
        self.application = self
        self.served = type("Served", (), {"url": url})()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stop(self, *, at_once: bool = False) -> None:
        pass

    def wait(self, _seconds: float) -> bool:
        return True


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    made: list[Served] = []

    def serve(url: Any, **options: Any) -> Served:
        made.append(Served(url, **options))
        return made[-1]

    monkeypatch.setattr(server, "serve", serve)
    return made


def test_options_reach_the_server(served: list[Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("TOKEN", "other")
    done = run("serve", "data.zarr", "--port", "0", "--cors", "https://a.example", "--cors", "*", "--token-file", str(tmp_path / "token"))
    assert done.code == ExitCode.OK
    assert done.lines == ["serving data.zarr at http://127.0.0.1:1/"]
    given = served[-1].given
    assert (given["cors"], given["token"], given["port"], given["host"]) == (["https://a.example", "*"], "s3cret", 0, "127.0.0.1")
    assert (given["stored"], given["listing"], given["max_age"], given["in_flight"]) == (True, True, "0s", 256)
    assert given["follow_links"] is False
    arguments = (
        "--no-stored",
        "--no-listing",
        "--max-age",
        "5s",
        "--in-flight",
        "9",
        "--token-env",
        "TOKEN",
        "-o",
        "a=1",
        "--follow-links",
    )
    run("serve", "data.zarr", *arguments)
    given = served[-1].given
    assert given["follow_links"] is True
    assert (given["stored"], given["listing"], given["max_age"], given["in_flight"]) == (False, False, "5s", 9)
    assert (given["token"], given["storage_options"]) == ("other", {"a": 1})


def test_without_a_token_the_network_is_warned_of(served: list[Served]) -> None:
    done = run("serve", "data.zarr", "--host", "0.0.0.0")
    assert done.code == ExitCode.OK
    assert "every client that reaches 0.0.0.0 can read" in done.err
    refused = run("serve", "s3://bucket/data.zarr", "--host", "0.0.0.0", "-o", "secret=x")
    assert refused.code == ExitCode.INVALID
    assert "--token-file or --token-env, or --no-token" in refused.error
    assert run("serve", "s3://bucket/data.zarr", "--host", "0.0.0.0", "-o", "secret=x", "--no-token").code == ExitCode.OK
    assert run("serve", "s3://bucket/data.zarr", "-o", "secret=x").err == ""


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b/x", ["-o", 'client_kwargs={"aws_secret_access_key":"S3CRET"}']),
        ("simplecache::s3://b/x", ["--storage-options", '{"s3":{"key":"k","secret":"S3CRET"}}']),
        ("http://user:S3CRET@host/x", []),
        ("ftp://host/x", ["-o", "username=u"]),
        ("abfs://c/x", ["-o", "account_key=S3CRET"]),
        ("gs://b/x", ["-o", "token=S3CRET"]),
    ],
)
def test_credentials_are_found_wherever_they_are(served: list[Served], url: str, options: list[str]) -> None:
    refused = run("serve", url, "--host", "0.0.0.0", *options)
    assert refused.code == ExitCode.INVALID
    assert "or --no-token" in refused.error
    assert "S3CRET" not in refused.error
    assert served == []


@pytest.mark.parametrize("options", [["-o", "token=anon"], ["-o", "anon=true"], ["-o", "key=null"]])
def test_without_credentials_none_are_found(served: list[Served], options: list[str]) -> None:
    assert run("serve", "gs://b/x", "--host", "0.0.0.0", *options).code == ExitCode.OK


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--token-file", "nothing"], ExitCode.NOT_FOUND, "the token cannot be read from nothing"),
        (["--token-env", "SHARDSTORE_NO_SUCH"], ExitCode.NOT_FOUND, "the environment variable SHARDSTORE_NO_SUCH is not set"),
        (["--token-file", "a", "--token-env", "b"], ExitCode.INVALID, "not both"),
        (["--port", "70000"], ExitCode.INVALID, "--port"),
        (["--cors", "viewer.example"], ExitCode.INVALID, "is not an origin of web pages"),
    ],
)
def test_what_cannot_be_done_says_why(
    arguments: list[str], code: ExitCode, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("serve", str(tmp_path), *arguments)
    assert done.code == code
    assert message in done.error
