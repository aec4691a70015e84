"""Blobs in Azure Blob Storage, read through obstore, which also carries writes that fit into one request.

obstore refuses suffix ranges, which Azure does not know: the end of a blob is asked for by its size, as in the storage below.

These go through the client of adlfs: large writes, appends and copies, which are lists of blocks; deletions and probes, where obstore has
no conditions; listings, since obstore does not show which entries are markers of directories, and could not go on where it stopped; and
empty blobs, for the same reason: a marker is one.

The settings are those of the client that adlfs has made. It keeps a token of Microsoft Entra ID, and renews it, as for its own requests.
obstore reads settings from the environment too, under names of which adlfs knows some: all that matter are given here, or refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from obstore.store import AzureStore

from shardstore.errors import Unsupported
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRequest, ByteSuffix
from shardstore.storage.azure.blocks import put, send_blob
from shardstore.storage.azure.client import CONDITION_CODES, METADATA, WRITE_ID_HEADER, AzureAnswer, AzureClient
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.obstore.reading import ONCE, Bucket, ObstoreAnswer, ObstoreStorage, client_options, put_mode, put_object
from shardstore.storage.requests.outcomes import RequestFailed, canonical_etag, etag_condition
from shardstore.storage.requests.ranged_reads import RangeOutcome, RangePart
from shardstore.storage.requests.writes import Body

if TYPE_CHECKING:  # of the stubs only
    from obstore.store import AzureConfig

_FOREIGN_SETTING = "ENCRYPTION_KEY"  # of the customer, with each request


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """The settings of a container; equal ones open equal containers."""

    endpoint: str
    account: str
    connect_timeout: float
    read_timeout: float
    credential: tuple[str, str] | None
    """What it is, in obstore's words: ``access_key``, ``sas_token`` or ``token``; and its text. ``None``: anonymous access."""

    def __repr__(self) -> str:  # shown in tracebacks: no secrets
        return f"ContainerSettings({self.endpoint!r})"


def check(client: AzureClient) -> None:
    """Refuse options that obstore would ignore. Raises ``Unsupported``, which names options and never their values."""
    service = client.fs.service_client
    try:
        transport = service._pipeline._transport
        is_plain = transport._session_owner and transport._use_env_settings and not service._config.proxy_policy.proxies
        is_plain = is_plain and transport.connection_config.verify is True and transport.connection_config.cert is None
        at_primary = service.location_mode == "primary"
    except AttributeError as exc:
        raise _no("a client of a form that is not known") from exc
    if not is_plain:
        raise _no("a session, a proxy or certificates of its client")
    if not at_primary:
        raise _no("location_mode")
    if service.credential is not None and "?" in service.url:
        raise _no("a signature in the address, and a credential besides")
    for name in os.environ:
        if name.upper().startswith("AZURE_") and name.upper().endswith(_FOREIGN_SETTING):
            raise Unsupported(
                f"{name} in the environment means something to obstore and nothing to adlfs: unset it, or leave transport out for adlfs"
            )


def _no(what: str) -> Unsupported:
    return Unsupported(f"obstore cannot do as well as adlfs with {what}: leave transport out, and requests go through adlfs")


async def current_settings(client: AzureClient) -> ContainerSettings:
    """Return the current settings of the client of adlfs."""
    service = client.fs.service_client
    config = service._pipeline._transport.connection_config
    return ContainerSettings(
        client.endpoint, service.account_name or "unnamed", config.timeout, config.read_timeout, await _credential(service)
    )


async def _credential(service: Any) -> tuple[str, str] | None:
    given = service.credential
    if given is None:
        signature = service.url.partition("?")[2]
        return ("sas_token", signature) if signature else None
    if hasattr(given, "account_key"):
        return "access_key", given.account_key
    if hasattr(given, "signature"):
        return "sas_token", given.signature
    # The policy that signs the client's own requests has the token for the right scope and tenant, and renews it in time.
    request = import_module("azure.core.rest").HttpRequest("GET", service.url)
    pipeline = import_module("azure.core.pipeline")
    await service._credential_policy.on_request(pipeline.PipelineRequest(request, pipeline.PipelineContext(None)))
    return "token", request.headers["Authorization"].removeprefix("Bearer ")


