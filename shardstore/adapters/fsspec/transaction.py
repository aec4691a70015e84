"""``with fs.transaction:``: the engine's transaction behind fsspec's interface."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from fsspec.transaction import Transaction


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
