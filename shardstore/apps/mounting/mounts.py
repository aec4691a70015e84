"""Start and end mounts, from the process that wants one. Each mount is a process of its own: a program that reads its own mount from the
loop that serves it would wait for ever, and a forked child would have the locks, but not the threads that release them.
"""

from __future__ import annotations

import errno
import os
import pickle
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from shardstore.adapters.file_access import mounted_kind, portable_target
from shardstore.adapters.handle import ChunksPerShard, PresentOption
from shardstore.errors import Conflict, InvalidInput, StorageError, Unsupported
from shardstore.extras import how_to_install
from shardstore.model.durations import Duration, timedelta_of
from shardstore.model.options import check_flags
from shardstore.model.redaction import redacted

if TYPE_CHECKING:
    from shardstore.apps.mounting.held_back import Durable


# -- messages between the process that wants a mount and that of the mount, pickled, by pipes ----------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    """What is mounted, where and how."""

    url: str | Path
    """A path object is never taken for the URL of a snapshot, where it exists."""
    directory: str
    ready: int
    """The descriptor of the pipe by which the process reports."""
    storage_options: Mapping[str, Any]
    options: Mapping[str, Any]
    read_only: bool
    durable: Durable
    attr_seconds: float
    read_ahead: int
    write_memory: int
    allow_other: bool
    uid: int | None
    gid: int | None
    umask: int
    xattrs: bool
    log_file: str | None
    outlives: bool
    """True if it goes on when the process that started it has ended."""


@dataclass(frozen=True, slots=True)
class Ready:
    """It is mounted; the URL has no credentials."""

    url: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot be mounted."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Ended:
    """It is not mounted any more; ``unstored`` are the keys of values that could not be stored."""

    unstored: tuple[str, ...]


Report = Ready | Failed | Ended


# -- mounting --------------------------------------------------------------------------------------------------------------

READY_SECONDS = 120.0
"""The time that a storage has to answer before mounting is given up."""
END_SECONDS = 600.0
"""The time that a mount has to store what is held back."""

_KIND = "fuse.shardstore"
_DEVICE = Path("/dev/fuse")
_CONF = Path("/etc/fuse.conf")
_PACKAGES = (
    "on Debian and Ubuntu, apt-get install gcc python3-dev pkg-config libfuse3-dev fuse3; on Fedora, dnf install gcc python3-devel pkgconf "
    "fuse3-devel fuse3"
)


