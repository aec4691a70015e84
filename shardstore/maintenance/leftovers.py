"""Leftovers of writers that died: temporary and lock files on local disks, unfinished multipart uploads on S3."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from shardstore.format.store_keys import join
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers.base import innermost


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The number of leftovers that are old enough, or were until they were removed."""

    files: int = 0
    uploads: int = 0


async def clear_leftovers(storage: Storage, path: str, older_than_hours: float, now: datetime, *, only_count: bool) -> Leftovers:
    """Remove leftovers that are that old; of local files, those in the whole store, and only where ``path`` is empty.

    Raises:
        StorageError: the server does not list unfinished uploads, or failed.
    """
    kind = innermost(storage)
    if isinstance(kind, LocalStorage):
        return Leftovers(files=0 if path else await kind.sweep(older_than_hours * 3600, only_count=only_count))
    if not isinstance(kind, S3Storage):
        return Leftovers()
    count = 0
    async for upload in kind.unfinished_uploads(join(path, "")):
        if now - upload.begun >= timedelta(hours=older_than_hours):
            count += 1
            if not only_count:
                await kind.abort_upload(upload)
    return Leftovers(uploads=count)
