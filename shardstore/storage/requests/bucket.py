"""The common part of the storages of buckets: S3, GCS, and whatever else keeps objects by key in a bucket.

A kind brings a client, which makes requests, and says how its server reads a range, stores a body, deletes and lists.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from shardstore.errors import InvalidInput, StorageError
from shardstore.model.advice import storage_option
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfGeneration, Unconditional
from shardstore.model.ranges import BytesLike
from shardstore.storage.abilities import CopiesFrom, OnFilesystem
from shardstore.storage.base import ABSENT, CHANGED, Abilities, ConditionFailed, DirListing, ObjectInfo, Storage, check_directory
from shardstore.storage.requests import writes as conditions
from shardstore.storage.requests.lost_answers import delete_object
from shardstore.storage.requests.outcomes import Bound, Head
from shardstore.storage.requests.ranged_reads import NOTHING, RangedReads, RangeOutcome, RangePart

_CREDENTIALS = {"s3": "key", "gs": "token", "az": "account_key"}
"""An option for credentials, by protocol."""


def split_bucket(path: str, scheme: str) -> tuple[str, str]:
    """Return bucket and prefix of ``bucket/prefix``, for a URL of ``scheme``.

    Raises:
        InvalidInput: there is no bucket, or credentials are before its name; the message does not repeat them.
    """
    bucket, _, prefix = path.partition("/")
    if not bucket:
        raise InvalidInput(f"'{scheme}://{path}' names no bucket: give {scheme}://BUCKET/PATH")
    # No bucket's name has either; an access point's address, which begins with "arn:", has colons.
    if "@" in bucket or (":" in bucket and not bucket.startswith("arn:")):
        raise InvalidInput(
            f"a URL of {scheme}:// begins with the name of the bucket, {scheme}://BUCKET/PATH. Credentials are not part of it, but "
            f"options: {storage_option(scheme, _CREDENTIALS[scheme])}"
        )
    return bucket, prefix


class BucketClient(ABC):
    """Requests on the objects below ``prefix`` of ``bucket``; at most ``concurrency`` at once."""

    scheme: ClassVar[str]
    """The protocol in URLs."""

    def __init__(self, fs: Any, bucket: str, prefix: str, concurrency: int) -> None:
        self.fs = fs
        self.bucket = bucket
        self.prefix = prefix
        self.bound = Bound(concurrency)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """Return which server this talks to."""

    async def server(self) -> str:
        """Return the URL of the server for sure, whatever options, environment or configuration name it."""
        return self.endpoint

    @property
    def is_alias(self) -> bool:
        """True where the name of the bucket may be that of an access to some other bucket."""
        return False

    @abstractmethod
    async def head(self, key: str) -> Head | None:
        """Return version and size of the object, ``None`` if there is none."""

    @abstractmethod
    async def put_empty(self, key: str, condition: Condition) -> None:
        """Store an empty object, by one request, to find out whether the server honours the condition."""

    @abstractmethod
    async def delete(self, key: str, condition: Condition, action: str = "deleting") -> bool:
        """Delete an object by one request; return whether there was one, or true if the answer does not say so."""

    def full_key(self, key: str) -> str:
        """Return the name of the object of ``key`` in the bucket."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def own_key(self, full_key: str) -> str:
        """Return the key of the object that has this name in the bucket."""
        return full_key[len(self.prefix) + 1 :] if self.prefix else full_key

    def forget_listing(self, key: str) -> None:
        """Drop the listings that the filesystem remembers: they do not see what is done past its own methods."""
        self.fs.invalidate_cache(f"{self.bucket}/{self.full_key(key)}")


@dataclass
class BucketFacts:
    """The known facts of one server and bucket, shared by all storages of this process."""

    capabilities: Capabilities | None = None
    warned: bool = False


Facts = TypeVar("Facts", bound=BucketFacts)

_facts: dict[tuple[type[BucketFacts], str, str], Any] = {}


def facts_about(client: BucketClient, kind: type[Facts]) -> Facts:
    """Return the facts about the client's server and bucket."""
    found: Facts = _facts.setdefault((kind, client.endpoint, client.bucket), kind())
    return found


def forget_facts() -> None:
    """Forget all facts, so that servers are asked again; for tests, and after a server was updated."""
    _facts.clear()


Client = TypeVar("Client", bound=BucketClient)


