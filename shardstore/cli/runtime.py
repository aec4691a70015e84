"""The facts about this installation."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

_PACKAGES = (
    *("shardstore", "zarr", "numpy", "fsspec", "s3fs", "gcsfs", "aiohttp", "google-crc32c"),
    *("xarray", "dask", "typer", "rich"),
)


def runtime_facts() -> dict[str, Any]:
    """Return versions by package (``None``: not installed), and the codec pipeline that zarr uses for stores of ours."""
    return {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in _PACKAGES},
        "pipeline": _pipeline(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pipeline() -> str | None:
    """Return the path of the pipeline that zarr is configured with once a store of ours is open; ``None`` without zarr."""
    if find_spec("zarr") is None:
        return None
    from shardstore.adapters.zarr.pipeline import install_pipeline

    install_pipeline()
    return str(import_module("zarr").config.get("codec_pipeline.path"))
