"""Places that are reached over obstore, or that sets of references are made in."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import gcsfs
import pytest

from shardstore.opening.open import open_storage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.obstore.azure import ObstoreAzureStorage
from shardstore.storage.obstore.gcs import ObstoreGCSStorage
from shardstore.storage.obstore.s3 import ObstoreS3Storage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.gcs_emulator import gcs_emulator
from tests.storage.http.http_servers import WebServer
from tests.storage.obstore.obstore_proxied import Url


@pytest.fixture
def fresh_facts() -> Iterator[None]:
    """What servers honour is found out again for the next test."""
    yield
    forget_facts()


@pytest.fixture
def on_s3(s3_url: Url) -> ObstoreS3Storage:
    url, options = s3_url
    opened = open_storage(url, options, transport="obstore")
    assert isinstance(opened, ObstoreS3Storage)
    return opened


@pytest.fixture(scope="session")
def xml_endpoint() -> Iterator[str]:
    """The address of a GCS emulator that also speaks the XML interface, for reads."""
    with gcs_emulator(with_xml=True) as endpoint:
        yield endpoint


@pytest.fixture
def xml_url(xml_endpoint: str) -> Url:
    options: dict[str, Any] = {"token": "anon", "endpoint_url": xml_endpoint, "project": "test"}
    bucket = f"bucket-{uuid.uuid4().hex}"
    gcsfs.GCSFileSystem(**options).call("POST", "b", project="test", json={"name": bucket})
    return f"gs://{bucket}/root", options


@pytest.fixture
def on_gcs(xml_url: Url) -> ObstoreGCSStorage:
    url, options = xml_url
    opened = open_storage(url, options, transport="obstore")
    assert isinstance(opened, ObstoreGCSStorage)
    return opened


@pytest.fixture
def on_azure(azure_url: Url) -> ObstoreAzureStorage:
    url, options = azure_url
    opened = open_storage(url, options, transport="obstore")
    assert isinstance(opened, ObstoreAzureStorage)
    return opened


@pytest.fixture
def memory() -> SyncStorage:
    return SyncStorage(MemoryStorage(f"/refs-{uuid.uuid4().hex}"))


@pytest.fixture
def server() -> Iterator[WebServer]:
    server = WebServer()
    yield server
    server.close()