class BucketStorage(RangedReads, CopiesFrom, OnFilesystem, Abilities, Generic[Client]):
    """Objects below ``path`` (``bucket/prefix``) of an fsspec filesystem whose loop is fsspec's IO loop.

    Bodies above ``part_bytes`` are uploaded in parts. What a server honours is found out by ``probe``.
    """

    kind: ClassVar[str]
    client_class: ClassVar[type[Any]]
    claimed_without_probe: ClassVar[Capabilities]
    """Capabilities that need no probe: reads compare the version of the answer themselves."""
    looks_before_deletes: ClassVar[bool] = False
    """True if the answer to a delete does not show whether there was an object."""

    def __init__(self, fs: Any, path: str, concurrency: int, part_bytes: int) -> None:
        self.fs = fs
        self.path = str(fs._strip_protocol(path)).strip("/")
        self.concurrency = concurrency
        self.part_bytes = part_bytes
        bucket, prefix = split_bucket(self.path, self.client_class.scheme)
        self.client: Client = self.client_class(fs, bucket, prefix, concurrency)
        """The requests below; another transport to the same place uses them too."""

    def __reduce__(self) -> tuple[type[BucketStorage[Client]], tuple[Any, str, int, int]]:
        return type(self), (self.fs, self.path, self.concurrency, self.part_bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and (other.path, other.fs) == (self.path, self.fs)

    def __hash__(self) -> int:
        return hash((type(self), self.path))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def endpoint(self) -> str:
        """Return which server the bucket is on: its name alone does not say."""
        return self.client.endpoint

    @property
    @abstractmethod
    def _facts(self) -> BucketFacts:
        """Return the facts about the server and bucket."""

    @property
    def capabilities(self) -> Capabilities:
        """The known abilities; see ``Storage.capabilities``."""
        return self._facts.capabilities or self.claimed_without_probe

    @abstractmethod
    async def _ask_server(self) -> Capabilities:
        """Find out what the server honours, by requests to it."""

    async def probe(self) -> Capabilities:
        facts = self._facts
        if facts.capabilities is None:
            facts.capabilities = await self._ask_server()  # two that ask at once learn the same
        return self.capabilities

    # -- reading -------------------------------------------------------------------------------------------------------

    async def look_up(self, key: str, generation: Generation | None) -> RangeOutcome:
        head = await self.client.head(key)
        if head is None:
            return ABSENT
        if generation is not None and head.generation != generation:
            return CHANGED
        return RangePart(head.generation, head.nbytes, NOTHING)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        condition = await self.checked(key, condition)
        try:
            return await self._put(key, body, nbytes, condition)
        finally:
            self.client.forget_listing(key)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await self._copied_from(self.client, source, target)

    async def copy_from(self, source: Storage, key: str, target_key: str) -> Generation | None:
        origin = source.ability(OnFilesystem)
        # One filesystem is one server with one set of credentials; fsspec gives the same one for the same options.
        if not isinstance(origin, BucketStorage) or type(origin) is not type(self) or origin.fs is not self.fs:
            return None
        return await self._copied_from(origin.client, key, target_key)

    async def _copied_from(self, origin: Client, source: str, target: str) -> Generation | None:
        try:
            return await self._copy_from(origin, source, target)
        finally:
            self.client.forget_listing(target)

    @abstractmethod
    async def _copy_from(self, origin: Client, source: str, target: str) -> Generation | None:
        """Copy as ``Storage.copy`` says, also from another bucket or prefix of the same server."""

    @abstractmethod
    async def _put(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        """Store a body, on a condition that the server honours."""

    async def checked(self, key: str, condition: Condition) -> Condition:
        """Return ``condition`` as the request of a write bears it: one that the server would ignore is checked now, and left out."""
        if isinstance(condition, Unconditional) or conditions.honours(condition, await self.probe()):
            return condition
        if not self._facts.warned:
            self._facts.warned = True
            conditions.warn_not_honoured(self.client.endpoint, self.url)
        head = await self.client.head(key)
        if not conditions.holds(condition, None if head is None else head.generation):
            raise conditions.failed(key, self.url)
        return UNCONDITIONAL

    def may_match(self, generation: Generation) -> bool:
        """Return whether an object can have this version, so that the server is to be asked about it."""
        return True

    async def delete(self, key: str, condition: Condition) -> bool:
        conditions.check_deletion(key, condition)
        sent, looks = condition, self.looks_before_deletes
        if isinstance(condition, IfGeneration) and not (self.may_match(condition.generation) and (await self.probe()).conditional_delete):
            sent, looks = UNCONDITIONAL, True
        if looks:
            head = await self.client.head(key)
            if head is None:
                return False
            if not conditions.holds(condition, head.generation):
                raise ConditionFailed(f"{key!r} in {self.url} is not the version to delete")
        return await self._delete(key, sent, condition)

    async def _delete(self, key: str, sent: Condition, condition: Condition) -> bool:
        """Delete by requests on the condition ``sent``, which may be less than ``condition``."""
        try:
            return await delete_object(lambda: self.client.delete(key, sent), self.client.head, key, self.url, condition)
        finally:
            self.client.forget_listing(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        # One request each, where batches would save nothing but connections, which are kept here.
        outcomes = await asyncio.gather(*(self._delete(key, UNCONDITIONAL, UNCONDITIONAL) for key in keys), return_exceptions=True)
        errors = [(key, outcome) for key, outcome in zip(keys, outcomes, strict=True) if isinstance(outcome, BaseException)]
        if errors:
            key, first = errors[0]
            if not isinstance(first, StorageError):
                raise first
            raise type(first)(
                f"{len(errors)} of {len(keys)} objects of {self.url} could not be deleted, {key!r} the first: {first}"
            ) from first

    async def rename_prefix(self, source: str, target: str) -> bool:
        return False

    # -- looking -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _pages(self, prefix: str, *, directory: bool, after: str | None = None) -> AsyncIterator[DirListing]:
        """Yield the pages of a listing of what lies below ``prefix``; with ``directory``, of what lies directly below it."""

    async def list(self, prefix: str, after: str | None = None) -> AsyncIterator[ObjectInfo]:
        """List as the protocol says; only keys behind ``after``, if that is given and the server can."""
        async for page in self._pages(prefix, directory=False, after=after):
            for info in page.objects:
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        async for page in self._pages(prefix, directory=True):
            objects += page.objects
            prefixes += page.prefixes
        return DirListing(tuple(objects), tuple(sorted(prefixes)))
