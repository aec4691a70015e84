"""``benchmarks/readers.py``: its stores are what they are called, wrong values are noticed, and the page is of these stores and readers."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from tests.stored import LocalObjects, document

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
PAGE = ROOT / "docs/evidence/readers.md"


@pytest.fixture(scope="module")
def readers() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("readers")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def stores(readers: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    root = tmp_path_factory.mktemp("readers") / "stores"
    return root, readers.make_stores(readers.CASES, root)


def test_each_store_is_what_it_is_called(stores: tuple[Path, dict[str, Any]]) -> None:
    root, wanted = stores
    for name, values in wanted.items():
        opened = shardstore.open(root / name, read_only=True)
        assert np.array_equal(np.asarray(zarr.open_array(opened, path="0", mode="r")[...]), values), name
    codecs = {name: document(LocalObjects(root / name), "0/zarr.json")["codecs"] for name in wanted}
    assert {each[0]["name"] for each in codecs.values()} == {"sharding_indexed"}
    configurations = {name: each[0]["configuration"] for name, each in codecs.items()}
    assert [name for name, each in configurations.items() if each.get("index_location") == "start"] == ["start"]
    assert [name for name, each in configurations.items() if len(each["index_codecs"]) == 1] == ["unchecked"]
    inner = {name: [codec["name"] for codec in each["codecs"]] for name, each in configurations.items()}
    assert (inner["raw"], inner["nested"]) == (["bytes"], ["sharding_indexed"])
    assert all(name in inner[name] for name in ("gzip", "blosc", "crc32c", "transpose"))
    dead = {found.path for found in shardstore.verify(root / "dead").findings if found.kind == "dead"}
    assert dead == {"0"}
    assert len(list((root / "sparse/0/c").rglob("[0-9]"))) < len(list((root / "plain/0/c").rglob("[0-9]"))) / 2
    assert (root / "dot/0/c.0.1").is_file()
    assert (root / "scalar/0/c").is_file()


def test_values_are_judged(readers: Any, stores: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, wanted = stores
    command = [sys.executable, BENCHMARKS / "reader_program.py", "zarr_python", root, tmp_path]
    others = {"plain": wanted["plain"], "start": wanted["start"] + 1, "gone": wanted["plain"], "scalar": wanted["scalar"].reshape(1)}
    found = readers._read(command, tmp_path, others, ROOT)
    assert "FileNotFoundError" in found.pop("gone")
    assert found == {"plain": "ok", "start": "wrong", "scalar": "wrong"}


def test_a_reader_that_dies_is_started_again_for_the_other_stores(
    readers: Any, stores: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, wanted = stores
    program = tmp_path / "dies.py"
    program.write_text(
        "import json, os, sys\n"
        "for case in sys.argv[1:]:\n"
        "    print(json.dumps({'case': case}), flush=True)\n"
        "    if case == 'start': os.abort()\n"
        "    print(json.dumps({'case': case, 'error': 'it cannot'}), flush=True)\n"
    )
    some = {name: wanted[name] for name in ("plain", "start", "raw")}
    found = readers._read([sys.executable, program], tmp_path, some, tmp_path)
    assert found == {"plain": "it cannot", "start": "the process died with -6", "raw": "it cannot"}
    program.write_text("raise SystemExit('no such reader')")
    with pytest.raises(RuntimeError, match="no such reader"):
        readers._read([sys.executable, program], tmp_path, some, tmp_path)


def test_the_page_is_of_these_stores_and_readers(readers: Any) -> None:
    page = PAGE.read_text()
    head, *rows = re.findall(r"^\| (.*) \|$", page, re.MULTILINE)
    named = re.findall(r"^- \*\*(.+?)\*\*: ", page[page.index("## The programs") : page.index("## Not run")], re.MULTILINE)
    assert named == [reader.name for reader in readers.READERS]
    shown = head.split(" | ")[1:]
    assert [name for name in named if name in shown] == shown
    assert [row.split(" | ")[0] for row in rows] == [case.what for case in readers.CASES]
    assert {cell.strip() for row in rows for cell in row.split(" | ")[1:]} <= {"✓", "✗", "**wrong**", ""}
