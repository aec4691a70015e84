"""Every Python example of the README and the documentation runs, and every relative link of a page leads to a file and a heading.

The blocks of a page run in order and share their names, in an empty directory. ``s3://bucket`` is a bucket of a local
server. A block behind ``<!-- skip: reason -->`` is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import fsspec
import pytest

import shardstore
from shardstore.engine.options import EngineOptions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKDOWN = [
    *sorted(ROOT.glob("*.md")),
    *(page for name in (".github", "benchmarks", "docs", "examples", "tests") for page in sorted((ROOT / name).rglob("*.md"))),
]
FENCED = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]+`")
BLOCK = re.compile(r"(?P<skip><!-- skip: [^\n]+ -->\n+)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    line: int  # of the page, where the code starts
    code: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(text.count("\n", 0, match.start("code")) + 1, match["code"]) for match in BLOCK.finditer(text) if match["skip"] is None]


PAGES_WITH_CODE = [
    pytest.param(page, marks=[] if page.parent.name in (ROOT.name, "start") else pytest.mark.gate, id=str(page.relative_to(ROOT)))
    for page in PAGES
    if blocks_of(page)
]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty bucket named ``bucket`` where s3fs looks when it is told nothing."""
    from moto.server import ThreadedMotoServer  # slow to import

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


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if page.name == "mounting.md":
        request.getfixturevalue("can_mount")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    if any("s3://" in block.code for block in blocks):
        request.getfixturevalue("bucket")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        # Leading newlines make a traceback show the page's own line numbers.
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def links_of(page: Path) -> list[str]:
    """The targets of a page's links and pictures that are no URLs."""
    return re.findall(r"\]\((?![a-z+]+:)([^)\s]+)\)", INLINE_CODE.sub("", FENCED.sub("", page.read_text())))


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCED.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {f"{slug}-{i}" if i else slug for slug, number in found.items() for i in range(number)}


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A, b: `c_d`\n\n## Time\n\n```sh\n# no heading\n```\n\n## Time\n\n[x](a.md#b) `[y](c.md)`\n")
    assert anchors_of(page) == {"a-b-c_d", "time", "time-1"}
    assert links_of(page) == ["a.md#b"]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert not broken


def test_the_map_has_every_page() -> None:
    index = ROOT / "docs/index.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in links_of(index)}
    overview = ROOT / "docs/design/overview.md"
    listed |= {(overview.parent / link).resolve() for link in links_of(overview) if link.startswith("decisions/")}
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in listed and page != index] == []


def test_conformance_names_code_and_tests_that_exist() -> None:
    text = (ROOT / "docs/reference/conformance.md").read_text()
    named = set(re.findall(r"`((?:shardstore|tests)/[^`]+)`", text))
    assert len(named) > 30
    for name in named:
        path, _, test = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert not test or f"def {test}(" in (ROOT / path).read_text(), name


def test_the_design_pages_name_code_that_exists() -> None:
    """``Class.function`` in ``room/module.py``, and modules alone; paths are below the package."""
    named: set[tuple[str, str]] = set()
    for page in (ROOT / "docs/design").rglob("*.md"):
        text = " ".join(page.read_text().split())
        rooms = "adapters|apps|engine|format|maintenance|model|opening|plan|presented|references|snapshots|storage|stored|testing"
        for module in re.findall(rf"`((?:{rooms})/[a-z0-9_/]+\.py)`", text):
            assert (ROOT / "shardstore" / module).is_file(), (page.name, module)
        for tested in re.findall(r"`(tests/[a-z0-9_/]+(?:\.py)?)`", text):
            assert (ROOT / tested).exists(), (page.name, tested)
        named |= set(re.findall(r"`([A-Za-z0-9_.]+)` in `([a-z0-9_/]+\.py)`", text))
    assert len(named) > 40
    for name, module in named:
        code = (ROOT / "shardstore" / module).read_text()
        for part in name.split("."):
            assert re.search(rf"\b(?:class|def) {part}\b", code), (name, module)


def test_every_public_name_and_option_is_on_its_page() -> None:
    reference = (ROOT / "docs/reference/reference.md").read_text()
    options = (ROOT / "docs/reference/options.md").read_text()
    assert [name for name in shardstore.__all__ if name not in reference] == []
    others = ["read_only", "storage_options", "fsync", "locks", "pipeline", "stored", "present"]
    wanted = [*(field.name for field in fields(EngineOptions)), *others]
    assert [name for name in wanted if f"| `{name}` |" not in options] == []