class Mount:
    """A store that is mounted, by a process of its own. Also a context manager, which unmounts."""

    def __init__(self, directory: str, process: subprocess.Popen[bytes], reports: BinaryIO, ready: Ready) -> None:
        self.directory = directory
        self.url = ready.url
        """The URL of the store, without credentials."""
        self.read_only = ready.read_only
        self.pid = process.pid
        """The process of the mount."""
        self._owner = os.getpid()
        self._process = process
        self._reports = reports

    def __enter__(self) -> Mount:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if os.getpid() == self._owner:  # of a forked child it is not
            self.unmount()

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise InvalidInput(
                f"process {os.getpid()} was forked from process {self._owner}, which has mounted {self.directory} and unmounts it. To "
                f"unmount it from here: shardstore unmount {self.directory}"
            )

    def __repr__(self) -> str:
        return f"Mount({self.url!r}, {self.directory!r})"

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until nothing is mounted any more, at most so many seconds; return whether that is so.

        Raises:
            StorageError: what was written could not all be stored, or the process of the mount has died.
            InvalidInput: this process was forked from the one that has mounted it.
        """
        self._check_owner()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        if self._reports.closed:
            return True
        if self._process.stdin is not None:
            self._process.stdin.close()
        with self._reports:
            report = _report(self._reports)
        if isinstance(report, Ended) and not report.unstored:
            return True
        if isinstance(report, Ended):
            lost = ", ".join(report.unstored[:10])
            raise StorageError(f"{len(report.unstored)} files written to {self.directory} could not be stored in {self.url}: {lost}")
        raise StorageError(
            f"the process that had mounted {self.url} at {self.directory} has died ({code}): shardstore unmount {self.directory}"
        )

    def unmount(self, *, force: bool = False) -> None:
        """Store what is held back, and unmount at once. Files that are still open fail with ``ENOTCONN``; what was written to them and not
        closed is lost.

        Args:
            force: do not stop where something cannot be stored: it is lost then.

        Raises:
            StorageError: something could not be stored. Unless ``force``, it is still mounted then. Or it takes longer than ten minutes.
            InvalidInput: this process was forked from the one that has mounted it.
        """
        self._check_owner()
        if self._process.poll() is None:
            if not force:
                _sync(self.directory)
            self.end()
        if not self.wait(END_SECONDS):
            raise _too_slow(self.directory)

    def end(self) -> None:
        """Ask the process to store what is held back, and to unmount. Does not wait. Raises ``InvalidInput`` as ``unmount``."""
        self._check_owner()
        self._process.terminate()  # to close its input is not enough: a child that was forked since then has it too
        if self._process.stdin is not None:
            self._process.stdin.close()


def mount(
    url: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    read_only: bool = False,
    present: PresentOption = "v3",
    durable: Durable = "close",
    attr_ttl: Duration = "1s",
    read_ahead: int = 16 * 2**20,
    write_memory: int = 256 * 2**20,
    chunks_per_shard: ChunksPerShard = "auto",
    allow_other: bool = False,
    uid: int | None = None,
    gid: int | None = None,
    umask: int = 0o022,
    non_empty: bool = False,
    xattrs: bool = False,
    outlives: bool = False,
    log_file: str | os.PathLike[str] | None = None,
    storage_options: dict[str, Any] | None = None,
    **options: Any,
) -> Mount:
    """Mount a store, as a tree of plain chunk files, and return when it is there. Linux only.

    Args:
        url: a path, any fsspec URL or chain, or a snapshot, ``URL@ref``, which is mounted for reading only.
        directory: an empty directory.
        read_only: refuse every write.
        present: what is shown; see ``shardstore.open``.
        durable: when a file is stored: ``"close"``, when it is closed; or ``"fsync"``, in batches, at ``fsync`` of any file or directory,
            soon after the last file was closed, and when it is unmounted.
        attr_ttl: names and sizes are believed for so long: changes by other programs may be seen as late as that.
        read_ahead: bytes that are read ahead of chunks that are opened in order.
        write_memory: bytes that are held back in memory; more go to a temporary file, or are stored at once.
        chunks_per_shard: of arrays that are created; see ``shardstore.open``.
        allow_other: let other users of the machine in too.
        uid: the user of all files.
        gid: the group of all files.
        umask: the mode bits that no file has.
        non_empty: mount over a directory that is not empty.
        xattrs: show where a file lies, as ``KEY offset nbytes`` in the stored object, by the extended attribute ``user.shardstore.place``,
            and its version by ``user.shardstore.version``. ``ls -l`` asks for attributes of each file, and takes longer then.
        outlives: let it go on when this process has ended.
        log_file: where errors are logged; by default on standard error, and with ``outlives`` in the system's log.
        storage_options: for the filesystem: credentials, endpoint, retries.
        options: further ones of ``shardstore.open``.

    Raises:
        InvalidInput: an argument cannot be right: the directory is none, is not empty, or has a mount on it.
        Unsupported: pyfuse3 or FUSE is missing.
        NotFound, StorageError: the store cannot be opened, or the system refuses.
    """
    check_flags(read_only=read_only)
    if durable not in ("close", "fsync"):
        raise InvalidInput(f"durable {durable!r} is neither 'close' nor 'fsync'")
    attr_seconds = timedelta_of("attr_ttl", attr_ttl).total_seconds()
    sizes: dict[str, Any] = {"read_ahead": read_ahead, "write_memory": write_memory}
    for name, nbytes in sizes.items():
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
            raise InvalidInput(f"{name} {nbytes!r} is not a number of bytes")
    if not 0 <= umask <= 0o777:
        raise InvalidInput(f"umask {umask:o} is not made of permission bits")
    _check_fuse(allow_other)
    target = _checked(directory, non_empty)
    reading, writing = os.pipe()
    task = Task(
        url=portable_target(url),
        directory=target,
        ready=writing,
        storage_options=storage_options or {},
        options={"present": present, "chunks_per_shard": chunks_per_shard, **options},
        read_only=read_only,
        durable=durable,
        attr_seconds=attr_seconds,
        read_ahead=read_ahead,
        write_memory=write_memory,
        allow_other=allow_other,
        uid=uid,
        gid=gid,
        umask=umask,
        xattrs=xattrs,
        log_file=None if log_file is None else os.path.abspath(os.fspath(log_file)),
        outlives=outlives,
    )
    reports = cast(BinaryIO, os.fdopen(reading, "rb", buffering=0))
    try:
        return _start(task, reports)
    except BaseException:
        reports.close()
        raise
    finally:
        os.close(writing)


def _start(task: Task, reports: BinaryIO) -> Mount:
    try:
        message = pickle.dumps(task)
    except (pickle.PicklingError, AttributeError, TypeError) as exc:
        raise InvalidInput(f"an option cannot be given to the process of the mount: {exc}") from exc
    arguments = [sys.executable, "-P", "-m", "shardstore.apps.mounting", redacted(str(task.url)), task.directory]
    process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(task.ready,), start_new_session=True)
    assert process.stdin is not None
    process.stdin.write(message)
    process.stdin.flush()
    try:
        report = _report(reports, process)
    except BaseException:
        process.kill()
        process.wait()
        raise
    if isinstance(report, Ready):
        if task.outlives:
            process.stdin.close()
        return Mount(task.directory, process, reports, report)
    process.stdin.close()
    process.wait()
    if isinstance(report, Failed):
        raise report.error
    raise StorageError(f"the process that mounts {redacted(str(task.url))} has ended ({process.returncode}) before it was ready")


def _report(reports: BinaryIO, process: subprocess.Popen[bytes] | None = None) -> Report | None:
    """Return the next report; ``None`` if the process has ended without one."""
    if process is not None:
        waited = 0.0
        while not select.select([reports], [], [], 0.1)[0]:
            waited += 0.1
            if process.poll() is not None and not select.select([reports], [], [], 0)[0]:
                return None
            if waited > READY_SECONDS:
                raise StorageError(f"the storage has not answered for {READY_SECONDS:.0f} s: nothing is mounted")
    try:
        report: Report = pickle.load(reports)
    except EOFError:
        return None
    return report


# -- what is checked before ----------------------------------------------------------------------------------------------


def _check_fuse(allow_other: bool) -> None:
    if not sys.platform.startswith("linux"):
        raise Unsupported("mounting works on Linux only: on other systems, 'shardstore serve' shows a store to other programs")
    if find_spec("pyfuse3") is None:
        raise Unsupported(
            f"mounting needs pyfuse3, which is compiled when it is installed. First install what that takes: {_PACKAGES}. Then "
            f"{how_to_install('mount')}. With conda, conda install -c conda-forge pyfuse3 does all of it"
        )
    if not _DEVICE.exists():
        raise Unsupported(f"there is no {_DEVICE}: load the kernel's module by 'modprobe fuse', or give the container --device {_DEVICE}")
    if os.getuid() != 0:
        if shutil.which("fusermount3") is None:
            raise Unsupported("users mount by the program fusermount3, which is missing: install the package fuse3")
        if allow_other and not _conf_allows_other():
            raise InvalidInput(f"allow_other needs a line 'user_allow_other' in {_CONF}")


def _conf_allows_other() -> bool:
    try:
        lines = _CONF.read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def _is_stale(directory: str) -> bool:
    """Return whether the process that has mounted there has died."""
    try:
        os.statvfs(directory)  # which the kernel never answers from memory
    except OSError as exc:
        return exc.errno == errno.ENOTCONN
    return False


def _checked(directory: str | os.PathLike[str], non_empty: bool) -> str:
    shown = os.path.abspath(os.path.expanduser(os.fspath(directory)))
    if _is_stale(shown):
        raise InvalidInput(f"a mount at {shown} was left by a process that has died: shardstore unmount {shown}")
    if not os.path.isdir(shown):
        raise InvalidInput(f"{shown} is not a directory: make it first")
    path = os.path.realpath(shown)
    if mounted_kind(path) == _KIND:
        raise InvalidInput(f"something is mounted at {path} already: shardstore unmount {path}")
    if not non_empty and os.listdir(path):
        raise InvalidInput(f"{path} is not empty: its files would be hidden. Give an empty directory, or --non-empty")
    return path


# -- unmounting ----------------------------------------------------------------------------------------------------------


def _sync(directory: str) -> None:
    """Let what is held back be stored. Raises ``StorageError``."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as exc:
        raise StorageError(
            f"what was written to {directory} could not all be stored ({exc.strerror}): it is still mounted, and its log says more. "
            "To unmount anyway, and lose it: --force"
        ) from exc


