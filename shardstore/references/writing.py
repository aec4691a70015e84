"""``write_json`` and ``write_parquet``: refer to all chunks of a hierarchy in a set of references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from shardstore.model.options import check_flags
from shardstore.references.choices import Choices, Flavour, Paths, Urls
from shardstore.references.opening import open_source
from shardstore.references.places import open_set, options_for
from shardstore.references.report import ReferenceReport
from shardstore.references.stores import OnError
from shardstore.references.storing import JSONForm, ParquetForm, Progress, put


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
        paths: by pattern of paths, the first that matches: ``None`` leaves an array out, ``"shards"`` refers to whole shards, ``"chunks"``
            is the default; or a mapping of ``flavour`` and ``inline_nbytes`` for these arrays only.
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
