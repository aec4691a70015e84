"""What the torture tests found, printed as one table when they are through."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_ROWS = pytest.StashKey[list[tuple[str, str, str]]]()

Record = Callable[[str], None]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Note a result of this test, as a row of the table that ends the run."""

    def note(result: str) -> None:
        request.config.stash.setdefault(_ROWS, []).append((request.node.parent.name, request.node.name, result))

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("results")
    for module, test, result in rows:
        terminalreporter.write_line(f"| {module.removesuffix('.py')} | {test.removeprefix('test_')} | {result} |")
