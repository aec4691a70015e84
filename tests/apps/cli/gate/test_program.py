"""What all commands have in common: help, errors, exit codes, options, completion, and behaviour in a pipe."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import pytest
import requests
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

import shardstore
from shardstore.apps.cli.app import COMMANDS, app
from shardstore.apps.cli.arguments import storage_options
from shardstore.apps.cli.output import MEANINGS, ExitCode, exit_code, first_error, message, progress_bar, said_if_slow
from shardstore.errors import (
    AccessDenied,
    Conflict,
    Corruption,
    Incomplete,
    InvalidInput,
    NotFound,
    ReadOnly,
    ShardStoreError,
    StorageError,
    Unsupported,
    WriteOutcomeUnknown,
)
from shardstore.model.words import count, plural, size
from shardstore.storage.s3.client import S3Client, translated
from tests.apps.cli.running import PLAIN, Place, Terminal, make_store, options_of, run, spawn, succeed

WITH_EXAMPLES = ["info", "ls", "cat", "cp", "mv", "rm", "advise", "compact", "repair"]


# -- help --------------------------------------------------------------------------------------------------------------


def test_help_lists_commands_and_exit_codes() -> None:
    for arguments in ([], ["--help"], ["-h"]):
        told = " ".join(succeed(*arguments).out.split())
        assert all(f" {command} " in told for command in COMMANDS)
        assert all(f"{code.value}: {MEANINGS[code]}" in told for code in ExitCode)


@pytest.mark.parametrize("command", WITH_EXAMPLES)
def test_each_command_has_examples(command: str) -> None:
    told = succeed(command, "--help").out
    examples = told[told.index("Examples:") :]
    assert examples.count(f"shardstore {command} ") >= 3
    assert "--storage-options" in told


def modules_loaded_by(*arguments: str) -> set[str]:
    """What a process has imported when the program has run with ``arguments``."""
    code = (
        "import sys; from shardstore.__main__ import main\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **PLAIN})
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_help_of_the_program_loads_no_command_and_no_library_that_they_need(arguments: list[str]) -> None:
    loaded = modules_loaded_by(*arguments)
    assert not {"numpy", "fsspec", "asyncio", "zarr"} & loaded
    ours = {name for name in loaded if name.startswith("shardstore")}
    assert "shardstore.apps.cli.app" in ours
    assert not ours & {listed.module for listed in COMMANDS.values()}
    assert len(ours) <= 20, sorted(ours)


def test_a_command_loads_no_other_command() -> None:
    others = {listed.module for listed in COMMANDS.values()} - {COMMANDS["ls"].module}
    assert not others & modules_loaded_by("ls", "--help")


def test_version() -> None:
    assert succeed("--version").out == f"shardstore {shardstore.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    words = {
        "COMP_WORDS": "shardstore ",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "shardstore ",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = spawn(env={"_SHARDSTORE_COMPLETE": f"complete_{shell}", **words})
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout.decode() for command in COMMANDS)
    script = spawn(env={"_SHARDSTORE_COMPLETE": f"source_{shell}"})
    assert b"_SHARDSTORE_COMPLETE" in script.stdout


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageError("x"), 1),
        (WriteOutcomeUnknown("x"), 1),
        (RuntimeError("x"), 1),
        (InvalidInput("x"), 2),
        (ReadOnly("x"), 2),
        (NotFound("x"), 3),
        (AccessDenied("x"), 4),
        (Corruption("x"), 5),
        (Conflict("x"), 6),
        (Unsupported("x"), 7),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, local: Place, error: Exception, code: int) -> None:
    def fail(*arguments: object) -> None:
        raise error

    assert exit_code(error) == code
    monkeypatch.setattr("shardstore.adapters.store_paths.resolve", fail)
    outcome = run("ls", local.url)
    assert outcome.code == code
    assert outcome.error.startswith("x" if isinstance(error, ShardStoreError) else "RuntimeError: x")


@pytest.mark.parametrize(
    ("first", "code"),
    [(AccessDenied("x"), 4), (Corruption("x"), 5), (StorageError("x"), 1), (RuntimeError("x"), 1), (InvalidInput("x"), 1), (None, 1)],
)
def test_work_that_is_not_complete_ends_as_its_first_failure(first: Exception | None, code: int) -> None:
    incomplete = Incomplete("some could not be done")
    incomplete.__cause__ = first
    assert exit_code(incomplete) == code


def test_an_error_is_one_line_with_its_notes() -> None:
    error = Conflict("another\n  writer")
    error.add_note("3 objects\nwere copied")
    assert message(error) == "another writer [3 objects were copied]"
    group = BaseExceptionGroup("several", [ExceptionGroup("inner", [error]), KeyboardInterrupt()])
    assert first_error(group) is error


def test_verbose_shows_the_traceback(local: Place) -> None:
    outcome = run("cat", f"{local.url}/nothing", "--verbose")
    assert outcome.code == 3
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: there is no key")
    assert "Traceback" not in run("cat", f"{local.url}/nothing").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "No such command 'nothing'"),
        (["ls", "--nothing", "x"], "No such option"),
        (["--nothing"], "No such option"),
        (["cp", "x"], "Missing argument 'DST'"),
        (["advise", "--objects", "many"], "--objects"),
        (["ls", "foo://bucket/x"], "the protocol 'foo'"),
        (["ls", "/tmp", "--storage-options", "{"], "--storage-options is not JSON"),
        (["ls", "/tmp", "--storage-options", "[1]"], "--storage-options is a JSON list"),
        (["ls", "/tmp", "-o", "anon"], "not of the form key=value"),
        (["ls", "/tmp", "-o", "anon=true"], "the storage option anon means nothing"),
        (["ls", ""], "names no place"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert said in outcome.error


def test_a_missing_bucket(s3_endpoint: str) -> None:
    options = options_of({"key": "test", "secret": "test", "endpoint_url": s3_endpoint})
    for command in ("info", "ls", "cat"):
        outcome = run(command, "s3://no-such-bucket-here/data.zarr", *options)
        assert outcome.code == 3
        assert "no-such-bucket-here" in outcome.error


def test_a_missing_bucket_of_google(gcs_url: tuple[str, dict[str, Any]]) -> None:
    outcome = run("info", "gs://no-such-bucket-here/data.zarr", *options_of(gcs_url[1]))
    assert outcome.code == 3
    assert "the bucket 'no-such-bucket-here' does not exist at" in outcome.error
    assert outcome.error.endswith("-o endpoint_url=…")


class LostFilesystem(MemoryFileSystem):  # type: ignore[misc] # fsspec ships no types
    """One that logs as gcsfs does, and shows its token."""

    protocol = "lost"

    def __init__(self, token: str = "", **options: Any) -> None:
        super().__init__(**options)
        try:
            raise requests.exceptions.ConnectionError(f"with url: /tokeninfo?access_token={token}")
        except requests.exceptions.ConnectionError:
            logging.getLogger("gcsfs").exception("out of retries")
            raise


@pytest.mark.parametrize("flags", [[], ["--verbose"]])
def test_an_unreachable_server_is_one_line_without_secrets(monkeypatch: pytest.MonkeyPatch, flags: list[str]) -> None:
    monkeypatch.setitem(_registry, "lost", LostFilesystem)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own, which would hide Python's last resort
    outcome = run("info", "lost://x", "-o", "token=ya29.abc", *flags)
    assert outcome.code == 1
    assert "out of retries" not in outcome.err
    assert "ya29" not in outcome.err
    assert "cannot be reached: check the network" in outcome.err.splitlines()[-1]
    if not flags:
        assert outcome.error


def test_an_unreachable_server_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def lose(self: S3Client, *arguments: Any, **parameters: Any) -> NoReturn:
        asked.append(arguments[2])
        raise translated(type("EndpointConnectionError", (Exception,), {})("refused"), "looking up", arguments[2], "bucket")

    monkeypatch.setattr(S3Client, "unbounded_call", lose)
    outcome = run("ls", "s3://bucket/a/b", "-o", "anon=true")
    assert (outcome.code, "cannot be reached: check the network" in outcome.error) == (1, True)
    assert sorted(asked) == ["'a/b/zarr.json'", "'a/zarr.json'", "'zarr.json'"]


class Refusing(BaseHTTPRequestHandler):
    """A server that speaks as much S3 as it takes to deny everything."""

    def _refuse(self) -> None:
        body = b"" if self.command == "HEAD" else b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _refuse  # noqa: N815 - the names that http.server asks for

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("arguments", [["info"], ["ls", "-r"], ["cat"], ["rm", "-y"], ["advise", "-a", ":"]])
def test_denied_access(refusing: str, arguments: list[str]) -> None:
    outcome = run(*arguments, "s3://bucket/data.zarr/x", *options_of({"key": "test", "secret": "test", "endpoint_url": refusing}))
    assert outcome.code == 4
    assert "denied access" in outcome.error


# -- options -----------------------------------------------------------------------------------------------------------


def test_storage_options() -> None:
    pairs = ["anon=true", "key=abc", "n=5", 'secret="5"', "url=http://x/?a=b", 'client_kwargs={"region_name": "eu"}', "empty="]
    expected: dict[str, Any] = {
        "anon": True,
        "key": "abc",
        "n": 5,
        "secret": "5",
        "url": "http://x/?a=b",
        "client_kwargs": {"region_name": "eu"},
        "empty": "",
    }
    assert storage_options(None, pairs) == expected
    assert storage_options('{"key": "from json", "other": 1}', ["key=abc"]) == {"key": "abc", "other": 1}
    assert storage_options(None, None) == {}


def test_option_values() -> None:
    pairs = ["key=123", "secret=12", "token=0", "password=true", "profile=null", 'token={"a": 1}', "anon=False", "use_ssl=True"]
    read = {"key": "123", "secret": "12", "token": {"a": 1}, "password": "true", "profile": None, "anon": False, "use_ssl": True}
    assert storage_options(None, pairs) == read
    for value in ('{"region_name"', " [1"):
        with pytest.raises(InvalidInput, match="the value of option client_kwargs begins like JSON but is not"):
            storage_options(None, [f"client_kwargs={value}"])


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/x", "s3://bucket/x"),
        ("s3//bucket/x", "s3://bucket/x"),
        ("gs:/b", "gs://b"),
        ("memory//me:secret@x", "memory://x"),
        ("file:/x", "file:///x"),
    ],
)
def test_urls_that_lack_a_character(url: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run("info", url)
    assert (outcome.code, f"did you mean {meant}? " in outcome.error) == (2, True), outcome.err
    with pytest.raises(InvalidInput, match=rf"did you mean {meant}\?"):
        shardstore.open(url)
    make_store(tmp_path / "s3" / "bucket")
    assert run("info", "s3//bucket").code == 0
    for path in ("./s3:/x", "data//x", "local//x"):
        assert shardstore.open(path).url == f"file://{os.path.abspath(path)}"


def test_file_urls_are_absolute() -> None:
    outcome = run("info", "file://data.zarr")
    assert (outcome.code, "is not absolute: file:// needs three slashes" in outcome.error) == (2, True)


def test_sharded_urls_are_the_urls_behind(local: Place) -> None:
    assert succeed("ls", f"sharded::file://{local.url}").lines == succeed("ls", local.url).lines


def test_relative_paths(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(local.url).parent)
    assert succeed("ls", "data.zarr", "ct").lines == ["ct/c/", "ct/zarr.json"]
    monkeypatch.chdir(local.url)
    assert succeed("ls", ".").lines == ["ct/", "scans/", "time/", "zarr.json"]
    assert succeed("ls", "ct").lines == ["c/", "zarr.json"]


# -- output ------------------------------------------------------------------------------------------------------------


def test_a_process_of_its_own(local: Place) -> None:
    done = spawn("info", local.url, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert [a["path"] for a in json.loads(done.stdout)["arrays"]] == ["ct", "scans/pt", "time"]
    failed = spawn("cat", f"{local.url}/nothing")
    assert (failed.returncode, failed.stdout) == (3, b"")
    assert failed.stderr.startswith(b"error: there is no key")


def test_a_reader_that_stops_is_no_error(local: Place) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "shardstore", "ls", "-r", local.url],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
            timeout=120,
            env={**os.environ, **PLAIN},
        )
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN_PIPE, b"")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch, local: Place) -> None:
    def interrupt(*arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("shardstore.adapters.store_paths.resolve", interrupt)
    outcome = run("ls", local.url)
    assert (outcome.code, outcome.error) == (130, "interrupted")


def test_zarr_is_not_imported(local: Place) -> None:
    program = (
        "import sys; from shardstore.apps.cli.app import app\n"
        f"try: app(['info', {local.url!r}])\n"
        "finally: print(sorted({'zarr', 's3fs', 'xarray', 'botocore'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=120, env={**os.environ, **PLAIN})
    assert (done.returncode, done.stderr) == (0, b"[]\n")


def test_progress_is_shown_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with progress_bar("looking", "objects") as bar:
            bar(1, 2)
            bar(2, 2, nbytes=2048)
        assert ("looking" in stream.getvalue()) is shown
        assert ("2 of 2 objects, 2.0 KiB" in stream.getvalue()) is shown


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (5 * 2**40, "5.0 TiB"),
        (2**70, "1048576.0 PiB"),
    ],
)
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert size(nbytes) == text


def test_numbers_for_people() -> None:
    assert [count(n) for n in (0, 3, 12.34, 99.96, 1234567)] == ["0", "3", "12.3", "100.0", "1,234,567"]
    assert [plural(n, "object") for n in (0, 1, 1234)] == ["0 objects", "1 object", "1,234 objects"]


def test_the_program_is_what_the_entry_point_names() -> None:
    assert app.info.name == "shardstore"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_packages_the_program_names_the_extra(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from shardstore.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: the command line needs typer and rich: pip install 'shardstore[cli]'\n"


def test_silence_is_broken_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        written = threading.Event()

        def write(self, text: str) -> int:
            self.written.set()
            return super().write(text)

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with said_if_slow("waiting", after_seconds=0):
        assert terminal.written.wait(30)
    with said_if_slow("waiting in vain", after_seconds=1000):
        pass
    assert terminal.getvalue().startswith("waiting …")
    assert "vain" not in terminal.getvalue()
    nobody = io.StringIO()
    monkeypatch.setattr(sys, "stderr", nobody)
    before = threading.active_count()
    with said_if_slow("waiting", after_seconds=1000):
        assert threading.active_count() == before
    assert nobody.getvalue() == ""