def unmount(directory: str | os.PathLike[str], *, force: bool = False) -> None:
    """Unmount what ``mount`` has mounted at a directory, in whatever process, after what is held back has been stored.

    Args:
        force: also where files are in use, or cannot be stored.

    Raises:
        InvalidInput: nothing of shardstore is mounted there.
        Conflict: files there are in use.
        StorageError: something could not be stored, and it is still mounted; or storing the rest takes longer than ten minutes.
    """
    shown = os.path.abspath(os.path.expanduser(os.fspath(directory)))
    is_stale = _is_stale(shown)
    path = shown if is_stale else os.path.realpath(shown)
    if mounted_kind(path) != _KIND:
        raise InvalidInput(f"nothing of shardstore is mounted at {shown}")
    pid = None if is_stale else _pid(path)
    if not is_stale and not force:
        _sync(path)
    _end_mount(path, lazily=force or is_stale)
    if pid is not None:
        _wait_for(pid, path)


def _end_mount(path: str, *, lazily: bool) -> None:
    """Take a mount off its directory; ``lazily``, also while files are in use. Raises ``Conflict`` or ``StorageError``."""
    if shutil.which("fusermount3"):
        command = ["fusermount3", "-u", *(["-z"] if lazily else []), path]
    else:
        command = ["umount", *(["-l"] if lazily else []), "--", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.split())
        if "busy" in said.lower():
            raise Conflict(f"files in {path} are in use: close them, leave the directory, or give --force")
        raise StorageError(f"{path} could not be unmounted: {said}")


def _pid(path: str) -> int | None:
    """Return the process of the mount at a path, by its command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")[:-1]
            except OSError:
                continue  # it has ended
            if b"shardstore.apps.mounting" in arguments and arguments[-1] == os.fsencode(path):
                return int(entry.name)
    return None


def _wait_for(pid: int, directory: str) -> None:
    """Wait until the process of a mount has stored what it had left, and ended. Raises ``StorageError`` if it does not in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return
    try:
        if not select.select([descriptor], [], [], END_SECONDS)[0]:
            raise _too_slow(directory)
    finally:
        os.close(descriptor)


def _too_slow(directory: str) -> StorageError:
    return StorageError(
        f"what was written to {directory} is still being stored after {END_SECONDS:.0f} s: its process goes on, see its log"
    )
