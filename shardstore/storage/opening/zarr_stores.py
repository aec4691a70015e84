"""Stores of zarr-python as targets: whatever implements its ``zarr.abc.store.Store``, or a path in one (``zarr.storage.StorePath``).

The layer that knows zarr lies above this one. It is loaded when such a store is given, and not before: a program that made one
has imported zarr.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Protocol

from shardstore.storage.base import Storage

_ADAPTER = "shardstore.adapters.zarr_storage"
"""The module above whose ``storage_of`` is a ``StoreOpener``."""

_CLASSES = (("zarr.abc.store", "Store"), ("zarr.storage", "StorePath"))


class StoreOpener(Protocol):
    """Opens a store of zarr's, or a path in one."""

    def __call__(self, target: object) -> Storage:
        """Return the storage that a store is.

        Raises:
            InvalidInput: it is a view of a store of this package, or was closed.
        """


def is_zarr_store(target: object) -> bool:
    """Return whether a target is a store of zarr-python 3, or a path in one."""
    classes = [getattr(sys.modules.get(module), name, None) for module, name in _CLASSES]
    return isinstance(target, tuple(cls for cls in classes if isinstance(cls, type)))


def open_zarr_store(target: object) -> Storage:
    """Return the storage that a store of zarr's is.

    Raises:
        InvalidInput: it is a view of a store of this package, or was closed.
    """
    opener: StoreOpener = import_module(_ADAPTER).storage_of
    return opener(target)
