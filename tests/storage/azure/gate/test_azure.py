"""The Azure storage, against Azurite, and against servers and networks that behave as they should not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shardstore.opening.open import open_storage
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.testing.storage_suite import StorageSuite

AzureUrl = tuple[str, dict[str, Any]]


@pytest.fixture
def storage(azure_url: AzureUrl) -> Iterator[AzureStorage]:
    url, options = azure_url
    opened = open_storage(url, options)
    assert isinstance(opened, AzureStorage)
    yield opened
    forget_facts()


class TestAzureStorage(StorageSuite):
    pass


class TestAzureStorageInBlocks(StorageSuite):
    """Everything but what is empty is stored as blocks."""

    @pytest.fixture
    def storage(self, storage: AzureStorage) -> AzureStorage:
        return AzureStorage(storage.fs, storage.path, put_bytes=0)
