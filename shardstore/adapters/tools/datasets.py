"""Datasets as xarray opens them, out of whatever a URL names: a file, local or behind a filesystem, or a Zarr hierarchy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import fsspec

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import StorePath, resolve
from shardstore.adapters.zarr.store import ShardedStore
from shardstore.errors import InvalidInput, NotFound, ShardStoreError
from shardstore.extras import needed
from shardstore.model.redaction import redacted

if TYPE_CHECKING:
    import xarray


@contextmanager
def opened_dataset(url: str, options: Mapping[str, Any]) -> Iterator[xarray.Dataset]:
    """Open what a URL names during the block. With dask, its variables are in chunks that are multiples of the stored ones.

    Raises:
        InvalidInput: xarray cannot open it, or the URL or the options name no storage.
        NotFound: there is nothing.
        Unsupported: xarray, or a package that the storage needs, is missing.
    """
    xarray = needed("xarray", "xarray", "datasets are opened by xarray")
    with ExitStack() as stack:
        try:
            data = _open(xarray, url, options, stack)
        except ShardStoreError:
            raise
        except FileNotFoundError as exc:
            raise NotFound(f"there is nothing at {redacted(url)} that xarray opens: check the address") from exc
        except Exception as exc:  # any package may have registered itself with xarray
            text = exc.args[0] if isinstance(exc, KeyError) and exc.args else exc  # whose own text is in quotes
            raise InvalidInput(f"xarray cannot open {redacted(url)}: {redacted(str(text)) or type(exc).__name__}") from exc
        yield stack.enter_context(data)


def _open(xarray: Any, url: str, options: Mapping[str, Any], stack: ExitStack) -> Any:
    place = resolve(url, options)
    key = place.as_key()
    if place.has_root or run_sync(key.engine.size(key.path)) is None:
        store = ShardedStore(place.address.at(place.depth), read_only=True, storage_options=dict(options) or None)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Failed to open Zarr store with consolidated metadata")
            return _in_chunks(xarray, store, engine="zarr", group=place.path or None)
    if (path := _local_path(place)) is not None:
        return _in_chunks(xarray, path)
    return _in_chunks(xarray, stack.enter_context(fsspec.open(url, **options)))


def _local_path(place: StorePath) -> str | None:
    address = place.address
    return "/" + "/".join(address.segments) if address.protocol in ("", "file", "local") and not address.tail else None


def _in_chunks(xarray: Any, given: Any, **how: Any) -> Any:
    if find_spec("dask") is None:
        return xarray.open_dataset(given, **how)
    try:
        return xarray.open_dataset(given, chunks="auto", **how)
    except NotImplementedError:  # dask does not know how large texts are
        return xarray.open_dataset(given, chunks={}, **how)
