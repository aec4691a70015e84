"""The bucket that a path of S3 or GCS begins with."""

from __future__ import annotations

from shardstore.errors import InvalidInput


def split_bucket(path: str, scheme: str) -> tuple[str, str]:
    """Bucket and prefix of ``bucket/prefix``, for a URL of ``scheme``.

    Raises:
        InvalidInput: there is no bucket, or credentials are before its name; the message does not repeat them.
    """
    bucket, _, prefix = path.partition("/")
    if not bucket:
        raise InvalidInput(f"'{scheme}://{path}' names no bucket: give {scheme}://BUCKET/PATH")
    # No bucket's name has either; an access point's address, which begins with "arn:", has colons.
    if "@" in bucket or (":" in bucket and not bucket.startswith("arn:")):
        raise InvalidInput(f"a URL of {scheme}:// begins with the bucket: credentials go into storage_options, not into the URL")
    return bucket, prefix
