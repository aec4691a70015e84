"""The README, and the pages about the command line, show what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import zarr

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
    ("page", "least"),
    [
        (README, 2),
        (PAGE, 11),
        *((ROOT / f"docs/howto/{name}.md", least) for name, least in (("verify", 4), ("ome-zarr", 1), ("versions", 2))),
    ],
    ids=["README", "command-line", "verify", "ome-zarr", "versions"],
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
    assert [command.split()[1] for command in commands] == ["pack", "info", "advise", "verify", "refs", "unpack", "mv"]
    reader = Reader(text, tmp_path)
    old = zarr.create_array(tmp_path / "old.zarr", name="old", shape=(64, 64), chunks=(8, 8), dtype="u4", zarr_format=2)
    old[...] = 1
    printed = {command.split()[1]: reader.run(command) for command in commands}
    assert {code for _, code in printed.values()} == {0}, printed
    assert sorted(path.name for path in (tmp_path / "new.zarr/old").iterdir()) == ["c.0.0", "zarr.json"]
    assert "recommended: chunks_per_shard=" in printed["advise"][0]
    assert sorted(path.name for path in (tmp_path / "data.zarr").iterdir()) == ["scan", "zarr.json"]


def test_the_first_screen_of_the_readme() -> None:
    """It shows in this order: how to install, a write that plain zarr reads, how to pack; then where to go on, and for whom it is not."""
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    parts = [
        "pip install 'shardstore[zarr,s3,cli]'",
        'shardstore.open("data.zarr"',
        "zarr.open_array(",
        "shardstore pack ",
        "I use xarray",
        "not for you",
    ]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text[: places[-1]].count("\n") < 40


def test_the_page_lists_the_exit_codes() -> None:
    page = PAGE.read_text()
    assert [code for code, meaning in MEANINGS.items() if f"| {code.value} | {meaning} |" not in page] == []
