"""What carries the requests to a storage: the user's fsspec filesystem, or obstore with its settings."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from typing import Literal, cast, get_args

from shardstore.errors import InvalidInput, Unsupported
from shardstore.extras import how_to_install
from shardstore.opening.kinds import StorageKind, kind_named, kind_of_protocol, kinds
from shardstore.storage.abilities import ObstoreCarried
from shardstore.storage.base import Storage
from shardstore.storage.obstore.forks import WHY_NOT, can_run
from shardstore.storage.wrappers import innermost

logger = logging.getLogger(__name__)

Transport = Literal["auto", "fsspec", "obstore"]
"""``auto``: obstore if it is installed and carries this kind with these options, else fsspec."""


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
        Unsupported: obstore was asked for. It is not installed, or not made for this kind of storage or its options.
    """
    if transport == "fsspec" or storage.ability(ObstoreCarried) is not None:
        return storage
    if transport == "obstore":
        return _on_obstore(storage, is_asked=True)
    if _kind_of(storage) is None:
        return storage
    try:
        return _on_obstore(storage, is_asked=False)
    except Unsupported as exc:
        logger.debug("requests to %s go through fsspec's transport: %s", storage.url, exc)
        return storage


def _kind_of(storage: Storage) -> StorageKind | None:
    """Return the kind of a storage if obstore can carry its requests, wrapped or not."""
    below = innermost(storage)
    kind = kind_named(below.kind)
    return kind if kind is not None and kind.on_obstore is not None and isinstance(below, kind.storage) else None


def _on_obstore(storage: Storage, *, is_asked: bool) -> Storage:
    kind = _kind_of(storage)
    if kind is None or kind.on_obstore is None:
        takers = ", ".join(f"{kind.protocols[0]}://" for kind in kinds() if kind.on_obstore is not None)
        raise Unsupported(f"transport='obstore' is for {takers}, not for {storage.url}, which is of the kind {storage.kind!r}")
    if not isinstance(storage, kind.storage):
        raise Unsupported(
            f"transport='obstore' cannot be added to a {type(storage).__name__}. Open the storage inside it with transport='obstore'"
        )
    if not is_asked and not can_run():
        raise Unsupported(WHY_NOT)
    try:
        return kind.on_obstore(storage, is_asked)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "obstore":
            raise
        raise Unsupported(_not_installed(kind.extra or "all")) from exc


@dataclass(frozen=True, slots=True)
class Carrier:
    """What carries the requests to a storage, and why it is not obstore (``None``: it is)."""

    name: Literal["fsspec", "obstore"]
    why_not_obstore: str | None


def carrier_of(storage: Storage) -> Carrier | None:
    """Return what carries the requests to a storage; ``None`` if no requests are made, as to files."""
    carried = storage.ability(ObstoreCarried)
    if carried is not None:
        return _carrier(carried.why_left_out)
    below = innermost(storage)
    kind = kind_named(below.kind)
    if kind is not None and kind.extra is None:
        return None
    try:
        _on_obstore(below, is_asked=False)
    except Unsupported as exc:
        return _carrier(str(exc))
    return _carrier("transport='fsspec' was given, or a storage in place of a URL")


def default_carrier() -> Carrier:
    """Return what carries the requests to Amazon S3, Google Cloud Storage and Azure without any options."""
    if importlib.util.find_spec("obstore") is None:
        return _carrier(_not_installed("s3"))
    return _carrier(None if can_run() else WHY_NOT)


def _carrier(why_not_obstore: str | None) -> Carrier:
    return Carrier("obstore" if why_not_obstore is None else "fsspec", why_not_obstore)


def _not_installed(extra: str) -> str:
    return f"transport='obstore' needs a package that is not installed: {how_to_install(extra)}"
