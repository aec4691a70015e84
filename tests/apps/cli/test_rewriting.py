"""``shardstore compact`` and ``shardstore repair``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from tests.apps.cli.running import VALUES, Place, run, succeed
from tests.clusters import dask_cluster
from tests.maintenance.laid_out import DEAD, laid_out
from tests.shards import encode_index, index_entries, presented, sharded_arrays
from tests.stored import FsspecObjects, LocalObjects, Objects, snapshot


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


def test_compact_says_what_it_would_do_and_does_it(place: Place, loose: str) -> None:
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


def test_compact_puts_chunks_into_the_order_that_is_asked_for(place: Place, loose: str) -> None:
    succeed("compact", "--chunk-order", "F", place.url, *place.options)
    layout, shard = sharded_arrays(place.objects)["ct"], place.objects.get(loose)
    assert shard is not None
    offsets = np.array([offset for offset, _ in index_entries(layout, shard)]).reshape(layout.chunks_per_shard).transpose().reshape(-1)
    assert layout.chunks_per_shard == (2, 3)
    assert offsets.tolist() == sorted(offsets)


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
    for more in ((), ("--pins-of", "nothing"), ("--scheduler", "tcp://127.0.0.1:9")):  # nothing is read, and no cluster is asked
        refused = run("compact", local.url, "--chunk-order", "Z", *more)
        assert refused.code == 2
        assert "--chunk-order 'Z' is not known: there are 'C', 'F', 'morton'" in refused.err
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


def quarantine_of(place: Place) -> Objects:
    url = f"{place.url}.quarantine"
    return FsspecObjects(url, place.storage_options) if "://" in url else LocalObjects(Path(url))


@pytest.fixture
def torn(place: Place) -> str:
    """The key of a shard to which something was appended, and not finished."""
    key = "ct/c/0/1"
    shard = place.objects.get(key)
    assert shard is not None
    place.objects.put(key, shard + shard[:71])
    return key


def test_repair_says_what_it_would_do_and_does_it(place: Place, torn: str) -> None:
    before = snapshot(place.objects)
    outcome = run("repair", "--dry-run", place.url, *place.options)
    assert outcome.code == 5
    what = f"{torn}: 71 bytes follow its last valid index: of an append that did not finish, or that is damaged; "
    named = "ct/c/0/3, ct/c/0/4, ct/c/0/5, ct/c/1/3, ct/c/1/4, ct/c/1/5"
    left = (
        f"{what}nothing is done: removing them may bring old values back, and needs --allow-reverting "
        f"(allow_reverting=True): 6 chunks in it; may be old: {named}"
    )
    assert outcome.lines == [left, "9 shards looked at, 1 would be dealt with"]
    left_warning = "warning: 1 damaged shard left: restore from a copy, or give --allow-reverting to go back to an older index\n"
    assert outcome.err == f"{left_warning}warning: nothing was changed yet\n"
    outcome = run("repair", place.url, "--yes", *place.options)
    assert (outcome.code, outcome.lines[0]) == (5, left)
    assert outcome.err == left_warning
    assert snapshot(place.objects) == before
    assert snapshot(quarantine_of(place)) == {}
    outcome = run("repair", "--yes", "--allow-reverting", f"{place.url}/ct", *place.options)
    assert outcome.code == 5
    told = (
        f"{what}they are removed: its chunks are those of that index again, and what was written since is lost: 6 chunks kept; "
        f"reverted, may be old: {named}"
    )
    assert outcome.lines[:2] == [told, "6 shards looked at, 1 dealt with"]
    assert outcome.lines[2].startswith("damaged objects are kept in ")
    assert outcome.lines[2].endswith("data.zarr.quarantine")
    assert before[torn] in snapshot(quarantine_of(place)).values()
    store = shardstore.open(place.url, storage_options=place.storage_options or None, index_cache_bytes=0)
    array = zarr.open_array(store, path="ct", mode="r")
    assert np.array_equal(array[:12], VALUES)
    assert succeed("repair", place.url, "--dry-run", *place.options).lines == ["9 shards looked at, 0 would be dealt with"]


def lose_a_chunk(local: Place) -> None:
    layout, shard = sharded_arrays(local.objects)["ct"], local.objects.get("ct/c/0/0")
    assert shard is not None
    entries = index_entries(layout, shard)
    entries[4] = (10**9, 1)
    local.objects.put("ct/c/0/0", shard[: -layout.index_nbytes] + encode_index(layout, entries))


def test_repair_asks_before_it_changes_anything(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(local.objects)
    refused = run("repair", local.url)
    assert (refused.code, "give --dry-run to look, or --yes to repair" in refused.error) == (2, True)
    for module in ("output", "rewriting"):
        monkeypatch.setattr(f"shardstore.apps.cli.{module}.is_interactive", lambda: True)
    assert succeed("repair", local.url).lines == ["9 shards looked at, 0 would be dealt with"]  # nothing to ask about
    lose_a_chunk(local)
    damaged = snapshot(local.objects)
    declined = run("repair", local.url, stdin="n\n")
    assert (declined.code, "9 shards looked at, 1 would be dealt with" in declined.out) == (1, True)
    assert f"This would repair {local.url}: 1 shard." in declined.err
    assert "nothing was changed" in declined.err
    assert snapshot(local.objects) == damaged != before
    only_looked = run("repair", local.url, "--dry-run", "--yes")
    assert (only_looked.code, snapshot(local.objects)) == (5, damaged)
    printed = run("repair", local.url, "--json", stdin="y\n").out
    document = json.loads(printed[printed.index("{") :])  # behind the answer, which this runner prints
    assert (document["dry_run"], document["findings"]["count"]) == (False, 1)
    assert snapshot(local.objects) != damaged


def test_lost_chunks_are_told_by_the_exit_code(local: Place, tmp_path: Path) -> None:
    lose_a_chunk(local)
    outcome = run("repair", local.url, "--yes", "--json", "--quarantine", str(tmp_path / "kept"))
    assert outcome.code == 5
    (finding,) = outcome.json["findings"]["shards"]
    assert (finding["remedy"], finding["kept"], finding["lost"]) == ("dropped", 5, {"count": 1, "chunks": ["ct/c/1/1"]})
    rest = ["ct/c/0/0", "ct/c/0/1", "ct/c/0/2", "ct/c/1/0", "ct/c/1/2"]  # the shard was longer; where its bytes are missing is not known
    assert (finding["reverted"], finding["uncertain"]) == ({"count": 0, "chunks": []}, {"count": 5, "chunks": rest})
    kept = tmp_path / "kept" / finding["quarantined"]
    assert kept.is_file()
    assert kept.with_name(kept.name + ".json").is_file()
    assert succeed("repair", local.url, "--yes").code == 0


def test_metadata_that_cannot_be_read_is_named(local: Place) -> None:
    local.objects.put("ct/zarr.json", b'{"zarr_format": 3, ')
    outcome = run("repair", local.url, "--yes")
    assert outcome.code == 5
    assert outcome.err == "warning: ct has metadata that cannot be read, which is never guessed: restore it\n"


def test_wrong_usage(local: Place) -> None:
    assert run("repair", local.url, "--yes", "--older-than", "24").code == 2
    assert run("repair", local.url, "--yes", "--quarantine", f"{local.url}/inside").code == 2
    assert run("repair", f"{local.url}/nowhere", "--dry-run").code == 3
