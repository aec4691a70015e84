"""The settings that obstore takes over from the client of adlfs, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import adlfs
import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential

from shardstore.errors import AccessDenied, Unsupported
from shardstore.opening.open import open_storage
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.obstore.azure import ContainerSettings, ObstoreAzureStorage, current_settings, opened
from shardstore.storage.obstore.reading import get_head
from shardstore.storage.requests.outcomes import RequestFailed
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness.azurite import ACCOUNT, KEY, connection_string, signed_connection_string
from tests.harness.misbehaving_server import MisbehavingServer
from tests.storage.obstore.obstore_proxied import OURS, Proxied, Url, proxied

pytestmark = pytest.mark.usefixtures("fresh_facts")

NOT_OURS = {
    "AZURE_STORAGE_ACCOUNT_NAME": "other",
    "AZURE_STORAGE_ACCOUNT_KEY": "b3RoZXI=",
    "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=other",
    "AZURE_STORAGE_TOKEN": "other",
    "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1",
    "AZURE_CONTAINER_NAME": "other",
    "AZURE_SKIP_SIGNATURE": "true",
    "AZURE_STORAGE_USE_EMULATOR": "true",
    "AZURE_USE_FABRIC_ENDPOINT": "true",
    "AZURE_USE_AZURE_CLI": "true",
    "AZURE_CREDENTIAL_TYPE": "azure_cli",
    "AZURE_PROXY_URL": "http://127.0.0.1:2",
}
"""ContainerSettings that obstore would take from the environment, where it is not given others."""


@pytest.fixture
def server(azure_endpoint: str) -> Iterator[MisbehavingServer]:
    with MisbehavingServer(azure_endpoint.removesuffix(f"/{ACCOUNT}")) as server:
        yield server


@pytest.fixture
def account(server: MisbehavingServer) -> str:
    return f"{server.url}/{ACCOUNT}"


def with_credential(account: str, credential: Any) -> adlfs.AzureBlobFileSystem:
    """An adlfs instance whose account has an address without TLS, which its options cannot say."""
    fs = adlfs.AzureBlobFileSystem(account_name=ACCOUNT, anon=True, skip_instance_cache=True)
    fs.service_client = type(fs.service_client)(account, credential=credential)
    return fs


def put_and_get(place: Proxied) -> list[Any]:
    """Requests of one write and one read, all by obstore."""
    place.s.put("a ä+%?#&=", b"1")
    assert place.s.get("a ä+%?#&=") == b"1"
    requests = list(place.server.requests)
    assert place.sent() == [("PUT", OURS), ("GET", OURS)]
    assert place.storage.asked_below == 0
    return requests


def test_key_of_a_connection_string(azure_url: Url, server: MisbehavingServer, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = proxied(server, (azure_url[0], {"connection_string": connection_string(account)}))
    for name, text in NOT_OURS.items():
        monkeypatch.setenv(name, text)
    for request in put_and_get(place):
        assert (request.header("Authorization") or "").startswith(f"SharedKey {ACCOUNT}:")
    assert KEY not in repr(on_io_loop(current_settings(place.storage.inner.client)))  # type: ignore[arg-type]


def test_signature_of_a_connection_string(azure_url: Url, server: MisbehavingServer, account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = signed_connection_string(account)
    place = proxied(server, (azure_url[0], {"connection_string": signed}))
    for name, text in NOT_OURS.items():
        monkeypatch.setenv(name, text)
    for request in put_and_get(place):
        assert request.header("Authorization") is None
        assert parse_qs(urlsplit(request.target).query)["sig"] == parse_qs(signed.partition("SharedAccessSignature=")[2])["sig"]


@pytest.mark.parametrize("form", ["key", "named key", "signature", "signature that is renewed"])
def test_credentials_that_are_objects(azure_url: Url, server: MisbehavingServer, account: str, form: str) -> None:
    url = azure_url[0].removeprefix("az://")
    signature = signed_connection_string(account).partition("SharedAccessSignature=")[2]
    renewed = AzureSasCredential("sv=1&sig=expired")
    credential = {"key": KEY, "named key": AzureNamedKeyCredential(ACCOUNT, KEY), "signature": AzureSasCredential(f"?{signature}")}
    fs = with_credential(account, {**credential, "signature that is renewed": renewed}[form])
    storage = open_storage((fs, url), transport="obstore")
    assert isinstance(storage, ObstoreAzureStorage)
    if form == "signature that is renewed":
        with pytest.raises(AccessDenied):
            SyncStorage(storage).get("a")
        renewed.update(signature)
        storage.asked_below = 0
    on_io_loop(storage.probe())
    assert put_and_get(Proxied(server, storage))


def test_anonymous_requests_are_not_signed(
    azure_url: Url, server: MisbehavingServer, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage((with_credential(account, None), azure_url[0].removeprefix("az://")), transport="obstore")
    for name, text in NOT_OURS.items():
        monkeypatch.setenv(name, text)
    server.behave()
    with pytest.raises(AccessDenied):
        SyncStorage(storage).get("a")
    first = server.requests[0]
    assert "object_store" in (first.header("User-Agent") or "")
    assert (first.header("Authorization"), urlsplit(first.target).query) == (None, "")


class Tokens:
    """A credential whose tokens are valid for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.given: list[str] = []

    async def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        assert scopes == ("https://storage.azure.com/.default",)
        self.given.append(f"token{len(self.given)}")
        return AccessToken(self.given[-1], int(time.time() + self.seconds))

    async def close(self) -> None:
        pass


