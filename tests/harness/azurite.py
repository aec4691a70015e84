"""Azurite, Microsoft's emulator of Azure Blob Storage, in a process of its own. It is a program of Node.js, from npm.

It is installed once, below ``build``. Where that cannot be done, tests are left out, or fail if ``SHARDSTORE_AZURITE`` is set.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # of every Azurite

_PLACE = Path(__file__).parents[2] / "build" / f"azurite-{VERSION}"
_START_SECONDS = 60.0


def program() -> Path:
    """The installed program; skips or fails the test where it cannot be installed."""
    found = _PLACE / "node_modules" / ".bin" / "azurite-blob"
    if shutil.which("node") is None or (shutil.which("npm") is None and not found.exists()):
        reason = "Azurite needs Node.js with npm: apt install npm"
        pytest.fail(reason) if "SHARDSTORE_AZURITE" in os.environ else pytest.skip(reason)
    _PLACE.mkdir(parents=True, exist_ok=True)
    with open(_PLACE / "lock", "w") as lock:  # of tests that run at once, one installs it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            command = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"azurite@{VERSION}"]
            subprocess.run(command, cwd=_PLACE, check=True, timeout=280)
    return found


@contextmanager
def azurite() -> Iterator[str]:
    """The address of an account of an emulator that keeps what it stores in memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    server = subprocess.Popen(
        [program(), "--blobHost", "127.0.0.1", "--blobPort", str(port), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(server, port)
        yield f"http://127.0.0.1:{port}/{ACCOUNT}"
    finally:
        server.kill()
        server.wait()


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("Azurite does not start")


def connection_string(endpoint: str) -> str:
    """The option ``connection_string`` of adlfs for the account at this address."""
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"


def signed_connection_string(endpoint: str) -> str:
    """The same with a signature of what is allowed, which holds whatever a proxy makes of requests."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas  # of the tests that need it only

    end = datetime.now(UTC) + timedelta(days=1)
    may = AccountSasPermissions(read=True, write=True, delete=True, list=True, add=True, create=True)
    signature = generate_account_sas(ACCOUNT, KEY, ResourceTypes(service=True, container=True, object=True), may, end)
    return f"BlobEndpoint={endpoint};SharedAccessSignature={signature}"
