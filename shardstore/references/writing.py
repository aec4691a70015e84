"""``write_json`` and ``write_parquet``: refer to all chunks of a hierarchy in a set of references, which is stored whole, or not at all."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import IO, Any, Literal

from shardstore._sync import run_sync
from shardstore.errors import Conflict, Corruption, InvalidInput
from shardstore.format.references.parquet import METADATA_NAME, MOST_ROWS, SetFiles, SetMetadata, encode_metadata
from shardstore.format.references.pins import PINS_SUFFIX, UNPINNED, PinnedStore, SetDigest, decode_pins, encode_pins
from shardstore.format.store_keys import check_key, join
from shardstore.maintenance.pins import current_tokens, is_held
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.options import check_flags
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.progress.shown import reported
from shardstore.references.batches import ReferenceSource
from shardstore.references.choices import Choices, Described, Flavour, Paths, Urls, described
from shardstore.references.opening import open_source
from shardstore.references.places import SetPlace, begins_like_set, open_set, options_for, read_object, write_bytes, write_file
from shardstore.references.report import SYNCHRONOUS, Format, Opening, ReferenceProgress, ReferenceReport, Tally, how_to_open
from shardstore.references.stores import OnError
from shardstore.references.writing_json import DigestedFile, compressed, write_lines
from shardstore.references.writing_parquet import RecordWriter, check_root, fill_chunk
from shardstore.storage.abilities import VersionedByRange
from shardstore.storage.base import ConditionFailed, Found, Read, unless_failed

Progress = Callable[[ReferenceProgress], None]

_HEAD_NBYTES = 64 << 10
_RECORD = re.compile(r"(?:.*/)?refs\.[0-9]+\.parq")


@dataclass(frozen=True, slots=True)
class JSONForm:
    """How a set in JSON is written; the names are those of ``write_json``."""

    version: Literal[0, 1] = 1
    flavour: Flavour = "auto"
    templates: bool = False
    generators: bool = False

    def __post_init__(self) -> None:
        if self.version not in (0, 1) or (self.version == 0 and (self.templates or self.generators)):
            raise InvalidInput(f"version={self.version!r}: 0, without templates and generators, and 1 are known")


@dataclass(frozen=True, slots=True)
class ParquetForm:
    """How a set in Parquet is written; the names are those of ``write_parquet``."""

    flavour: Flavour = "v2"
    record_size: int = 100_000
    missing: Literal["null", "fill"] = "null"
    root_as: str | None = None
    max_memory: int = 32 * 2**20

    def __post_init__(self) -> None:
        if self.root_as is not None:
            check_key(self.root_as)
        if type(self.record_size) is not int or not 0 < self.record_size <= MOST_ROWS:
            raise InvalidInput(f"record_size {self.record_size!r} is not a whole number from 1 to {MOST_ROWS}")
        if self.missing not in ("null", "fill"):
            raise InvalidInput(f"missing {self.missing!r} is neither 'null' nor 'fill'")
        if type(self.max_memory) is not int or self.max_memory < 1:
            raise InvalidInput(f"max_memory {self.max_memory!r} is not a number of bytes")


Form = JSONForm | ParquetForm


def put(
    source: ReferenceSource,
    place: SetPlace,
    form: Form,
    choices: Choices,
    *,
    overwrite: bool,
    progress: Progress | bool | None,
    has_options: bool,
) -> ReferenceReport:
    """Store a set of all that ``source`` has. Raises as ``write_json`` and ``write_parquet`` do."""
    name: Format = "json" if isinstance(form, JSONForm) else "parquet"
    arguments = {"format": name, **_given(form), **_given(choices)}
    if not source.base_url:
        arguments["sets"] = source.url
    origin = PinnedStore(source.url, source.base_url, arguments)
    with reported(progress, ReferenceProgress.step) as say:
        tally = Tally(source.arrays, say, choices.mixed_protocols)
        if isinstance(form, JSONForm):
            shown = described(source, form.flavour, only_v2_keys=False)
            nbytes = _put_json(source, place, form, shown, tally, origin, overwrite=overwrite)
        else:
            for array in source.arrays:
                array.path = check_root(array, form.root_as)
            shown = described(source, form.flavour, only_v2_keys=True)
            nbytes = _put_parquet(source, place, form, shown, tally, origin, overwrite=overwrite)
    is_all_pinned = _is_pinned(source) and _are_all_known(source)
    protocol = next(iter(tally.protocols), "file")
    return ReferenceReport(
        source=source.url,
        target=place.shown,
        format=name,
        flavour=shown.flavour,
        why=shown.why,
        arrays=len(source.arrays),
        references=tally.references,
        inlined=tally.inlined,
        missing=tally.missing,
        targets=len(tally.urls),
        nbytes=nbytes,
        is_pinned=is_all_pinned,
        left_out=dict(source.left_out),
        index_requests=source.index_requests,
        how_to_open=how_to_open(
            Opening(
                target=place.shown,
                form=name,
                flavour=shown.flavour,
                remote_protocol=protocol,
                remote_needs_options=has_options and choices.base_url is None and protocol not in SYNCHRONOUS,
                target_needs_options=place.has_options and place.url.partition("://")[0] not in SYNCHRONOUS,
                is_versioned=choices.urls == "versioned",
                is_pinned=is_all_pinned,
                is_root_array=[array.path for array in source.arrays] == [""],
            )
        ),
    )


def _is_pinned(source: ReferenceSource) -> bool:
    """Return whether the set says which versions it was made of.

    It does too where there is no version to say: of sets without chunks, and of snapshots, whose chunk files never change.
    """
    return source.is_pinned and bool(source.base_url or source.pins or _are_all_known(source))


def _are_all_known(source: ReferenceSource) -> bool:
    return getattr(source.pins, "are_complete", True)


def _given(options: Form | Choices) -> dict[str, Any]:
    """Return the options that are not the defaults."""
    return {field.name: value for field in fields(options) if (value := getattr(options, field.name)) != field.default}


def form_of(arguments: Mapping[str, Any]) -> tuple[Form, Choices]:
    """Return the form and the choices that a set was written with. Raises ``Corruption`` if its pins do not say them."""
    kinds: dict[object, type[JSONForm] | type[ParquetForm]] = {"json": JSONForm, "parquet": ParquetForm}
    kind = kinds.get(arguments.get("format"))
    if kind is None:
        raise Corruption("the pins of the set do not say how it was written: write the set again")
    if "sets" in arguments:
        raise InvalidInput("the set was made of other sets, or of a snapshot: make it of them again")
    of_form, of_choices = ({f.name: arguments[f.name] for f in fields(one) if f.name in arguments} for one in (kind, Choices))
    return kind(**of_form), Choices(**of_choices)


# -- JSON ----------------------------------------------------------------------------------------------------------------


def _put_json(
    source: ReferenceSource, place: SetPlace, form: JSONForm, shown: Described, tally: Tally, origin: PinnedStore, *, overwrite: bool
) -> int:
    before = run_sync(_before(place, overwrite=overwrite))
    template = source.base_url if form.templates else ""
    with tempfile.TemporaryFile() as file:
        digested = DigestedFile(file)
        with compressed(digested, place.name) as text:
            write_lines(text, shown, source.arrays, tally, version=form.version, template=template, generators=form.generators)
        is_pinned = _is_pinned(source)
        section = encode_pins(origin if is_pinned else UNPINNED, digested.digest, sorted(source.pins.values()) if is_pinned else ())
        run_sync(_replace(place, file, digested.digest.nbytes, before, section, is_pinned=is_pinned))
    return digested.digest.nbytes


Before = tuple[Generation | None, Generation | None, bytes]
"""The versions of a set in JSON and of its pins, ``None`` of what was not there, and the content of the pins."""


async def _before(place: SetPlace, *, overwrite: bool) -> Before:
    """Return what is there. Raises ``InvalidInput`` if it is not to be replaced, or is no set."""
    reads = [Read(place.main_key, (ByteRange(0, _HEAD_NBYTES),)), Read(place.pins_key, (EVERYTHING,))]
    head, pins = map(unless_failed, await place.storage.read(reads))
    content = bytes(pins.buffers[0]) if isinstance(pins, Found) else b""
    try:
        decode_pins(content)
    except Corruption as exc:
        raise InvalidInput(
            f"{place.pins_key!r} is there already, and is not what belongs to a set: choose another name for the set"
        ) from exc
    if isinstance(head, Found):
        if not overwrite:
            raise InvalidInput(f"there is something at {place.shown} already: overwrite=True replaces it. Nothing was written")
        if not begins_like_set(bytes(head.buffers[0]), place.name):
            raise InvalidInput(
                f"what is at {place.shown} is not a set of references: remove it, or choose another place. Nothing was written"
            )
        if not isinstance(pins, Found):  # the old set has no pins: say so until it is replaced
            text = await read_object(place.storage, place.main_key) or b""
            content = encode_pins(UNPINNED, SetDigest(0, 0).extended(text), ())
    pins_version = pins.generation if isinstance(pins, Found) else None
    return (head.generation, pins_version, content) if isinstance(head, Found) else (None, pins_version, b"")


async def _replace(place: SetPlace, file: IO[bytes], nbytes: int, before: Before, section: bytes, *, is_pinned: bool) -> None:
    """Store the set. The pins of both sets are there while it is replaced, so that each moment has the right ones. Raises ``Conflict`` if
    another process writes a set there; its set stays.
    """
    storage, (version, pins_version, pins) = place.storage, before
    capabilities = await storage.probe()
    tells_versions = storage.ability(VersionedByRange) is None  # or those that its writes return mean nothing

    def still(seen: Generation | None) -> Condition:
        return capabilities.condition_on(seen) if tells_versions else UNCONDITIONAL

    try:
        ours = await write_bytes(storage, place.pins_key, pins + section, still(pins_version))
        await write_file(storage, place.main_key, file, nbytes, still(version))
        if not is_pinned:
            await storage.delete(place.pins_key, still(ours))
        elif pins:
            await write_bytes(storage, place.pins_key, section, still(ours))
    except ConditionFailed as exc:
        raise Conflict(f"another process wrote a set at {place.shown} at the same time; that set stays. Write yours again") from exc


# -- Parquet -------------------------------------------------------------------------------------------------------------


def _put_parquet(
    source: ReferenceSource, place: SetPlace, form: ParquetForm, shown: Described, tally: Tally, origin: PinnedStore, *, overwrite: bool
) -> int:
    fills = {
        array.path: fill_chunk(array.path, shown.documents[array.path][".zarray"]) if form.missing == "fill" else None
        for array in source.arrays
    }
    before = run_sync(_cleared(place, overwrite=overwrite))
    writer = RecordWriter(place.storage, form.record_size, form.max_memory, tally)
    for number, array in enumerate(source.arrays):
        writer.write(number, array, array.path, fills[array.path])
    metadata = {join(path, name): document for path, by_name in shown.documents.items() for name, document in by_name.items()}
    data = encode_metadata(SetMetadata(metadata, form.record_size, SetFiles.of(writer.set_id, writer.written)))
    pins = encode_pins(origin, None, sorted(source.pins.values())) if _is_pinned(source) else None
    run_sync(_finish(place, data, pins, before, writer.tokens()))
    return writer.nbytes + len(data)


async def _cleared(place: SetPlace, *, overwrite: bool) -> set[str]:
    """Remove what makes a set of what is there; return the keys of all else, of a set or of what a run left that did not end. Raises
    ``InvalidInput`` if there is a set, or a part of one, and it is not to be replaced; or something else.
    """
    keys = await place.keys()
    foreign = sorted(key for key in keys if key not in (METADATA_NAME, PINS_SUFFIX) and _RECORD.fullmatch(key) is None)
    if foreign:
        raise InvalidInput(f"there is something else at {place.shown}, such as {foreign[0]!r}: choose another place. Nothing was written")
    if keys and not overwrite:
        what = "a set" if METADATA_NAME in keys else "a part of a set, which another run is writing, or has not ended,"
        raise InvalidInput(f"there is {what} at {place.shown} already: overwrite=True replaces it. Nothing was written")
    if METADATA_NAME in keys:
        await place.storage.delete_many([METADATA_NAME])
    return keys - {METADATA_NAME, PINS_SUFFIX}


async def _finish(place: SetPlace, metadata: bytes, pins: bytes | None, before: set[str], written: Mapping[str, str]) -> None:
    """Remove what is no part of the set, and make it one, unless another run has written into it. Raises ``Conflict`` if one has: there is
    no set then, or the other run's, whole.
    """
    own = len(written)
    if place.storage.ability(VersionedByRange) is None:  # elsewhere a version is known only by its content
        now = await current_tokens(place.storage, [*written])
        own = sum(1 for key, token in written.items() if key in now and is_held(frozenset({token}), now[key]))
    if own < len(written):
        if own:
            raise await _mixed(place)
        raise Conflict(f"another process wrote a set at {place.shown} at the same time; that set stays. Write yours again")
    left_over = before - written.keys()
    await place.storage.delete_many([*left_over, PINS_SUFFIX] if pins is None else [*left_over])
    if pins is not None:
        await write_bytes(place.storage, PINS_SUFFIX, pins)
    condition = (await place.storage.probe()).condition_on(None)
    try:
        await write_bytes(place.storage, METADATA_NAME, metadata, condition)
    except ConditionFailed as exc:
        raise await _mixed(place) from exc


async def _mixed(place: SetPlace) -> Conflict:
    """Take away what makes a set of records of two runs."""
    await place.storage.delete_many([METADATA_NAME])
    return Conflict(
        f"another process wrote a set at {place.shown} at the same time, and the two have mixed: there is no set now. Write one again"
    )


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
    progress: Progress | bool | None = None,
) -> ReferenceReport:
    """Write a set of references in JSON to all chunks of a hierarchy: of shards, to the inner chunks, which are not copied.

    Args:
        source: what ``shardstore.open`` takes: a Zarr hierarchy, sharded or not, of v3, v2 or the 2022 draft; or a set of references
            (``reference::…``), which is converted.
        target: the path or URL of the set; ``.gz`` or ``.zst`` at its end compresses it.
        version: of the format: 1, or 0, the bare mapping.
        flavour: the documents in the set: ``"v2"``, ``"v3"``, ``"dual"`` for both, or ``"auto"``: v2, unless it cannot describe an array.
        paths: by pattern of paths, which also covers what is below; the first that matches counts. ``None`` leaves an array out,
            ``"shards"`` refers to whole shards, ``"chunks"`` is the default; or a mapping of ``flavour`` and ``inline_nbytes`` for these
            arrays only.
        urls: ``"absolute"``; ``"relative"`` to the directory of the set; ``"versioned"``: of one version of each object, on buckets that
            keep versions.
        base_url: in front of the keys of objects, instead of the store's own URL. The set has no pins then.
        templates: write the beginning that all URLs share once.
        generators: write one rule for all references of an array, if there is such a rule. fsspec ignores these by default.
        inline_nbytes: chunks of up to so many bytes are written into the set itself.
        pins: write, next to the set, which version of each object it was made of.
        mixed_protocols: let URLs of several protocols into the set, which fsspec cannot read.
        overwrite: replace a set that is there.
        on_error: ``"skip"`` leaves damaged shards out, and reports them.
        storage_options: of the source's filesystem: credentials, endpoint, retries.
        target_options: likewise, of the set's; by default the source's, if both have the same protocol.
        progress: called now and then with a ``ReferenceProgress``; or ``True``: it is shown on stderr.

    Raises:
        InvalidInput: an argument cannot be right, arrays cannot be described so, there is a set already, or it would lie in the source.
        Corruption: a shard or a metadata document is damaged.
        NotFound: there is no hierarchy at the source.
        Conflict: a shard kept changing.
        StorageError: a request failed. There is no set then, or the one that was there.

    Specification: fsspec's reference sets, "Version 0" and "Version 1".
    """
    check_flags(templates=templates, generators=generators, pins=pins, mixed_protocols=mixed_protocols, overwrite=overwrite)
    form = JSONForm(version, flavour, templates, generators)
    choices = Choices(paths, urls, base_url, inline_nbytes, mixed_protocols, on_error)
    place = open_set(target, options_for(source, target, storage_options, target_options), is_directory=False)
    found = open_source(source, place, choices, pins=pins, options=storage_options)
    return put(found, place, form, choices, overwrite=overwrite, progress=progress, has_options=bool(storage_options))


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
    progress: Progress | bool | None = None,
) -> ReferenceReport:
    """Write a set of references in Parquet to all chunks of a hierarchy; its readers load only the records that they need.

    Args:
        source: as for ``write_json``.
        target: the path or URL of the directory of the set.
        flavour: ``"v2"``, or ``"dual"`` for documents of v3 next to those of v2.
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
    form = ParquetForm(flavour, record_size, missing, root_as, max_memory)
    choices = Choices(paths, urls, base_url, inline_nbytes, mixed_protocols, on_error)
    place = open_set(target, options_for(source, target, storage_options, target_options), is_directory=True)
    found = open_source(source, place, choices, pins=pins, options=storage_options)
    return put(found, place, form, choices, overwrite=overwrite, progress=progress, has_options=bool(storage_options))
