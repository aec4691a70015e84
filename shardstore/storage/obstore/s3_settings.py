"""The settings of a bucket on S3 for obstore, taken from the user's s3fs instance.

Profiles, environments, roles and sessions of the caller mean the same as for s3fs. Once it has made its client, which takes 0.1 to 0.3
seconds, the settings are those of the client. Before, they are worked out from the options and the session of botocore, which finds the
region, the endpoint and the credentials for the client too; but only where the result is certainly the same. Else the client is made.

obstore reads settings of its own from the environment, under names that botocore does not know. All that matter are given here, and those
that cannot be given are refused.
"""

from __future__ import annotations

import copy
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.store import S3Store

from shardstore.errors import Unsupported
from shardstore.storage.obstore.reading import ONCE, client_options
from shardstore.storage.s3.client import S3Client

if TYPE_CHECKING:  # of the stubs only
    from obstore.store import ClientConfig, S3Config, S3Credential

logger = logging.getLogger(__name__)

# What s3fs hands to a request only where its operation knows it; these concern reads too.
_OF_READS = frozenset({"ExpectedBucketOwner", "SSECustomerAlgorithm", "SSECustomerKey", "SSECustomerKeyMD5", "ChecksumMode"})
_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_OF_CLIENT = frozenset({"region_name", "endpoint_url", "use_ssl", "verify", "api_version", *_CREDENTIALS})
_OF_CONFIG = frozenset(
    {"connect_timeout", "read_timeout", "region_name", "s3", "signature_version", "proxies"}
    # Of requests that s3fs makes, or of no consequence.
    | {"max_pool_connections", "retries", "tcp_keepalive", "parameter_validation", "user_agent", "user_agent_extra", "user_agent_appid"}
    | {"request_checksum_calculation", "response_checksum_validation", "connector_args"}
)
_OF_S3 = frozenset({"addressing_style", "payload_signing_enabled"})
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
        ("config_kwargs['s3']", fs.config_kwargs.get("s3") or {}, _OF_S3),
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
    return Unsupported(f"obstore cannot do as well as s3fs with {what}: leave transport out, and requests go through s3fs")


def _is_unsigned(signature: object) -> bool:
    return type(signature).__name__ == "UNSIGNED"  # botocore's


@dataclass(frozen=True, slots=True)
class S3Settings:
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
        return f"S3Settings({self.endpoint!r})"


@dataclass(frozen=True, slots=True)
class _Source:
    """Settings, with what they were taken from: the session or the client of s3fs, and botocore's credentials, which renew themselves."""

    taken_from: object
    settings: S3Settings
    is_anonymous: bool
    credentials: Any


class S3SettingsReader:
    """The settings of an s3fs instance as they are for the next request."""

    def __init__(self, client: S3Client) -> None:
        self._client = client
        self._source: _Source | None = None

    async def current(self) -> S3Settings | None:
        """Return the settings; ``None`` if s3fs has found no credentials, which its own error explains better."""
        source = self._source = await self._current_source()
        if source.is_anonymous:
            return source.settings
        if source.credentials is None:
            return None
        frozen = await source.credentials.get_frozen_credentials()  # new ones where they are about to expire
        return replace(source.settings, credential=(frozen.access_key, frozen.secret_key, frozen.token))

    async def _current_source(self) -> _Source:
        fs, known = self._client.fs, self._source
        if fs._s3 is None:
            if known is not None and known.taken_from is fs.session:
                return known
            if (found := await _without_client(fs)) is not None:
                return found
        await fs.set_session()
        boto = await fs.get_s3(self._client.bucket)
        return known if known is not None and known.taken_from is boto else _from_client(fs, boto)


def _from_client(fs: Any, boto: Any) -> _Source:
    config = boto.meta.config
    settings = S3Settings(
        endpoint=str(boto.meta.endpoint_url).rstrip("/"),
        region=boto.meta.region_name if boto.meta.region_name not in (None, "aws-global") else "us-east-1",
        is_virtual=(config.s3 or {}).get("addressing_style") == "virtual",
        pays=_pays(fs),
        connect_timeout=_seconds(config.connect_timeout),
        read_timeout=_seconds(config.read_timeout),
        proxies=tuple(sorted((config.proxies or {}).items())),
        verify=_verify(fs),
        credential=None,
    )
    return _Source(boto, settings, _is_unsigned(config.signature_version), boto._request_signer._credentials)


def _pays(fs: Any) -> bool:
    return bool(fs.req_kw) or fs.s3_additional_kwargs.get("RequestPayer") == "requester"


def _seconds(timeout: object) -> float | None:
    return float(timeout) if isinstance(timeout, int | float) else None


def _verify(fs: Any) -> Any:
    return fs.client_kwargs.get("verify", fs.session.get_config_variable("ca_bundle"))


# -- without a client --------------------------------------------------------------------------------------------------

# Of the section ``s3`` of a profile; the rest of these are of the AWS command line.
_KNOWN_IN_PROFILE = _OF_S3 | {*("max_concurrent_requests", "max_queue_size", "multipart_threshold", "multipart_chunksize", "max_bandwidth")}
_NOT_TO_BE_SET = ("use_fips_endpoint", "use_dualstack_endpoint", "auth_scheme_preference")
_REGION_OF_AWS = re.compile(r"(?:us|eu|ap|sa|ca|me|af|il|mx)-(?!(?:iso|isob|isof|isoe|gov)-)[a-z]+-\d")
"""Regions of the partition ``aws``, whose servers all have names of one form."""


