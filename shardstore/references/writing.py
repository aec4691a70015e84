"""``write_json`` and ``write_parquet``: refer to all chunks of a hierarchy in a set of references."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, Literal

from shardstore._sync import run_sync
from shardstore.engine.options import check_flags
from shardstore.errors import InvalidInput
from shardstore.format.json_text import dumps
from shardstore.format.references.parquet import METADATA_NAME
from shardstore.format.references.pins import PINS_SUFFIX, PinnedStore, encode_pins
from shardstore.format.store_keys import join
from shardstore.references.batches import ReferenceSource
from shardstore.references.choices import Described, Flavour, Paths, Urls, base_of, chosen, described
from shardstore.references.counting import Tally
from shardstore.references.fill_chunks import fill_chunk
from shardstore.references.places import SetPlace, check_apart, open_set, options_for, read_object, write_bytes, write_file
from shardstore.references.report import Format, ReferenceProgress, ReferenceReport, how_to_open
from shardstore.references.stores import OnError, store_source
from shardstore.references.writing_json import DigestedFile, compressed, write_lines
from shardstore.references.writing_parquet import RecordWriter, check_root
from shardstore.storage.opening.open import open_storage

Progress = Callable[[ReferenceProgress], None]

_RECORD = re.compile(r"(?:.*/)?refs\.[0-9]+\.parq")


def write_json(
    source: Any,
    target: Any,
    *,
    version: Literal[0, 1] = 1,
    flavour: Flavour = "auto",
    paths: Paths | None = None,
    urls: Urls = "absolute",
    base_url: str | None = None,
    templates: bool = False,
    generators: bool = False,
    inline_nbytes: int = 0,
    pins: bool = True,
    mixed_protocols: bool = False,
    overwrite: bool = False,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ReferenceReport:
    """Write a set of references in JSON to all chunks of a hierarchy: of shards, to the inner chunks, which are not copied.

    Args:
        source: what ``shardstore.open`` takes: a Zarr hierarchy, sharded or not, of v3, v2 or the 2022 draft; or a set of references
            (``reference::…``), which is converted.
        target: the path or URL of the set; ``.gz`` or ``.zst`` at its end compresses it.
        version: of the format: 1, or 0, the bare mapping.
        flavour: the documents in the set: ``"v2"``, ``"v3"``, ``"dual"`` for both, or ``"auto"``: v2, unless it cannot describe an array.
        paths: by pattern of paths, the first that matches: ``None`` leaves an array out, ``"shards"`` refers to whole shards, ``"chunks"``
            is the default; or a mapping of ``flavour`` and ``inline_nbytes`` for these arrays only.
        urls: ``"absolute"``; ``"relative"`` to the directory of the set; ``"versioned"``: of one version of each object, on buckets that
            keep versions.
        base_url: in front of the keys of objects, instead of the store's own URL. The set has no pins then.
        templates: write the beginning that all URLs share once.
        generators: write one rule for all references of an array, if there is such a rule. fsspec ignores these by default.
        inline_nbytes: chunks of up to so many bytes are written into the set itself.
        pins: write beside the set which version of each object it was made of.
        mixed_protocols: let URLs of several protocols into the set, which fsspec cannot read.
        overwrite: replace a set that is there.
        on_error: ``"skip"`` leaves damaged shards out, and reports them.
        storage_options: of the source's filesystem: credentials, endpoint, retries.
        target_options: likewise, of the set's; by default the source's, if both have the same protocol.
        progress: called now and then with a ``ReferenceProgress``.

    Raises:
        InvalidInput: an argument cannot be right, arrays cannot be described so, there is a set already, or it would lie in the source.
        Corruption: a shard or a metadata document is damaged.
        NotFound: there is no hierarchy at the source.
        Conflict: a shard kept changing.
        StorageError: a request failed. There is no set then, or the one that was there.

    Specification: fsspec's reference sets, "Version 0" and "Version 1".
    """
    check_flags(templates=templates, generators=generators, pins=pins, mixed_protocols=mixed_protocols, overwrite=overwrite)
    if version not in (0, 1) or (version == 0 and (templates or generators)):
        raise InvalidInput(f"version={version!r}: 0, without templates and generators, and 1 are known")
    arguments = _given(
        {"version": 1, "flavour": "auto", "paths": None, "urls": "absolute", "base_url": None, "templates": False, "generators": False}
        | {"inline_nbytes": 0, "mixed_protocols": False},
        locals(),
    )
    place = open_set(target, options_for(source, target, storage_options, target_options), is_directory=False)
    found = _opened(source, place, paths, urls, base_url, inline_nbytes, pins=pins, on_error=on_error, options=storage_options)
    shown = described(found, flavour, only_v2_keys=False)
    before = run_sync(_set_there(place, overwrite=overwrite))
    tally = Tally(found.arrays, progress, mixed_protocols)
    with tempfile.TemporaryFile() as file:
        digested = DigestedFile(file)
        with compressed(digested, place.name) as text:
            write_lines(text, shown, found.arrays, tally, version=version, template=found.base if templates else "", generators=generators)
        origin = PinnedStore(found.url, found.base, {"format": "json", **arguments})
        section = encode_pins(origin, digested.digest, found.pins.values()) if pins and found.base else None
        run_sync(_replace(place, file, digested, before, section))
    return _report(found, place, "json", shown, tally, digested.nbytes, pinned=section is not None, options=storage_options)


def write_parquet(
    source: Any,
    target: Any,
    *,
    flavour: Flavour = "v2",
    record_size: int = 100_000,
    paths: Paths | None = None,
    urls: Urls = "absolute",
    base_url: str | None = None,
    inline_nbytes: int = 0,
    missing: Literal["null", "fill"] = "null",
    root_as: str | None = None,
    pins: bool = True,
    mixed_protocols: bool = False,
    overwrite: bool = False,
    on_error: OnError = "raise",
    max_memory: int = 32 * 2**20,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ReferenceReport:
    """Write a set of references in Parquet to all chunks of a hierarchy; its readers load only the records that they need.

    Args:
        source: as for ``write_json``.
        target: the path or URL of the directory of the set.
        flavour: ``"v2"``, or ``"dual"`` for documents of v3 beside those of v2.
        record_size: the number of chunks in a file.
        paths: as for ``write_json``.
        urls: as for ``write_json``.
        base_url: as for ``write_json``.
        inline_nbytes: as for ``write_json``.
        missing: ``"null"``; or ``"fill"``, which writes a chunk of the fill value in the place of each that is missing: fsspec's engine
            *pyarrow* cannot read the former with pandas 3.
        root_as: the name of the array, if it is at the root, where readers of Parquet do not find it.
        pins: as for ``write_json``.
        mixed_protocols: as for ``write_json``.
        overwrite: replace a set that is there. Until the new one is whole there is none.
        on_error: as for ``write_json``.
        max_memory: bytes for the references that are held at once, 20 for each chunk.
        storage_options: as for ``write_json``.
        target_options: as for ``write_json``.
        progress: as for ``write_json``.

    Raises:
        Unsupported: pyarrow is not installed, or a fill value cannot be encoded.
        ShardStoreError: as ``write_json``.

    Specification: fsspec's reference sets, "Parquet references".
    """
    check_flags(pins=pins, mixed_protocols=mixed_protocols, overwrite=overwrite)
    if type(record_size) is not int or record_size < 1:
        raise InvalidInput(f"record_size {record_size!r} is not a positive whole number")
    if missing not in ("null", "fill"):
        raise InvalidInput(f"missing {missing!r} is neither 'null' nor 'fill'")
    arguments = _given(
        {"flavour": "v2", "record_size": 100_000, "paths": None, "urls": "absolute", "base_url": None, "inline_nbytes": 0}
        | {"missing": "null", "root_as": None, "mixed_protocols": False},
        locals(),
    )
    place = open_set(target, options_for(source, target, storage_options, target_options), is_directory=True)
    found = _opened(source, place, paths, urls, base_url, inline_nbytes, pins=pins, on_error=on_error, options=storage_options)
    for array in found.arrays:
        array.path = check_root(array, root_as)
    shown = described(found, flavour, only_v2_keys=True)
    fills = {a.path: fill_chunk(a.path, shown.documents[a.path][".zarray"]) if missing == "fill" else None for a in found.arrays}
    run_sync(_clear(place, overwrite=overwrite))
    tally = Tally(found.arrays, progress, mixed_protocols)
    writer = RecordWriter(place.storage, record_size, max_memory, tally)
    for number, array in enumerate(found.arrays):
        writer.write(number, array, array.path, fills[array.path])
    is_pinned = pins and bool(found.base)
    metadata = {join(path, name): document for path, by_name in shown.documents.items() for name, document in by_name.items()}
    data = dumps({"metadata": metadata, "record_size": record_size})
    origin = PinnedStore(found.url, found.base, {"format": "parquet", **arguments})
    run_sync(_finish(place, data, encode_pins(origin, None, found.pins.values()) if is_pinned else None))
    return _report(found, place, "parquet", shown, tally, writer.nbytes + len(data), pinned=is_pinned, options=storage_options)


# -- both ----------------------------------------------------------------------------------------------------------------


def _given(defaults: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not the defaults."""
    return {name: arguments[name] for name, default in defaults.items() if arguments[name] != default}


