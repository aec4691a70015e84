"""The README, and the pages about the command line, show what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.apps.cli.output import MEANINGS
from tests.apps.cli.running import PLAIN

ROOT = Path(__file__).parents[4]
README = ROOT / "README.md"
PAGE = ROOT / "docs/reference/command-line.md"
STORE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands_of(page: str) -> list[tuple[str, str]]:
    """Each command of the page's consoles, with what it is said to print."""
    found: list[tuple[str, str]] = []
    for block in CONSOLE.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            found.append((command, printed))
    return found


class Reader:
    """Does in an empty directory what a page says: first its first block of Python, which makes the store, then commands."""

    def __init__(self, page: str, directory: Path) -> None:
        for code in STORE.findall(page)[:1]:  # others go on from there in Python
            exec(compile(code, "page", "exec"), {})
        bin_ = directory / "bin"
        bin_.mkdir()
        for name, command in (("shardstore", f'"{sys.executable}" -m shardstore'), ("python3", f'"{sys.executable}"')):
            (bin_ / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (bin_ / name).chmod(0o755)
        self._directory = directory
        self._environment = {**os.environ, **PLAIN, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}

    def run(self, command: str) -> tuple[str, int]:
        """What the command printed, and its exit code."""
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
            env=self._environment,
        )
        return done.stdout.replace(str(self._directory), "/home/me"), done.returncode


@pytest.mark.parametrize(
    ("page", "least"), [(README, 4), (PAGE, 11), (ROOT / "docs/howto/verify.md", 4)], ids=["README", "command-line", "verify"]
)
def test_the_page_shows_what_the_commands_print(page: Path, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    commands = commands_of(text)
    assert len(commands) >= least
    reader = Reader(text, tmp_path)
    for command, said in commands:
        assert reader.run(command)[0] == said, command


def test_the_commands_that_the_readme_lists_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    commands = re.findall(r"^(shardstore .*?) +# ", text, re.MULTILINE)
    assert [command.split()[1] for command in commands] == ["info", "ls", "advise", "verify", "refs", "unpack", "mv"]
    reader = Reader(text, tmp_path)
    printed = {command.split()[1]: reader.run(command) for command in commands}
    assert {code for _, code in printed.values()} == {0}, printed
    assert re.findall(r"^ +\d+  (.*)$", printed["ls"][0], re.MULTILINE) == [f"image/c/0/{i}" for i in range(4)]
    assert "recommended: chunks_per_shard=" in printed["advise"][0]
    assert sorted(path.name for path in (tmp_path / "data.zarr").iterdir()) == ["scan", "zarr.json"]


def test_the_readme_begins_with_how_to_install() -> None:
    """And with a path of one's own machine, not with an account of somebody's."""
    first = README.read_text().split("\n")[:15]
    assert any(line.startswith("pip install '.[zarr,s3,cli]'") for line in first)
    example = STORE.findall(README.read_text())[0]
    assert 'shardstore.open("data.zarr"' in example


def test_the_page_lists_the_exit_codes() -> None:
    page = PAGE.read_text()
    assert [code for code, meaning in MEANINGS.items() if f"| {code.value} | {meaning} |" not in page] == []
