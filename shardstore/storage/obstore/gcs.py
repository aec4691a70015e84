"""Objects in Google Cloud Storage, read through obstore.

obstore speaks GCS's XML interface, where every answer to a read gives the object's generation: the same number that gcsfs's JSON shows.
A read of one version is not conditional there: ``If-Match`` takes an ETag, which says nothing of a generation, and ``generation=``
would serve, from a bucket that keeps old versions, one that was replaced or deleted long ago. Instead the answer's generation is
compared.

Everything else goes through gcsfs: obstore's listings show no generations; its uploads carry no checksum, which GCS compares otherwise,
and ask for credentials where there are none; its deletions and copies have no conditions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from obstore.store import GCSStore

from shardstore.errors import Unsupported
from shardstore.model.generation import Generation
from shardstore.storage.gcs.client import GCSClient
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.obstore.reading import ONCE, Bucket, ObstoreAnswer, ObstoreStorage, client_options

if TYPE_CHECKING:  # of the stubs only
    from obstore.store import GCSConfig, GCSCredential

_PAYER = "x-goog-user-project"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a bucket; equal ones open equal buckets."""

    endpoint: str
    bearer: str | None
    """The token; ``None``: anonymous access."""
    headers: tuple[tuple[str, str], ...]
    """Further headers of every request, such as the project that pays."""

    def __repr__(self) -> str:  # shown in tracebacks: no secrets
        return f"Settings({self.endpoint!r})"


def check(client: GCSClient) -> None:
    """Refuse options that obstore would ignore. Raises ``Unsupported``, which names options and never their values."""
    fs = client.fs
    if fs.session_kwargs:
        raise _no("session_kwargs")
    if getattr(fs, "_use_client_cert", False):
        raise _no("a client certificate")


def _no(what: str) -> Unsupported:
    return Unsupported(f"obstore cannot do as well as gcsfs with {what}: leave transport out, and requests go through gcsfs")


def current_settings(client: GCSClient) -> Settings:
    """Return the current settings of gcsfs. It renews credentials that are about to expire, as before its own requests."""
    fs = client.fs
    headers: dict[str, str] = {}
    fs.credentials.apply(headers)
    bearer = headers.pop("authorization", None)
    if fs.requester_pays:
        headers[_PAYER] = fs.requester_pays if isinstance(fs.requester_pays, str) else fs.project
    return Settings(client.endpoint, None if bearer is None else bearer.removeprefix("Bearer "), tuple(sorted(headers.items())))


def opened(bucket: str, settings: Settings) -> GCSStore:
    """Return the bucket as obstore opens it. Raises obstore's exception if it cannot."""
    options = client_options(settings.endpoint, None, None)
    options["default_headers"] = dict(settings.headers)
    config: GCSConfig = {"base_url": settings.endpoint.rstrip("/"), "skip_signature": settings.bearer is None}
    return GCSStore(bucket, config=config, client_options=options, retry_config=ONCE, credential_provider=_provider(settings.bearer or ""))


def _provider(bearer: str) -> Any:
    """Return the provider of the token. Anonymous buckets get one too, which is never called: otherwise obstore would look for credentials
    in the environment.
    """

    def provide() -> GCSCredential:
        return {"token": bearer, "expires_at": None}

    return provide


class ObstoreGCSStorage(ObstoreStorage[GCSStorage]):
    """The place of a ``GCSStorage``, read through obstore. Options that obstore would ignore are refused."""

    def __init__(self, inner: GCSStorage, is_asked: bool = True) -> None:
        check(inner.client)
        super().__init__(inner, is_asked)
        self._settings: Settings | None = None

    async def bucket(self) -> Bucket | None:
        if self.is_left_out():
            return None
        try:
            settings = current_settings(self.inner.client)
            if self._bucket is None or settings != self._settings:
                self._bucket, self._settings = opened(self.inner.client.bucket, settings), settings
        except Exception as exc:  # noqa: BLE001 - none is lost: gcsfs asks then, and says where it cannot either
            self.leave_out(exc)
            return None
        return self._bucket

    def version_of(self, answer: ObstoreAnswer) -> Generation | None:
        return Generation(answer.version, answer.modified) if answer.version else None

    def condition_on(self, generation: Generation) -> str | None:
        return None
