"""Repositories of the Hugging Face Hub, read-only, each at the commit that its revision was when it was opened.

A commit never changes: so the reads of a place are all of one version, and nothing is looked at twice. huggingface_hub's filesystem finds
repositories, lists them and knows the user's token; files are read by ranges through a session of aiohttp, since each read of that
filesystem is a call in a thread.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import fsspec

from shardstore.errors import AccessDenied, InvalidInput, NotFound, ReadOnly, ShardStoreError, StorageError, Unsupported
from shardstore.extras import how_to_install
from shardstore.model.advice import storage_option
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRequest
from shardstore.model.redaction import redacted, shown_cause
from shardstore.storage.abilities import PinsRevision
from shardstore.storage.base import DirListing, ObjectInfo, Storage, check_directory
from shardstore.storage.generic.calls import translated
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.http.client import ABSENT_STATUS, HTTPAnswer, HTTPClient, Retries
from shardstore.storage.http.storage import HTTPStorage
from shardstore.storage.requests.outcomes import CHECK_ADDRESS, is_unreachable

_COMMIT = re.compile("[0-9a-f]{40}")
_ABSENT_CODE = "EntryNotFound"  # the Hub's own word for it; a repository or a revision that is gone is answered by 404, too
_REMEDY = f"If it is private or gated, give a token that may read it, {storage_option('hf', 'token')}, or log in by 'hf auth login'"


def open_on_hub(fs: Any, path: str) -> Storage:
    """Return the storage of ``path``, ``[TYPE/]OWNER/NAME[@REVISION][/PATH]``, of an ``HfFileSystem``; the revision is resolved now.

    Raises:
        AccessDenied, NotFound: the repository or the revision does not exist, or may not be read.
        InvalidInput: the path names no repository.
    """
    path = str(fs._strip_protocol(path))
    try:
        place = fs.resolve_path(path)
        if not hasattr(place, "repo_id"):  # a bucket, which has no commits
            return GenericStorage(fs, path, f"hf://{path}")
        commit = place.revision
        if _COMMIT.fullmatch(commit) is None:
            commit = fs._api.repo_info(place.repo_id, repo_type=place.repo_type, revision=commit).sha
    except Exception as exc:  # noqa: BLE001 - none is lost, but for the chain of one that shows a secret
        raise _refusal(f"hf://{path}", exc) from shown_cause(exc)
    kind = "" if place.repo_type == "model" else f"{place.repo_type}s/"
    return HuggingFaceStorage(fs, f"{kind}{place.repo_id}", str(commit), place.path_in_repo.strip("/"))


def _refusal(url: str, exc: Exception) -> ShardStoreError:
    """Return the error to raise, from ``exc``, if a repository or its revision could not be found."""
    refused = exc.__cause__ if isinstance(exc, FileNotFoundError) and exc.__cause__ is not None else exc
    names = {base.__name__ for base in type(refused).__mro__}
    what = f"{redacted(url)!r} cannot be opened"
    if "RevisionNotFoundError" in names:
        return NotFound(f"{what}: the repository has no such revision: name a branch, a tag or a commit of it behind the @")
    status = getattr(getattr(refused, "response", None), "status_code", None)
    if status in (401, 403):
        denied = AccessDenied(f"{what}: the Hub answered {status}: there is no such repository, or it may not be read. {_REMEDY}")
        denied.status = status
        return denied
    if "RepositoryNotFoundError" in names:
        return NotFound(f"{what}: there is no such repository. {_REMEDY}")
    reason = f"{type(refused).__name__}: {redacted(str(refused)).partition(chr(10))[0]}"
    if isinstance(refused, ValueError | NotImplementedError):
        return InvalidInput(f"{what}: give hf://datasets/OWNER/NAME@REVISION/PATH ({reason})")
    if is_unreachable(refused) or "ConnectError" in names:
        return StorageError(f"{what}: the Hub cannot be reached: {CHECK_ADDRESS} ({reason})")
    return StorageError(f"{what}: {reason}")


class _HubClient(HTTPClient):
    """Requests for the files of a repository; refusals say how a token is given."""

    def _refusal(self, status: int | None, what: str, reason: str, failures: int) -> StorageError:
        if status not in (401, 403):
            return super()._refusal(status, what, reason, failures)
        denied = AccessDenied(f"{what}: {reason}. {_REMEDY}")
        denied.status = status
        return denied


class HuggingFaceStorage(HTTPStorage, PinsRevision):
    """The files below ``inside`` of ``repository``, such as ``datasets/OWNER/NAME``, at a commit; through ``hub``, an ``HfFileSystem``."""

    kind = "huggingface"

    def __init__(self, hub: Any, repository: str, commit: str, inside: str, concurrency: int = 64, retries: Retries | None = None) -> None:
        self.hub = hub
        self._parts = (repository, commit, inside)
        self._path = f"{repository}@{commit}/{inside}".rstrip("/")
        self._version_of_all = Generation(f"commit {commit}")
        try:
            # Where a request is sent on to another server, as for large files, aiohttp leaves the token out.
            fs = fsspec.filesystem("https", headers=dict(hub._api._build_hf_headers()), client_kwargs={"trust_env": True})
        except ImportError as exc:
            raise Unsupported(f"hf://{self._path} needs a package that is not installed: {how_to_install('huggingface')}") from exc
        root = f"{hub.endpoint}/{repository}/resolve/{commit}/{quote(inside)}".rstrip("/")
        super().__init__(fs, root, concurrency, retries)
        self._client = _HubClient(fs, root, concurrency, self.retries)

    def __reduce__(self) -> tuple[type[HuggingFaceStorage], tuple[Any, ...]]:
        return type(self), (self.hub, *self._parts, self.concurrency, self.retries)

    def __repr__(self) -> str:
        return f"HuggingFaceStorage({self.url!r})"

    @property
    def url(self) -> str:
        return f"hf://{self._path}"

    @cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(pinned_reads=True, static=True)

    async def probe(self) -> Capabilities:
        return self.capabilities

    def pinned(self, target: object) -> object:
        return (target[0], self._path) if isinstance(target, tuple) else self.url

    # -- reading -------------------------------------------------------------------------------------------------------

    def _version(self, answer: HTTPAnswer) -> Generation:
        return self._version_of_all

    async def _get(self, key: str, requests: Sequence[ByteRequest], generation: Generation | None, most_nbytes: int | None) -> HTTPAnswer:
        return self._checked_absence(key, await super()._get(key, requests, generation, most_nbytes))

    async def _look(self, key: str) -> HTTPAnswer:
        return self._checked_absence(key, await super()._look(key))

    def _checked_absence(self, key: str, answer: HTTPAnswer) -> HTTPAnswer:
        """Return the answer. Raises ``StorageError`` if it says that more than this file is gone: the repository, or the content."""
        code = answer.headers.get("X-Error-Code", "no X-Error-Code")
        if answer.status in ABSENT_STATUS and code != _ABSENT_CODE:
            raise StorageError(
                f"reading {key!r} in {self.url}: the Hub answered {answer.status} ({code}): the repository or the commit is gone, or the "
                f"content of a file that it has: look at {self.hub.endpoint}/{self._parts[0]}"
            )
        return answer

    # -- writing -------------------------------------------------------------------------------------------------------

    def refusal(self, action: str, key: str) -> ReadOnly:
        kind, _, name = self._parts[0].rpartition("s/")
        option = f" --repo-type {kind}" if kind else ""
        return ReadOnly(
            f"{action} {key!r} in {self.url}: the Hub is for reading only, and a commit never changes. Write or pack to a local directory "
            f"and upload that as one commit: hf upload {name} DIRECTORY{option}"
        )

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _infos(self, method: Callable[..., Any], prefix: str) -> dict[str, dict[str, Any]]:
        """Return what ``method`` of the filesystem lists in the directory ``prefix``, by key."""
        path = f"{self._path}/{prefix}".rstrip("/")
        try:
            found = await asyncio.to_thread(method, path, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as exc:  # noqa: BLE001 - none is lost, but for the chain of one that shows a secret
            raise translated(exc, "listing", prefix, self.url) from shown_cause(exc)
        infos = found.values() if isinstance(found, dict) else found
        start = len(self._path) + 1
        return {info["name"][start:]: info for info in infos if info["name"].startswith(f"{path}/")}

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key, info in sorted((await self._infos(self.hub.find, prefix[: prefix.rfind("/") + 1])).items()):
            if key.startswith(prefix):
                yield ObjectInfo(key, info["size"], self._version_of_all)

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        found = sorted((await self._infos(self.hub.ls, prefix)).items())
        objects = tuple(ObjectInfo(key, info["size"], self._version_of_all) for key, info in found if info["type"] != "directory")
        return DirListing(objects, tuple(f"{key}/" for key, info in found if info["type"] == "directory"))
