"""A storage over obstore whose requests are seen, and can be answered otherwise."""

from __future__ import annotations

from typing import Any

from shardstore.opening.open import open_storage
from shardstore.storage.obstore.azure import ObstoreAzureStorage
from shardstore.storage.obstore.gcs import ObstoreGCSStorage
from shardstore.storage.obstore.s3 import ObstoreS3Storage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness.misbehaving_server import MisbehavingServer

Url = tuple[str, dict[str, Any]]
"""A place, and the options of its filesystem."""

AnyObstore = ObstoreS3Storage | ObstoreGCSStorage | ObstoreAzureStorage

OURS, THEIRS = True, False
"""Whether obstore sent a request, or the filesystem below."""


class Proxied:
    """A storage behind a proxy that shows, and changes, what goes over the wire."""

    def __init__(self, server: MisbehavingServer, storage: AnyObstore) -> None:
        self.server = server
        self.storage = storage
        self.s = SyncStorage(storage)
        self.server.behave()

    def sent(self) -> list[tuple[str, bool]]:
        """Methods of the requests since the last call, and whether obstore sent them."""
        found = [(request.method, "object_store" in (request.header("User-Agent") or "")) for request in self.server.requests]
        self.server.behave()
        return found


def proxied(server: MisbehavingServer, url: Url, **options: Any) -> Proxied:
    where = {} if url[0].startswith("az:") else {"endpoint_url": server.url}
    storage = open_storage(url[0], {**url[1], **where, **options}, transport="obstore")
    assert isinstance(storage, AnyObstore)
    on_io_loop(storage.probe())
    return Proxied(server, storage)
