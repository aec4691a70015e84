"""``shardstore.verify``: opens what is to be verified, and brings zarr's codecs where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from shardstore.adapters.handle import Handle
from shardstore.errors import Unsupported
from shardstore.maintenance.execution import WHOLE, Execution, Part
from shardstore.maintenance.verify import Progress, VerifyReport, verify_engine
from shardstore.maintenance.verify_chunks import Decoder


def verify(
    url: Any,
    *,
    path: str = "",
    deep: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
    part: Part | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Look whether what is stored makes sense: metadata, indexes, checksums, objects that belong to nothing. Writes nothing.

    Args:
        url: the root of a store, as ``shardstore.open`` takes it.
        path: the node in it to verify, with all that is below; everything, if it is not given.
        deep: decode every chunk by zarr's codecs.
        executor: a ``concurrent.futures.Executor`` to run on, such as ``Client(address).get_executor()`` of a dask cluster; threads of
            this process, if it is not given.
        workers: how many tasks run at once.
        part: ``"3/16"``, or a ``Part``: look at this share of the objects only.
        storage_options: for the filesystem: credentials, endpoint, retries.
        progress: called with the number of objects and bytes that have been looked at.

    Raises:
        NotFound: there is nothing at ``path``.
        InvalidInput: an argument cannot be right.
        Unsupported: ``deep`` without zarr-python.
        StorageError: the listing failed, or a metadata document could not be read.
    """
    handle = Handle.make(url, None if storage_options is None else dict(storage_options), {})
    execution = Execution(executor, workers, part=part_of(part))
    return verify_engine(handle.engine, path, execution=execution, decoder=decoder() if deep else None, progress=progress)


def part_of(part: Part | str | None) -> Part:
    """Raises ``InvalidInput`` where the text is no part."""
    if part is None:
        return WHOLE
    return part if isinstance(part, Part) else Part.parse(part)


def decoder() -> Decoder:
    """What makes decoders of zarr's codecs. Raises ``Unsupported`` where zarr-python is not installed."""
    try:
        from shardstore.adapters.zarr_decoding import zarr_decoder
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "zarr":
            raise
        raise Unsupported("to decode chunks takes zarr-python: pip install 'shardstore[zarr]'; without deep all else is verified") from exc
    return zarr_decoder
