"""For pytest, in the run of zarr's tests: their stores are replaced, and what is excluded has to fail.

Loaded as ``zarr_suite.plugin``: the package ``tests`` is zarr's in that run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import pytest

from shardstore.errors import InvalidInput

from .exclusions import REFUSAL, excluded_here, sharded_here  # noqa: TID252  # the package goes by two names
from .stand_ins import forget_contents, replace_stores  # noqa: TID252

replace_stores()

_SHARDED = sharded_here()


@dataclass(slots=True)
class Tally:
    """What went through shardstore in this process, and which tests were refused; of other processes too, where these report here."""

    stores: int = 0
    commits: int = 0
    chunks_written: int = 0
    chunks_read: int = 0
    collected: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that asks for shards is expected to be refused: with that error, and no other."""
    report = yield
    error = None if call.excinfo is None else call.excinfo.value
    if report.failed and isinstance(error, InvalidInput) and REFUSAL in str(error) and _name(item.nodeid) in _SHARDED:
        report.outcome = "skipped"
        report.wasxfail = REFUSAL
    return report


def _name(node_id: str) -> str:
    return node_id.partition("[")[0]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Told to the process that reports, of its own tests and of its workers'."""
    _tally.collected.add(_name(report.nodeid))
    if getattr(report, "wasxfail", "") == REFUSAL:
        _tally.refused.add(_name(report.nodeid))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _never_refused(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _never_refused(config: pytest.Config) -> list[str]:
    """Tests that are listed as asking for shards, and did not, though all of their module were run."""
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.option.keyword or config.option.markexpr or config.option.collectonly or not _is_whole(config):
        return []
    modules = {name.partition("::")[0] for name in _tally.collected}
    return sorted(name for name in _SHARDED - _tally.refused if name.partition("::")[0] in modules)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for name in _never_refused(config):
        terminalreporter.write_line(f"listed as asking for shards, but never refused: {name}", red=True)
    if _tally.stores:
        terminalreporter.write_line(
            f"{_tally.stores} stores of shardstore: {_tally.chunks_written} chunks written to shards in {_tally.commits} commits, "
            f"{_tally.chunks_read} read"
        )
