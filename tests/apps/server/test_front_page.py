"""The page at ``/``: the report, made once, while other requests go on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import get_loop

from shardstore.apps.server import front_page, serve
from shardstore.errors import StorageError
from shardstore.maintenance.survey import run as survey_of
from tests.apps.cli.running import succeed
from tests.apps.reports.test_page import Parsed
from tests.apps.server.conftest import Client, connected


def test_the_page_is_the_report_with_what_is_served(client: Client) -> None:
    found = client.get("/")
    parsed = Parsed(found.text)
    assert found.headers["content-security-policy"].startswith("default-src 'none'; img-src data:; ")
    assert [one["href"] for one in parsed.all_of("a")] == ["./?renew", "./zarr3/", "./zarr2/", "./stored/"]
    assert "shards of 32 × 32 × 8: 4 × 4 × 1 chunks" in found.text
    assert f"zarr.open(&#34;{client.serving.url}zarr3/&#34;" in found.text
    assert "refresh" not in found.headers


def test_a_page_that_has_not_changed_is_not_sent_again(client: Client) -> None:
    etag = client.get("/").headers["etag"]
    again = client.get("/", if_none_match=etag)
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/", if_none_match='"other"').status_code == 200
    assert client.get("/", "HEAD").headers["etag"] == etag


def test_it_is_made_once_and_again_when_asked(own: Client, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch)
    first = own.get("/").text
    assert own.get("/").text == first
    assert len(runs) == 1
    (store / "ct/c/0/0/0").unlink()
    assert own.get("/").text == first
    renewed = own.http.get("/?renew")
    assert (renewed.status_code, renewed.headers["location"]) == (303, "./")
    assert "3 of 4" in own.get("/").text
    assert len(runs) == 2


def counted(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Any] | None = None) -> list[int]:
    """The surveys that begin from now on."""
    runs: list[int] = []
    real = survey_of.survey

    async def survey(*arguments: Any, **options: Any) -> Any:
        runs.append(len(runs))
        if before is not None:
            await before()
        return await real(*arguments, **options)

    monkeypatch.setattr(front_page, "survey", survey)
    return runs


def test_while_it_is_made_metadata_alone_are_shown(own: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    own.serving.application.front_page.wait_seconds = 0.01
    go_on = asyncio.Event()
    runs = counted(monkeypatch, go_on.wait)
    for _ in range(3):
        found = own.get("/")
        assert found.headers["refresh"] == "2"
        assert "this page comes again by itself" in found.text
        assert "shards of 32 × 32 × 8" in found.text
        assert own.http.get("/?renew", follow_redirects=False).status_code == 303
    assert runs == [0]  # never two at once
    get_loop().call_soon_threadsafe(go_on.set)
    own.serving.application.front_page.wait_seconds = 60.0
    found = own.get("/")
    assert "refresh" not in found.headers
    assert "4 of 4" in found.text


def test_an_error_is_told_and_the_next_client_tries_again(own: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise StorageError("the server is gone")

    with monkeypatch.context() as patched:
        counted(patched, fail)
        assert (own.get("/").status_code, own.get("/zarr3/zarr.json").status_code) == (502, 200)
    assert own.get("/").status_code == 200


def test_without_a_report_no_shard_is_looked_into(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch)
    with serve(made, port=0, report=False) as serving, connected(serving) as http:
        found = http.get("/")
        assert "no shard was counted or looked into" in found.text
        assert "refresh" not in found.headers
        assert http.get("/?renew", follow_redirects=True).status_code == 200
    assert runs == []


def test_a_place_that_becomes_empty(own: Client, store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir()
    assert own.get("/").status_code == 404
    assert own.get("/healthz").status_code == 200


def test_a_token_is_asked_for(made: Path) -> None:
    with serve(made, port=0, token="s3cret") as serving, connected(serving) as http:
        assert http.get("/").status_code == 401
        found = http.get("/?token=s3cret")
        assert found.status_code == 200
        assert "s3cret" not in found.text
        assert "the token" in found.text


def test_the_page_of_a_snapshot(tmp_path: Path, made: Path) -> None:
    succeed("snapshots", "init", str(tmp_path / "run.ice"))
    succeed("pack", str(made / "ct"), str(tmp_path / "run.ice@main/ct"), "-m", "all of it")
    with serve(str(tmp_path / "run.ice@main"), port=0) as serving, connected(serving) as http:
        text = http.get("/").text
        assert "all of it" in text
        assert "/stored/" in text
