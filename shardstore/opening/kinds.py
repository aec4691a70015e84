"""The kinds of storages that are opened from fsspec's filesystems, in one table. ``register_kind`` adds more.

A kind is known by the name that its storages give as ``Storage.kind``. A filesystem that no kind takes is opened as a
``GenericStorage``. ``transports`` says what carries the requests to an object store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.shard_index import IndexLocation
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import Storage
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.generic.links import is_one
from shardstore.storage.http.storage import HTTPStorage
from shardstore.storage.huggingface import HuggingFaceStorage, open_on_hub
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.s3.storage import S3Storage

LocalOpener = Callable[[str], LocalStorage]
"""A function that makes the storage of a local path, with the options for local files."""

_HALF_A_MIB = 512 * 2**10


@dataclass(frozen=True, kw_only=True)
class StorageKind:
    """The properties of one kind of storage before it is open, and the best way to read it. Sizes in bytes."""

    name: str
    """The kind's name, as in ``Storage.kind``."""
    protocols: tuple[str, ...]
    """The protocols: names of the filesystem in URLs."""
    filesystem: type[AbstractFileSystem]
    """The class of filesystems that it can work through, among those of the protocols."""
    storage: type[Any]
    """The class of its storages."""
    opens: Callable[[Any, str, LocalOpener], Storage] | None = None
    """Makes a storage from a path and a filesystem, or the filesystem's class if ``plain_options`` allow that.

    ``None``: ``storage(fs, path)`` does.
    """
    takes: Callable[[Any], bool] = lambda fs: True
    """Returns whether a filesystem of the protocols is one of this kind; the rest are read and written as any filesystem."""
    extra: str | None = None
    """The extra of this package that installs what the filesystem needs."""
    is_probed: bool = False
    """True if the abilities of the server are known only after it has been asked."""
    has_host: bool = True
    """True if paths begin with a host or bucket, which is no part of a key."""
    has_revisions: bool = False
    """True if paths begin with the name of a repository, which may end with ``@`` and a revision."""
    gap_bytes: int = _HALF_A_MIB
    """Ranges of a shard at most this far apart share a request, since a request takes as long as so many bytes."""
    first_bytes: int = 0
    """Bytes that are read with the index of a small shard: no more than take less time than a request."""
    index_location: IndexLocation = "end"
    """Where the shards of new arrays have their index by default: at the start, where the filesystem cannot read the end of an object, so
    that other programs find it.
    """
    plain_options: Mapping[str, object] | None = None
    """Storage options, with their values, that may be given if a URL needs no filesystem; ``None``: it always needs one."""
    swallows_options: bool = True
    """True if the filesystem ignores options that it does not know, so they are refused."""
    passed_on: frozenset[str] = frozenset()
    """Options that the filesystem passes on from its ``**kwargs``."""
    in_client_kwargs: frozenset[str] = frozenset()
    """Options that belong in ``client_kwargs``."""
    check_options: Callable[[str, Mapping[str, Any]], None] | None = None
    """Refuses values by ``InvalidInput``; takes the URL as it may be shown, and the options."""
    has_endpoint: bool = False
    """True if it takes ``endpoint_url``."""
    on_obstore: Callable[[Any, bool], Storage] | None = None
    """Makes a storage whose requests go through obstore, from one whose requests go through the filesystem, and from whether the user has
    asked for that. Raises ``Unsupported`` if obstore cannot do as well.
    """

    def open(self, fs: Any, path: str, local: LocalOpener) -> Storage:
        """Return the storage at a path of a filesystem; ``local`` opens local paths."""
        made: Storage = self.storage(fs, path) if self.opens is None else self.opens(fs, path, local)
        return made


def _check_token(url: str, options: Mapping[str, Any]) -> None:
    """Check a token. Anything else that is no file is taken for the token itself, and sent to Google; tokens may hold a slash."""
    token = options.get("token")
    is_path = isinstance(token, str) and (token.startswith(("/", "./", "../", "~")) or token.endswith(".json"))
    if isinstance(token, str) and is_path and not os.path.exists(token):
        raise InvalidInput(
            f"token {token!r} of {url!r} is not a file: give the path of a service account's key file, a name such as 'anon', or a token"
        )


def _s3_on_obstore(storage: S3Storage, is_asked: bool) -> Storage:
    from shardstore.storage.obstore.s3 import ObstoreS3Storage  # may be missing, and is slow to import

    return ObstoreS3Storage(storage, is_asked)


def _gcs_on_obstore(storage: GCSStorage, is_asked: bool) -> Storage:
    if not is_asked and not storage.client.is_google:
        raise Unsupported(f"obstore needs the XML interface of Google Cloud Storage, which {storage.endpoint} may not have")
    from shardstore.storage.obstore.gcs import ObstoreGCSStorage  # may be missing, and is slow to import

    return ObstoreGCSStorage(storage, is_asked)


def _azure_on_obstore(storage: AzureStorage, is_asked: bool) -> Storage:
    from shardstore.storage.obstore.azure import ObstoreAzureStorage  # may be missing, and is slow to import

    return ObstoreAzureStorage(storage, is_asked)


_AZURE_CREDENTIALS = ("cli", "developer_cli", "environment", "managed_identity", "powershell", "shared_token_cache", "workload_identity")

