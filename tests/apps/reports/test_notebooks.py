"""What notebooks show of stores, filesystems and results; it never raises, and reads metadata alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.errors import StorageError
from shardstore.maintenance.survey.run import glance, survey
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.latency import LatencyStorage
from shardstore.testing.trace import TraceStorage
from tests.apps.reports.test_page import Parsed


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "data.zarr"
    store = shardstore.open(place, chunks_per_shard=(2, 2))
    group = zarr.create_group(store)
    for number in range(20):
        group.create_array(f"a{number}<b>", shape=(8, 8), chunks=(2, 2), dtype="i4")[:4] = 1
    return place


def html_of(shown: Any) -> str:
    text = shown._repr_html_()
    assert isinstance(text, str)
    assert "<b>" not in text
    Parsed(text)
    return text


def test_stores_and_filesystems_show_their_arrays(place: Path) -> None:
    faces = [
        shardstore.open(place),
        shardstore.get_mapper(place),
        shardstore.ShardingTransformer(str(place)),
        fsspec.filesystem("sharded", fo=str(place)),
    ]
    for face in faces:
        text = html_of(face)
        assert "a7&lt;b&gt;" in text
        assert "shards of 4 × 4: 2 × 2 chunks" in text


def test_twenty_arrays_take_22_requests_and_no_listing_of_chunks(place: Path) -> None:
    storage = TraceStorage(LocalStorage(place))
    html_of(shardstore.open(storage))
    assert sum(event.requests for event in storage.events) <= 22
    assert {event.op for event in storage.events} <= {"read", "list_dir"}


def test_more_arrays_are_not_shown(place: Path) -> None:
    group = zarr.open_group(place)
    group.create_array("more", shape=(8,), dtype="i4")
    text = html_of(shardstore.open(place))
    assert text.count("<details") == 20
    assert "<div>…</div>" in text


def test_a_storage_that_stops_answering_does_not_hold_up_a_notebook(place: Path) -> None:
    requests = 0

    async def answers_twice(_seconds: float) -> None:
        nonlocal requests
        requests += 1
        if requests > 2:  # the root and what lies below it; the arrays never come
            await asyncio.Event().wait()

    storage = LatencyStorage(LocalStorage(place), 0.0, sleep=answers_twice)
    found, is_complete = run_sync(glance(Engine(storage), most_arrays=20, seconds=0.5))
    assert (found.groups, found.arrays, is_complete) == (1, (), False)
    requests = 0
    assert "<div>…</div>" in html_of(shardstore.open(storage))


def test_results_show_themselves(place: Path, tmp_path: Path) -> None:
    (shard,) = [place / "a3<b>/c/0/0"]
    shard.write_bytes(shard.read_bytes()[:-1])
    results = [
        shardstore.verify(place),
        shardstore.census(place),
        shardstore.compact(place, dry_run=True),
        shardstore.repair(place, dry_run=True),
        run_sync(survey(Engine(LocalStorage(place)))),
    ]
    for result in results:
        text = html_of(result)
        assert str(place) in text or "Census" in text
    assert "index" in html_of(results[0])
    assert "data:image/png;base64," in html_of(results[1])
    plain = tmp_path / "plain.zarr"
    zarr.create_array(plain, name="a", data=np.arange(64).reshape(8, 8), chunks=(2, 2))
    packed = shardstore.pack(plain, tmp_path / "packed.zarr")
    assert "16 → 1" in html_of(packed)
    report = html_of(shardstore.report(plain))
    assert report.startswith("<iframe ")


def test_counters_show_themselves(place: Path) -> None:
    store = shardstore.open(place)
    zarr.open_array(store, path="a3<b>", mode="r")[...]
    text = html_of(store.counters)
    assert "<dt>chunks read</dt><dd>8</dd>" in text
    assert "<dt>index misses</dt><dd>4</dd>" in text


def test_repositories_show_their_branches_and_tags_by_one_look_at_the_state(tmp_path: Path) -> None:
    repository = shardstore.Repository.create(tmp_path / "run.ice")
    with repository.transaction("main", message="day <b> 1") as store:
        zarr.create_array(store, name="a", shape=(4,), dtype="u1")
    repository.create_tag("v1", snapshot_id=repository.lookup_branch("main"))
    text = html_of(repository)
    assert text.index("branch main") < text.index("tag v1")
    assert text.count("day &lt;b&gt; 1") == 2
    (tmp_path / "run.ice").rename(tmp_path / "gone")
    assert repository._repr_html_() is None


def test_showing_never_raises(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shardstore.open(tmp_path / "nothing")._repr_html_() is None
    (place / "zarr.json").write_text("{")
    shardstore.open(place)._repr_html_()

    async def failing(*_: Any, **__: Any) -> Any:
        raise StorageError("the server is gone")

    storage = LocalStorage(place)
    monkeypatch.setattr(storage, "list_dir", failing)
    monkeypatch.setattr(storage, "read", failing)
    assert shardstore.open(storage)._repr_html_() is None


def test_without_jinja2_the_plain_repr_is_shown(place: Path) -> None:
    program = f"""
import sys
sys.modules["jinja2"] = None
import shardstore
store = shardstore.open({str(place)!r})
assert store._repr_html_() is None
assert shardstore.census({str(place)!r})._repr_html_() is None
report = shardstore.report({str(place)!r})
assert report._repr_html_() is None
assert '"state"' in report.json
try:
    report.html
except shardstore.Unsupported as exc:
    assert "pip install 'shardstore[report]'" in str(exc), exc
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