def _opened(
    source: Any,
    place: SetPlace,
    paths: Paths | None,
    urls: Urls,
    base_url: str | None,
    inline_nbytes: int,
    *,
    pins: bool,
    on_error: OnError,
    options: Mapping[str, Any] | None,
) -> ReferenceSource:
    if on_error not in ("raise", "skip"):
        raise InvalidInput(f"on_error {on_error!r} is neither 'raise' nor 'skip'")
    storage = open_storage(source, dict(options or {}) or None)
    check_apart(storage, place)
    base = base_of(storage, urls, base_url, place.directory)
    found = store_source(storage, base, lambda path: chosen(paths, inline_nbytes, path), pinned=pins, on_error=on_error)
    if base_url is not None:
        found.base = ""  # of what lies there nobody has seen a version
    return found


async def _set_there(place: SetPlace, *, overwrite: bool) -> bytes | None:
    """Return the pins of the set that is to be replaced. Raises ``InvalidInput`` if there is one, and it is not to be."""
    if await place.storage.stat(place.main_key) is None:
        return None
    if not overwrite:
        raise InvalidInput(f"there is something at {place.shown} already: overwrite=True (--overwrite) replaces it. Nothing was written")
    return await read_object(place.storage, place.pins_key)


async def _replace(place: SetPlace, file: Any, digested: DigestedFile, before: bytes | None, section: bytes | None) -> None:
    """Store the set. The pins of both sets are there while it is replaced, so that each moment has the right ones."""
    if section is not None:
        await write_bytes(place.storage, place.pins_key, (before or b"") + section)
    await write_file(place.storage, place.main_key, file, digested.nbytes)
    if section is None:
        await place.storage.delete_many([place.pins_key])
    elif before:
        await write_bytes(place.storage, place.pins_key, section)


