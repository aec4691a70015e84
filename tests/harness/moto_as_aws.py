"""moto with what it leaves out: conditions on completed uploads and on copied parts, decided and carried out in one step.

To be used in the process of the server only: it changes moto itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


def take_small_parts(nbytes: int) -> None:
    """Before moto is imported: parts may be as short as ``nbytes``."""
    os.environ["S3_UPLOAD_PART_MIN_SIZE"] = str(nbytes)
    os.environ["MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"] = str(5 << 20)


def _check(found: Any, wanted: str | None, name: str) -> None:
    from moto.s3.exceptions import MissingKey, PreconditionFailed

    if wanted is None:
        return
    if found is None:
        raise MissingKey
    if wanted.strip('"') != found.etag.strip('"'):
        raise PreconditionFailed(name)


def _check_completion(server: Any, bucket: str, key: str, query: dict[str, Any]) -> None:
    if not query.get("uploadId"):
        return
    found = server.backend.get_object(bucket, key)
    if found is not None and found.multipart and found.multipart.id == query["uploadId"][0]:
        return  # asked again: answered as the first time
    server.backend.get_bucket(bucket).multiparts[query["uploadId"][0]]  # NoSuchUpload comes before all conditions
    _check(found, server.headers.get("If-Match"), "If-Match")


def _check_copy(server: Any) -> None:
    bucket, _, key = server.headers["x-amz-copy-source"].lstrip("/").partition("/")
    found = server.backend.get_object(bucket, key)
    _check(found, server.headers.get("x-amz-copy-source-if-match"), "x-amz-copy-source-If-Match")


_changing = threading.RLock()


def _before(name: str, check: Callable[..., None]) -> None:
    from moto.s3.responses import S3Response

    original = getattr(S3Response, name)

    def method(server: Any, *arguments: Any) -> Any:
        with _changing:
            check(server, *arguments)
            return original(server, *arguments)

    setattr(S3Response, name, method)


def make_conditions_hold() -> None:
    """Requests that change an object come one after the other.

    moto answers each in a thread, and looks at the condition of a PUT before it stores: of two at a time for one ETag it may take both.
    """
    for name in ("put_object", "delete_object"):
        _before(name, lambda *_: None)


def behave_as_aws() -> None:
    """Requests that change an object come one after the other, and their conditions hold when they are carried out."""
    make_conditions_hold()
    _before("upload_part_copy", _check_copy)
    _before("_key_response_post", lambda server, _request, _body, bucket, query, key: _check_completion(server, bucket, key, query))
