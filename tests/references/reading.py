"""Sets of references, read by other programs than this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import numpy.typing as npt
import zarr
from fsspec.implementations.reference import LazyReferenceMapper, ReferenceFileSystem
from zarr.storage import FsspecStore

Engine = Literal["fastparquet", "pyarrow"]


def filesystem(target: Path, protocol: str = "file", engine: Engine = "fastparquet", **options: Any) -> ReferenceFileSystem:
    """fsspec's own filesystem of a set."""
    fo: Any = str(target)
    if target.is_dir():
        fo = LazyReferenceMapper(str(target), fs=fsspec.filesystem("file"), engine=engine)
    return ReferenceFileSystem(fo=fo, remote_protocol=protocol, asynchronous=True, skip_instance_cache=True, **options)


def by_fsspec(target: Path, path: str, zarr_format: Literal[2, 3], engine: Engine = "fastparquet", **options: Any) -> npt.NDArray[Any]:
    """An array of a set, read by zarr-python through fsspec."""
    store = FsspecStore(filesystem(target, engine=engine, **options), read_only=True)
    return np.asarray(zarr.open_array(store, path=path, mode="r", zarr_format=zarr_format)[...])
