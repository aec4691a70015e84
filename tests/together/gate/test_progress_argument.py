"""``progress`` of every function that has it: a function is called, ``True`` shows it on stderr, ``None`` and ``False`` nothing."""

from __future__ import annotations

import inspect
import io
import shutil
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import references
from shardstore.errors import InvalidInput
from shardstore.progress.shown import reported, step_bar
from shardstore.progress.steps import Step
from shardstore.snapshots import Repository, Session
from tests.apps.cli.running import Terminal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a set of references, and a versioned store."""
    root = tmp_path_factory.mktemp("progress")
    store = shardstore.open(root / "data.zarr", chunks_per_shard=(2, 2), fsync=False)
    array = zarr.create_array(store, name="a", shape=(8, 8), chunks=(2, 2), dtype="u1", dimension_names=["y", "x"])
    array[...] = np.arange(64).reshape(8, 8) + 1
    references.write_json(root / "data.zarr", root / "set.json")
    repository = Repository.create(root / "run.ice")
    for value in (1, 2):
        with repository.transaction("main", message="filled") as session:
            zarr.create_array(session, name="a", data=np.full((8, 8), value), chunks=(4, 4), overwrite=True)
    return root


def session_of(repository: Repository) -> Session:
    return repository.writable_session("main")


def places(root: Path) -> dict[str, Any]:
    url = str(root / "data.zarr")
    repository = Repository.open(root / "run.ice", virtual_prefixes=[f"file://{root}/data.zarr/"])
    return {"url": url, "root": root, "repository": repository}


CALLS: dict[str, Callable[..., Any]] = {
    "pack": lambda p, url, root, repository: shardstore.pack(url, root / "packed.zarr", progress=p),
    "reshard": lambda p, url, root, repository: shardstore.reshard(url, root / "resharded.zarr", chunks_per_shard=(4, 4), progress=p),
    "unpack": lambda p, url, root, repository: shardstore.unpack(url, root / "plain.zarr", progress=p),
    "compact": lambda p, url, root, repository: shardstore.compact(url, progress=p),
    "repair": lambda p, url, root, repository: shardstore.repair(url, progress=p),
    "verify": lambda p, url, root, repository: shardstore.verify(url, progress=p),
    "census": lambda p, url, root, repository: shardstore.census(url, progress=p),
    "report": lambda p, url, root, repository: shardstore.report(url, progress=p),
    "write_json": lambda p, url, root, repository: references.write_json(url, root / "new.json", progress=p),
    "write_parquet": lambda p, url, root, repository: references.write_parquet(url, root / "new.refs", progress=p),
    "update": lambda p, url, root, repository: references.update(root / "set.json", progress=p),
    "combine": lambda p, url, root, repository: references.combine([root / "set.json"] * 2, root / "all.json", dim="y", progress=p),
    "Repository.adopt": lambda p, url, root, repository: Repository.adopt(url, root / "adopted.ice", progress=p),
    "Repository.garbage_collect": lambda p, url, root, repository: repository.garbage_collect(timedelta(0), progress=p),
    "Repository.stats": lambda p, url, root, repository: repository.stats(p),
    "Repository.verify": lambda p, url, root, repository: repository.verify(p),
    "Session.set_virtual_hierarchy": lambda p, url, root, repository: session_of(repository).set_virtual_hierarchy(url, "v", progress=p),
}
NEED_MORE = {
    "write_icechunk",  # icechunk: in its own tests
    "Repository.import_icechunk",
    "Repository.export_icechunk",
    "Repository.repack",  # a layout that has something to do
    "Repository.pins",  # virtual references
}


def with_progress() -> dict[str, inspect.Parameter]:
    """The parameter of the public functions that have it."""
    owners: list[tuple[str, Any]] = [("", shardstore), ("", references), ("Repository.", Repository), ("Session.", Session)]
    named = [(f"{prefix}{name}", getattr(owner, name)) for prefix, owner in owners for name in dir(owner) if not name.startswith("_")]
    signatures = {name: inspect.signature(function) for name, function in named if inspect.isroutine(function)}
    return {name: signature.parameters["progress"] for name, signature in signatures.items() if "progress" in signature.parameters}


def test_every_function_that_takes_progress_is_tried() -> None:
    assert with_progress().keys() == CALLS.keys() | NEED_MORE


def test_every_function_says_that_it_takes_true() -> None:
    assert [name for name, parameter in with_progress().items() if "bool" not in str(parameter.annotation)] == []


@pytest.mark.parametrize("name", CALLS)
def test_true_shows_progress_none_and_false_show_nothing_and_a_function_is_called(
    name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []

    def call(progress: Any) -> str:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        for one in ("data.zarr", "run.ice"):
            shutil.copytree(made / one, root / one)
        references.write_json(root / "data.zarr", root / "set.json")
        shown = io.StringIO()
        monkeypatch.setattr(sys, "stderr", shown)
        CALLS[name](progress, **places(root))
        return shown.getvalue()

    assert call(None) == call(False) == ""
    assert call(lambda *args: said.append(args)) == ""
    assert said
    shown = call(True)
    assert shown.endswith("\n")
    assert shown.count("\n") == 1
    assert ": " in shown


@pytest.mark.parametrize("wrong", [1, 0, "yes", ()])
@pytest.mark.parametrize("name", CALLS)
def test_anything_else_is_refused_and_nothing_is_written(name: str, wrong: Any, made: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in made.rglob("*")}
    with pytest.raises(InvalidInput, match=f"progress={wrong!r}".replace("(", r"\(").replace(")", r"\)")):
        CALLS[name](wrong, **places(made))
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*")} == before


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rich", "rich.progress", "rich.cells", "rich.console"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "shardstore.progress.bar", raising=False)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with reported(True, Step) as say:
        say("copying", 1, 4)
        say("copying", 4, 4)
    assert screen.getvalue().startswith("copying: 4 of 4 objects")


def test_a_terminal_gets_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with reported(True, Step) as say:
        say("copying", 4, 4)
    assert "━" in screen.getvalue()


def test_a_line_that_was_said_is_not_said_again_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    with step_bar(lambda: now, says_end=True) as report:
        now = 5.0
        report(Step("copying", 1, 4))
    assert capsys.readouterr().err.count("copying") == 1
    with step_bar(lambda: now) as report:  # of a command: short work says nothing
        report(Step("copying", 1, 4))
    with step_bar(lambda: now, says_end=True):
        pass
    assert capsys.readouterr().err == ""


def test_an_error_in_the_block_ends_without_a_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        with reported(True, Step) as say:
            say("copying", 1, 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert capsys.readouterr().err == ""
