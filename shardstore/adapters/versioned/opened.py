"""A versioned store as a program has opened it: its place, its options, and what repository and sessions share. It can be pickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, TypedDict

from shardstore import __version__
from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput, Unsupported
from shardstore.extras import how_to_install
from shardstore.model.options import defaults_of, with_options
from shardstore.opening.open import open_storage
from shardstore.opening.options import options_of_another, protocol_of
from shardstore.opening.transports import Transport
from shardstore.plan.policy import ShardingPolicy, validate_policy
from shardstore.snapshots.catalog import DEFAULT_NAME, Catalog, StorageCatalog, check_store_name
from shardstore.snapshots.files import MANIFEST_CACHE_BYTES, StoreFiles
from shardstore.snapshots.session import MAX_MEMORY
from shardstore.snapshots.versioned_store import VersionedStore
from shardstore.snapshots.virtual_files import VirtualFiles

Schema = Literal["auto", "draft"]


@dataclass(frozen=True, slots=True)
class RepositoryOptions:
    """The place of a repository, and how it is opened; it can be pickled."""

    url: Any
    catalog: Catalog | None = None
    name: str | None = None
    schema: Schema = "auto"
    pack: ShardingPolicy = "auto"
    storage_options: dict[str, Any] | None = None
    virtual_prefixes: Sequence[str] = ()
    virtual_options: Mapping[str, Mapping[str, Any]] | None = None
    max_memory: int = MAX_MEMORY
    manifest_cache_bytes: int = MANIFEST_CACHE_BYTES
    fsync: bool = True
    transport: Transport = "auto"

    @property
    def options_of_virtual(self) -> Mapping[str, Mapping[str, Any]]:
        """The options of what virtual references lead to, by protocol; without any given, its own on the protocol of the repository."""
        protocol = protocol_of(self.url)
        own = {protocol: self.storage_options} if protocol and self.storage_options else {}
        return own | dict(self.virtual_options or {})

    def options_of(self, other: object, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the options of another place: the given ones, or else those of the repository, if both are on one protocol."""
        return options_of_another(other, given, self.url, self.storage_options)

    def __post_init__(self) -> None:
        check_prefixes(self.virtual_prefixes)
        if self.schema not in ("auto", "draft"):
            raise InvalidInput(f"schema {self.schema!r} is neither 'auto' nor 'draft'")
        validate_policy(self.pack)
        for name in ("max_memory", "manifest_cache_bytes"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} {value!r} is not a whole number of at least 1")


def check_prefixes(prefixes: object) -> None:
    if isinstance(prefixes, str) or not isinstance(prefixes, Sequence):
        raise InvalidInput(f"virtual_prefixes are several URLs, in a list, not of type {type(prefixes).__name__}")


class RepositoryArguments(TypedDict, total=False):
    """The options of a repository by name and type; ``Repository.create`` says what they mean."""

    catalog: Catalog | None
    name: str | None
    schema: Schema
    pack: ShardingPolicy
    storage_options: dict[str, Any] | None
    virtual_prefixes: Sequence[str]
    virtual_options: Mapping[str, Mapping[str, Any]] | None
    max_memory: int
    manifest_cache_bytes: int
    fsync: bool
    transport: Transport


takes_repository_options = with_options(RepositoryArguments, defaults_of(RepositoryOptions))


class OpenedStore:
    """The files, the catalog and the options that a repository and its sessions share."""

    def __init__(self, options: RepositoryOptions) -> None:
        self.options = options
        if find_spec("pyarrow") is None:
            raise Unsupported(f"versioned stores need pyarrow: {how_to_install('parquet')}")
        storage = open_storage(options.url, options.storage_options, fsync=options.fsync, transport=options.transport)
        files = StoreFiles(storage, cache_bytes=options.manifest_cache_bytes)
        catalog: Catalog = StorageCatalog(storage) if options.catalog is None else options.catalog
        name = options.name
        if name is None:
            name = DEFAULT_NAME if options.catalog is None else storage.url.rstrip("/").rpartition("/")[2] or DEFAULT_NAME
        self.limits = EngineOptions().read_limits(storage.kind)
        self.store = VersionedStore(
            files, catalog, check_store_name(name), draft=options.schema == "draft", writer=f"shardstore {__version__}"
        )
        self.virtual = VirtualFiles(files.storage, options.virtual_prefixes, options.options_of_virtual)

    def __reduce__(self) -> tuple[type[OpenedStore], tuple[RepositoryOptions]]:
        return type(self), (self.options,)
