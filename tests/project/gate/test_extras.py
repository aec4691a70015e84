"""Environments without some extras: every public name and every help is there, and what needs an extra says so when it is used.

Each environment is a process in which the packages of the other extras cannot be imported.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from packaging.requirements import Requirement

import shardstore
from shardstore.apps.cli.app import COMMANDS
from shardstore.extras import EXTRAS, how_to_install
from tests.project.extras_alone import WITH, program_of

ROOT = Path(__file__).parents[3]

ENVIRONMENTS = {
    "bare": (),
    "cli": ("cli",),
    "readme": ("zarr", "s3", "cli"),
    "all": tuple(EXTRAS.keys() - {"mount"}),
}

HIDE = """
import json, sys, warnings
warnings.simplefilter("ignore")
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = map(Without, sys.meta_path)
def outcome(function):
    try:
        return ["returned", repr(function())[:100]]
    except BaseException as exc:
        return [type(exc).__name__, str(exc)]
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> set[str]:
    """The distributions that requirements bring with them, those of their extras too."""
    found: set[str] = set()
    seen: set[str] = set()
    while requirements:
        text = requirements.pop()
        if text in seen:
            continue
        seen.add(text)
        requirement = Requirement(text.partition(";")[0])
        found.add(normal(requirement.name))
        try:
            needed = requires(requirement.name) or []
        except PackageNotFoundError:  # of another system, or a Python of another version
            continue
        for each in needed:
            extra = re.search(r"extra == ['\"]([^'\"]+)", each)
            if extra is None or extra[1] in requirement.extras:
                requirements.append(each)
    return found


@cache
def owners() -> dict[str, set[str]]:
    """By importable name, the distributions that it comes from."""
    return {name: {normal(owner) for owner in of} for name, of in packages_distributions().items()}


def hidden(extras: tuple[str, ...]) -> list[str]:
    """The importable names that an environment with these extras does not have, of those that this one has."""
    bare = [requirement for requirement in requires("shardstore") or [] if "extra ==" not in requirement]
    there = closure(bare + [package for extra in extras for package in EXTRAS[extra]]) | {"shardstore", "pip", "setuptools"}
    there.add("zarrs")  # zarr loads it if its entry point is there
    return sorted(name for name, of in owners().items() if not of & there)


