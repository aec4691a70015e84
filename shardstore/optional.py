"""Public names that need an extra: loaded when they are asked for, with a stand-in where the packages of the extra are missing.

Programs ask for every name of a module, and use few: ``help``, ``from … import *``, ``hasattr``, and what collects members or examples. So
asking is no error; using a stand-in is one, which says how to install the extra.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from shardstore.errors import Unsupported
from shardstore.extras import how_to_install, packages_of


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
        if extra is None or missing not in packages_of(extra):
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
        if (exc.name or "").partition(".")[0] not in packages_of(extra):
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
