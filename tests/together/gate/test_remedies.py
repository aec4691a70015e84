"""What errors suggest works: each is provoked, and then what its message says is done.

Options, commands and arguments that any message names exist; those that can be provoked here are carried out.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime  # noqa: F401  # for what messages suggest
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr

import shardstore
from shardstore import references
from shardstore.adapters.handle import StoreOptions
from shardstore.adapters.versioned.opened import RepositoryArguments
from shardstore.apps.cli.app import COMMANDS
from shardstore.apps.cli.words import BARE, FLAGS, in_own_words
from shardstore.errors import Conflict, InvalidInput, NotFound, ShardStoreError
from shardstore.maintenance.packing.pack import PackOptions
from shardstore.snapshots import Repository, Session
from tests.apps.cli.running import run, succeed

PACKAGE = Path(shardstore.__file__).parent
VALUES = np.arange(64, dtype="i4").reshape(8, 8) + 1


# -- what messages name ------------------------------------------------------------------------------------------------

_RAISED = re.compile(
    r"(?:[A-Z]\w*(?:Error|Input|Found|Only|Unknown)|Conflict|Unsupported|Corruption|Undecodable|NoSpace|Incomplete|warn|complain|_too_large)$"
)


def messages() -> Iterator[tuple[str, str]]:
    """The texts of errors and warnings, with ``…`` where something is filled in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "testing" in path.relative_to(PACKAGE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _RAISED.search(ast.unparse(node.func)):
                for argument in node.args:
                    text = "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…"
                        for part in (argument.values if isinstance(argument, ast.JoinedStr) else [argument])
                        if isinstance(part, ast.Constant | ast.FormattedValue)
                    )
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


def commands() -> dict[str, Callable[..., None]]:
    """Every command by its name, and those of a group by both names."""
    found: dict[str, Callable[..., None]] = {}
    for name, listed in COMMANDS.items():
        found[name] = listed.load()
        if listed.is_group:
            found |= {f"{name} {inner}": function for inner, function in import_module(listed.module).COMMANDS.items()}
    return found


def options() -> set[str]:
    """Every option of every command, as its help shows it."""
    return {option for name in commands() for option in re.findall(r"--[a-z][a-z-]+", succeed(*name.split(), "--help").out)}


def test_options_and_commands_that_messages_name_exist() -> None:
    known, named = options() | {"--device"}, commands().keys()  # --device is of containers
    found = list(messages())
    assert len(found) > 400
    unknown = [(where, option) for where, text in found for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text) if option not in known]
    assert unknown == []
    said = [
        (where, command)
        for where, text in found
        for command in re.findall(r"(?:`|by |run |first by )shardstore ([a-z]+(?: [a-z]+)?)", text)
    ]
    assert len(said) > 5
    assert [
        (where, command) for where, command in said if command not in named and command.split()[0] not in named - {"refs", "snapshots"}
    ] == []


def parameters() -> set[str]:
    """The names of all arguments of public functions, and of options that they pass on."""
    owners = [shardstore, references, Repository, Session, shardstore.ShardedFileSystem]
    functions = [getattr(owner, name) for owner in owners for name in dir(owner) if not name.startswith("_")]
    found = {name for function in functions if inspect.isroutine(function) for name in inspect.signature(function).parameters}
    return found | {
        *StoreOptions.__annotations__,
        *PackOptions.__annotations__,
        *RepositoryArguments.__annotations__,
    }


def test_commands_suggest_options_of_commands() -> None:
    known = options()
    assert [flag for flag in (*FLAGS, *BARE) if f"--{flag.replace('_', '-')}" not in known] == []
    assert [where for where, text in messages() if re.search(r"storage_options=\{|[a-z]=True \(--|\(in Python:", in_own_words(text))] == []


