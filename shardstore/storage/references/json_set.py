"""A set of references in JSON: read once, in pieces, into columns."""

from __future__ import annotations

import codecs
import io
import warnings
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from shardstore.errors import AccessDenied, Corruption, NotFound, ShardStoreError, StorageError, Unsupported
from shardstore.extras import needed
from shardstore.format.references.json import Expansion, NeedsFlat, ReferenceParser, document_of
from shardstore.format.references.pins import PINS_SUFFIX, SetDigest, object_url, section_of
from shardstore.format.references.table import Reference, ReferenceTable
from shardstore.format.v2.keys import is_document
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.base import UNKNOWN_NBYTES, Absent, Failed, Found, Read, ReadOutcome, unless_failed
from shardstore.storage.references.entries import Entry, PinnedReference, SetPlace, Targets

_PIECE_NBYTES = 8 << 20
_DECODED_NBYTES = 1 << 20


class JSONSet:
    """The references of a set in memory, and the versions of the objects that they were made of, by URL.

    ``version`` is a text that differs if the set has been replaced. ``ParquetSet`` has the same methods, and reads more of the set when it
    is asked.
    """

    def __init__(self, table: ReferenceTable, tokens: Mapping[str, str], version: str = "") -> None:
        self.version = version
        self._table = table
        self._tokens = tokens

    def _entry(self, found: Reference | bytes) -> Entry:
        if isinstance(found, bytes):
            return found
        return PinnedReference(found, None if found.url is None else self._tokens.get(found.url))

    async def find(self, keys: Sequence[str]) -> list[Entry | ShardStoreError | None]:
        """Return what the set has for each key; ``None``: nothing; an error, if the part that could have it cannot be read."""
        entries: list[Entry | ShardStoreError | None] = []
        for key in keys:
            try:
                found = self._table.find(key)
            except Corruption as exc:
                entries.append(exc)
                continue
            entries.append(None if found is None else self._entry(found))
        return entries

    async def items(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        for key, found in self._table.items(prefix):
            yield key, self._entry(found)

    async def children(self, prefix: str) -> tuple[list[tuple[str, Entry]], list[str]]:
        """Return what is directly below ``prefix``, which is empty or ends with ``/``, and the prefixes of deeper levels."""
        keys, prefixes = self._table.children(prefix)
        found = ((key, self._table.find(key)) for key in keys)
        return [(key, self._entry(entry)) for key, entry in found if entry is not None], prefixes

    async def documents(self) -> list[str]:
        """Return the keys of metadata documents, of either version of Zarr."""
        return [key for key, _ in self._table.items() if is_document(key)]

    async def urls(self) -> AsyncIterator[str | None]:
        """Yield the URLs of all references; some may come more than once."""
        for url in self._table.targets:
            yield url


def set_of(document: Mapping[str, Any], expansion: Expansion) -> JSONSet:
    """Return the set that a document from Python is."""
    parsed = document_of(document, expansion)
    table = parsed.finish()
    _warn_if(parsed.leaves_out)
    return JSONSet(table, {})


async def read_json_set(place: SetPlace, expansion: Expansion, targets: Targets, *, pins: bool) -> JSONSet:
    """Read a set, and with ``pins`` the file next to it that says what it was made of.

    Raises:
        NotFound: there is no such set.
        Corruption: the set, or the file next to it, contradicts its specification.
        StorageError: it cannot be read.
        Unsupported: it needs a package that is not installed.
    """
    try:
        return await _read(place, expansion, targets, pins=pins, flat=False)
    except NeedsFlat:
        return await _read(place, expansion, targets, pins=pins, flat=True)


async def _read(place: SetPlace, expansion: Expansion, targets: Targets, *, pins: bool, flat: bool) -> JSONSet:
    reads = [Read(place.name, (ByteRange(0, _PIECE_NBYTES),)), *([Read(place.name + PINS_SUFFIX, (EVERYTHING,))] if pins else [])]
    first, *pin_file = await place.storage.read(reads)
    parser = ReferenceParser(expansion, flat=flat)
    unpacked = _unpacker(place)
    try:
        decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="surrogatepass")
        digest = SetDigest(0, 0)
        async for data in _pieces(place, first):
            digest = digest.extended(data)
            for block in unpacked(data):
                parser.feed(decoder.decode(block))
        for block in unpacked(b""):
            parser.feed(decoder.decode(block))
        parser.feed(decoder.decode(b"", True))
        table = parser.finish()
        tokens = _tokens(place, pin_file, digest, targets)
    except UnicodeDecodeError as exc:
        raise Corruption(f"{place.url}: it is not a JSON object in UTF-8, and so no set of references: {exc}") from exc
    except (Corruption, Unsupported) as exc:
        raise type(exc)(f"{place.url}: {exc}") from exc
    _warn_if(parser.document.leaves_out)
    pinned = [outcome.generation.token for outcome in pin_file if isinstance(outcome, Found)]
    return JSONSet(table, tokens, f"{digest.crc32c:08x}-{digest.nbytes:x} {pinned}")


