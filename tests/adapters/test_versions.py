"""``shardstore.show_versions``."""

from __future__ import annotations

import platform
import re

import numcodecs
import pytest
import zarr

import shardstore
from shardstore.adapters.tools import versions
from shardstore.native.kernel import kernel, why_no_kernel
from shardstore.opening.transports import Carrier


def test_versions_are_printed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    shardstore.show_versions()
    rows = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert next(iter(rows)) == "shardstore"
    assert (rows["shardstore"], rows["zarr"], rows["numcodecs"]) == (shardstore.__version__, zarr.__version__, numcodecs.__version__)
    assert rows["python"].startswith(platform.python_version())
    assert rows["pipeline"] == "shardstore.adapters.zarr.pipeline.ShardedCodecPipeline"
    assert {"numpy", "fsspec", "s3fs", "gcsfs", "obstore"} <= set(rows)
    assert rows["object stores"] == "requests by obstore"
    native = kernel()
    assert rows["kernel"] == (native.file if native is not None else f"none: {why_no_kernel()}")
    if native is not None:
        assert native.libraries().items() <= rows.items()


def test_what_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "kernel", lambda: None)
    monkeypatch.setattr(versions, "why_no_kernel", lambda: "it was not built")
    monkeypatch.setattr(versions, "find_spec", lambda name: None)
    monkeypatch.setattr(versions, "default_carrier", lambda: Carrier("fsspec", "it is not installed"))
    assert versions.rows_of(versions.runtime_facts(["no-such-package"]))[:-1] == [
        ("no-such-package", "not installed"),
        ("pipeline", "none: zarr is not installed"),
        ("object stores", "requests by fsspec: it is not installed"),
        ("kernel", "none: it was not built"),
    ]