def test_arguments_that_messages_suggest_exist() -> None:
    of_libraries = "fo fs target_protocol target mode align_chunks compute zarr_format asynchronous simple_templates token headers "
    of_libraries += "client_kwargs anon put key tzinfo version_aware"
    of_libraries += " follow_links"  # of storage_options
    known = parameters() | {*of_libraries.split(), "snapshot"}  # that one is of URLs
    found = [(where, name) for where, text in messages() for name in re.findall(r"(?<![-\w.\[{'\"])([a-z_]{2,})=(?=[\w'\"\[{(…])", text)]
    assert len(found) > 60
    assert [(where, name) for where, name in found if name not in known] == []


# -- what is carried out -----------------------------------------------------------------------------------------------


def store_at(root: Path, name: str = "x", **given: Any) -> zarr.Array[Any]:
    store = shardstore.open(root, chunks_per_shard=(2, 2), fsync=False)
    array = zarr.create_array(store, name=name, shape=(8, 8), chunks=(2, 2), dtype="i4", dimension_names=["y", "x"], **given)
    array[...] = VALUES
    return array


def refused(call: Callable[[], Any], suggests: str, error: type[ShardStoreError] = InvalidInput) -> str:
    """Return the message of an error, which has to suggest something."""
    with pytest.raises(error) as raised:
        call()
    text = str(raised.value)
    assert suggests in text, text
    return text


def said_by(command: list[str], suggests: str) -> str:
    """Return what a command that fails, or asks for more, says."""
    outcome = run(*command)
    assert outcome.code != 0, outcome
    assert suggests in outcome.err, outcome.err
    return outcome.err


def test_a_store_that_is_read_only(tmp_path: Path) -> None:
    store_at(tmp_path / "a")
    mapping = shardstore.get_mapper(tmp_path / "a", read_only=True)
    refused(lambda: mapping.pop("x/c/0/0"), "open it with read_only=False")
    shardstore.get_mapper(tmp_path / "a", read_only=False).pop("x/c/0/0")


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_a_set_that_is_there(form: str, tmp_path: Path) -> None:
    store_at(tmp_path / "a")
    write = getattr(references, f"write_{form}")
    write(tmp_path / "a", tmp_path / "set")
    refused(lambda: write(tmp_path / "a", tmp_path / "set"), "overwrite=True replaces it")
    write(tmp_path / "a", tmp_path / "set", overwrite=True)
    line = ["refs", "write", str(tmp_path / "a"), str(tmp_path / "set"), "--format", form]
    said_by(line, "--overwrite")
    succeed(*line, "--overwrite")


def test_a_set_in_parquet_of_an_array_at_the_root(tmp_path: Path) -> None:
    store_at(tmp_path / "a")
    refused(lambda: references.write_parquet(tmp_path / "a/x", tmp_path / "set"), "root_as='data' names it")
    references.write_parquet(tmp_path / "a/x", tmp_path / "set", root_as="data")


def test_a_set_whose_objects_have_changed(tmp_path: Path) -> None:
    array = store_at(tmp_path / "a")
    target = tmp_path / "set.json"
    references.write_json(tmp_path / "a", target)
    array[0, 0] = 99

    def value(**given: Any) -> Any:
        return zarr.open_array(shardstore.open(f"reference::{target}", **given), path="x", mode="r", zarr_format=2)[0, 4]

    def read() -> Any:
        return zarr.open_array(shardstore.open(f"reference::{target}"), path="x", mode="r", zarr_format=2)[0, 0]

    text = refused(read, "`shardstore refs update`", Conflict)
    found = re.search(r"storage_options=(\{.*\}\})", text)
    assert found is not None
    assert value(storage_options=ast.literal_eval(found[1])) == VALUES[0, 4]
    said_by(["refs", "check", str(target)], f"shardstore refs update {target} brings the set up to date")
    succeed("refs", "update", str(target))
    assert read() == 99
    succeed("refs", "check", str(target))


