"""``shardstore info``."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import zarr

import shardstore
from shardstore.native.kernel import kernel
from tests.apps.cli.running import Place, make_store, options_of, run, succeed
from tests.harness.coarse_times import CoarseTimes
from tests.shards import index_entries, sharded_arrays
from tests.stored import Objects, document

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


def array_of(info: Any, path: str) -> Any:
    (array,) = (a for a in info["arrays"] if a["path"] == path)
    return array


def spoil_index(objects: Objects, key: str) -> None:
    shard = objects.get(key)
    assert shard is not None
    objects.put(key, shard[:-6] + bytes([shard[-6] ^ 1]) + shard[-5:])


def test_json_tells_what_is_stored(place: Place) -> None:
    info = succeed("info", place.url, "--json", *place.options).json
    assert [a["path"] for a in info["arrays"]] == ["ct", "scans/pt", "time"]
    assert (info["groups"], info["kind"]) == (2, "group")
    keys = place.objects.keys()
    assert (info["objects"], info["stored_nbytes"]) == (len(keys), sum(len(place.objects.get(key) or b"") for key in keys))
    ct = array_of(info, "ct")
    assert (ct["shape"], ct["data_type"], ct["chunks_per_shard"]) == ([30, 35], "uint16", [2, 3])
    assert (ct["presented"]["chunk_shape"], ct["stored"]["shape"]) == ([5, 5], [10, 15])
    assert ct["passes_through"] is None
    layout = sharded_arrays(place.objects)["ct"]
    shards = [place.objects.get(key) or b"" for key in keys if layout.coords(key) is not None]
    sizes = [nbytes for shard in shards for offset, nbytes in index_entries(layout, shard) if offset != 2**64 - 1]
    usage = ct["usage"]
    assert (usage["objects"], usage["possible_objects"]) == (len(shards), 9)
    assert (usage["chunks"], usage["possible_chunks"], usage["chunk_nbytes"]) == (len(sizes), 42, sum(sizes))
    assert usage["stored_nbytes"] == sum(map(len, shards))
    assert usage["dead_nbytes"] == 0
    assert usage["index_nbytes"] == 16 * 6 * len(shards) + 4 * len(shards)
    time = array_of(info, "time")
    assert (time["passes_through"], time["usage"]["objects"], time["usage"]["stored_nbytes"]) == ("it is not sharded", 2, 32)


def test_text_tells_it_too(place: Place) -> None:
    told = " ".join(succeed("info", place.url, *place.options).out.split())
    assert "2 groups, 3 arrays" in told
    assert "ct 30 × 35 uint16" in told
    assert "shards of 10 × 15: 2 × 3 chunks, index at the end with checksum" in told
    assert "shards 6 of 9 chunks 21 of 42, 1.0 KiB" in told
    # 6 shards of 21 chunks of 50 B, each with an index of 6 entries of 16 B and a checksum of 4 B
    assert f"bytes 1.6 KiB, {600 / 1650:.1%} of it indices, nothing dead" in told
    assert "as presented: it is not sharded chunks 2 of 3, 32 B" in told
    assert "writers that share a shard:" in told


def test_lines_are_neither_cut_nor_filled_up(place: Place) -> None:
    lines = succeed("info", "--explain", place.url, *place.options).lines
    assert max(map(len, lines)) > 80
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("below", ["ct", "scans/pt"])
def test_a_node_by_its_own_url(place: Place, below: str) -> None:
    info = succeed("info", f"{place.url}/{below}", "--json", *place.options).json
    assert ([a["path"] for a in info["arrays"]], info["kind"], info["path"]) == ([below], "array", below)


def test_fast_counts_nothing(place: Place) -> None:
    info = succeed("info", place.url, "--fast", "--json", *place.options).json
    assert [a["usage"] for a in info["arrays"]] == [None] * 3
    assert info["objects"] is None
    assert "shards of 10 × 15" in succeed("info", place.url, "--fast", *place.options).out


def test_damage_is_listed_with_its_own_exit_code(place: Place) -> None:
    spoil_index(place.objects, "ct/c/0/1")
    outcome = run("info", place.url, *place.options)
    assert outcome.code == 5
    assert outcome.err.startswith("error: 1 shard is damaged")
    assert "ct/c/0/1: its index is damaged" in outcome.out
    assert "shards 3 of 3" in " ".join(outcome.out.split())  # of the other array: the rest is still shown
    as_json = run("info", place.url, "--json", *place.options)
    assert as_json.code == 5
    (damage,) = as_json.json["damage"]
    assert (damage["path"], damage["key"]) == ("ct", "ct/c/0/1")
    assert as_json.json["damaged_objects"] == 1
    assert array_of(as_json.json, "ct")["usage"]["chunks"] == 15


def test_why_an_array_passes_through(local: Place) -> None:
    stored = document(local.objects, "ct/zarr.json")
    stored["codecs"].append({"name": "crc32c"})
    local.objects.put("ct/zarr.json", json.dumps(stored).encode())
    ct = array_of(succeed("info", local.url, "--json").json, "ct")
    assert ct["passes_through"] == "another codec wraps or precedes sharding_indexed"
    assert "as presented: another codec wraps" in succeed("info", local.url).out


@pytest.mark.parametrize("flags", [[], ["--fast"]])
def test_zarr_v2_and_no_zarr_are_told(tmp_path: Path, flags: list[str]) -> None:
    old = tmp_path / "old"
    zarr.create_group(str(old), zarr_format=2).create_array("x", shape=(4,), chunks=(2,), dtype="i4")
    told = "Zarr v2 (.zgroup, .zarray): shown unchanged; shards are of Zarr v3"
    assert succeed("info", str(old), *flags).lines[0] == f"{old}: {told}"
    outcome = run("advise", str(old), "-a", "1", *flags)
    assert (outcome.code, outcome.error) == (3, f"{old}: {told}")
    assert succeed("info", str(old), "--json", *flags).json["v2_documents"] == [".zgroup", "x/.zarray"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_bytes(b"1")
    assert "no Zarr here: no zarr.json, .zgroup or .zarray was found" in succeed("info", str(tmp_path / "notes"), *flags).out
    assert "no Zarr here" in run("advise", str(tmp_path / "notes"), "-a", "1", *flags).error


def test_stale_consolidated_metadata_is_noted(local: Place) -> None:
    zarr.consolidate_metadata(shardstore.open(local.url))
    assert "consolidated metadata of /: 3 arrays, up to date" in succeed("info", local.url).out
    succeed("mv", f"{local.url}/time", f"{local.url}/scans/time")
    assert "consolidated metadata of /: 3 arrays, out of date" in succeed("info", local.url).out
    (group,) = succeed("info", local.url, "--json").json["consolidated"]
    assert group == {"path": "", "arrays": 3, "is_stale": True}


def test_what_the_storage_can_do(place: Place, tmp_path: Path) -> None:
    known = succeed("info", place.url, "--json", "--fast", "--probe", *place.options).json["storage"]
    assert (known["writers"], known["is_known"]) == ("safe", True)
    assert known["capabilities"]["compare_and_swap"]
    assert "writers that share a shard: safe" in succeed("info", place.url, "--fast", "--probe", *place.options).out
    assert place.objects.get("zarr.json") is not None
    assert [key for key in place.objects.keys() if "probe" in key] == []  # noqa: SIM118 - no mapping


def test_a_file_system_that_cannot_tell_versions_is_named(local: Place) -> None:
    with CoarseTimes(2 * 10**9, has_attributes=False):
        text = " ".join(succeed("info", local.url).out.split())
        info = succeed("info", local.url, "--json").json
    assert "not safe, let one writer at a time write to each shard (its file system keeps neither fractions of seconds nor" in text
    assert info["storage"]["writers"] == "one a shard"
    assert not info["storage"]["capabilities"]["compare_and_swap"]
    assert succeed("info", local.url, "--json").json["storage"]["writers"] == "safe"


def test_of_a_server_nothing_is_claimed_before_it_was_asked(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    native = zarr.open_group(zarr.storage.FsspecStore.from_url(url, storage_options=options), mode="w")
    native.create_array("x", shape=(4,), chunks=(2,), dtype="u1")
    storage = succeed("info", url, "--json", *options_of(options)).json["storage"]
    assert (storage["writers"], storage["is_known"]) == ("unknown", False)
    assert "not known before the server is asked" in succeed("info", url, *options_of(options)).out


def test_a_key_is_no_node(local: Place) -> None:
    outcome = run("info", f"{local.url}/ct/c/0/0")
    assert outcome.code == 3
    assert "no node at" in outcome.error


def test_nothing_there(place: Place) -> None:
    outcome = run("info", f"{place.url}-else", *place.options)
    assert outcome.code == 3
    assert "there is no node at" in outcome.error


def test_a_directory_of_stores(tmp_path: Path) -> None:
    make_store(str(tmp_path / "one.zarr"))
    make_store(str(tmp_path / "two.zarr"))
    for arguments in (["--json"], ["--json", "--fast"]):
        info = succeed("info", str(tmp_path), *arguments).json
        assert [a["path"] for a in info["arrays"]] == [f"{s}.zarr/{p}" for s in ("one", "two") for p in ("ct", "scans/pt", "time")]


def test_runtime() -> None:
    alone = succeed("info", "--runtime", "--json").json
    assert alone["runtime"]["versions"]["zarr"] == zarr.__version__
    assert alone["runtime"]["versions"]["shardstore"] == shardstore.__version__
    assert alone["runtime"]["pipeline"] == "shardstore.adapters.zarr.pipeline.ShardedCodecPipeline"
    native = kernel()
    assert alone["runtime"]["kernel"]["file"] == (None if native is None else native.file)
    assert (alone["runtime"]["kernel"]["why_not"] is None) == (native is not None)
    told = succeed("info", "--runtime").out
    assert zarr.__version__ in told
    assert re.search(r"^kernel +(none: |/)", told, re.MULTILINE)
    assert "ShardedCodecPipeline" in told
    assert run("info").code == 2


def test_runtime_beside_a_store(local: Place) -> None:
    info = succeed("info", local.url, "--runtime", "--json").json
    assert {"runtime", "arrays", "storage"} <= set(info)


def test_an_empty_memory_url_is_missing() -> None:
    assert run("info", f"memory://nothing-{uuid.uuid4().hex}").code == 3


def test_a_hierarchy_of_the_2022_draft() -> None:
    store = str(Path(__file__).parents[2] / "fixtures/transformer2022/t2d_missing/store")
    info = succeed("info", store, "--json").json
    assert info["flavour"] == {"stored": "2022 draft", "presented": "v3", "presentable": ["v3", "v2", "draft"]}
    array = array_of(info, "a2")
    assert (array["by_transformer"], array["chunks_per_shard"], array["stored"]["shape"]) == (True, [2, 2], [4, 6])
    assert (array["usage"]["objects"], array["usage"]["chunks"]) == (4, 5)
    told = " ".join(succeed("info", store).out.split())
    assert "shards of 4 × 6: 2 × 2 chunks, index at the end without checksum, by the storage transformer of 2022" in told
    assert "stored a hierarchy of the 2022 draft presented as final Zarr v3 (present='v2' shows Zarr v2, present='draft' shows" in told


def test_what_is_stored_and_presented(local: Place) -> None:
    info = succeed("info", local.url, "--json").json
    assert info["flavour"] == {"stored": "v3", "presented": "v3", "presentable": ["v3", "v2"]}
    told = " ".join(succeed("info", local.url).out.split())
    assert "stored final Zarr v3 presented as final Zarr v3 (present='v2' shows Zarr v2)" in told


def test_info_says_that_a_pack_has_not_ended(local: Place, tmp_path: Path) -> None:
    target = str(tmp_path / "packed.zarr")
    succeed("pack", local.url, target, "--part", "1/50", "--quiet")
    assert (Path(f"{target}.pack").exists(), Path(target).exists()) == (True, False)
    assert f"{target} is not complete: a pack into it has not ended" in run("info", target).error
    succeed("pack", local.url, target, "--part", "2/2", "--quiet")
    for flags in ([], ["--fast"]):
        first = succeed("info", target, *flags).lines[0]
        assert first.startswith(f"{target}: not complete: a pack into it has not ended, as its record file://{target}.pack shows")
    assert "has not ended" in succeed("info", target, "--json").json["unfinished_pack"]
    succeed("pack", local.url, target, "--quiet")
    assert succeed("info", target).lines[0] == f"{target}: no damage was found"
    assert succeed("info", target, "--json").json["unfinished_pack"] is None
    (tmp_path / f"packed.zarr.pack/begun-{'0' * 32}.jsonl").touch()  # of a run that renews it
    assert ": not complete: " in succeed("info", target).lines[0]
    assert succeed("info", target, "--fast").lines[0] == f"{target}: not looked for damage: --fast reads metadata only"


def test_what_the_verdict_is_based_on_is_behind_explain(local: Place) -> None:
    lines = succeed("info", local.url).lines
    assert lines[0] == f"{local.url}: no damage was found"
    assert not any("it can" in line or "shardstore verify" in line for line in lines)
    told = succeed("info", local.url, "--explain").out
    assert "  it can\n" in told
    assert "Damage of the chunks themselves is not: shardstore verify reads those that have checksums" in told