async def _clear(place: SetPlace, *, overwrite: bool) -> None:
    """Make room for a set: remove the one that is there, its first object first, or what a run left that did not end.

    Raises:
        InvalidInput: there is a set, and it is not to be replaced; or something else.
    """
    keys = [info.key async for info in place.storage.list("")]
    others = [key for key in keys if key not in (METADATA_NAME, PINS_SUFFIX) and _RECORD.fullmatch(key) is None]
    if others:
        raise InvalidInput(f"there is something else at {place.shown}, such as {others[0]!r}: choose another place. Nothing was written")
    if METADATA_NAME in keys:
        if not overwrite:
            raise InvalidInput(f"there is a set at {place.shown} already: overwrite=True (--overwrite) replaces it. Nothing was written")
        await place.storage.delete_many([METADATA_NAME])
    await place.storage.delete_many([key for key in keys if key != METADATA_NAME])


async def _finish(place: SetPlace, metadata: bytes, pins: bytes | None) -> None:
    if pins is not None:
        await write_bytes(place.storage, PINS_SUFFIX, pins)
    await write_bytes(place.storage, METADATA_NAME, metadata)


def _report(
    found: ReferenceSource,
    place: SetPlace,
    form: Format,
    shown: Described,
    tally: Tally,
    nbytes: int,
    *,
    pinned: bool,
    options: Mapping[str, Any] | None,
) -> ReferenceReport:
    protocol = next(iter(tally.protocols), "file")
    return ReferenceReport(
        source=found.url,
        target=place.shown,
        format=form,
        flavour=shown.flavour,
        why=shown.why,
        arrays=len(found.arrays),
        references=tally.references,
        inlined=tally.inlined,
        missing=tally.missing,
        targets=len(found.pins),
        nbytes=nbytes,
        is_pinned=pinned,
        left_out=dict(found.left_out),
        how_to_open=how_to_open(place.shown, form, shown.flavour, protocol, has_options=bool(options)),
    )