def test_sets_of_two_versions(tmp_path: Path) -> None:
    array = store_at(tmp_path / "a")
    sets = [str(tmp_path / name) for name in ("one.json", "two.json")]
    for target in sets:
        references.write_json(tmp_path / "a", target)
        array[0, 0] = 99
    refused(lambda: references.combine(sets, tmp_path / "all.json", dim="y"), "bring them up to date with shardstore refs update first")
    for target in sets:
        succeed("refs", "update", target)
    references.combine(sets, tmp_path / "all.json", dim="y")
    refused(lambda: references.pins(tmp_path / "all.json"), "store=…")
    assert len(references.pins(tmp_path / "all.json", store=tmp_path / "a")) == 4


def test_a_damaged_shard(tmp_path: Path) -> None:
    store_at(tmp_path / "a")
    (tmp_path / "a/x/c/0/0").write_bytes(b"damaged")
    refused(lambda: references.write_json(tmp_path / "a", tmp_path / "set.json"), "on_error='skip' leaves it out", ShardStoreError)
    assert references.write_json(tmp_path / "a", tmp_path / "set.json", on_error="skip").references == 12
    text = said_by(["ls", "-l", str(tmp_path / "a"), "x/c/0"], "shardstore ls --stored lists the stored objects")
    assert "shardstore info the damaged shards" in text
    assert "c/0/0" in succeed("ls", "--stored", "--recursive", str(tmp_path / "a")).out
    assert "damaged" in run("info", str(tmp_path / "a")).out


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "run.ice")
    with made.transaction("main", message="filled") as store:
        zarr.create_array(store, name="x", data=VALUES, chunks=(4, 4))
    return made


def test_a_versioned_store_that_is_not_there(tmp_path: Path) -> None:
    refused(lambda: Repository.open(tmp_path / "a.ice"), "make one by `shardstore snapshots init` (in Python: Repository.create)", NotFound)
    succeed("snapshots", "init", str(tmp_path / "a.ice"))
    Repository.open(tmp_path / "a.ice")
    refused(lambda: Repository.create(tmp_path / "a.ice"), "open it, or use another place or name")
    Repository.create(tmp_path / "b.ice")


def test_a_snapshot_that_is_not_there(repository: Repository) -> None:
    url = repository.url
    text = refused(lambda: shardstore.open(f"{url}@nothing"), "shows them", NotFound)
    command = re.search(r"`shardstore ([^`]*)`", text)
    assert command is not None
    assert "filled" in succeed(*command[1].split()).out


def test_a_commit_without_changes_and_a_store_that_is_to_go(repository: Repository) -> None:
    session = repository.writable_session("main")
    refused(lambda: session.commit("nothing"), "allow_empty=True", ShardStoreError)
    session.commit("nothing", allow_empty=True)
    refused(repository.destroy, "yes=True")
    repository.destroy(yes=True)
    assert not Repository.exists(repository.url)


def test_a_time_without_a_zone(repository: Repository) -> None:
    text = refused(lambda: repository.expire_snapshots(datetime(2026, 1, 31)), "such as datetime(")  # noqa: DTZ001
    given = re.search(r"(?<=such as )datetime\(.*\)", text)
    assert given is not None
    repository.expire_snapshots(eval(given[0]))
    line = ["snapshots", "expire", repository.url, "--dry-run", "--older-than"]
    found = re.search(r"write it as (\S+),", said_by([*line, "2026-01-31"], "write it as"))
    assert found is not None
    succeed(*line, found[1])
    succeed(*line, re.findall(r"such as (\S+),", said_by([*line, "soon"], "such as 30d"))[0])


