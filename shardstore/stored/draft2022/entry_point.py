"""The entry point of a 2022-draft hierarchy: ``zarr.json`` at its root, which says what is stored here."""

from __future__ import annotations

from shardstore.errors import InvalidInput, ShardStoreError, StorageError, Unsupported
from shardstore.format.draft2022.keys import ENTRY_POINT_KEY
from shardstore.format.draft2022.metadata import entry_point, entry_point_problem, is_entry_point
from shardstore.format.json_text import JsonObject, dumps_zarr2, parse_object
from shardstore.format.metadata_v3 import is_array, is_group
from shardstore.storage.base import Absent, ConditionFailed, Failed, Found, ReadOutcome, Storage, document_read, read_one


def sought(outcome: ReadOutcome, key: str) -> Found | None:
    """Return what a read of any version found, ``None`` if there is no object.

    Raises:
        ShardStoreError: the read failed.
    """
    match outcome:
        case Found():
            return outcome
        case Absent():
            return None
        case Failed(error):
            raise error
        case _:
            raise StorageError(f"{key!r} kept changing while it was being read: try again")


def parsed(found: Found | None) -> JsonObject | None:
    """Return the stored document, ``None`` if there is none or it is no JSON object."""
    return None if found is None else parse_object(found.buffers[0])


class EntryPoint:
    """The entry point of the hierarchy in ``inner``; one that was seen, or made, is not looked for again before writes."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.is_known = False

    async def problem(self) -> ShardStoreError | None:
        """Return the error if this place cannot be used as a hierarchy of the draft, or ``None`` if it can or has no entry point."""
        found = await self._read()
        return None if found is None else self._error(found)

    async def is_sound(self) -> bool:
        """Return whether there is an entry point, of a hierarchy that can be shown."""
        found = await self._read()
        return found is not None and self._error(found) is None

    async def _read(self) -> Found | None:
        return sought(await read_one(self._inner, document_read(ENTRY_POINT_KEY)), ENTRY_POINT_KEY)

    def check(self, found: Found | None) -> bool:
        """Return whether there is an entry point, as ``found`` just now.

        Raises:
            InvalidInput: something else is stored here.
            Unsupported: it is that of a hierarchy that is not understood.
        """
        if found is None:
            return False
        if (error := self._error(found)) is not None:
            raise error
        self.is_known = True
        return True

    async def create(self) -> None:
        """Make the entry point, which was absent just now. Raises as ``check``, where another client has made it since."""
        body = dumps_zarr2(entry_point())
        condition = (await self._inner.probe()).condition_on(None)
        try:
            await self._inner.write(ENTRY_POINT_KEY, [body], len(body), condition)
        except ConditionFailed:
            self.check(await self._read())
            return
        self.is_known = True

    def _error(self, found: Found) -> ShardStoreError | None:
        where, document = f"{ENTRY_POINT_KEY!r} in {self._inner.url}", parsed(found)
        if document is None:
            return InvalidInput(
                f"{where} is no JSON document, where the 2022 draft has its entry point: remove it, or choose another place"
            )
        if not is_entry_point(document):
            what = "the document of a Zarr v3 node" if is_array(document) or is_group(document) else "not the entry point of the 2022 draft"
            return InvalidInput(f"{where} is {what}: open it as what it is, or choose another place for a hierarchy of the 2022 draft")
        problem = entry_point_problem(document)
        if problem is None:
            return None
        return Unsupported(
            f"{where} is the entry point of a hierarchy that is not understood: {problem}; choose another place for what is to be written"
        )