async def _without_client(fs: Any) -> _Source | None:
    """Return the settings that the client of s3fs would have; ``None`` if that is not certain."""
    try:
        return await _worked_out(fs)
    except Exception as exc:  # noqa: BLE001 - none is lost: making the client raises it too, and s3fs says what it means
        logger.debug("the client of s3fs is made for its settings: %s", type(exc).__name__)
        return None


async def _worked_out(fs: Any) -> _Source | None:
    session = _own_session(fs)
    if session is None or not _is_plain(fs, session):
        return None
    config = fs.config_kwargs
    given = _given(fs)
    in_profile = session.get_config_variable("s3") or {}
    region = session._resolve_region_name(given.get("region_name", config.get("region_name")), None)
    endpoint = given.get("endpoint_url") or _configured_endpoint(session) or _endpoint_of_aws(region, in_profile)
    timeouts = [_seconds(config.get(name, getattr(fs, name))) for name in ("connect_timeout", "read_timeout")]
    if endpoint is None or urlsplit(endpoint).scheme not in ("http", "https") or None in timeouts:
        return None
    settings = S3Settings(
        endpoint=endpoint.rstrip("/"),
        region=region or "us-east-1",
        is_virtual={**in_profile, **(config.get("s3") or {})}.get("addressing_style") == "virtual",
        pays=_pays(fs),
        connect_timeout=timeouts[0],
        read_timeout=timeouts[1],
        proxies=tuple(sorted((config.get("proxies") or {}).items())),
        verify=_verify(fs),
        credential=None,
    )
    key, secret, token = (given.get(name) for name in _CREDENTIALS)
    if fs.anon or _is_unsigned(config.get("signature_version")):
        return _Source(session, settings, True, None)
    if key is None and secret is None:
        return _Source(session, settings, False, await session.get_credentials())
    are_texts = isinstance(key, str) and isinstance(secret, str) and isinstance(token, str | None)
    return _Source(session, settings, False, _Fixed(key, secret, token)) if are_texts and key and secret else None


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Credentials that were given, and do not change. The names are botocore's."""

    access_key: str
    secret_key: str
    token: str | None

    async def get_frozen_credentials(self) -> _Fixed:
        return self


def _own_session(fs: Any) -> Any:
    """Return the session of s3fs's own making, which it takes over; ``None`` if the user has given one, or an unusual one is needed."""
    if fs.storage_args or fs.storage_options.get("session") is not None or fs.kwargs.keys() - {"profile"}:
        return None
    if fs.session is None and (module := sys.modules.get("aiobotocore.session")) is not None:
        fs.session = module.AioSession(**fs.kwargs)
    return fs.session


def _is_plain(fs: Any, session: Any) -> bool:
    """Return whether nothing is set that changes where requests go, or how they are signed, by rules that are not followed here."""
    in_profile = session.get_scoped_config().get("s3") or {}
    return (
        not fs.cache_regions
        and fs.use_ssl is True
        and fs.client_kwargs.get("use_ssl", True) is True
        and session.get_default_client_config() is None
        and session.get_config_variable("defaults_mode") in (None, "legacy")
        and not any(session.get_config_variable(name) for name in _NOT_TO_BE_SET)
        and isinstance(in_profile, Mapping)
        and in_profile.keys() <= _KNOWN_IN_PROFILE
    )


def _given(fs: Any) -> dict[str, Any]:
    """Return what s3fs gives to its client. Raises ``TypeError`` as it does, if something is given twice."""
    of_fs = dict(zip((*_CREDENTIALS, "endpoint_url"), (fs.key, fs.secret, fs.token, fs.endpoint_url), strict=True))
    given = {name: value for name, value in of_fs.items() if value is not None and value != fs.client_kwargs.get(name)}
    return dict(**given, **fs.client_kwargs)


def _configured_endpoint(session: Any) -> str | None:
    """Return the endpoint in the environment or in the configuration files, by botocore's own rules."""
    store = copy.copy(session.get_component("config_store"))
    session._add_configured_endpoint_provider(client_name="s3", config_store=store)
    if store.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    found: str | None = store.get_config_variable("endpoint_url")
    return found


def _endpoint_of_aws(region: str | None, in_profile: Mapping[str, Any]) -> str | None:
    regional = in_profile.get("us_east_1_regional_endpoint") not in (None, "legacy")
    if region in (None, "us-east-1") and not regional:
        return "https://s3.amazonaws.com"
    return f"https://s3.{region}.amazonaws.com" if region is not None and _REGION_OF_AWS.fullmatch(region) else None


# -- the bucket of obstore ---------------------------------------------------------------------------------------------


def opened(bucket: str, settings: S3Settings, headers: Mapping[str, str] | None = None) -> S3Store:
    """Return the bucket as obstore opens it; ``headers`` go with each of its requests. Raises obstore's exception if it cannot."""
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
        "disable_bulk_delete": True,
    }
    options = _client_options(settings)
    if headers:
        options["default_headers"] = dict(headers)
    return S3Store(
        bucket,
        config=config,
        client_options=options,
        retry_config=ONCE,
        credential_provider=None if settings.credential is None else _provider(*settings.credential),
    )


def _client_options(settings: S3Settings) -> ClientConfig:
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