_KINDS: dict[str, StorageKind] = {
    kind.name: kind
    for kind in (
        # Of a cached local file a request costs some microseconds, as much as memory for 8 KiB and the copy; see docs/howto/storages.md.
        StorageKind(
            name="local",
            protocols=("file", "local"),
            filesystem=LocalFileSystem,
            storage=LocalStorage,
            opens=lambda fs, path, local: local(fs._strip_protocol(path)),
            has_host=False,
            gap_bytes=8 * 2**10,
            plain_options={},
        ),
        StorageKind(
            name="memory",
            protocols=("memory",),
            filesystem=MemoryFileSystem,
            storage=MemoryStorage,
            opens=lambda fs, path, _: MemoryStorage(fs._strip_protocol(path)),
            takes=lambda fs: fs.store is MemoryFileSystem.store,
            has_host=False,
            gap_bytes=0,
            plain_options={"global_store": True},
        ),
        StorageKind(
            name="s3",
            protocols=("s3", "s3a"),
            filesystem=AsyncFileSystem,
            storage=S3Storage,
            extra="s3",
            is_probed=True,
            first_bytes=_HALF_A_MIB,
            passed_on=frozenset({"profile", "session_vars", "event_hooks", "include_builtin_handlers"}),  # of aiobotocore's session
            in_client_kwargs=frozenset(
                {"region_name", "verify", "api_version", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
            ),
            has_endpoint=True,
            on_obstore=_s3_on_obstore,
        ),
        StorageKind(
            name="gcs",
            protocols=("gs", "gcs"),
            filesystem=AsyncFileSystem,
            storage=GCSStorage,
            extra="gcs",
            is_probed=True,
            check_options=_check_token,
            has_endpoint=True,
            on_obstore=_gcs_on_obstore,
        ),
        StorageKind(
            name="azure",
            protocols=("az", "abfs", "abfss"),
            filesystem=AsyncFileSystem,
            storage=AzureStorage,
            extra="azure",
            is_probed=True,
            passed_on=frozenset(  # of azure-identity's DefaultAzureCredential
                {"authority", "managed_identity_client_id", "process_timeout", "workload_identity_client_id", "workload_identity_tenant_id"}
                | {f"exclude_{name}_credential" for name in _AZURE_CREDENTIALS}
            ),
            index_location="start",
            on_obstore=_azure_on_obstore,
        ),
        StorageKind(
            name="http",
            protocols=("http", "https"),
            filesystem=AsyncFileSystem,
            storage=HTTPStorage,
            extra="http",
            passed_on=frozenset(  # of aiohttp's requests
                {"headers", "auth", "params", "cookies", "ssl", "server_hostname", "proxy", "proxy_auth", "proxy_headers", "timeout"}
                | {"trace_request_ctx", "allow_redirects", "max_redirects", "expect100", "read_until_eof", "read_bufsize"}
                | {"auto_decompress", "max_line_size"}
            ),
        ),
        StorageKind(
            name="huggingface",
            protocols=("hf",),
            filesystem=AbstractFileSystem,
            storage=HuggingFaceStorage,
            opens=lambda fs, path, _: open_on_hub(fs, path),
            extra="huggingface",
            has_revisions=True,
        ),
    )
}


def register_kind(kind: StorageKind) -> None:
    """Register a kind in this process: it opens the URLs of ``kind.protocols``. fsspec has to know the protocols as well.

    Raises:
        InvalidInput: another kind has its name, or one of its protocols.
    """
    for other in _KINDS.values():
        if other != kind and (other.name == kind.name or not set(kind.protocols).isdisjoint(other.protocols)):
            raise InvalidInput(
                f"the storage kind {kind.name!r} for {', '.join(kind.protocols)} is already registered, as the storage kind {other.name!r}"
            )
    _KINDS[kind.name] = kind


def kinds() -> tuple[StorageKind, ...]:
    """Return all known kinds."""
    return tuple(_KINDS.values())


def kind_named(name: str) -> StorageKind | None:
    """Return the kind of storages whose ``kind`` is ``name``; ``None``: it is opened by other means, or ``GenericStorage``."""
    return _KINDS.get(name)


def kind_of_protocol(protocol: str) -> StorageKind | None:
    """Return the kind that opens URLs of a protocol, unless their options ask for more than it has."""
    return next((kind for kind in _KINDS.values() if protocol in kind.protocols), None)


def extra_of_protocol(protocol: str) -> str | None:
    """Return the extra of this package that installs the filesystem of a protocol; ``None``: the filesystem is in no extra."""
    kind = kind_of_protocol(protocol)
    return None if kind is None else kind.extra


def kind_of_filesystem(fs: AbstractFileSystem) -> StorageKind | None:
    """Return the kind that takes a filesystem; ``None``: it is used as any other."""
    return next(
        (kind for kind in _KINDS.values() if is_one(fs, frozenset(kind.protocols)) and isinstance(fs, kind.filesystem) and kind.takes(fs)),
        None,
    )


def default_index_location(name: str) -> IndexLocation:
    """Return ``index_location`` of a kind of storage, by its name."""
    kind = kind_named(name)
    return "end" if kind is None else kind.index_location


def read_sizes(name: str) -> tuple[int, int]:
    """Return ``gap_bytes`` and ``first_bytes`` of a kind of storage; a kind in no table counts as an object store."""
    kind = kind_named(name)
    return (_HALF_A_MIB, 0) if kind is None else (kind.gap_bytes, kind.first_bytes)
