"""What the torture tests run on, and what they found, printed as one table when they are through."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.torture import places
from tests.torture.crew import Crew
from tests.torture.places import Place
from tests.torture.small_parts import limit_parts

_ROWS = pytest.StashKey[list[tuple[str, str, str]]]()

Record = Callable[[str], None]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Note a result of this test, as a row of the table that ends the run."""

    def note(result: str) -> None:
        request.config.stash.setdefault(_ROWS, []).append((request.node.parent.name, request.node.name, result))

    return note


@pytest.fixture(scope="module")
def collected() -> Iterator[None]:
    """What zarr leaves behind is collected behind the module, not in the middle of another one: to do so takes a second in a long run."""
    yield
    gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("results")
    for module, test, result in rows:
        terminalreporter.write_line(f"| {module.removesuffix('.py')} | {test.removeprefix('test_')} | {result} |")


# -- places ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with places.moto() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def aws_endpoint() -> Iterator[str]:
    """Of a server that honours the conditions on copied parts and on the completion of uploads too."""
    with places.moto(as_aws=True) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def ministack_endpoint() -> Iterator[str]:
    program = os.environ.get("SHARDSTORE_MINISTACK")
    if not program:
        pytest.skip("MiniStack: SHARDSTORE_MINISTACK does not name its program")
    with places.ministack(program) as endpoint:
        yield endpoint


@pytest.fixture(params=places.KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A fresh root in each kind of storage, one after the other."""
    yield _place(request, tmp_path)
    limit_parts(small=False)


def _place(request: pytest.FixtureRequest, directory: Path) -> Place:
    match request.param:
        case "local":
            return Place("local", str(directory / "root"))
        case "append":
            return Place("local", str(directory / "root"), strategy="append")
        case "azure" | "azure-append":
            return places.azure_place(request.param, request.getfixturevalue("azure_endpoint"), appends=request.param != "azure")
        case "gcs":
            return Place("gcs", *request.getfixturevalue("gcs_url"))
        case "moto-append":
            return places.s3_place(request.param, request.getfixturevalue("aws_endpoint"), appends=True)
        case "ministack-append":
            return places.s3_place(request.param, request.getfixturevalue("ministack_endpoint"), appends=True)
        case kind:
            return places.s3_place(kind, request.getfixturevalue(f"{kind}_endpoint"))


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Processes that begin together."""
    with Crew() as running:
        yield running
