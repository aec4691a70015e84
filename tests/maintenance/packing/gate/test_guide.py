"""The guide on packing shows what the commands print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.apps.cli.gate.test_page import STORE, commands_of
from tests.apps.cli.running import run
from tests.project.test_docs import bucket

__all__ = ["bucket"]

PAGE = Path(__file__).parents[4] / "docs/howto/pack.md"


@pytest.mark.usefixtures("bucket")
def test_the_guide_shows_what_the_commands_print() -> None:
    page = PAGE.read_text()
    first, second = STORE.findall(page)[:2]
    names: dict[str, object] = {}
    exec(compile(first, "pack.md", "exec"), names)
    commands = commands_of(page)
    assert len(commands) == 2
    for command, said in commands:
        program, *arguments = command.split()
        assert program == "shardstore"
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.err
        assert outcome.out == said, command  # how far it has come goes elsewhere
    exec(compile(second, "pack.md", "exec"), names)
    assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1")
