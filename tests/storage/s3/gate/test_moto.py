"""The server that the tests take for S3 keeps to its word: what two clients lose on it, they have lost by themselves."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import s3fs

CLIENTS = 6


def test_of_several_conditional_writes_of_one_version_one_is_taken(
    s3_url: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto by itself looks at the condition, and stores a moment later; here the moment is a long one."""
    from moto.s3.models import S3Backend

    url, options = s3_url
    bucket = url.removeprefix("s3://").partition("/")[0]
    client = s3fs.S3FileSystem(**options)
    before = client.call_s3("put_object", Bucket=bucket, Key="k", Body=b"0")["ETag"]
    original = S3Backend.put_object

    def put_object(*arguments: Any, **named: Any) -> Any:
        time.sleep(0.05)
        return original(*arguments, **named)

    monkeypatch.setattr(S3Backend, "put_object", put_object)
    barrier = Barrier(CLIENTS)

    def write(number: int) -> bool:
        barrier.wait()
        try:
            client.call_s3("put_object", Bucket=bucket, Key="k", Body=b"%d" % number, IfMatch=before)
        except OSError:
            return False
        return True

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(write, range(1, CLIENTS + 1))) == 1