async def _pieces(place: SetPlace, first: ReadOutcome) -> AsyncIterator[memoryview]:
    """Yield the bytes of a set, all of one version."""
    outcome, start = first, 0
    while True:
        outcome = unless_failed(outcome)
        if isinstance(outcome, Absent):
            raise await _missing(place)
        if not isinstance(outcome, Found):
            raise StorageError(f"{place.url}: the set of references was replaced while it was being read: open it again")
        generation, nbytes, count = outcome.generation, outcome.nbytes, len(outcome.buffers[0])
        yield outcome.buffers[0]
        start += count
        if count < _PIECE_NBYTES or start == nbytes:
            if start < nbytes < UNKNOWN_NBYTES:
                raise StorageError(f"{place.url}: the set of references has {nbytes} bytes, and reading them ended after {start}")
            return
        del outcome  # lets go of the piece before the next one comes
        (outcome,) = await place.storage.read([Read(place.name, (ByteRange(start, start + _PIECE_NBYTES),), generation)])


async def _missing(place: SetPlace) -> NotFound:
    listing = await place.storage.list_dir(f"{place.name}/")
    if listing.objects or listing.prefixes:
        return NotFound(f"{place.url} is a directory, and no set of references: one in Parquet has a file .zmetadata")
    return NotFound(f"{place.url} cannot be opened: there is no such set of references")


def _tokens(place: SetPlace, pin_file: Sequence[ReadOutcome], digest: SetDigest, targets: Targets) -> dict[str, str]:
    """Return the versions that the set says it was made of, by URL. Raises ``Corruption`` if the file next to it is of another set."""
    if not pin_file or isinstance(pin_file[0], Absent):
        return {}
    outcome = pin_file[0]
    if isinstance(outcome, Failed):
        if isinstance(outcome.error, AccessDenied):  # how some servers say that there is no such object
            return {}
        raise outcome.error
    if not isinstance(outcome, Found):
        raise StorageError(f"{place.url}{PINS_SUFFIX} was replaced while it was being read: open the set again")
    section = section_of(outcome.buffers[0], digest)
    if section is None:
        raise Corruption(
            f"the file {place.name}{PINS_SUFFIX} next to it is of another set, so it is unknown which versions this one was made of: write "
            "the set again, or open it without them by storage_options={'reference': {'pins': False}}"
        )
    base = section.origin.base
    targets.allow([base] if base else list(section.objects))
    return {object_url(base, pinned.stored or key): pinned.generation for key, pinned in section.objects.items()}


def _warn_if(leaves_out: bool) -> None:
    if leaves_out:
        warnings.warn(
            "a set of references has generated keys (gen), which simple_templates=True leaves out: their chunks will be missing",
            UserWarning,
            stacklevel=2,
        )


# -- compression -------------------------------------------------------------------------------------------------------

Unpacker = Callable[[bytes | memoryview], Iterator[bytes]]
"""A function that takes the pieces of a file, and an empty one at its end; it yields blocks of what they are unpacked."""


def _unpacker(place: SetPlace) -> Unpacker:
    if place.name.endswith(".gz"):
        return _gunzip()
    if place.name.endswith(".zst"):
        return _unzstd()
    return lambda data: (bytes(data[start : start + _DECODED_NBYTES]) for start in range(0, len(data), _DECODED_NBYTES))


def _gunzip() -> Unpacker:
    member = zlib.decompressobj(wbits=31)

    def unpack(data: bytes | memoryview) -> Iterator[bytes]:
        nonlocal member
        try:
            if not data and not member.eof:
                raise Corruption("it is cut short")
            rest = bytes(data)
            while rest:
                if member.eof:  # a file may have several
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        return
                    member = zlib.decompressobj(wbits=31)
                block = member.decompress(rest, _DECODED_NBYTES)
                rest = member.unconsumed_tail or member.unused_data
                yield block
            while not member.eof and (block := member.decompress(b"", _DECODED_NBYTES)):
                yield block
        except zlib.error as exc:
            raise Corruption(f"it is not compressed by gzip, as its name says: {exc}") from exc

    return unpack


def _unzstd() -> Unpacker:
    pa = needed("pyarrow", "parquet", "sets of references compressed by zstd need pyarrow")
    packed = io.BytesIO()  # pyarrow reads from a file: it takes the compressed bytes, a tenth of the rest

    def unpack(data: bytes | memoryview) -> Iterator[bytes]:
        if data:
            packed.write(data)
            return
        packed.seek(0)
        try:
            with pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd") as stream:
                while block := stream.read(_DECODED_NBYTES):
                    yield block
        except (pa.ArrowException, OSError) as exc:
            raise Corruption(f"it is not compressed by zstd, as its name says: {exc}") from exc

    return unpack
