"""The client library that carries the requests to an object store: the user's fsspec filesystem, or obstore with its settings."""

from __future__ import annotations

from typing import Literal, cast, get_args

from shardstore.errors import InvalidInput, Unsupported
from shardstore.extras import how_to_install
from shardstore.opening.kinds import kind_named, kind_of_protocol, kinds
from shardstore.storage.abilities import ObstoreCarried
from shardstore.storage.base import Storage
from shardstore.storage.wrappers import innermost

Transport = Literal["fsspec", "obstore"]


def check_transport(transport: object) -> Transport:
    """Return the transport. Raises ``InvalidInput`` if there is no such transport."""
    if transport not in get_args(Transport):
        raise InvalidInput(f"transport={transport!r} is not one of {', '.join(map(repr, get_args(Transport)))}")
    return cast("Transport", transport)


def is_carried(protocol: str) -> bool:
    """Return whether obstore can carry the requests for URLs of a protocol."""
    kind = kind_of_protocol(protocol)
    return kind is not None and kind.on_obstore is not None


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
        if storage.ability(ObstoreCarried) is not None:
            return storage
        raise Unsupported(
            f"transport='obstore' cannot be added to a {type(storage).__name__}. Open the storage inside it with transport='obstore'"
        )
    try:
        return kind.on_obstore(storage)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "obstore":
            raise
        raise Unsupported(f"transport='obstore' needs a package that is not installed: {how_to_install('obstore')}") from exc