def run(environment: str | tuple[str, ...], code: str, *arguments: str) -> Any:
    """What a program prints as JSON in an environment, by its name or with these extras."""
    extras = ENVIRONMENTS[environment] if isinstance(environment, str) else environment
    hiding = f"HIDDEN = {set(hidden(extras)) or set()!r}\n{HIDE}\n"
    done = subprocess.run([sys.executable, "-c", hiding + code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_packages_of_other_extras_are_hidden() -> None:
    for environment, extras in ENVIRONMENTS.items():
        packages = {package for extra in EXTRAS.keys() - set(extras) for package in EXTRAS[extra]} & owners().keys()
        packages -= {package for extra in extras for package in EXTRAS[extra]} | {"aiohttp"}  # which s3fs needs
        assert packages <= set(hidden(extras)), environment
        assert not {"numpy", "fsspec", "google_crc32c", "shardstore", *(name for extra in extras for name in EXTRAS[extra])} & set(
            hidden(extras)
        )


USES = """
import doctest, importlib, inspect, pydoc
result = {}
for name in ("shardstore", "shardstore.references", "shardstore.snapshots", "shardstore.apps.server"):
    module = importlib.import_module(name)
    result[name] = {
        "names": {each: outcome(lambda: (getattr(module, each), None)[1]) for each in dir(module)},
        "all": outcome(lambda: set(module.__all__) <= set(dir(module)) and all(hasattr(module, each) for each in module.__all__)),
        "members": outcome(lambda: {each for each, _ in inspect.getmembers(module)} >= set(module.__all__)),
        "help": outcome(lambda: all(each in pydoc.plaintext.document(module) for each in module.__all__)),
        "star": outcome(lambda: (exec(f"from {name} import *", names := {}), set(module.__all__) <= set(names))[1]),
        "examples": outcome(lambda: len(doctest.DocTestFinder().find(module)) > 0),
        "each help": outcome(lambda: all(pydoc.render_doc(getattr(module, each)) for each in module.__all__)),
    }
print(json.dumps(result))
"""


@pytest.mark.parametrize("environment", ["bare", "readme", pytest.param("all", marks=pytest.mark.gate)])
def test_every_public_name_can_be_asked_for(environment: str) -> None:
    for module, uses in run(environment, USES).items():
        names = uses.pop("names")
        assert {name: found for name, found in names.items() if found[0] != "returned"} == {}, module
        assert uses == {use: ["returned", "True"] for use in uses}, module


IMPORTS = """
import pkgutil, shardstore
result = {}
for found in pkgutil.walk_packages(shardstore.__path__, "shardstore.", onerror=lambda name: result.update({name: ["package", name]})):
    if ".testing" not in found.name and "__main__" not in found.name:
        what = outcome(lambda: __import__(found.name) and None)
        if what[0] != "returned":
            result[found.name] = what
print(json.dumps(result))
"""


@pytest.mark.parametrize("environment", ["bare", "readme"])
def test_modules_that_need_an_extra_fail_to_import_as_python_has_it(environment: str) -> None:
    """So what imports all modules, such as collectors of examples, can leave them out; packages can all be imported."""
    failed = run(environment, IMPORTS)
    failed.pop("shardstore.adapters.mapping.zarr2_store", None)  # which is for zarr-python 2
    assert {name: found for name, found in failed.items() if found[0] != "ModuleNotFoundError"} == {}
    needed = {re.sub(r"No module named '(\w+).*", r"\1", found[1]) for found in failed.values()}
    of_builds = {"hatchling"}  # imports the hook that compiles the kernel
    assert needed <= {package for extra in EXTRAS for package in EXTRAS[extra]} | {"numcodecs"} | of_builds


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("extras") / "data.zarr"
    array = zarr.create_array(shardstore.open(root, chunks_per_shard=(2, 2)), name="a", shape=(8, 8), chunks=(2, 2), dtype="u1")
    array[...] = np.arange(64).reshape(8, 8)
    return root


CALLS = {
    "shardstore.serve(url)": "serve",
    "shardstore.apps.server.application(url)": "serve",
    "shardstore.open(url)": "zarr",
    "shardstore.ShardedStore(url)": "zarr",
    "shardstore.ShardedStore.open": "zarr",
    "type('Own', (shardstore.ShardedStore,), {})()": "zarr",
    "shardstore.verify(url, deep=True)": "zarr",
    "shardstore.report(url, preview=True)": "zarr",
    "str(shardstore.report(url).html())": "report",
    "verification.picture_saver()": "plot",
    "shardstore.mount(url, empty)": "mount",
    "shardstore.Repository.create(url + '-versions')": "parquet",
    "shardstore.snapshots.SQLCatalog('sqlite://')": "sql",
    "shardstore.references.write_parquet(url, url + '-refs')": "parquet",
    "shardstore.references.write_json(url, url + '-refs.json.zst')": "parquet",
    "shardstore.references.write_icechunk(url, object())": "icechunk",
    "shardstore.get_mapper('s3://bucket/a.zarr')": "s3",
    "shardstore.get_mapper('gs://bucket/a.zarr')": "gcs",
    "shardstore.get_mapper('az://container/a.zarr')": "azure",
    "shardstore.get_mapper('http://127.0.0.1:9/a.zarr')": "http",
}


def test_using_what_needs_an_extra_says_how_to_install_it(store: Path, tmp_path: Path) -> None:
    code = """
import shardstore, shardstore.apps.server
from shardstore.adapters.tools import verification
url, empty = sys.argv[1:3]
print(json.dumps([outcome(lambda: eval(call)) for call in json.loads(sys.argv[3])]))
"""
    found = dict(zip(CALLS, run("bare", code, str(store), str(tmp_path), json.dumps([*CALLS])), strict=True))
    for call, extra in CALLS.items():
        kind, text = found[call]
        assert kind in ("Unsupported", "InvalidInput"), (call, kind, text)
        assert how_to_install(extra) in text, (call, text)
    assert sorted(path.name for path in store.parent.iterdir()) == ["data.zarr"]


def test_what_needs_no_extra_works_without(store: Path) -> None:
    code = """
import shardstore
url = sys.argv[1]
calls = [
    lambda: len(shardstore.get_mapper(url)["a/c/0/0"]) > 0,
    lambda: shardstore.verify(url).is_sound,
    lambda: shardstore.census(url) is not None,
    lambda: isinstance(shardstore.get_mapper(url), shardstore.ShardedStore),
    lambda: len(shardstore.references.write_json(url, url + ".json").how_to_open) > 0,
]
print(json.dumps([outcome(call) for call in calls]))
"""
    assert run("bare", code, str(store)) == [["returned", text] for text in ("True", "True", "True", "False", "True")]


HELPS = """
from typer.testing import CliRunner
from shardstore.apps.cli.app import COMMANDS, app
from importlib import import_module
result = {}
def show(*arguments):
    done = CliRunner().invoke(app, [*arguments, "--help"])
    result[" ".join(arguments)] = [done.exit_code, done.output, repr(done.exception)]
show()
for name, listed in COMMANDS.items():
    show(name)
    if listed.is_group:
        for inner in import_module(listed.module).COMMANDS:
            show(name, inner)
print(json.dumps(result))
"""


@pytest.mark.parametrize("environment", ["cli", pytest.param("all", marks=pytest.mark.gate)])
def test_every_command_has_its_help(environment: str) -> None:
    shown = run(environment, HELPS)
    assert len(shown) > len(COMMANDS) + 10
    for command, (code, output, exception) in shown.items():
        assert code == 0, (command, output, exception)
        assert "Usage:" in output, command
        assert "Traceback" not in output, command


def test_the_program_without_its_extra_says_how_to_install_it() -> None:
    code = """
from shardstore.__main__ import main
sys.argv[1:] = json.loads(sys.argv[1])
print(json.dumps(outcome(main)))
"""
    kind, text = run("bare", code, json.dumps(["serve", "--help"]))
    assert kind == "SystemExit"
    assert how_to_install("cli") in text


COMMAND_LINES = {
    "serve {url}": "serve",
    "report {url} --output {url}.html": "report",
    "verify --deep {url}": "zarr",
    "census {url} --picture {url}.png": "plot",
    "mount {url} {empty}": "mount",
    "snapshots init {url}-versions": "parquet",
    "refs write {url} {url}-refs": "parquet",
    "ls s3://bucket/a.zarr": "s3",
    "ls gs://bucket/a.zarr": "gcs",
}


def test_a_command_that_needs_an_extra_says_how_to_install_it(store: Path, tmp_path: Path) -> None:
    code = """
from typer.testing import CliRunner
from shardstore.apps.cli.app import app
shown = [CliRunner().invoke(app, line.split()) for line in json.loads(sys.argv[1])]
print(json.dumps([[done.exit_code, done.output] for done in shown]))
"""
    lines = [line.format(url=store, empty=tmp_path) for line in COMMAND_LINES]
    for (line, extra), (status, output) in zip(COMMAND_LINES.items(), run("cli", code, json.dumps(lines)), strict=True):
        assert status != 0, (line, output)
        assert how_to_install(extra) in output, (line, output)


# -- each extra alone --------------------------------------------------------------------------------------------------

ALONE = ["", *(extra for extra in EXTRAS if extra != "mount")]  # of which there are tests of their own


@pytest.fixture
def argument(extra: str, store: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The argument of the program of an extra."""
    given: dict[str, object] = {"url": str(store), "new": str(tmp_path / "new")}
    if extra in ("s3", "gcs"):
        given["place"] = request.getfixturevalue("gcs_url" if extra == "gcs" else "s3_url")
    if extra == "http":
        with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(store))) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield json.dumps(given | {"place": f"http://127.0.0.1:{server.server_address[1]}"})
            server.shutdown()
            thread.join()
        return
    yield json.dumps(given)


@pytest.mark.parametrize("extra", ALONE)
def test_each_extra_alone_does_what_it_is_for(extra: str, argument: str) -> None:
    extras = (extra, *WITH.get(extra, ())) if extra else ()
    if absent := {package for each in extras for package in EXTRAS[each]} - owners().keys():
        pytest.skip(f"not installed here: {', '.join(absent)}")
    assert run(extras, program_of(extra), argument) == "done"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip_of(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


def pip_of(python: Path, *arguments: str) -> None:
    done = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.night
@pytest.mark.parametrize("extra", [*ALONE, "zstd"])
def test_each_extra_alone_can_be_installed(extra: str, wheel: Path, argument: str, tmp_path: Path) -> None:
    """In an environment of its own, of which nothing is left."""
    environment = tmp_path / "environment"
    python = environment / "bin/python"
    try:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        extras = ",".join([extra, *WITH.get(extra, ())])
        pip_of(python, "install", f"{wheel}[{extras}]" if extra else str(wheel))
        pip_of(python, "check")
        program = program_of("" if extra == "zstd" else extra)
        done = subprocess.run([python, "-I", "-c", program, argument], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.stdout.splitlines()[-1:] == ['"done"'], done.stderr
    finally:
        shutil.rmtree(environment, ignore_errors=True)