def test_virtual_references_that_may_not_lead_there(repository: Repository, tmp_path: Path) -> None:
    store_at(tmp_path / "a")
    session = repository.writable_session("main")
    text = refused(lambda: session.set_virtual_hierarchy(tmp_path / "a", "v"), "virtual_prefixes=[")
    found = re.search(r"virtual_prefixes=(\[.*?\])", text)
    assert found is not None
    opened = Repository.open(repository.url, virtual_prefixes=ast.literal_eval(found[1]))
    again = opened.writable_session("main")
    assert again.set_virtual_hierarchy(tmp_path / "a", "v") == 16
    refused(lambda: again.set_virtual_hierarchy(tmp_path / "a", "v"), "overwrite=True replaces them")
    assert again.set_virtual_hierarchy(tmp_path / "a", "v", overwrite=True) == 16


def test_virtual_references_of_a_set_and_of_ones_own_that_may_not_lead_there(repository: Repository, tmp_path: Path) -> None:
    store_at(tmp_path / "a")
    references.write_json(tmp_path / "a", tmp_path / "set.json")
    (tmp_path / "one").mkdir()
    urls = []
    for number in range(4):
        (tmp_path / f"one/{number}/deep").mkdir(parents=True)
        (tmp_path / f"one/{number}/deep/file").write_bytes(bytes(64))
        urls.append(f"file://{tmp_path}/one/{number}/deep/file")

    def of_set(session: Session) -> None:
        session.set_virtual_hierarchy(f"reference::{tmp_path}/set.json", "v")

    def own(session: Session) -> None:
        session.set_virtual_refs("x", [(0, 0), (0, 1), (1, 0), (1, 1)], urls, [0] * 4, [64] * 4)

    for call in (of_set, own):
        text = refused(partial(call, repository.writable_session("main")), "virtual_prefixes=[")
        found = re.search(r"virtual_prefixes=(\[.*?\])", text)
        assert found is not None
        call(Repository.open(repository.url, virtual_prefixes=ast.literal_eval(found[1])).writable_session("main"))


def test_a_hierarchy_over_a_versioned_store(repository: Repository) -> None:
    text = refused(
        lambda: zarr.create_group(shardstore.open(f"{repository.url}"), overwrite=True),
        "shardstore.Repository.open",
        ShardStoreError,
    )
    assert "Repository.destroy(yes=True)" in text
    zarr.create_group(Repository.open(repository.url).writable_session("main").store, overwrite=True)


def test_an_array_of_zarr_v2_where_shards_are_asked_for(tmp_path: Path) -> None:
    def create(name: str, zarr_format: Any = 2, **given: Any) -> None:
        store = shardstore.open(tmp_path / name, **({"chunks_per_shard": (2, 2)} | given))
        zarr.create_array(store, name="x", shape=(8, 8), chunks=(2, 2), dtype="i4", zarr_format=zarr_format)[...] = VALUES

    text = refused(lambda: create("a"), "present='v2'")
    assert "chunks_per_shard=None" in text
    assert "zarr_format=3" in text
    create("b", present="v2")
    create("c", chunks_per_shard=None)
    create("d", zarr_format=3)


def test_a_strategy_that_needs_the_index_at_the_end(tmp_path: Path) -> None:
    given: dict[str, Any] = {"strategy": "append", "index_location": "start"}
    refused(lambda: shardstore.open(tmp_path / "a", **given), "leave index_location, index_checksum and stored at their defaults")
    shardstore.open(tmp_path / "a", strategy="append")
    shardstore.open(tmp_path / "a", strategy="rewrite", index_location="start")


def test_alignment_of_what_is_not_known_yet(tmp_path: Path) -> None:
    array = dask.array.ones(16, chunks=4)
    data = array[array > 0]
    refused(lambda: shardstore.align(data, tmp_path / "a", name="x"), "compute_chunk_sizes()")
    store = shardstore.open(tmp_path / "a", chunks_per_shard=(2,))
    zarr.create_array(store, name="x", shape=(16,), chunks=(4,), dtype="f8")
    assert shardstore.align(data.compute_chunk_sizes(), tmp_path / "a", name="x").chunks == ((8, 8),)


