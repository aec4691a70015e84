"""Objects in S3 and servers that speak its language, through obstore.

Besides reads, it carries writes that fit into one request, and listings below a ``/``. A write carries the id of ``lost_answers``, and
is judged by its rule. obstore's own retries are off: they would take their own success for a conflict.

These go through s3fs: large writes, since obstore has no conditions on them; deletions, copies and probes, where it has none either;
listings by part of a name, which it does not know; and listings that show an empty object. obstore drops the ``/`` at the end of the
marker of a directory, which then looks like an object; such a page is listed again. (A marker that is not empty would be shown as an
object that cannot be read: no tool is known to make those.)

Endpoint, region and credentials are taken from the client that s3fs has made from the options, not read from the options again, by
rules that could differ. So profiles, environments, roles and sessions of the caller mean the same. obstore reads settings of its own
from the environment, under names that botocore does not know. All that matter are given here, and those that cannot be given are
refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from shardstore.errors import Unsupported
from shardstore.model.generation import Condition, Generation
from shardstore.storage.base import DirListing, ObjectInfo, check_directory
from shardstore.storage.obstore.reading import ONCE, Bucket, ObstoreAnswer, ObstoreStorage, client_options, put_object
from shardstore.storage.requests.outcomes import RequestFailed, canonical_etag
from shardstore.storage.requests.writes import Body
from shardstore.storage.s3.client import S3Client
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.s3.upload import put

if TYPE_CHECKING:  # of the stubs only
    from obstore.store import ClientConfig, S3Config, S3Credential

# What s3fs hands to a request only where its operation knows it; these concern reads too.
_OF_READS = frozenset({"ExpectedBucketOwner", "SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5", "ChecksumMode"})
_OF_CLIENT = frozenset(
    {"region_name", "endpoint_url", "use_ssl", "verify", "api_version"}
    | {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
)
_OF_CONFIG = frozenset(
    {"connect_timeout", "read_timeout", "region_name", "s3", "signature_version", "proxies"}
    # Of requests that s3fs makes, or of no consequence.
    | {"max_pool_connections", "retries", "tcp_keepalive", "parameter_validation", "user_agent", "user_agent_extra", "user_agent_appid"}
    | {"request_checksum_calculation", "response_checksum_validation", "connector_args"}
)
_SIGNATURES = frozenset({None, "s3v4", "v4"})
_FOREIGN_SETTINGS = ("AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_")


def check(client: S3Client) -> None:
    """Refuse options that obstore would ignore. Raises ``Unsupported``, which names options and never their values."""
    try:
        _check(client.fs, client.bucket)
    except (AttributeError, TypeError) as exc:  # s3fs finds fault with these too, at its first request
        raise _no("options of other types than it knows") from exc


def _check(fs: Any, bucket: str) -> None:
    if bucket.startswith("arn:"):
        raise _no('access points ("arn:…")')
    if bucket.endswith("--x-s3"):
        raise _no("directory buckets (…--x-s3)")
    given: list[tuple[str, Mapping[str, Any], frozenset[str]]] = [
        ("client_kwargs", fs.client_kwargs, _OF_CLIENT),
        ("config_kwargs", fs.config_kwargs, _OF_CONFIG),
        ("config_kwargs['s3']", fs.config_kwargs.get("s3") or {}, frozenset({"addressing_style", "payload_signing_enabled"})),
    ]
    for where, options, known in given:
        if unknown := sorted(options.keys() - known):
            raise _no(f"{unknown[0]!r} in {where}")
    if unknown := sorted(_OF_READS & fs.s3_additional_kwargs.keys()):
        raise _no(f"{unknown[0]!r} in s3_additional_kwargs")
    signature = fs.config_kwargs.get("signature_version")
    if not _is_unsigned(signature) and signature not in _SIGNATURES:
        raise _no("this signature_version in config_kwargs")
    for name in os.environ:
        if name.upper().startswith(_FOREIGN_SETTINGS):
            raise Unsupported(
                f"{name} in the environment means something to obstore and nothing to s3fs: unset it, or leave transport out for s3fs"
            )


def _no(what: str) -> Unsupported:
    return Unsupported(f"obstore cannot do as well as s3fs with {what}: leave transport out for s3fs")


def _is_unsigned(signature: object) -> bool:
    return type(signature).__name__ == "UNSIGNED"  # botocore's


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a bucket; equal ones open equal buckets."""

    endpoint: str
    region: str
    is_virtual: bool
    pays: bool
    connect_timeout: float | None
    read_timeout: float | None
    proxies: tuple[tuple[str, str], ...]
    """Proxies by the scheme of the requested URL. Without any, those of the environment are used, as by s3fs."""
    verify: str | bool | None
    credential: tuple[str, str, str | None] | None
    """Key, secret and token; ``None``: anonymous access."""

    def __repr__(self) -> str:  # shown in tracebacks: no secrets
        return f"Settings({self.endpoint!r})"


