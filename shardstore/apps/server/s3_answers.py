"""The read operations of S3 on buckets, in its XML: listings, where a bucket is, and errors. Objects are answered by ``values``.

Specification: Amazon S3 API, ``ListObjectsV2``, ``ListObjects``, ``ListBuckets``, ``HeadBucket``, ``GetBucketLocation``, error responses.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from urllib.parse import parse_qsl, quote
from xml.sax.saxutils import escape

from shardstore.adapters.read_views import ListedName, VersionedValue
from shardstore.apps.server.buckets import Bucket, Listings
from shardstore.apps.server.values import Refusal, shown

MOST_KEYS = 1000

_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_CODES = {
    400: "InvalidArgument",
    401: "AccessDenied",
    403: "InvalidAccessKeyId",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    412: "PreconditionFailed",
    416: "InvalidRange",
    421: "InvalidRequest",
    431: "RequestHeaderSectionTooLarge",
    500: "InternalError",
    501: "NotImplemented",
    502: "ServiceUnavailable",
    503: "SlowDown",
    504: "ServiceUnavailable",
}
_LISTS = frozenset({"list-type", "prefix", "delimiter", "marker", "max-keys", "continuation-token", "start-after", "encoding-type"})
_MEANINGLESS = frozenset({"x-id", "fetch-owner", "token", "allow-unordered"})
_SIGNATURE_2 = frozenset({"AWSAccessKeyId", "Signature", "Expires"})
_SIGNING = "x-amz-"
_MOST_DIGITS = 10  # as many as 2**31 has
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_OBJECT_PARAMETERS = frozenset({"partNumber"})
_REPLY_HEADERS = "response-"  # headers that an answer is to have


def parameters_of(query: bytes) -> dict[str, str]:
    """Return the parameters of a query, decoded once; of one that is given twice, the last. Raises ``Refusal``."""
    try:
        return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="strict"))
    except ValueError as exc:
        raise Refusal(400, "the query is not UTF-8, or has too many parameters") from exc


def names_operation(parameters: Mapping[str, str]) -> bool:
    """Return whether a request for a bucket is an operation of S3 on it, by its query."""
    return any(name not in _MEANINGLESS and name != "after" and name != "format" for name in parameters)


def is_presigned(parameters: Iterable[str]) -> bool:
    """Return whether a request carries a signature in its query, in either version of Amazon's signatures."""
    return any(name in ("AWSAccessKeyId", "Signature") or name.lower() in ("x-amz-credential", "x-amz-signature") for name in parameters)


def _means_nothing(name: str) -> bool:
    return name in _MEANINGLESS or name in _SIGNATURE_2 or name.lower().startswith(_SIGNING)


def check_object(parameters: Mapping[str, str]) -> None:
    """Raise ``Refusal`` if a request for an object asks for more than its bytes: for its tags, an older version and so on."""
    for name in parameters:
        if not _means_nothing(name) and name not in _OBJECT_PARAMETERS and not name.startswith(_REPLY_HEADERS):
            raise _no_operation(name)
    if parameters.get("partNumber", "1") != "1":
        raise Refusal(416, "objects have one part here")


def _no_operation(name: str) -> Refusal:
    return Refusal(501, f"the operation {shown(name)} of S3 is not there: this server reads objects and lists them")


def error(status: int, message: str, resource: str, code: str = "") -> bytes:
    """Return the body of an error; ``code``, if it is not that of the status."""
    code = code or _CODES.get(status, HTTPStatus(status).phrase.replace(" ", ""))
    body = f"<Code>{code}</Code><Message>{escape(_printable(message))}</Message><Resource>{escape(_printable(resource))}</Resource>"
    return f"{_HEAD}<Error>{body}</Error>".encode(errors="replace")


def buckets(names: Iterable[str]) -> bytes:
    """Reply ``ListBuckets``."""
    listed = "".join(f"<Bucket><Name>{name}</Name><CreationDate>1970-01-01T00:00:00.000Z</CreationDate></Bucket>" for name in names)
    return f'{_HEAD}<ListAllMyBucketsResult xmlns="{_XMLNS}"><Buckets>{listed}</Buckets></ListAllMyBucketsResult>'.encode()


