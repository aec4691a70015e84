"""The pages about the command line show what the commands print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.cli.failures import MEANINGS
from tests.cli.running import PLAIN

GUIDE = Path(__file__).parents[2] / "docs/guide"
PAGE = GUIDE / "command-line.md"
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


@pytest.mark.parametrize(("name", "least"), [("command-line.md", 11), ("verify.md", 4)])
def test_the_page_shows_what_the_commands_print(name: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (GUIDE / name).read_text()
    commands = commands_of(page)
    assert len(commands) >= least
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for code in STORE.findall(page)[:1]:  # which makes the store; others go on from there in Python
        exec(compile(code, name, "exec"), names)
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
