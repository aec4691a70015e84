"""What carries the requests to a storage by default, and what says so."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import gcsfs
import pytest

import shardstore
from shardstore.errors import InvalidInput, Unsupported
from shardstore.opening.open import open_storage
from shardstore.opening.transports import Carrier, carrier_of, default_carrier
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.obstore import forks
from shardstore.storage.obstore.gcs import ObstoreGCSStorage
from shardstore.storage.obstore.s3 import ObstoreS3Storage
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.trace import TraceStorage

S3 = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1"}
CARRIED = Carrier("obstore", None)


def why(storage: Any) -> str:
    carrier = carrier_of(storage)
    assert carrier is not None
    assert carrier.name == "fsspec"
    assert carrier.why_not_obstore is not None
    return carrier.why_not_obstore


@pytest.mark.parametrize("given", [{}, {"transport": "auto"}])
def test_obstore_carries_what_it_can_by_default(given: dict[str, Any]) -> None:
    storage = open_storage("s3://b/x", S3, **given)
    assert isinstance(storage, ObstoreS3Storage)
    assert carrier_of(storage) == default_carrier() == CARRIED
    assert isinstance(open_storage("s3://b/x", {**S3, **given}), ObstoreS3Storage)
    assert isinstance(open_storage((storage.inner.fs, "b/x"), **given), ObstoreS3Storage)
    on_google = open_storage("gs://b/x", {"token": "anon"}, **given)
    assert isinstance(on_google, ObstoreGCSStorage)
    assert carrier_of(on_google) == CARRIED
    store = shardstore.get_mapper("s3://b/x", storage_options=S3, **given)
    assert carrier_of(store._handle.engine.storage) == CARRIED


def test_fsspec_carries_what_obstore_cannot_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for options, named in (
        ({"s3_additional_kwargs": {"SSECustomerKey": "k"}}, "SSECustomerKey"),
        ({"client_kwargs": {"config": None}}, "config"),
        ({"config_kwargs": 5}, "options of other types"),
    ):
        storage = open_storage("s3://b/x", {**S3, **options})
        assert isinstance(storage, S3Storage)
        assert named in why(storage)
        with pytest.raises(Unsupported, match=named):
            open_storage("s3://b/x", {**S3, **options}, transport="obstore")
    assert caplog.records == []


def test_fsspec_carries_requests_to_servers_that_may_have_no_xml() -> None:
    fs = gcsfs.GCSFileSystem(token="anon", endpoint_url="http://127.0.0.1:1")
    storage = open_storage((fs, "b/x"))
    assert isinstance(storage, GCSStorage)
    assert "XML" in why(storage)
    assert isinstance(open_storage((fs, "b/x"), transport="obstore"), ObstoreGCSStorage)


def test_fsspec_carries_all_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_storage("s3://b/x", S3)
    monkeypatch.setattr(forks, "_is_forked", True)
    assert "forked" in why(open_storage("s3://b/x", S3))
    assert "forked" in why(opened)
    assert default_carrier().name == "fsspec"


def test_fsspec_carries_all_where_obstore_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("shardstore.storage.obstore.") and not name.endswith(".forks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    storage = open_storage("s3://b/x", S3)
    assert isinstance(storage, S3Storage)
    assert "pip install 'shardstore[s3]'" in why(storage)


def test_a_storage_that_was_given_stays_unchanged() -> None:
    below = open_storage("s3://b/x", S3, transport="fsspec")
    assert "transport='fsspec' was given" in why(below)
    for storage in (below, TraceStorage(below)):
        assert open_storage(storage) is storage
        assert shardstore.get_mapper(storage)._handle.engine.storage.ability(ObstoreS3Storage) is None
    assert isinstance(open_storage(below, transport="obstore"), ObstoreS3Storage)


def test_kinds_without_obstore(tmp_path: Path) -> None:
    assert carrier_of(open_storage(str(tmp_path))) is None
    assert carrier_of(open_storage("memory://x")) is None
    for url in ("https://example.com/x", "simplecache::s3://b/x"):
        assert "is for s3://, gs://, az://" in why(open_storage(url))


def test_transports_that_contradict_each_other() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        open_storage("s3://b/x", {**S3, "transport": "obstore"}, transport="fsspec")
    with pytest.raises(InvalidInput, match="'auto', 'fsspec', 'obstore'"):
        open_storage("s3://b/x", {**S3, "transport": None})
