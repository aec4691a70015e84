"""Every Python example of the README and the documentation runs.

The blocks of a page run in order and share their names, in an empty directory. ``s3://bucket`` is a bucket of a local
server. A block behind ``<!-- skip: reason -->`` is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

import shardstore
from shardstore.engine.options import EngineOptions

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?P<skip><!-- skip: [^\n]+ -->\n+)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    line: int  # of the page, where the code starts
    code: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(text.count("\n", 0, match.start("code")) + 1, match["code"]) for match in BLOCK.finditer(text) if match["skip"] is None]


PAGES_WITH_CODE = [page for page in PAGES if blocks_of(page)]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty bucket named ``bucket`` where s3fs looks when it is told nothing."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    s3 = fsspec.get_filesystem_class("s3")
    s3.clear_instance_cache()
    filesystem = s3()
    filesystem.mkdir("bucket")
    yield
    filesystem.invalidate_cache()
    filesystem.rm("bucket", recursive=True)  # all servers of a process share their buckets
    s3.clear_instance_cache()
    server.stop()


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    if any("s3://" in block.code for block in blocks):
        request.getfixturevalue("bucket")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        # Leading newlines make a traceback show the page's own line numbers.
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def test_pages_name_only_files_that_exist() -> None:
    """Relative links lead somewhere."""
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in [*PAGES, ROOT / "examples/data/README.md"]
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert not broken, os.linesep.join(broken)


def test_conformance_names_code_and_tests_that_exist() -> None:
    text = (ROOT / "docs/format/conformance.md").read_text()
    named = set(re.findall(r"`((?:shardstore|tests)/[^`]+)`", text))
    assert len(named) > 30
    for name in named:
        path, _, test = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert not test or f"def {test}(" in (ROOT / path).read_text(), name


def test_every_public_name_and_option_is_on_its_page() -> None:
    reference = (ROOT / "docs/reference.md").read_text()
    options = (ROOT / "docs/guide/options.md").read_text()
    assert [name for name in shardstore.__all__ if name not in reference] == []
    others = ["read_only", "storage_options", "fsync", "locks", "pipeline", "stored", "present"]
    wanted = [*(field.name for field in fields(EngineOptions)), *others]
    assert [name for name in wanted if f"| `{name}` |" not in options] == []
