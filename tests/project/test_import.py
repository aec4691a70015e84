"""Importing shardstore stays light: what it loads is the standard library, and what ``import fsspec, numpy`` loads anyway."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shardstore.extras import EXTRAS, how_to_install

ROOT = Path(__file__).parents[2]


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"__main__", "__mp_main__"}


@pytest.fixture(scope="module")
def usual() -> set[str]:
    return modules_after("import fsspec, numpy")


def test_import_loads_only_a_few_modules_of_its_own(usual: set[str]) -> None:
    ours = modules_after("import fsspec, numpy, shardstore") - usual
    assert packages(ours) == {"shardstore"}
    assert {name for name in ours if name.startswith("shardstore")} == {"shardstore", "shardstore.errors"}


@pytest.mark.gate
@pytest.mark.parametrize(
    "name",
    ["ShardedFileSystem", "ShardedMap", "ShardingTransformer", "get_mapper", "align", "verify", "census", "show_versions"],
)
def test_no_face_loads_a_client_or_an_array_library(usual: set[str], name: str) -> None:
    loaded = packages(modules_after(f"import fsspec, numpy, shardstore; shardstore.{name}") - usual)
    # Checksums come from a package of their own; fsspec's memory and local filesystems from fsspec.
    assert loaded <= {"shardstore", "google_crc32c", "fsspec", "numpy"}, loaded


def test_opening_a_mapping_in_memory_loads_no_client(usual: set[str]) -> None:
    loaded = packages(modules_after("import fsspec, numpy, shardstore; shardstore.get_mapper('memory://x')['k'] = b'v'") - usual)
    assert loaded <= {"shardstore", "google_crc32c", "fsspec", "numpy"}, loaded


def test_the_protocol_is_registered_without_loading_anything(usual: set[str]) -> None:
    code = "import fsspec, numpy; assert 'sharded' in fsspec.available_protocols()"
    assert "shardstore" not in packages(modules_after(code) - usual)


def test_errors_name_the_packages_that_the_extras_have() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: tuple(re.split(r"[<>=!~;\[ ]", each)[0] for each in extras[name]) for name in EXTRAS} == EXTRAS
    assert extras.keys() - EXTRAS.keys() == {"all", "bench", "dev", "docs", "test", "zstd"}


def test_all_is_every_extra_but_the_one_that_is_built() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"[\w]+", extras["all"][0])) - {"shardstore"} == EXTRAS.keys() - {"mount"} | {"zstd"}
    assert how_to_install("cli") == "pip install 'shardstore[cli]'"


def test_errors_name_extras_that_exist() -> None:
    texts = {path: path.read_text() for path in (ROOT / "shardstore").rglob("*.py")}
    named = {extra for text in texts.values() for extra in re.findall(r"""how_to_install\(["'](\w+)["']\)""", text)}
    assert len(named) > 6
    assert named <= EXTRAS.keys()
    assert [str(path) for path, text in texts.items() if re.search(r"pip install (?!'?distributed|'shardstore\[)", text)] == []