async def current_settings(client: S3Client) -> Settings | None:
    """Return the current settings of s3fs; ``None`` if it has found no credentials, which its own error explains better."""
    fs = client.fs
    await fs.set_session()
    boto = await fs.get_s3(client.bucket)
    config = boto.meta.config
    credential = None
    if not _is_unsigned(config.signature_version):
        found = boto._request_signer._credentials
        if found is None:
            return None
        frozen = await found.get_frozen_credentials()  # new ones where they are about to expire
        credential = frozen.access_key, frozen.secret_key, frozen.token
    return Settings(
        endpoint=str(boto.meta.endpoint_url).rstrip("/"),
        region=boto.meta.region_name if boto.meta.region_name not in (None, "aws-global") else "us-east-1",
        is_virtual=(config.s3 or {}).get("addressing_style") == "virtual",
        pays=bool(fs.req_kw) or fs.s3_additional_kwargs.get("RequestPayer") == "requester",
        connect_timeout=_seconds(config.connect_timeout),
        read_timeout=_seconds(config.read_timeout),
        proxies=tuple(sorted((config.proxies or {}).items())),
        verify=fs.client_kwargs.get("verify", fs.session.get_config_variable("ca_bundle")),
        credential=credential,
    )


def _seconds(timeout: object) -> float | None:
    return float(timeout) if isinstance(timeout, int | float) else None


def opened(bucket: str, settings: Settings) -> S3Store:
    """Return the bucket as obstore opens it. Raises obstore's exception if it cannot."""
    endpoint = settings.endpoint
    if settings.is_virtual:
        parts = urlsplit(endpoint)
        endpoint = f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}"
    config: S3Config = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,  # of which the environment would win over "endpoint"
        "region": settings.region,
        "virtual_hosted_style_request": settings.is_virtual,
        "request_payer": settings.pays,
        "skip_signature": settings.credential is None,
        "unsigned_payload": False,  # the server holds what it got against the signature
        "s3_express": False,
        "conditional_put": "etag",
    }
    return S3Store(
        bucket,
        config=config,
        client_options=_client_options(settings),
        retry_config=ONCE,
        credential_provider=None if settings.credential is None else _provider(*settings.credential),
    )


def _client_options(settings: Settings) -> ClientConfig:
    options = client_options(settings.endpoint, settings.connect_timeout, settings.read_timeout)
    if settings.verify is False:
        options["allow_invalid_certificates"] = True
    elif isinstance(settings.verify, str):  # trusted besides the system's
        with open(settings.verify, "rb") as file:
            options["root_certificate"] = file.read()
    if settings.proxies:
        scheme = urlsplit(settings.endpoint).scheme
        proxy = dict(settings.proxies).get(scheme)
        if not proxy:
            raise _no(f"proxies without one for {scheme}://")
        options["proxy_url"] = proxy
    return options


def _provider(key: str, secret: str, token: str | None) -> Any:
    """Return the provider of the credentials. As settings of the store they would be completed from the environment, for example with
    another account's token.
    """

    def provide() -> S3Credential:
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}

    return provide


logger = logging.getLogger(__name__)


