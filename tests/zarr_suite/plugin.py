"""For pytest, in the run of zarr's tests: their stores are replaced, and what is excluded has to fail.

Loaded as ``zarr_suite.plugin``: the package ``tests`` is zarr's in that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from .exclusions import excluded_here  # noqa: TID252  # the package goes by two names
from .stand_ins import forget_contents, replace_stores  # noqa: TID252

replace_stores()


@dataclass(slots=True)
class Tally:
    """What went through shardstore in this process."""

    stores: int = 0
    commits: int = 0
    chunks_written: int = 0
    chunks_read: int = 0


_tally = Tally()


@pytest.fixture(autouse=True)
def own_contents() -> Iterator[None]:
    """No test finds what another one has stored in memory."""
    yield
    for counters in forget_contents():
        _tally.stores += 1
        _tally.commits += counters.commits
        _tally.chunks_written += counters.chunks_written
        _tally.chunks_read += counters.chunks_read


@pytest.hookimpl(tryfirst=True)  # before tests are deselected, so that each of a module is there
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is excluded.

    Raises:
        pytest.UsageError: an exclusion is of no test of its module, or a test has two.
    """
    modules = {item.nodeid.partition("::")[0] for item in items}
    exclusions = [exclusion for exclusion in excluded_here() if exclusion.module in modules]
    unused = set(exclusions)
    for item in items:
        matching = [exclusion for exclusion in exclusions if exclusion.covers(item.nodeid)]
        if len(matching) > 1:
            raise pytest.UsageError(f"{item.nodeid} is excluded twice: {[exclusion.reason for exclusion in matching]}")
        for exclusion in matching:
            item.add_marker(pytest.mark.xfail(reason=exclusion.reason, strict=True))
            unused.discard(exclusion)
    if unused and _is_whole(config):
        names = "".join(f"\n  {exclusion.test} [{exclusion.parameters}]" for exclusion in exclusions if exclusion in unused)
        raise pytest.UsageError(f"these exclusions are of no test:{names}")


def _is_whole(config: pytest.Config) -> bool:
    """Whether modules were asked for, and not some tests of them."""
    return not any("::" in argument for argument in config.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tally.stores:
        terminalreporter.write_line(
            f"{_tally.stores} stores of shardstore: {_tally.chunks_written} chunks written to shards in {_tally.commits} commits, "
            f"{_tally.chunks_read} read"
        )
