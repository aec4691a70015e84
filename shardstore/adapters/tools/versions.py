"""Versions of the packages that matter here, the codec pipeline that zarr uses, what carries the requests to object stores, and the kernel
with the libraries that it calls.

``shardstore info --runtime`` shows the same.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from shardstore.extras import EXTRAS, has_zarr2
from shardstore.native.kernel import kernel, why_no_kernel
from shardstore.opening.transports import carrier_of, default_carrier
from shardstore.storage.base import Storage

_ALWAYS = ("shardstore", "zarr", "numcodecs", "numpy", "fsspec", "google-crc32c")

PACKAGES = tuple(dict.fromkeys((*_ALWAYS, *(name for names in EXTRAS.values() for name in names))))
"""The distributions that a report of an error names: those that matter always, and those of all extras."""


def show_versions() -> None:
    """Print versions of packages and of Python, the codec pipeline that zarr uses, what carries the requests to object stores, and whether
    there is a kernel: its file and, for each codec, the version and file of the library that it calls; or why there is none. It is for
    reports of errors.
    """
    rows = rows_of(runtime_facts())
    width = max(len(name) for name, _ in rows)
    sys.stdout.writelines(f"{name:{width}}  {value}\n" for name, value in rows)


def runtime_facts(packages: Sequence[str] = PACKAGES, storage: Storage | None = None) -> dict[str, Any]:
    """Return versions by package (``None``: not installed), the codec pipeline that zarr uses for stores of ours, what carries the requests
    (to ``storage``, or to object stores by default), and the kernel: its file, or why there is none, and the libraries whose
    functions it calls, by codec.
    """
    native = kernel()
    return {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in packages},
        "pipeline": _zarr_pipeline(),
        "transport": asdict((carrier_of(storage) if storage is not None else None) or default_carrier()),
        "kernel": {
            "file": None if native is None else native.file,
            "why_not": why_no_kernel(),
            "libraries": {} if native is None else native.libraries(),
        },
    }


def rows_of(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the facts of the installation as names and texts."""
    versions = [(name, version or "not installed") for name, version in facts["versions"].items()]
    native = facts["kernel"]
    carrier = facts["transport"]
    rows = [
        ("pipeline", facts["pipeline"] or "none: zarr is not installed"),
        ("object stores", f"requests by {carrier['name']}" + (f": {why_not}" if (why_not := carrier["why_not_obstore"]) else "")),
        ("kernel", native["file"] or f"none: {native['why_not']}"),
    ]
    libraries = [(f"  {codec}", where) for codec, where in native["libraries"].items()]
    return [*versions, *rows, *libraries, ("python", facts["python"])]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _zarr_pipeline() -> str | None:
    """Return the path of the pipeline that zarr is configured with once a store of ours is open; ``None`` without zarr-python 3."""
    if find_spec("zarr") is None or has_zarr2():
        return None
    from shardstore.adapters.zarr.pipeline import install_pipeline

    install_pipeline()
    return str(import_module("zarr").config.get("codec_pipeline.path"))