class ObstoreS3Storage(ObstoreStorage[S3Storage]):
    """The place of an ``S3Storage``, used through obstore. Options that obstore would ignore are refused."""

    def __init__(self, inner: S3Storage, is_asked: bool = True) -> None:
        check(inner.client)
        super().__init__(inner, is_asked)
        self.keys_per_page = 1000
        self._settings: Settings | None = None

    async def bucket(self) -> Bucket | None:
        if self.is_left_out():
            return None
        try:
            settings = await current_settings(self.inner.client)
            if settings != self._settings:  # credentials have been renewed
                self._bucket = None if settings is None else opened(self.inner.client.bucket, settings)
                self._settings = settings
        except Exception as exc:  # noqa: BLE001 - none is lost: s3fs asks then, and says where it cannot either
            self.leave_out(exc)
            return None
        return self._bucket

    def version_of(self, answer: ObstoreAnswer) -> Generation | None:
        return Generation(canonical_etag(answer.etag), answer.modified) if answer.etag else None

    def condition_on(self, generation: Generation) -> str | None:
        return None if generation.token.startswith("W/") else generation.token  # a weak one never matches

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
        inner = self.inner
        needs_s3fs = inner.client.fs.s3_additional_kwargs  # which it alone sends along, such as encryption, tags and access rights
        if nbytes > inner.part_bytes or needs_s3fs or await self.bucket() is None:
            return await inner.write(key, body, nbytes, condition)
        condition = await inner.checked(key, condition)

        async def send(Body: bytes, Metadata: dict[str, str], **conditions: str) -> dict[str, Any]:  # noqa: N803 - PutObject's names
            return await self._put(key, Body, Metadata, conditions)

        try:
            return await put(inner.client, key, body, nbytes, condition, send)
        finally:
            inner.client.forget_listing(key)

    async def _put(self, key: str, data: bytes, metadata: dict[str, str], conditions: dict[str, str]) -> dict[str, Any]:
        """Store an object by one request. Where it is refused for a reason other than the condition or the load, nothing is stored, and
        s3fs asks again.
        """
        client = self.inner.client
        mode: obstore.PutMode = "overwrite"
        if "IfNoneMatch" in conditions:
            mode = "create"
        elif "IfMatch" in conditions:
            mode = {"e_tag": conditions["IfMatch"]}
        if (bucket := await self.bucket()) is not None:
            try:
                async with client.bound.slot():
                    return {"ETag": await put_object(bucket, client.full_key(key), data, mode, metadata)}
            except RequestFailed as exc:
                is_refused = (exc.is_absent or exc.status == 412) and bool(conditions)
                if is_refused or exc.is_busy or exc.is_lost:
                    raise
                self.heed(exc)
        return await client.call("put_object", "writing", key, Body=data, Metadata=metadata, **conditions)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        directory = self._directory(prefix)
        bucket = None if directory is None else await self.bucket()
        last: str | None = None
        if bucket is not None:
            try:
                async for page in bucket.list(directory, chunk_size=self.keys_per_page):
                    infos = self._infos(page)
                    if infos is None:
                        break
                    for info in infos:
                        yield info
                        last = info.key
                else:
                    return
            except (BaseError, OSError, ValueError) as exc:
                logger.debug("listing %s below %r goes on through s3fs: %s", self.url, prefix, exc)
            self.asked_below += 1
        async for info in self.inner.list(prefix, last):
            yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        directory = self._directory(prefix)
        bucket = None if directory is None else await self.bucket()
        if bucket is not None:
            infos: Sequence[ObjectInfo] | None = None
            try:
                async with self.inner.client.bound.slot():
                    found = await bucket.list_with_delimiter_async(directory)
                infos = self._infos(found["objects"])
            except (BaseError, OSError, ValueError) as exc:
                logger.debug("listing %s at %r goes on through s3fs: %s", self.url, prefix, exc)
            if infos is not None:
                own = self.inner.client.own_key
                return DirListing(tuple(infos), tuple(own(name) + "/" for name in found["common_prefixes"]))
            self.asked_below += 1
        return await self.inner.list_dir(prefix)

    def _directory(self, prefix: str) -> str | None:
        """Return ``prefix`` in obstore's form, without the ``/`` at its end; ``None`` if it has none."""
        full = self.inner.client.full_key(prefix)
        return full.removesuffix("/") if not full or full.endswith("/") else None

    def _infos(self, page: Iterable[obstore.ObjectMeta]) -> Sequence[ObjectInfo] | None:
        """Return the objects on a page; ``None`` if the page may show more than objects, or does not give their versions."""
        own = self.inner.client.own_key
        infos: list[ObjectInfo] = []
        for meta in page:
            if not meta["size"] or not meta["e_tag"]:
                return None
            version = Generation(canonical_etag(meta["e_tag"]), meta["last_modified"].timestamp())
            infos.append(ObjectInfo(own(meta["path"]), meta["size"], version))
        return infos
