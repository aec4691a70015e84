"""Options have types: a type checker finds what is misspelt, and what has a wrong value, before the program runs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest
from mypy import api

import shardstore
from shardstore.adapters.options import FurtherOptions, StoreOptions
from shardstore.engine.options import EngineOptions
from shardstore.maintenance.packing.pack import PackKeywords, PackOptions

RIGHT = """
import shardstore
store = shardstore.open("s3://bucket/a", strategy="append", gap_bytes=4096, locks="cluster", pipeline=False)
shardstore.open(("fs", "path"), chunks_per_shard={"a/*": (2, 2), "b": None}, present_level="innermost")
mapping = shardstore.get_mapper("a", present="v2", stored="codec", static=True)
transformer = shardstore.ShardingTransformer("a", chunks_per_shard=(2, 2), fsync=False)
shardstore.ShardedStore.from_url("a", read_only=True, transport="obstore")
shardstore.pack("a", "b", chunk_order="morton", workers=2)
"""
WRONG = [
    'shardstore.open("a", strategyy="append")',
    'shardstore.open("a", strategy="apend")',
    'shardstore.open("a", gap_byte=1)',
    'shardstore.open("a", chunk_order="F")',
    'shardstore.get_mapper("a", pipeline=True)',
    'shardstore.get_mapper("a", present="v4")',
    'shardstore.ShardingTransformer("a", chunk_per_shard=(2, 2))',
    'shardstore.ShardedStore("a", presnt="v3")',
    'shardstore.pack("a", "b", chunk_ordr="C")',
    'shardstore.unpack("a", "b", index_location="middle")',
    'shardstore.repair("a", yess=True)',
]


def test_every_option_has_a_type() -> None:
    of_handles = {"fsync", "locks", "transport", "static"}
    assert set(StoreOptions.__annotations__) == {field.name for field in fields(EngineOptions)} | of_handles
    assert set(StoreOptions.__annotations__) - set(FurtherOptions.__annotations__) == {"chunks_per_shard", "stored", "present", "strategy"}
    assert get_type_hints(PackKeywords) == get_type_hints(PackOptions)


@pytest.mark.slow
def test_mypy_finds_misspelt_options_and_values(tmp_path: Path) -> None:
    program, settings = tmp_path / "program.py", tmp_path / "mypy.ini"
    program.write_text(RIGHT + "\n".join(WRONG) + "\n")
    settings.write_text("[mypy]\nstrict = True\n")
    said, failures, _ = api.run([f"--config-file={settings}", f"--cache-dir={tmp_path}", "--no-error-summary", "--no-pretty", str(program)])
    assert not failures
    wrong = {int(line.removeprefix(str(program)).split(":")[1]) for line in said.splitlines() if ": error:" in line}
    first = RIGHT.count("\n") + 1
    assert wrong == set(range(first, first + len(WRONG))), said


def test_dir_shows_the_public_names() -> None:
    assert dir(shardstore) == sorted(shardstore.__all__)
    assert all(getattr(shardstore, name) is not None for name in dir(shardstore))
