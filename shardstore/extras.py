"""The packages of each extra, errors that say how to install what is missing, and names that need an extra.

Programs ask for every name of a module, and use few: ``help``, ``from … import *``, ``hasattr``, and what collects members or examples. So
asking for a name whose packages are missing gives a stand-in; using that is an error, which says how to install the extra.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from shardstore.errors import Unsupported

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "zarr": ("zarr",),
    "xarray": ("dask", "xarray", "zarr"),
    "s3": ("obstore", "s3fs"),
    "gcs": ("gcsfs", "obstore"),
    "azure": ("adlfs", "obstore"),
    "http": ("aiohttp",),
    "huggingface": ("aiohttp", "huggingface_hub"),
    "cli": ("rich", "typer"),
    "parquet": ("pyarrow",),
    "sql": ("sqlalchemy",),
    "icechunk": ("icechunk",),
    "plot": ("matplotlib",),
    "report": ("jinja2",),
    "mount": ("pyfuse3",),
    "serve": ("httptools", "jinja2", "starlette", "uvicorn"),
}
"""The packages of each extra, as they are imported; a test compares them with pyproject.toml."""


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra."""
    return f"pip install 'shardstore[{extra}]'"


def load(public: str, module: str, extra: str | None = None, hint: str = "") -> Any:
    """Return a name of a module, or a stand-in for it if a package of ``extra`` is missing.

    Args:
        public: the name by which users know it, such as ``shardstore.serve``; its last part is the name in the module.
        extra: without, whatever is missing is an error.
        hint: what errors say behind the command that installs the extra.
    """
    name = public.rpartition(".")[2]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if extra is None or missing not in EXTRAS[extra]:
            raise
        message = f"{public} needs {missing}: {how_to_install(extra)}{hint}"
    about = {"__doc__": message, "__module__": public.rpartition(".")[0], "__qualname__": name}
    if name[0].isupper():
        return _MissingClass(name, (), about | {"_message": message})

    def stand_in(*args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(message)

    for attribute, value in (about | {"__name__": name}).items():
        setattr(stand_in, attribute, value)
    return stand_in


def needed(module: str, extra: str, what: str, hint: str = "") -> ModuleType:
    """Return a module that needs the packages of an extra.

    Args:
        what: what needs it, for the error, such as "previews take zarr-python".
        hint: what the error says behind the command that installs the extra.

    Raises:
        Unsupported: a package of the extra is missing.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in EXTRAS[extra]:
            raise
        raise Unsupported(f"{what}: {how_to_install(extra)}{hint}") from exc


class _MissingClass(type):
    """The type of classes that stand in for classes which cannot be loaded: nothing is an instance of one, and using one is an error."""

    _message: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise Unsupported(cls._message)

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Unsupported(cls._message)


@functools.cache
def has_zarr2() -> bool:
    """Return whether the zarr-python that is installed is version 2."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("zarr").startswith("2.")
    except PackageNotFoundError:
        return False


def imported_zarr() -> ModuleType | None:
    """Return zarr-python 3 or newer, if the program has imported it; ``None`` if it has not, or has version 2."""
    zarr = sys.modules.get("zarr")
    return None if zarr is None or has_zarr2() else zarr
