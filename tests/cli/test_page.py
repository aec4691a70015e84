"""The page about the command line shows what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.cli.failures import MEANINGS
from tests.cli.running import PLAIN

PAGE = Path(__file__).parents[2] / "docs/guide/command-line.md"
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


def test_the_page_shows_what_the_commands_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = PAGE.read_text()
    commands = commands_of(page)
    assert len(commands) > 10
    monkeypatch.chdir(tmp_path)
    for code in STORE.findall(page):
        exec(compile(code, str(PAGE), "exec"), {})
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "shardstore").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shardstore "$@"\n')
    (bin_ / "shardstore").chmod(0o755)
    environment = {**os.environ, **PLAIN, "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
    for command, said in commands:
        done = subprocess.run(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
            env=environment,
        )
        assert done.stdout.replace(str(tmp_path), "/home/me") == said, command


def test_the_page_lists_the_exit_codes() -> None:
    page = PAGE.read_text()
    assert [code for code, meaning in MEANINGS.items() if f"| {code.value} | {meaning} |" not in page] == []
