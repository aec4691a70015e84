"""Stores in several kinds of storage."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.apps.cli.running import Place, make_store
from tests.stored import FsspecObjects, LocalObjects, Objects


@pytest.fixture(params=["local", "file", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store as ``make_store`` makes it."""
    options: dict[str, Any] = {}
    match request.param:
        case "s3":
            bucket, options = request.getfixturevalue("s3_url")
            url = f"{bucket}/data.zarr"
        case "memory":
            url = f"memory://cli-{uuid.uuid4().hex}/data.zarr"
        case "file":
            url = f"file://{tmp_path}/data.zarr"
        case _:
            url = str(tmp_path / "data.zarr")
    make_store(url, options or None)
    objects: Objects = FsspecObjects(url, options) if "://" in url else LocalObjects(Path(url))
    return Place(url, objects, options)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    return Place(url, LocalObjects(Path(url)))