def test_tokens_are_kept_and_renewed_as_by_the_client_of_adlfs(azure_url: Url, server: MisbehavingServer) -> None:
    tokens = Tokens(7200)
    fs = adlfs.AzureBlobFileSystem(account_name="lab", credential=tokens, skip_instance_cache=True)
    storage = open_storage((fs, "data/x"), transport="obstore")
    assert isinstance(storage, ObstoreAzureStorage)
    first = on_io_loop(storage.bucket())
    assert on_io_loop(storage.bucket()) is first
    assert tokens.given == ["token0"]
    settings = on_io_loop(current_settings(storage.inner.client))
    assert settings == ContainerSettings("https://lab.blob.core.windows.net", "lab", 20, 60, ("token", "token0"))
    assert "token0" not in repr(settings)
    tokens.seconds = 60
    fs.service_client._credential_policy._token = None
    on_io_loop(storage.bucket())
    assert on_io_loop(storage.bucket()) is not first  # the token ends soon
    assert tokens.given == ["token0", "token1", "token2"]
    with pytest.raises(RequestFailed):
        on_io_loop(get_head(opened("data", ContainerSettings(f"{server.url}/x", "x", 20, 60, ("token", "abc"))), "a"))
    assert server.requests[-1].header("Authorization") == "Bearer abc"


def test_credentials_that_are_not_found_are_the_error_of_adlfs(monkeypatch: pytest.MonkeyPatch) -> None:
    from azure.core.exceptions import ClientAuthenticationError

    class Nothing(Tokens):
        async def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
            raise ClientAuthenticationError("no token was found")

    fs = adlfs.AzureBlobFileSystem(account_name="lab", credential=Nothing(0), skip_instance_cache=True)
    with pytest.raises(AccessDenied, match="no usable credentials"):
        SyncStorage(open_storage((fs, "data/x"), transport="obstore")).get("a")


def _proxies(fs: Any) -> None:
    fs.service_client._config.proxy_policy.proxies = {"https": "http://p:1"}


def _certificates(fs: Any) -> None:
    fs.service_client._pipeline._transport.connection_config.verify = "/ca.pem"


def _secondary(fs: Any) -> None:
    fs.service_client.location_mode = "secondary"


def _foreign(fs: Any) -> None:
    del fs.service_client._config


@pytest.mark.parametrize(
    ("change", "named"),
    [(_proxies, "a proxy"), (_certificates, "certificates"), (_secondary, "location_mode"), (_foreign, "not known")],
)
def test_what_obstore_would_ignore_is_refused(change: Any, named: str) -> None:
    fs = adlfs.AzureBlobFileSystem(account_name="lab", account_key=KEY, skip_instance_cache=True)
    change(fs)
    with pytest.raises(Unsupported, match=named):
        open_storage((fs, "data/x"), transport="obstore")
    assert isinstance(open_storage((fs, "data/x")), AzureStorage)


def test_signature_in_the_address_besides_a_key_is_refused() -> None:
    text = f"AccountName=lab;AccountKey={KEY};BlobEndpoint=https://lab.blob.core.windows.net?sv=1&sig=x"
    with pytest.raises(Unsupported, match="signature"):
        open_storage("az://data/x", {"connection_string": text}, transport="obstore")


def test_setting_of_the_environment_that_only_obstore_knows_is_refused(azure_url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("azure_encryption_key", KEY)
    with pytest.raises(Unsupported, match="azure_encryption_key"):
        open_storage(*azure_url, transport="obstore")
