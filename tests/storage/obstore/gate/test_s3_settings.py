"""Settings of a bucket on S3 without the client of s3fs: the same as with it, or none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import s3fs
from aiobotocore.credentials import AioDeferredRefreshableCredentials
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore.exceptions import BotoCoreError
from botocore.session import Session

from shardstore.opening.open import open_storage
from shardstore.storage.obstore import s3_settings
from shardstore.storage.obstore.s3 import ObstoreS3Storage
from shardstore.storage.s3.client import S3Client
from shardstore.testing.storage_suite import on_io_loop

KEYS = {"key": "k", "secret": "s"}
SERVER = {**KEYS, "endpoint_url": "http://127.0.0.1:9000"}

CONFIG = """
[default]
region = eu-west-1
[profile with-endpoint]
aws_access_key_id = of-profile
aws_secret_access_key = secret
aws_session_token = token
endpoint_url = http://profile:1
[profile with-service]
region = ap-northeast-1
services = mine
s3 =
    addressing_style = virtual
    max_concurrent_requests = 5
[services mine]
s3 =
    endpoint_url = http://service:2/
[profile accelerated]
s3 =
    use_accelerate_endpoint = true
[profile old-signature]
s3 =
    signature_version = s3
[profile two-stacks]
use_dualstack_endpoint = true
[profile smart]
defaults_mode = standard
"""


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config"
    file.write_text(CONFIG)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def both(options: dict[str, Any], bucket: str = "b") -> tuple[s3_settings.S3Settings | None, s3_settings.S3Settings | None, bool]:
    """Return the settings without a client and with it, and whether the first were had without."""
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    s3_settings.check(S3Client(fs, bucket, "", 1))
    source = s3_settings.S3SettingsReader(S3Client(fs, bucket, "", 1))
    first = on_io_loop(source.current())
    is_without = fs._s3 is None
    on_io_loop(fs.set_session())
    return first, on_io_loop(s3_settings.S3SettingsReader(S3Client(fs, bucket, "", 1)).current()), is_without


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (SERVER, {}),
        ({**SERVER, "endpoint_url": "https://s3.example.com/"}, {}),
        ({**SERVER, "token": "t", "client_kwargs": {"region_name": "us-west-2"}}, {}),
        ({"client_kwargs": {"endpoint_url": "http://h:1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}}, {}),
        ({**SERVER, "client_kwargs": {"endpoint_url": SERVER["endpoint_url"]}}, {}),
        (KEYS, {}),
        (KEYS, {"AWS_DEFAULT_REGION": "us-east-1"}),
        (KEYS, {"AWS_DEFAULT_REGION": "eu-central-2"}),
        (KEYS, {"AWS_DEFAULT_REGION": "us-east-1", "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT": "regional"}),
        (KEYS, {"AWS_CONFIG_FILE": "/none"}),
        (KEYS, {"AWS_ENDPOINT_URL": "http://all:1"}),
        (KEYS, {"AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_S3": "http://s3:2"}),
        (KEYS, {"AWS_ENDPOINT_URL": "http://all:1", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}),
        ({"anon": True}, {}),
        ({**SERVER, "anon": True}, {}),
        ({**SERVER, "config_kwargs": {"signature_version": UNSIGNED}}, {}),
        ({**SERVER, "config_kwargs": {"signature_version": "s3v4", "s3": {"addressing_style": "path"}}}, {}),
        ({**SERVER, "config_kwargs": {"s3": {"addressing_style": "virtual"}, "region_name": "eu-north-1"}}, {}),
        ({**SERVER, "config_kwargs": {"connect_timeout": 3, "read_timeout": 4.5, "proxies": {"http": "http://p:1"}}}, {}),
        ({**SERVER, "requester_pays": True}, {"AWS_CA_BUNDLE": "/etc/ca.pem"}),
        ({**SERVER, "client_kwargs": {"verify": False}}, {}),
        ({**SERVER, "s3_additional_kwargs": {"RequestPayer": "requester"}}, {}),
        ({}, {"AWS_ACCESS_KEY_ID": "e", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}),
        ({"profile": "with-endpoint"}, {}),
        ({"profile": "with-service", **KEYS}, {}),
        (KEYS, {"AWS_PROFILE": "with-service"}),
    ],
)
def test_settings_are_those_of_the_client(options: dict[str, Any], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    without, with_client, is_without = both(options)
    assert is_without
    assert without is not None
    assert without == with_client


def test_regions_of_aws_and_of_the_rest() -> None:
    session = Session()
    on_aws = [*session.get_available_regions("s3"), "us-east-1", "mx-central-1"]
    assert len(on_aws) > 20
    for region in on_aws:
        without, with_client, is_without = both({**KEYS, "client_kwargs": {"region_name": region}})
        assert is_without, region
        assert without == with_client
    for partition in ("aws-cn", "aws-us-gov", "aws-iso", "aws-iso-b"):
        for region in session.get_available_regions("s3", partition, allow_non_regional=True):
            without, with_client, is_without = both({**KEYS, "client_kwargs": {"region_name": region}})
            assert not is_without, region
            assert without == with_client


@pytest.mark.parametrize(
    "options",
    [
        {**SERVER, "cache_regions": True},
        {**SERVER, "use_ssl": False},
        {**SERVER, "session": AioSession()},
        {**SERVER, "session_vars": {"region": ("region", "MY_REGION", None, None)}},
        {**SERVER, "config_kwargs": {"connect_timeout": None}},
        {**KEYS, "profile": "two-stacks"},
        {**KEYS, "profile": "smart"},
        {**KEYS, "profile": "old-signature"},
        {**KEYS, "profile": "accelerated"},
    ],
)
def test_the_client_is_made_where_settings_could_differ(options: dict[str, Any]) -> None:
    assert not both(options)[2]


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {**KEYS, "profile": "no-such"}, {**KEYS, "client_kwargs": {"region_name": "not a region"}}]
)
def test_errors_are_those_of_s3fs(options: dict[str, Any]) -> None:
    with pytest.raises(BotoCoreError):
        both(options)


def test_without_credentials_s3fs_says_so() -> None:
    without, with_client, is_without = both({})
    assert without is with_client is None
    assert is_without


def test_credentials_that_expire_are_renewed_without_a_client_and_shared_with_it() -> None:
    fs = s3fs.S3FileSystem(endpoint_url="http://127.0.0.1:9000", skip_instance_cache=True)
    renewals = 0

    async def renewed() -> dict[str, str]:
        nonlocal renewals
        renewals += 1
        expires = datetime.now(UTC) + timedelta(seconds=1 if renewals < 3 else 3600)
        return {"access_key": f"key-{renewals}", "secret_key": "s", "token": "t", "expiry_time": expires.isoformat()}

    fs.session = AioSession()
    fs.session._credentials = AioDeferredRefreshableCredentials(renewed, "test")
    source = s3_settings.S3SettingsReader(S3Client(fs, "b", "", 1))
    seen = []
    for _ in range(5):
        settings = on_io_loop(source.current())
        assert settings is not None
        assert settings.credential is not None
        seen.append(settings.credential[0])
    assert seen == ["key-1", "key-2", "key-3", "key-3", "key-3"]
    assert fs._s3 is None
    on_io_loop(fs.set_session())
    settings = on_io_loop(source.current())
    assert settings is not None
    assert settings.credential == ("key-3", "s", "t")


def test_a_server_that_the_environment_names_is_known_without_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    storage = open_storage("s3://b/x", {**KEYS, "token": "of this test"})
    assert isinstance(storage, ObstoreS3Storage)
    client = storage.inner.client
    was_aws = client.is_aws
    assert was_aws  # for all that is known
    assert on_io_loop(storage.bucket()) is not None
    assert client.fs._s3 is None
    assert not client.is_aws
    assert on_io_loop(client.server()) == "http://127.0.0.1:9000"
    assert client.fs._s3 is None
