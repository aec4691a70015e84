"""``shardstore compact``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apps.cli.running import Place, run, succeed
from tests.clusters import dask_cluster
from tests.maintenance.laid_out import DEAD, laid_out
from tests.shards import index_entries, presented, sharded_arrays
from tests.stored import snapshot


@pytest.fixture
def loose(place: Place) -> str:
    """The key of a shard that has been made loose."""
    layout = sharded_arrays(place.objects)["ct"]
    key = "ct/c/0/1"
    shard = place.objects.get(key)
    assert shard is not None
    parts = [(slot, shard[offset : offset + nbytes]) for slot, (offset, nbytes) in enumerate(index_entries(layout, shard))]
    place.objects.put(key, laid_out(layout, [(DEAD, bytes(1024)), *parts]))
    return key


def test_it_says_what_it_would_do_and_does_it(place: Place, loose: str) -> None:
    before = snapshot(place.objects)
    values = presented(place.objects)
    outcome = succeed("compact", "--dry-run", place.url, *place.options)
    assert outcome.lines == ["9 shards looked at, 1.0 KiB dead", "1 would be rewritten, 0 would be deleted: 1.0 KiB would be freed"]
    assert snapshot(place.objects) == before
    outcome = succeed("compact", f"{place.url}/ct", *place.options)
    assert outcome.lines == ["6 shards looked at, 1.0 KiB dead", "1 rewritten, 0 deleted: 1.0 KiB freed"]
    assert presented(place.objects) == values
    after = snapshot(place.objects)
    assert len(before[loose]) - len(after.pop(loose)) == 1024
    assert after == {key: data for key, data in before.items() if key != loose}


def test_pins(place: Place, loose: str, tmp_path: Path) -> None:
    before = snapshot(place.objects)
    (tmp_path / "pins").write_text(f"{loose}\n")
    outcome = succeed("compact", place.url, "--pins", str(tmp_path / "pins"), *place.options)
    assert outcome.lines[-1] == "1 shard left alone, because pinned"
    assert snapshot(place.objects) == before
    document = succeed("compact", place.url, "--json", "--pins", str(tmp_path / "pins"), *place.options).json
    assert document["pinned"] == {"count": 1, "keys": [loose]}
    assert document["nbytes_before"] == document["rewritten"] == 0
    assert run("compact", place.url, "--pins", str(tmp_path / "nothing"), *place.options).code == 2


def test_a_damaged_shard_is_named_and_told_by_the_exit_code(place: Place, loose: str) -> None:
    shard = place.objects.get(loose)
    assert shard is not None
    place.objects.put(loose, shard[:-1])
    outcome = run("compact", place.url, *place.options)
    assert outcome.code == 5
    assert outcome.err.startswith(f"warning: {loose} is damaged and was left unchanged")
    assert place.objects.get(loose) == shard[:-1]


def test_bounds_and_shares(local: Place) -> None:
    assert run("compact", local.url, "--dead-ratio", "2").code == 2
    assert run("compact", local.url, "--part", "3").code == 2
    assert run("compact", local.url, "--order", "F").code == 2
    assert run("compact", f"{local.url}/nowhere").code == 3
    shares = [succeed("compact", local.url, "--json", "--part", f"{i}/2").json["shards"] for i in (1, 2)]
    assert sum(shares) == 9


def test_on_a_dask_cluster(local: Place) -> None:
    layout = sharded_arrays(local.objects)["ct"]
    shard = local.objects.get("ct/c/0/0")
    assert shard is not None
    parts = [(slot, shard[offset : offset + nbytes]) for slot, (offset, nbytes) in enumerate(index_entries(layout, shard))]
    local.objects.put("ct/c/0/0", laid_out(layout, [(DEAD, bytes(1024)), *parts]))
    with dask_cluster(threads_per_worker=2, processes=False) as client:
        outcome = succeed("compact", local.url, "--scheduler", client.cluster.scheduler_address)
    assert outcome.lines[-1] == "1 rewritten, 0 deleted: 1.0 KiB freed"
    assert local.objects.get("ct/c/0/0") == shard
