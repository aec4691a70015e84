"""``shardstore.verify`` and ``shardstore.census``: they open the store, and import zarr's codecs or matplotlib if these are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from shardstore.adapters.handle import Handle
from shardstore.extras import needed
from shardstore.maintenance.census import Census, merged, read_census, take_census
from shardstore.maintenance.cluster import ExecutorLike
from shardstore.maintenance.execution import DEFAULT_MAX_MEMORY, Execution, Part
from shardstore.maintenance.verify.chunks import Decoder
from shardstore.maintenance.verify.run import Copy, Progress, VerifyReport, verify_engine
from shardstore.model.options import check_flags
from shardstore.progress.shown import reported
from shardstore.progress.steps import Step

CensusLike: TypeAlias = Census | str | os.PathLike[str]
"""A census, or a file of one."""


def verify(
    url: Any,
    *,
    path: str = "",
    deep: bool = False,
    against: Any = None,
    census: CensusLike | Sequence[CensusLike] | None = None,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    part: Part | str | None = None,
    retries: int = 2,
    max_memory: int = DEFAULT_MAX_MEMORY,
    only: Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    against_options: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
) -> VerifyReport:
    """Check stored data: metadata, indexes, checksums, and objects that belong to nothing. Writes nothing.

    Args:
        url: the root of a store, as ``shardstore.open`` takes it.
        path: the node in it to verify, with all that is below; everything, if it is not given.
        deep: decode every chunk by zarr's codecs.
        against: another copy, as ``url``: metadata as presented, and the bytes of every chunk, are compared, however either is sharded.
        census: what ``census`` returned, or a file of it, or several of them that parts have taken: what is gone since, or lies
            elsewhere, is found.
        executor: a ``concurrent.futures.Executor`` to run on, or the ``distributed.Client`` of a dask cluster; threads of this process,
            if it is not given.
        workers: how many tasks run at once.
        part: ``"3/16"``, or a ``Part``: look at this share of the objects only.
        retries: how often a task is tried again whose storage failed, or whose worker was lost.
        max_memory: bytes of chunks that are held at once in each process; one chunk a task at least.
        only: keys of objects, such as those that could not be read in an earlier run: only these are examined.
        storage_options: for the filesystem: credentials, endpoint, retries.
        against_options: likewise, of ``against``.
        progress: called with the number of objects and of bytes that have been looked at, and of how many objects (``None`` while these
            are listed); or ``True``: it is shown on stderr.

    Raises:
        NotFound: there is nothing at ``path``.
        InvalidInput: an argument cannot be right.
        Unsupported: ``deep`` without zarr-python.
        StorageError: the listing failed, or a metadata document could not be read.
        ShardStoreError: the executor was lost, with its scheduler or a process.
    """
    check_flags(deep=deep)
    handle = _opened(url, storage_options)
    copy = None if against is None else Copy(_opened(against, against_options).engine.canonical, path)
    execution = Execution.of(executor, workers, part, retries, max_memory, only)
    expected = None if census is None else _one_census(census)
    decodes = decoder() if deep else None
    with reported(progress, verify_step) as say:
        return verify_engine(
            handle.engine.canonical, path, execution=execution, decoder=decodes, census=expected, against=copy, progress=say
        )


def verify_step(objects: int, nbytes: int, total: int | None, /) -> Step:
    """Return the step that is shown while a store is verified."""
    return Step("verifying", objects, total, nbytes)


def _opened(url: Any, storage_options: Mapping[str, Any] | None) -> Handle:
    return Handle.find(url, None if storage_options is None else dict(storage_options), {})


def census(
    url: Any,
    *,
    path: str = "",
    contents: bool = False,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    part: Part | str | None = None,
    retries: int = 2,
    max_memory: int = DEFAULT_MAX_MEMORY,
    only: Iterable[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
) -> Census:
    """Return which chunks exist, array by array: to count, to draw, to store, and to verify the store against later.

    All arguments but ``contents`` are those of ``verify``, which also takes the censuses of several parts as one.

    Args:
        contents: read every object whole and record a digest of it: then ``verify`` finds every object that changed since.

    Raises:
        NotFound: there is nothing at ``path``.
        StorageError: the listing failed, or a metadata document could not be read. Objects that could not be read are in ``failed``.
        ShardStoreError: the executor was lost, with its scheduler or a process.
    """
    check_flags(contents=contents)
    execution = Execution.of(executor, workers, part, retries, max_memory, only)
    with reported(progress, census_step) as say:
        return take_census(_opened(url, storage_options).engine.canonical, path, of_contents=contents, execution=execution, progress=say)


def census_step(objects: int, nbytes: int, total: int | None, /) -> Step:
    """Return the step that is shown while a census is taken."""
    return Step("counting", objects, total, nbytes)


def _one_census(given: CensusLike | Sequence[CensusLike]) -> Census:
    several = [given] if isinstance(given, Census | str | os.PathLike) else given
    return merged([one if isinstance(one, Census) else read_census(one) for one in several])


def decoder() -> Decoder:
    """Return the function that makes decoders from zarr's codecs. Raises ``Unsupported`` if zarr-python is not installed."""
    module = needed(
        "shardstore.adapters.zarr.decoding", "zarr", "to decode chunks takes zarr-python", "; without deep all else is verified"
    )
    made: Decoder = module.zarr_decoder
    return made


def picture_saver() -> Callable[[Census, str | os.PathLike[str], tuple[int, int] | None], None]:
    """Return the function that draws a census into a file. Raises ``Unsupported`` if matplotlib is not installed."""
    module = needed(
        "shardstore.adapters.tools.census_plot", "plot", "to draw into a file takes matplotlib", "; --draw draws in the terminal"
    )
    save: Callable[[Census, str | os.PathLike[str], tuple[int, int] | None], None] = module.save_picture
    return save