def test_a_region_of_what_is_not_there_yet(tmp_path: Path) -> None:
    url = f"sharded::{tmp_path}/a.zarr"
    dataset = xr.Dataset({"t": (("y", "x"), VALUES)}).chunk(y=4)
    refused(lambda: shardstore.align(dataset, url, region={"y": slice(0, 8)}), "to_zarr(compute=False)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(url, compute=False)
    shardstore.align(dataset, url, region={"y": slice(0, 8)})


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "suggests", "then"),
    [
        (["rm", "{a}"], "give --recursive", ["--recursive", "--yes"]),
        (["rm", "--recursive", "{a}/x"], "Give --yes", ["--yes"]),
        (["advise", "{a}/x"], "such as --access '1,:,:'", ["--access", "1,:"]),
        (["report", "{a}", "--output", "{b}.html"], "--overwrite to replace it", ["--overwrite"]),
        (["ls", "{a}", "-o", "anon"], "such as -o anon=true", None),
        (["refs", "write", "{a}", "{a}.json", "--flavour", "v4"], "is not one of", None),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_options_that_a_command_suggests(command: list[str], suggests: str, then: list[str] | None, tmp_path: Path) -> None:
    for name in ("a", "b"):
        store_at(tmp_path / name)
        store_at(tmp_path / name, "z")
    (tmp_path / "b.html").write_text("there")
    filled = [part.format(a=tmp_path / "a", b=tmp_path / "b") for part in command]
    said_by(filled, suggests)
    if then is not None:
        succeed(*filled, *then)


@pytest.mark.parametrize(
    ("command", "option", "wrong"),
    [
        (["cat", "{a}", "x/c/0/0"], "--range", "ten"),
        (["pack", "{a}", "{a}-packed"], "--price", "much"),
        (["pack", "{a}", "{a}-packed"], "--max-memory", "lots"),
        (["pack", "{a}", "{a}-packed"], "--chunks-per-shard", "big"),
        (["advise", "{a}/x"], "--access", "all"),
        (["verify", "{a}"], "--part", "third"),
        (["ls", "{a}"], "--storage-options", "[]"),
        (["census", "{a}", "--draw"], "--axes", "both"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_examples_of_values_that_a_command_suggests(command: list[str], option: str, wrong: str, tmp_path: Path) -> None:
    store_at(tmp_path / "a")
    filled = [part.format(a=tmp_path / "a") for part in command]
    text = said_by([*filled, option, wrong], "")
    examples = {
        "--range": r"such as (\d+:\d+)",
        "--price": r"form (put=[\d.]+)",
        "--max-memory": r"such as (\w+)",
        "--chunks-per-shard": r"such as (\d+,\d+),\d+",  # of two dimensions here
        "--access": r"as in '(1,:)",
        "--part": r"such as (\d+/\d+)",
        "--storage-options": r"such as '(\{.*?\})'",
        "--axes": r"such as (\d+,\d+)",
    }
    found = re.search(examples[option], text)
    assert found is not None, text
    value = {"--axes": "0,1"}.get(option, found[1])  # of two dimensions here
    outcome = run(*filled, option, value)
    assert "not of the form" not in outcome.err, outcome.err
    assert outcome.code == 0 or option == "--storage-options", outcome.err  # whose example is an option of S3


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_a_url_of_a_file_that_is_not_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_at(tmp_path / "data/x.zarr")
    monkeypatch.chdir(tmp_path)
    found = re.search(r"or give '(.*?)'", said_by(["ls", "file://data/x.zarr"], "three slashes"))
    assert found is not None
    assert "x/" in succeed("ls", found[1]).out
    assert "x/" in succeed("ls", f"file://{tmp_path}/data/x.zarr").out


def test_a_view_upon_a_view(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a")
    refused(lambda: shardstore.open(store), "Give the URL of what is below it")
    shardstore.open(tmp_path / "a")
    fs = shardstore.ShardedFileSystem(fo=str(tmp_path / "a"))
    refused(lambda: shardstore.open((fs, "")), "Give the filesystem below it")
