"""Every example of the README and the documentation runs, every notebook prints what it shows, and every relative link of a page leads to a
file and a heading.

The blocks of a page, of Python and of commands, run in order in an empty directory; those of Python share their names. ``s3://bucket``
is a bucket of a local server, ``gs://bucket`` one of an emulator. What lies in the directory is copied there when a command names it. A
block behind ``<!-- skip: reason -->`` is left out. Of ``make`` and ``pip``, which take long, only targets and extras are looked up. The
output of consoles is compared elsewhere (``test_page.py``, ``test_guide.py``).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import fsspec
import pytest
from typer.main import get_command

import shardstore
from shardstore.apps.cli.app import app
from shardstore.engine.options import EngineOptions
from tests.apps.cli.running import succeed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
MARKDOWN = [
    *sorted(ROOT.glob("*.md")),
    *(page for name in (".github", "benchmarks", "docs", "examples", "tests") for page in sorted((ROOT / name).rglob("*.md"))),
]
FENCED = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]+`")
BLOCK = re.compile(r"(?P<skip><!-- skip: [^\n]+ -->\n+)?^```(?P<language>python|sh)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"(?<![./\w-])shardstore (?=[a-z-])(?:\\\n|[^\n|])+")
BUCKET = re.compile(r"s3://bucket/([\w.]+)")


@dataclass(frozen=True, slots=True)
class Block:
    line: int  # of the page, where the code starts
    language: str
    code: str


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(text.count("\n", 0, match.start("code")) + 1, match["language"], match["code"])
        for match in BLOCK.finditer(text)
        if match["skip"] is None
    ]


# Pages of which gate/test_guides.py follows every block, commands and saved files too.
GUIDES = [ROOT / f"docs/howto/{name}.md" for name in ("cluster", "netcdf-to-s3", "training")]

PAGES_WITH_CODE = [
    pytest.param(page, marks=[] if page.parent.name in (ROOT.name, "start") else pytest.mark.gate, id=str(page.relative_to(ROOT)))
    for page in PAGES
    if blocks_of(page) and page not in GUIDES
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


@pytest.fixture
def gcs_bucket(gcs_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty bucket named ``bucket`` where gcsfs looks, by fsspec's configuration, when it is given no options."""
    options = {"endpoint_url": gcs_endpoint, "token": "anon", "project": "test"}
    monkeypatch.setitem(fsspec.config.conf, "gs", options)
    fsspec.filesystem("gs").call("POST", "b", project="test", json={"name": "bucket"})


@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_examples(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if page.name == "mounting.md":
        request.getfixturevalue("can_mount")
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of(page)
    if any("s3://" in block.code for block in blocks):
        request.getfixturevalue("bucket")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    if any('"gs://bucket/' in block.code for block in blocks):
        request.getfixturevalue("gcs_bucket")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        if block.language == "sh":
            for command in block.code.replace("\\\n", " ").splitlines():
                run_command(os.path.expandvars(command))
        else:
            # Leading newlines make a traceback show the page's own line numbers.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def run_command(line: str) -> None:
    for name in BUCKET.findall(line):
        filesystem = fsspec.filesystem("s3")
        if Path(name).is_dir() and not filesystem.exists(f"bucket/{name}"):
            filesystem.put(name, f"bucket/{name}", recursive=True)
    match shlex.split(line, comments=True):
        case []:
            pass
        case ["shardstore", *arguments, ">", file]:
            Path(file).write_text(succeed(*arguments).out)
        case ["shardstore", *arguments]:
            succeed(*arguments)
        case ["make", *arguments]:
            assert {each for each in arguments if "=" not in each} <= TARGETS, line
        case ["pip", "install", *packages]:
            extras = {each for package in packages for each in re.findall(r"[\w-]+", package.partition("[")[2])}
            assert extras <= EXTRAS, line
        case _:
            raise AssertionError(f"{line!r} is not run: give the reason in the page, as <!-- skip: reason -->")


TARGETS = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text().replace("\\\n", ""), re.MULTILINE)[0].split())
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def commands_of(page: Path) -> list[str]:
    """The commands in the blocks of a page, those that are left out too."""
    blocks = re.findall(r"^```(?:sh|crontab)\n.*?^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [command.replace("\\\n", " ") for block in blocks for command in COMMAND.findall(block)]


def test_the_command_line_understands_every_command_that_a_page_shows() -> None:
    commands = [(page.name, command) for page in PAGES for command in commands_of(page)]
    assert len(commands) > 40
    for page, command in commands:
        _, *arguments = shlex.split(command.partition(" > ")[0], comments=True)
        try:
            parse(get_command(app), arguments)
        except Exception as error:  # typer has click's classes of its own
            raise AssertionError(f"{page}: {command}: {error}") from error


def parse(command: Any, arguments: list[str]) -> None:
    """Take the arguments of a command without doing anything. Options in front of a command do things: they are left out."""
    while hasattr(command, "resolve_command"):
        if arguments[0].startswith("-"):
            return
        _, command, arguments = command.resolve_command(command.context_class(command), arguments)
    if arguments != ["--help"]:
        command.make_context(command.name, arguments)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_notebooks_show_what_their_cells_print(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it fails after a change that is meant: ``jupyter nbconvert --execute --inplace`` stores the outputs again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, object] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    for cell in cells:
        code = "".join(cell["source"])
        exec(compile(code, str(notebook), "exec"), names)
        assert capsys.readouterr().out == "".join(line for output in cell["outputs"] for line in output["text"]), code


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
    assert [str(page.relative_to(ROOT)) for page in [*PAGES, *NOTEBOOKS] if page not in listed and page != index] == []


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
