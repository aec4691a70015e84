"""The answers that clients of object stores give about an object, and about a request that failed."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from shardstore.errors import StorageError
from shardstore.model.generation import Generation
from shardstore.storage.base import ServerTimes

WRITE_ID = "shardstore-write-id"
"""Name, in an object's user metadata, of the id of the write that made it."""

PROBE_PREFIX = ".shardstore-probe-"
"""The prefix of the names of empty objects that find out what a server honours; one is left if its process dies before it is removed."""


def probe_key() -> str:
    """Return a new name of such an object."""
    return f"{PROBE_PREFIX}{uuid.uuid4().hex}"


class RequestFailed(StorageError):
    """A request that the server refused, or whose answer did not come (``status`` is ``None`` then)."""

    status: int | None = None
    code: str = ""
    is_unreachable: bool = False

    @property
    def is_absent(self) -> bool:
        """True if the server says that there is no such object, or not in the version that the request names."""
        return self.status == 404 and self.code != "NoSuchBucket"

    @property
    def is_lost(self) -> bool:
        """True if the answer never came, or does not show if the request was carried out."""
        return self.status is None or self.status == 408 or (self.status >= 500 and self.status != 501)

    @property
    def is_busy(self) -> bool:
        """True if the server did nothing, and asks to try again: another request was running, or there were too many."""
        return self.status in (409, 429)


@dataclass(frozen=True, slots=True)
class Head:
    """The version and size that a look at an object shows."""

    generation: Generation
    nbytes: int
    write_id: str | None


def server_times(last_modified: str | None, date: str | None) -> ServerTimes | None:
    """Return the times in the headers of an answer (RFC 9110, sections 6.6.1 and 8.8.2); ``None`` if they have none."""
    try:
        return ServerTimes(parsedate_to_datetime(last_modified or "").timestamp(), parsedate_to_datetime(date or "").timestamp())
    except ValueError:
        return None
