"""What an interactive session shows of stores and results is one short line without secrets."""

from __future__ import annotations

from pathlib import Path

import fsspec
import zarr

import shardstore


def test_stores_and_results_have_short_reprs(tmp_path: Path) -> None:
    url = str(tmp_path / "a")
    store = shardstore.open(url, chunks_per_shard=(2, 2))
    array = zarr.create_array(store, name="x", shape=(8, 8), chunks=(2, 2), dtype="u1")
    array[:4] = 1
    shown = [
        store,
        store.engine,
        shardstore.open(url, present="v2").engine,
        shardstore.get_mapper(url),
        shardstore.ShardingTransformer(url),
        fsspec.filesystem("sharded", fo=url),
        shardstore.census(url),
        shardstore.verify(url),
        shardstore.compact(url, dry_run=True),
        shardstore.repair(url, dry_run=True),
        shardstore.pack(url, str(tmp_path / "b")),
    ]
    for value in shown:
        text = repr(value)
        assert len(text) < 160 + 2 * len(url), text
        assert "\n" not in text
        assert type(value).__name__ in text
        assert " object at " not in text
    assert repr(shardstore.census(url)) == "<Census of 1 arrays: 8 of 16 chunks exist>"
    assert ": 2 shards, 0 rewritten, 0 deleted, 0 failed>" in repr(shardstore.compact(url))


def test_reprs_show_no_secrets() -> None:
    filesystem = fsspec.filesystem("sharded", fo="http://user:secret@127.0.0.1:9/a?token=hidden")
    assert repr(filesystem).startswith("ShardedFileSystem('http://")
    assert "secret" not in repr(filesystem)
    assert "hidden" not in repr(filesystem)