@dataclass(slots=True)
class _ListingRequest:
    """What a listing asks for."""

    prefix: str
    delimiter: str
    most: int
    after: str
    token: str | None
    encodes: bool
    is_v2: bool

    @classmethod
    def of(cls, given: Mapping[str, str]) -> _ListingRequest:
        is_v2 = given.get("list-type") == "2"
        if not is_v2 and "list-type" in given:
            raise Refusal(400, "list-type is '2', or not given")
        delimiter = given.get("delimiter", "")
        if delimiter not in ("", "/"):
            raise Refusal(501, f"keys are divided at '/' only, not at {shown(delimiter)}")
        if given.get("encoding-type", "url") != "url":
            raise Refusal(400, "encoding-type is 'url', or not given")
        most = given.get("max-keys", "")
        if most and not (most.isascii() and most.isdecimal() and len(most) <= _MOST_DIGITS):
            raise Refusal(400, f"max-keys {shown(most)} is no number of keys")
        token = given.get("continuation-token") if is_v2 else given.get("marker")
        after = given.get("start-after", "") if is_v2 else token or ""
        if is_v2 and token is not None:
            after = _decoded(token)
        return cls(
            given.get("prefix", ""), delimiter, min(int(most or MOST_KEYS), MOST_KEYS), after, token, "encoding-type" in given, is_v2
        )


def _decoded(token: str) -> str:
    if not token:
        raise Refusal(400, "continuation-token is empty")
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as exc:
        raise Refusal(400, "continuation-token is not from this server") from exc


async def bucket_answer(bucket: Bucket, listings: Listings, parameters: Mapping[str, str]) -> bytes:
    """Reply an operation on a bucket.

    Raises:
        Refusal: it is none that reads, or has a parameter that cannot be right.
        ShardStoreError: the bucket cannot be listed.
    """
    if "location" in parameters:
        return f'{_HEAD}<LocationConstraint xmlns="{_XMLNS}"></LocationConstraint>'.encode()
    unknown = [name for name in parameters if name not in _LISTS and not _means_nothing(name)]
    if unknown:
        raise _no_operation(unknown[0])
    asked = _ListingRequest.of(parameters)
    found, is_truncated = await _entries(bucket, listings, asked)
    unsized = [entry.name for entry in found if not entry.is_prefix and entry.nbytes is None]
    looked_at = await bucket.look_at_each(unsized) if unsized else {}
    return _listing(bucket, asked, found, looked_at, is_truncated)


async def _entries(bucket: Bucket, listings: Listings, asked: _ListingRequest) -> tuple[list[ListedName], bool]:
    goes_on = asked.token is not None
    if not asked.most:
        return [], False
    list_ = listings.at if asked.delimiter else listings.below
    entries: list[ListedName] = []
    walk = list_(bucket, asked.prefix, asked.after, goes_on=goes_on)
    try:
        async for entry in walk:
            if len(entries) == asked.most:
                return entries, True
            entries.append(entry)
    finally:
        await walk.aclose()
    return entries, False


def _listing(
    bucket: Bucket, asked: _ListingRequest, found: list[ListedName], looked_at: Mapping[str, VersionedValue], is_truncated: bool
) -> bytes:
    def text(value: str) -> str:
        return escape(quote(value, safe="/~") if asked.encodes else _printable(value), {"\r": "&#13;"})

    parts = [f"<Name>{bucket.name}</Name><Prefix>{text(asked.prefix)}</Prefix><MaxKeys>{asked.most}</MaxKeys>"]
    parts.append(f"<IsTruncated>{'true' if is_truncated else 'false'}</IsTruncated>")
    if asked.delimiter:
        parts.append(f"<Delimiter>{text(asked.delimiter)}</Delimiter>")
    if asked.encodes:
        parts.append("<EncodingType>url</EncodingType>")
    last = found[-1].name if found else ""
    if asked.is_v2:
        parts.append(f"<KeyCount>{len(found)}</KeyCount>")
        if is_truncated:
            token = base64.b64encode(last.encode(), altchars=b"-_").decode()
            parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
    else:
        parts.append(f"<Marker>{text(asked.after)}</Marker>")
        if is_truncated:
            parts.append(f"<NextMarker>{text(last)}</NextMarker>")
    for entry in found:
        if entry.is_prefix:
            parts.append(f"<CommonPrefixes><Prefix>{text(entry.name)}</Prefix></CommonPrefixes>")
            continue
        if entry.nbytes is not None:
            nbytes, version = entry.nbytes, entry.version
        elif (seen := looked_at.get(entry.name)) is not None:
            nbytes, version = seen.nbytes, seen.version
        else:  # it is gone, or cannot be shown
            continue
        stored = f"{datetime.fromtimestamp(bucket.modified(version), UTC):%Y-%m-%dT%H:%M:%S}.000Z"
        etag = f"<ETag>{escape(bucket.listed_etag(version))}</ETag>"
        parts.append(
            f"<Contents><Key>{text(entry.name)}</Key><LastModified>{stored}</LastModified>{etag}<Size>{nbytes}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    return f'{_HEAD}<ListBucketResult xmlns="{_XMLNS}">{"".join(parts)}</ListBucketResult>'.encode()


def _printable(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
