"""The ``storage_transformers`` member of an array's document: sharding as the drafts of 2022 and 2023 wrote it.

::

    Feb 2022            [{"storage_transformer": URI, "configuration": {"format": "indexed", "chunks_per_shard": [2, 2]}}]
    May - Nov 2022      [{"extension": URI, "type": "indexed", "configuration": {"chunks_per_shard": [2, 2]}}]
    30 Nov 2022         the same, another URI
    13 Feb 2023         [{"extension": "sharding", "type": "indexed", "configuration": {"chunks_per_shard": [2, 2]}}]
    16 Feb 2023         [{"name": "sharding", "configuration": {"chunks_per_shard": [2, 2]}}]
    23 Mar 2023         sharding became a codec

zarr-python 2.18 writes and reads the second form. All of them are members of a list: no draft had a single transformer as a member of
the array's document itself. In a list of several, each shards what the one before it stores: the last is next to the storage.
Specification: sharding storage transformer 1.0, "Configuration".
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

from shardstore.format.json_text import JsonObject
from shardstore.format.shard_index import MAX_SLOTS, IndexCodecs, IndexFormat

SHARDING_URI = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"

# The seed's own header spells it with a hyphen, its example with an underscore; http: in the header, https: in the example.
_URI = re.compile(r"https?://purl\.org/zarr/spec/(?:extensions/)?storage[-_]transformers/sharding/1\.0/?", re.ASCII)

_NAMING_MEMBERS = ("extension", "storage_transformer", "name")


def parse_sharding_transformers(member: Any, ndim: int) -> tuple[tuple[int, ...], ...] | str:
    """Return the chunks per shard of each transformer of the member, for an array of ``ndim`` dimensions; none where it has no transformer
    (``[]``, ``null``); or the reason in words why it cannot be understood.

    For every 0-d array, which may write ``[]`` (the draft) or ``[1]`` (zarr-python 2.18), they are ``()``. A list shorter than the
    array's rank means 1 for the last dimensions: zarr-python 2.18 writes it where the data type has a shape of its own.
    """
    if member is None:
        return ()
    if not isinstance(member, list):
        return "its storage_transformers are not a list"
    parsed: list[tuple[int, ...]] = []
    for transformer in member:
        configuration = _sharding_configuration(transformer)
        counts = configuration if isinstance(configuration, str) else _chunks_per_shard(configuration.get("chunks_per_shard"), ndim)
        if isinstance(counts, str):
            return counts
        parsed.append(counts)
    return tuple(parsed)


def _sharding_configuration(transformer: Any) -> JsonObject | str:
    if not isinstance(transformer, dict):
        return "its storage transformer is not an object"
    naming = [m for m in _NAMING_MEMBERS if m in transformer]
    if len(naming) != 1:
        return "its storage transformer is named by none of 'extension', 'storage_transformer' and 'name', or by several"
    name = transformer[naming[0]]
    if not isinstance(name, str) or not (name == "sharding" or _URI.fullmatch(name)):
        return f"its storage transformer {name!r} is not known"
    unknown = sorted(set(transformer) - {naming[0], "type", "configuration", "must_understand"})
    if unknown:
        return f"its sharding transformer has a member {unknown[0]!r} that is not known"
    configuration = transformer.get("configuration")
    if not isinstance(configuration, dict):
        return "its sharding transformer has no configuration"
    unknown = sorted(set(configuration) - {"chunks_per_shard", "format"})
    if unknown:
        return f"the configuration of its sharding transformer has a member {unknown[0]!r} that is not known"
    for binary_format in (transformer.get("type", "indexed"), configuration.get("format", "indexed")):
        if binary_format != "indexed":
            return f"its shards have the binary format {binary_format!r}, only 'indexed' is known"
    return configuration


def _chunks_per_shard(value: Any, ndim: int) -> tuple[int, ...] | str:
    if not isinstance(value, list) or not all(type(n) is int and 0 < n < 2**63 for n in value):
        return f"the chunks_per_shard {value!r} of its sharding transformer are not a list of positive numbers"
    if ndim == 0:
        return () if value in ([], [1]) else f"the chunks_per_shard {value!r} of its sharding transformer do not fit 0 dimensions"
    if not 0 < len(value) <= ndim:
        return f"the chunks_per_shard {value!r} of its sharding transformer do not fit {ndim} dimensions"
    if prod(value) > MAX_SLOTS:
        return f"{prod(value)} chunks per shard are more than {MAX_SLOTS}"
    return (*value, *(1,) * (ndim - len(value)))


def sharding_transformer(chunks_per_shard: tuple[int, ...]) -> JsonObject:
    """Return the one item of a ``storage_transformers`` list, as zarr-python 2.18 writes it."""
    return {
        "configuration": {"chunks_per_shard": list(chunks_per_shard) or [1]},
        "extension": SHARDING_URI,
        "type": "indexed",
    }


def transformers_to_show(document: JsonObject, override: tuple[int, ...] | None, ndim: int) -> list[Any] | str:
    """Return the ``storage_transformers`` of an array's document, verbatim, or the reason in words why they cannot be understood.

    ``override`` are the chunks per shard of an array that lost the member, as zarr-python 2.18's ``resize`` loses it. Where the
    document still has it, its last transformer has to agree.
    """
    if "storage_transformer" in document:
        return "its storage_transformer is a member of no draft: they are listed in storage_transformers"
    member = document.get("storage_transformers")
    chunks_per_shard = parse_sharding_transformers(member, ndim)
    if isinstance(chunks_per_shard, str):
        return chunks_per_shard
    if override is None:
        return member or []
    written = [sharding_transformer(override)]
    wanted = parse_sharding_transformers(written, ndim)
    if isinstance(wanted, str) or not chunks_per_shard:
        return f"of the override: {wanted}" if isinstance(wanted, str) else written
    if chunks_per_shard[-1:] != wanted:
        return f"its own chunks_per_shard {chunks_per_shard[-1]} are not the override's, {wanted[0]}"
    return member or []


def scalar_key_name(document: JsonObject) -> str:
    """Return the name under which the chunk of a 0-d array is written: ``c0`` as zarr-python 2.18 does, or ``c`` where the document shows
    another author, who wrote ``chunks_per_shard: []``. Readers have to look at both.
    """
    match document.get("storage_transformers"):
        case [{"configuration": {"chunks_per_shard": []}}, *_]:
            return "c"
    return "c0"


def transformer_index_format(chunks_per_shard: tuple[int, ...]) -> IndexFormat:
    """Return the index format of the transformer's shards: little-endian, at the end, without a checksum."""
    return IndexFormat(chunks_per_shard, IndexCodecs("little", checksum=False), "end")
