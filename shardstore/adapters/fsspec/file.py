"""Files of the fsspec filesystem: read by ranges of one version, written whole when they are closed; and its transactions."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

from fsspec.spec import AbstractBufferedFile
from fsspec.transaction import Transaction

from shardstore._sync import run_sync
from shardstore.engine.actions import Patch, SetValue
from shardstore.engine.pinned import OpenValue
from shardstore.errors import Conflict, InvalidInput, NotFound
from shardstore.format.store_keys import metadata_path
from shardstore.presented.flavours import Presented

_MODES = ("rb", "wb", "xb", "ab")


class ShardedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """One value as a file.

    Reading (``rb``) stays with the version that was there when the file was opened. Writing (``wb``, ``xb``, ``ab``)
    stores the value when the file is closed, durable on return; a block that ends with an exception stores nothing, nor does a
    file that is never closed.

    Raises:
        InvalidInput: the mode is unknown.
        NotFound: (``rb``) the value does not exist.
        FileExistsError: (``xb``) the value exists when the file is opened or when it is closed.
        Conflict: (``rb``) the value was replaced between two ranges.
    """

    closed: bool

    def __init__(self, fs: Any, path: str, engine: Presented, key: str, mode: str = "rb", size: int | None = None, **options: Any) -> None:
        if mode not in _MODES:
            raise InvalidInput(f"mode {mode!r} for {key!r} is not one of {', '.join(_MODES)}: a value is read, or stored whole")
        self._engine = engine
        self._key = key
        self._pinned: OpenValue | None = None
        self._appended_to = b""
        self._discarded = False
        if mode == "rb":
            self._pinned = run_sync(engine.pin(key))
            if self._pinned is None:
                raise NotFound(f"{key!r} does not exist in {engine.storage.url}")
            size = self._pinned.nbytes
            self._details = {"name": path, "size": size, "type": "file"}
        elif mode == "xb" and run_sync(engine.exists(key)):
            raise _exists(key, engine)
        super().__init__(fs, path, mode, size=size, **options)
        if mode == "ab":
            old = run_sync(engine.get((key, fs.everything)))
            self._appended_to = b"" if old is None else bytes(old)
            self.loc = len(self._appended_to)

    def _fetch_range(self, start: int, end: int) -> bytes:
        assert self._pinned is not None
        return bytes(run_sync(self._pinned.read(start, end)))

    def _upload_chunk(self, final: bool = False) -> bool:
        """Store the value at the end; fsspec also calls this for each block, which is kept until then, since a value is stored whole."""
        if not final:
            return False
        if self._discarded:
            return True
        data = self.buffer.getvalue()
        if self.mode == "xb":
            if not run_sync(self._engine.create(self._key, data)):
                raise _exists(self._key, self._engine)
        elif self.mode == "ab" and metadata_path(self._key) is None:
            run_sync(self._engine.update((self._key, Patch(len(self._appended_to), data, at_end=True))))
        else:
            run_sync(self._engine.update((self._key, SetValue(self._appended_to + data))))
        return True

    def discard(self) -> None:
        """Store nothing when the file is closed."""
        self._discarded = True

    def note_discarded(self, error: BaseException) -> None:
        """Store nothing because of an error, and add a note to the error. A file that is read is left alone."""
        if self.mode != "rb":
            self.discard()  # half a value is not stored
            error.add_note(f"{self._key!r} was being written and was not stored")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.note_discarded(error)
        self.close()

    def __del__(self) -> None:
        # Not closed here: storing needs the event loop, and waiting for it from the garbage collector can wait for ever.
        if not self.closed and self.mode != "rb":
            self.closed = True
            warnings.warn(f"{self._key!r} was opened for writing and never closed: nothing was stored", ResourceWarning, stacklevel=2)

    def __reduce__(self) -> tuple[Callable[..., ShardedFile], tuple[Any, ...]]:
        reopen, arguments = super().__reduce__()
        assert self._pinned is not None
        return _reopened, (self._pinned.version, reopen, arguments)


class PackedFile(io.BufferedIOBase):
    """A writer that compresses into a file, and closes both; fsspec's compressors leave the file to the garbage collector."""

    def __init__(self, packer: Any, file: ShardedFile) -> None:
        super().__init__()
        self._packer = packer
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        return int(self._packer.write(data))

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._packer.close()
        except BaseException:
            self._file.discard()
            raise
        finally:
            super().close()
            self._file.close()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self._file.note_discarded(error)
        self.close()

    def __del__(self) -> None:
        # A compressor writes the rest when it is collected; the file drops that, and warns that it was not closed.
        if not self.closed:
            self._file.discard()
            self._packer.close()


class TextFile(io.TextIOWrapper):
    """A file as text. A block that ends with an exception stores nothing here either."""

    def __init__(self, buffer: Any, file: ShardedFile, **options: Any) -> None:
        super().__init__(buffer, **options)
        self._file = file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self._file.note_discarded(error)
        self.close()

    def __del__(self) -> None:
        """Do nothing: the file below warns that it was not closed, and closing it here would store it."""


def _reopened(version: str, reopen: Callable[..., ShardedFile], arguments: tuple[Any, ...]) -> ShardedFile:
    """Return a file out of a pickle, at the position that it had, in the version that was opened.

    Raises:
        Conflict: there is another version now.
    """
    file = reopen(*arguments)
    if file._pinned is None or file._pinned.version != version:
        file.close()
        raise Conflict(f"{file._key!r} was replaced since the file was pickled: open it again")
    return file


def _exists(key: str, engine: Presented) -> FileExistsError:
    return FileExistsError(f"{key!r} exists in {engine.storage.url} already")


class ShardedTransaction(Transaction):  # type: ignore[misc]  # fsspec has no types
    """A transaction that holds back all writes to the place, by files, by ``pipe`` or by zarr, until the block ends.

    Each shard is committed once, chunks before metadata. An exception inside the block discards everything.
    """

    def start(self) -> None:
        self.fs.check_writable()
        self.fs.settle()  # on the engine that the writes will go to
        self.fs.handle.begin()
        super().start()

    def complete(self, commit: bool = True) -> None:
        handle = self.fs.handle
        try:
            super().complete(commit)  # files that were closed are held back already
        except BaseException:
            handle.rollback()
            raise
        if commit:
            handle.commit()
        else:
            self._discarded = handle.rollback()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> Any:
        if error is None:
            return super().__exit__(kind, error, traceback)
        url = self.fs.handle.url
        super().__exit__(kind, error, traceback)
        error.add_note(f"the transaction on {url} was rolled back: {self._discarded} held-back keys were discarded, nothing was stored")
        return None
