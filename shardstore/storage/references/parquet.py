"""Sets of references in Parquet, as a filesystem: fsspec's own reads them row by row, and cannot list those with groups in groups.

::

    set/.zmetadata            {"metadata": {key: document}, "record_size": n}
    set/a/b/refs.0.parq       the first n chunks of the array a/b, in C order of the grid of chunks
    set/a/b/refs.1.parq       the next; the last is as long, whatever the array has

    path, offset, size, raw   a row: the bytes themselves, else [offset, offset + size) of a URL, or all of it if both are 0, else none

Specification: fsspec's reference sets, "Parquet references".
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import fsspec
import numpy as np
from fsspec.spec import AbstractFileSystem

from shardstore.errors import Corruption, Unsupported
from shardstore.extras import how_to_install
from shardstore.storage.references.json import ReferenceSet

_METADATA = ".zmetadata"
_ARRAY = ".zarray"
_FILES_AT_ONCE = 64
_COLUMNS = ["path", "offset", "size", "raw"]
_ENCODED = b"base64:"


class ParquetReferences(ReferenceSet):
    """The objects that a set in Parquet refers to. All its references are read into memory, some 300 bytes each.

    The arguments are those of ``ReferenceFileSystem``; a pickle reads the set again.

    Raises:
        Corruption: the set cannot be read.
        Unsupported: pyarrow is not installed.
    """

    def __init__(
        self,
        fo: str,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        ref_storage_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        fs, root = _place_of(fo, target_protocol, target_options, ref_storage_args)
        super().__init__(references_in(fs, root), **options)


def is_parquet_set(
    fo: object,
    target_protocol: str | None = None,
    target_options: Mapping[str, Any] | None = None,
    ref_storage_args: Mapping[str, Any] | None = None,
    **_options: Any,
) -> bool:
    """Return whether these arguments of ``ReferenceFileSystem`` name such a set; judged by its content, not by its name."""
    if not isinstance(fo, str) or fo.endswith(".json"):
        return False
    fs, root = _place_of(fo, target_protocol, target_options, ref_storage_args)
    try:
        fs.info(f"{root}/{_METADATA}")
    except (FileNotFoundError, NotADirectoryError):  # any other error says nothing
        return False
    return True


def _place_of(
    fo: str, protocol: str | None, options: Mapping[str, Any] | None, other_options: Mapping[str, Any] | None
) -> tuple[AbstractFileSystem, str]:
    fs, root = fsspec.core.url_to_fs(fo, **{**(other_options or options or {}), "protocol": protocol})
    return fs, str(root).rstrip("/")


def references_in(fs: AbstractFileSystem, root: str) -> dict[str, Any]:
    """Return all references of the set at ``root``, by key, as in a JSON set of version 0. Makes one request for each file that the arrays
    may have: not all servers list, and those that do may not list everything.

    Raises:
        Corruption: a file cannot be read, or does not fit to the others.
        Unsupported: pyarrow is not installed.
    """
    try:
        document = json.loads(fs.cat_file(f"{root}/{_METADATA}"))
        metadata, record_size = dict(document["metadata"]), int(document["record_size"])
    except (ValueError, KeyError, TypeError) as exc:
        raise Corruption(f"{root}/{_METADATA} is not the metadata of a set of references: {exc!r}") from exc
    if record_size < 1:
        raise Corruption(f"{root}/{_METADATA} is not the metadata of a set of references: record_size is {record_size}")
    references: dict[str, Any] = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    wanted: list[tuple[str, str, int]] = []  # file, array and number of the record
    grids: dict[str, tuple[tuple[int, ...], str]] = {}
    for key, value in metadata.items():
        field, _, name = key.rpartition("/")
        if name != _ARRAY:
            continue
        grids[field] = grid, _ = _grid_of(f"{root}/{key}", value)
        above = f"{root}/{field}" if field else root
        wanted += [(f"{above}/refs.{record}.parq", field, record) for record in range(-(-prod(grid) // record_size))]
    for start in range(0, len(wanted), _FILES_AT_ONCE):
        some = wanted[start : start + _FILES_AT_ONCE]
        # Not cat, which takes brackets in a name for a pattern.
        found = fs.cat_ranges([file for file, _, _ in some], None, None, on_error="return")
        for (file, field, record), data in zip(some, found, strict=True):
            if isinstance(data, FileNotFoundError):  # none of these chunks exists
                continue
            if isinstance(data, BaseException):
                raise data
            grid, separator = grids[field]
            above = f"{field}/" if field else ""
            first = record * record_size
            for row, reference in _rows(file, data, min(record_size, prod(grid) - first)):
                coords = [str(int(c)) for c in np.unravel_index(first + row, grid)] if grid else ["0"]
                references[above + separator.join(coords)] = reference
    return references


def _grid_of(name: str, value: Any) -> tuple[tuple[int, ...], str]:
    """Return the grid of chunks of a Zarr v2 array, from its document or the text of it, and the separator of
    the coordinates in its keys.
    """
    try:
        document = json.loads(value) if isinstance(value, str) else value
        grid = tuple(-(-int(n) // int(c)) for n, c in zip(document["shape"], document["chunks"], strict=True))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise Corruption(f"{name}, in the metadata of a set of references, is not the document of an array: {exc!r}") from exc
    return grid, str(document.get("dimension_separator") or ".")


def _rows(file: str, data: bytes, rows: int) -> Iterator[tuple[int, Any]]:
    """Yield the references of the first ``rows`` rows that have one, with their numbers."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as exc:
        raise Unsupported(f"sets of references in Parquet need pyarrow: {how_to_install('parquet')}") from exc
    try:
        table = pq.read_table(io.BytesIO(data), columns=_COLUMNS)
        path, offset, size, raw = (table.column(name).slice(0, rows).to_pylist() for name in _COLUMNS)
    except (pa.ArrowException, OSError, KeyError) as exc:
        raise Corruption(f"{file} is not a file of references: {exc}") from exc
    urls: dict[str, str] = {}  # one string for all rows of a file
    for row, (url, start, nbytes, value) in enumerate(zip(path, offset, size, raw, strict=True)):
        if value is not None:
            yield row, _ENCODED + base64.b64encode(value) if value.startswith(_ENCODED) else value
        elif url is not None:
            url = urls.setdefault(url, url)
            yield row, [url, start or 0, nbytes or 0] if start or nbytes else [url]