def opened(container: str, settings: ContainerSettings) -> AzureStore:
    """Return the container as obstore opens it. Raises obstore's exception if it cannot."""
    config: AzureConfig = {
        "endpoint": settings.endpoint,
        "account_name": settings.account,
        "use_emulator": False,
        "skip_signature": settings.credential is None,
    }
    return AzureStore(
        container,
        config=config,
        client_options=client_options(settings.endpoint, settings.connect_timeout, settings.read_timeout),
        retry_config=ONCE,
        credential_provider=_provider(*(settings.credential or ("token", ""))),
    )


def _provider(kind: str, text: str) -> Any:
    """Return the provider of the credential. For anonymous access it is never called: without one, obstore would look for credentials in
    the environment.
    """

    def provide() -> dict[str, object]:
        return {kind: text, "expires_at": None}

    return provide


class ObstoreAzureStorage(ObstoreStorage[AzureStorage]):
    """The place of an ``AzureStorage``, used through obstore. Options that obstore would ignore are refused."""

    absent_code = "BlobNotFound"

    def __init__(self, inner: AzureStorage, is_asked: bool = True) -> None:
        check(inner.client)
        super().__init__(inner, is_asked)
        self._settings: ContainerSettings | None = None

    async def bucket(self) -> Bucket | None:
        if self.is_left_out():
            return None
        try:
            settings = await current_settings(self.inner.client)
            if self._bucket is None or settings != self._settings:
                self._bucket, self._settings = opened(self.inner.client.bucket, settings), settings
        except Exception as exc:  # noqa: BLE001 - none is lost: the client of adlfs asks then, and says where it cannot either
            self.leave_out(exc)
            return None
        return self._bucket

    def version_of(self, answer: ObstoreAnswer) -> Generation | None:
        return Generation(canonical_etag(answer.etag), answer.modified) if answer.etag and answer.nbytes else None

    def condition_on(self, generation: Generation) -> str | None:
        return etag_condition(generation)

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        if isinstance(request, ByteSuffix):
            return await self.inner.get_suffix(self, key, request, generation)
        outcome = await super().get(key, request, generation, most_nbytes)
        if isinstance(outcome, RangePart):
            self.inner.remember(key, outcome.generation, outcome.nbytes)
        return outcome

    async def write(self, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
        inner = self.inner
        if nbytes > inner.part_bytes or await self.bucket() is None:
            return await inner.write(key, body, nbytes, condition)
        condition = await inner.checked(key, condition)
        try:
            stored = await put(inner.client, key, body, nbytes, condition, partial(self._send, key))
        finally:
            inner.client.forget_listing(key)
        inner.remember(key, stored, nbytes)
        return stored

    async def _send(self, key: str, data: bytes, headers: Mapping[str, str]) -> AzureAnswer:
        """Store a blob by one request. Where it is refused for a reason other than the condition, nothing is stored, and it is sent again
        through the client of adlfs.
        """
        client = self.inner.client
        if (bucket := await self.bucket()) is not None:
            mode = put_mode({name.replace("-", ""): text for name, text in headers.items()})
            metadata = {WRITE_ID_HEADER.removeprefix(METADATA): headers[WRITE_ID_HEADER]}
            try:
                async with client.bound.slot():
                    etag = await put_object(bucket, client.full_key(key), data, mode, metadata)
                return AzureAnswer(201, {"ETag": etag} if etag else {}, b"")
            except RequestFailed as exc:
                if exc.code in CONDITION_CODES:
                    exc.status = 412
                    raise
                if exc.is_lost:
                    raise
                self.heed(exc)
        return await send_blob(client, key, data, headers)
