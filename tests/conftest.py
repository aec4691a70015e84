"""Fixtures that several directories of tests need."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import hypothesis
import pytest

from tests.harness.scale import EXAMPLES, STAGE

# The tests are to see this machine's settings as little as possible: no account, profile, proxy or option of somebody's.
_SETTINGS = ("AWS_", "AZURE_", "FSSPEC_", "GCSFS_", "GOOGLE_", "SHARDSTORE_PIPELINE", "STORAGE_EMULATOR_", "ZARR_")
for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
    del os.environ[name]
os.environ.update(
    # The profiler of dask's workers can wait for ever for a thread that waits for it (CPython 3.11, sys._current_frames).
    DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED="false",
    AWS_ACCESS_KEY_ID="test",
    AWS_SECRET_ACCESS_KEY="test",
    AWS_DEFAULT_REGION="us-east-1",
    AWS_EC2_METADATA_DISABLED="true",
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false",  # read where gcsfs is imported; with it, it asks emulators over gRPC, for minutes
    NO_PROXY="127.0.0.1,localhost",
    no_proxy="127.0.0.1,localhost",
)

# Each stage has a profile: so many examples, none of which fails because the machine is slow.
hypothesis.settings.register_profile(STAGE, max_examples=EXAMPLES, deadline=None)
hypothesis.settings.load_profile(STAGE)


# A parameter or a name of a test says which server it talks to. Memory and local disks are of every run, servers of the gate.
_SERVER = re.compile(r"(?i:(?<![a-z0-9])(s3|gcs|azure|moto|ceph)(?![a-z0-9]))|(S3|GCS|Azure)(?![A-Za-z])")
# Where a kind of storage makes next to no difference, and the tests are many: on servers at night.
_SERVERS_AT_NIGHT = (
    "tests/snapshots/",
    "tests/adapters/fsspec/",
    "tests/adapters/transformer/",
    "tests/adapters/zarr/gate/test_zarr_suites",
    "tests/apps/cli/",
)
_SERVERS_IN_GATE = (
    "tests/snapshots/test_catalogs",
    "tests/adapters/fsspec/test_fs_instances",
    "tests/apps/cli/test_target",
    "tests/apps/cli/test_checking",
)
# A thousand objects take seconds in most kinds of storage: where each protocol is listed in pages they are of the gate.
_LONG_LISTING = re.compile(r"::(?!TestMemoryStorage|TestLocalStorage)\w+::test_a_long_listing(\[|$)")
_LISTED_IN_PAGES = ("TestS3Storage", "TestGCSStorage", "TestAzureStorage", "TestObstoreS3Storage")
# Other kinds of storage in the process, where a test runs on local disks too: below the views they are of the gate.
_OTHER_KIND = re.compile(r"(?<=[\[-])(memory|file)(?=[]-])")
_BELOW_VIEWS = ("tests/storage/", "tests/stored/", "tests/engine/", "tests/torture/")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from what collecting makes, millions of objects that stay: looking at them takes a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what of a file is of a later stage than its directory says."""
    every = {item.nodeid for item in items}
    for item in items:
        if _SERVER.search(item.nodeid.partition("::")[2]) is not None:
            is_of_night = item.nodeid.startswith(_SERVERS_AT_NIGHT) and not item.nodeid.startswith(_SERVERS_IN_GATE)
            item.add_marker("night" if is_of_night else "gate")
        elif _OTHER_KIND.search(item.nodeid) is not None and _OTHER_KIND.sub("local", item.nodeid) in every:
            item.add_marker("gate" if item.nodeid.startswith(_BELOW_VIEWS) else "night")
        if _LONG_LISTING.search(item.nodeid) is not None:
            item.add_marker("gate" if item.nodeid.split("::")[1] in _LISTED_IN_PAGES else "night")


def why_no_mounts() -> str | None:
    """Return why nothing can be mounted here, if so."""
    if find_spec("pyfuse3") is None:
        return "pyfuse3 is not installed: make mount-test installs it"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse"
    if os.getuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 is missing: make mount-test installs it"
    return None


@pytest.fixture(scope="session")
def can_mount() -> None:
    """Skip a test where nothing can be mounted; or fail, if ``SHARDSTORE_MOUNT`` says that it can."""
    if (reason := why_no_mounts()) is not None:
        if os.environ.get("SHARDSTORE_MOUNT"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The address of a server that speaks S3 and honours conditional PUTs, in a thread of this process."""
    from moto.server import ThreadedMotoServer  # slow to import

    from tests.harness.moto_as_aws import make_conditions_hold

    make_conditions_hold()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_url(s3_endpoint: str) -> tuple[str, dict[str, Any]]:
    """``(url, storage_options)`` of a place in a fresh bucket."""
    return _fresh_bucket(s3_endpoint)


def _fresh_bucket(endpoint: str) -> tuple[str, dict[str, Any]]:
    import s3fs

    options: dict[str, Any] = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    bucket = f"bucket-{uuid.uuid4().hex}"
    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/root", options


@pytest.fixture(scope="session")
def gcs_endpoint() -> Iterator[str]:
    """The address of a server that speaks the JSON API of GCS and honours conditions of uploads, in a process of its own."""
    from tests.harness.gcs_emulator import gcs_emulator  # of the tests that need it only

    with gcs_emulator() as endpoint:
        yield endpoint


@pytest.fixture
def gcs_url(gcs_endpoint: str) -> tuple[str, dict[str, Any]]:
    """``(url, storage_options)`` of a place in a fresh bucket."""
    import gcsfs

    options: dict[str, Any] = {"token": "anon", "endpoint_url": gcs_endpoint, "project": "test"}
    bucket = f"bucket-{uuid.uuid4().hex}"
    gcsfs.GCSFileSystem(**options).call("POST", "b", project="test", json={"name": bucket})
    return f"gs://{bucket}/root", options


@pytest.fixture(scope="session")
def azure_endpoint() -> Iterator[str]:
    """The address of an account of Azurite, which honours conditions, in a process of its own."""
    from tests.harness.azurite import azurite  # of the tests that need it only

    with azurite() as endpoint:
        yield endpoint


@pytest.fixture
def azure_url(azure_endpoint: str) -> tuple[str, dict[str, Any]]:
    """``(url, storage_options)`` of a place in a fresh container."""
    import adlfs

    from tests.harness.azurite import connection_string

    options: dict[str, Any] = {"connection_string": connection_string(azure_endpoint)}
    container = f"container-{uuid.uuid4().hex}"
    adlfs.AzureBlobFileSystem(**options).mkdir(container)
    return f"az://{container}/root", options


@pytest.fixture(scope="session")
def ceph_endpoint() -> Iterator[str]:
    """The address of a Ceph RADOS Gateway, where there is a directory for it."""
    directory = os.environ.get("SHARDSTORE_CEPH")
    if not directory:
        pytest.skip("Ceph: SHARDSTORE_CEPH does not name a directory for it")
    from tests.torture import places  # of the tests that need it only

    with places.ceph(directory) as endpoint:
        yield endpoint


@pytest.fixture
def ceph_url(ceph_endpoint: str) -> tuple[str, dict[str, Any]]:
    """The same of a place on Ceph."""
    return _fresh_bucket(ceph_endpoint)


@pytest.fixture
def s(storage: Any) -> Any:
    """The storage of a module's own fixture, as a ``SyncStorage``."""
    from shardstore.testing.storage_suite import SyncStorage  # of the tests that need it only

    return SyncStorage(storage)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT means KeyboardInterrupt, though the tests may have been started where it is ignored, as jobs in the background are."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
