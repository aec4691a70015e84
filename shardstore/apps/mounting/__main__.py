"""``python -m shardstore.apps.mounting``: the process of one mount. It opens the store, mounts it, and stores what is left in the end.

It gets its ``Task`` on standard input, so that no credential is in its command line, whose arguments are for lists of processes. Unless it
``outlives`` the program that started it, it ends when that input is closed. By another pipe it reports when it is ready, or why it will not
be.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import signal
import sys
import threading
from logging.handlers import SysLogHandler
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from fsspec.asyn import get_loop

from shardstore._sync import run_sync
from shardstore.adapters.file_access import FileAccess
from shardstore.apps.mounting.errnos import ErrorLog
from shardstore.apps.mounting.files import Files
from shardstore.apps.mounting.mounts import Ended, Failed, Ready, Report, Task
from shardstore.apps.mounting.operations import Operations, Ownership, attach, detach, run, stop
from shardstore.errors import InvalidInput, NotFound, ShardStoreError, StorageError

_log = logging.getLogger("shardstore.apps.mounting")

_SYSTEM_LOG = "/dev/log"
_STATIC_SECONDS = 3600.0
"""Names and sizes of a snapshot, which never change, are believed for so long."""


def _open(task: Task) -> FileAccess:
    store = FileAccess.open(task.url, task.storage_options, task.options)
    if store.local_directory is not None:
        _check_apart(store.local_directory, task.directory)
    listed = run_sync(store.list_dir("", approximate=True))  # a bucket that cannot be reached is an error now
    if task.read_only and not listed.values and not listed.prefixes:
        raise NotFound(f"there is nothing at {store.url}: check the address")
    return store


def _check_apart(root: str, directory: str) -> None:
    """Raise ``InvalidInput`` if one of two directories is the other, or in it: answering the kernel would ask the kernel."""
    one, other = Path(root).resolve(), Path(directory).resolve()
    if one == other or one in other.parents or other in one.parents:
        raise InvalidInput(f"the mount point {directory} and the store {root} may not contain each other: mount at a directory elsewhere")


def _fsname(url: str) -> str:
    """Return the name of the file system in the list of mounts: ASCII, in which libfuse wants ``,`` and ``\\`` escaped."""
    text = url.encode("ascii", "backslashreplace").decode()
    return f"shardstore:{text}".replace("\\", "\\\\").replace(",", "\\,")


class _Pipe:
    """The pipe to the process that started this one, which may have ended."""

    def __init__(self, descriptor: int) -> None:
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def send(self, report: Report) -> None:
        with contextlib.suppress(BrokenPipeError):
            try:
                data = pickle.dumps(report)
            except Exception:  # noqa: BLE001  # an exception with something inside that cannot travel
                assert isinstance(report, Failed)
                data = pickle.dumps(Failed(StorageError(str(report.error))))
            self._file.write(data)
            self._file.flush()


def _log_to(file: str | None, *, outlives: bool) -> None:
    handler: logging.Handler
    if file is not None:
        handler = logging.FileHandler(file)
    elif not outlives:
        handler = logging.StreamHandler()
    else:
        handler = SysLogHandler(_SYSTEM_LOG) if os.path.exists(_SYSTEM_LOG) else logging.NullHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    log = logging.getLogger("shardstore")
    log.addHandler(handler)
    log.setLevel(logging.WARNING)


def main() -> int:
    """Run one mount; return the exit code of the process."""
    task: Task = pickle.load(sys.stdin.buffer)
    pipe = _Pipe(task.ready)
    _log_to(task.log_file, outlives=task.outlives)
    try:
        return _mount(task, pipe)
    except Exception as exc:  # noqa: BLE001  # sent to the process that waits for it
        pipe.send(Failed(exc if isinstance(exc, ShardStoreError) else StorageError(f"mounting failed: {type(exc).__name__}: {exc}")))
        return 2


def _mount(task: Task, pipe: _Pipe) -> int:
    store = _open(task)
    gc.freeze()  # what has been imported is not looked through again and again
    read_only = task.read_only or store.is_static
    log = ErrorLog()
    files = Files(
        store,
        read_only=read_only,
        durable=task.durable,
        attr_seconds=_STATIC_SECONDS if store.is_static else task.attr_seconds,
        read_ahead=task.read_ahead,
        write_memory=task.write_memory,
        log=log,
    )
    ownership = Ownership(os.getuid() if task.uid is None else task.uid, os.getgid() if task.gid is None else task.gid, task.umask)
    ended = threading.Event()

    def started() -> None:
        if task.outlives:  # a program that waits for the end of our output is not to wait as long as it is mounted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        pipe.send(Ready(store.url, read_only))

    operations = Operations(files, ownership, started, xattrs=task.xattrs)
    _end_on_signals(ended)
    options = ["nosuid", "nodev", "noexec", "default_permissions", "subtype=shardstore", f"fsname={_fsname(store.url)}"]
    options += ["ro"] if read_only else []
    options += ["allow_other"] if task.allow_other else []
    try:
        attach(operations, task.directory, options)
    except RuntimeError as exc:
        raise StorageError(f"{task.directory} cannot be mounted at: {exc}; libfuse has printed the reason on stderr") from exc
    serving = asyncio.run_coroutine_threadsafe(run(), get_loop())
    serving.add_done_callback(lambda _: ended.set())
    if not task.outlives:
        threading.Thread(target=_end_when_closed, args=(ended,), daemon=True).start()
    ended.wait()
    return _end(task, pipe, files, serving)


def _end_on_signals(ended: threading.Event) -> None:
    def stop(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, stop)


def _end_when_closed(ended: threading.Event) -> None:
    """Wait until the process that started this one closes its end, or has ended."""
    while sys.stdin.buffer.read(1):
        pass
    ended.set()


def _end(task: Task, pipe: _Pipe, files: Files, serving: Any) -> int:
    """Store what is held back while files can still be read, unmount, and store what has come since then."""
    error: BaseException | None = None
    try:
        run_sync(files.held.end())
        if not serving.done():
            get_loop().call_soon_threadsafe(stop)
        error = serving.exception()
        unstored = run_sync(files.end())
    except Exception as exc:  # noqa: BLE001  # what is held back is named all the same
        error = exc
        unstored = sorted(files.held.pending)
    finally:
        detach()
    for key in unstored:
        _log.error("%s could not be stored and is lost: %s", key, task.directory)
    pipe.send(Ended(tuple(unstored)))
    if error is not None:
        _log.error("%s was not unmounted as it should be", task.directory, exc_info=error)
    return 1 if unstored or error is not None else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of clients that wait for a server that is gone must not keep it
