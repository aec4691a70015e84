"""The client library that carries the requests to an object store: the user's fsspec filesystem, or obstore with its settings."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, cast, get_args

from shardstore.errors import InvalidInput, Unsupported
from shardstore.extras import how_to_install
from shardstore.storage.base import Storage
from shardstore.storage.opening.kinds import kind_named, kinds
from shardstore.storage.wrappers import innermost

Transport = Literal["fsspec", "obstore"]

OPTION = "transport"
"""The option's name; also among ``storage_options``, so that everything that takes those takes it."""


def check_transport(transport: object) -> Transport:
    """Return the transport. Raises ``InvalidInput`` where there is no such transport."""
    if transport not in get_args(Transport):
        raise InvalidInput(f"{OPTION}={transport!r} is not one of {', '.join(map(repr, get_args(Transport)))}")
    return cast("Transport", transport)


def taken_from(options: MutableMapping[str, Any], given: Transport) -> Transport:
    """Return the transport that ``options`` name, also under the protocol, or else the ``given`` one; it is removed from ``options``.

    Raises:
        InvalidInput: they name an unknown transport, or another one than was given.
    """
    named: set[Transport] = set()
    if OPTION in options:
        named.add(check_transport(options.pop(OPTION)))
    for protocol in (protocol for kind in kinds() if kind.on_obstore is not None for protocol in kind.protocols):
        of_link = options.get(protocol)
        if isinstance(of_link, Mapping) and OPTION in of_link:
            named.add(check_transport(of_link[OPTION]))
            options[protocol] = {name: value for name, value in of_link.items() if name != OPTION}
    if given != "fsspec":
        named.add(given)
    if len(named) > 1:
        raise InvalidInput(f"{OPTION} is given twice, and differently: {' and '.join(map(repr, sorted(named)))}")
    return named.pop() if named else "fsspec"


def carried_by(transport: Transport, storage: Storage) -> Storage:
    """Return ``storage`` with its requests carried by ``transport``.

    Raises:
        Unsupported: obstore is not installed, or not made for this kind of storage or its options.
    """
    if transport == "fsspec":
        return storage
    below = innermost(storage)
    kind = kind_named(below.kind)
    if kind is None or kind.on_obstore is None or not isinstance(below, kind.storage):
        takers = " and ".join(f"{kind.protocols[0]}://" for kind in kinds() if kind.on_obstore is not None)
        raise Unsupported(f"transport='obstore' is for {takers}, not for {storage.url}, which is of the kind {storage.kind!r}")
    if below is not storage:
        layer: object = storage
        while layer is not None:
            if getattr(layer, "transport", None) == transport:
                return storage
            layer = getattr(layer, "inner", None)
        raise Unsupported(f"transport='obstore' cannot be put beneath a {type(storage).__name__}: open what it wraps with it")
    try:
        return kind.on_obstore(storage)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "obstore":
            raise
        raise Unsupported(f"transport='obstore' needs a package that is not installed: {how_to_install('obstore')}") from exc
