"""Stores in several kinds of storage."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.apps.cli.running import Place, make_store
from tests.stored import FsspecObjects, LocalObjects, Objects


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("made") / "data.zarr"
    make_store(str(place))
    return place


@pytest.fixture(params=["local", "file", "memory", "s3"])
def place(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Place:
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
    if request.param in ("local", "file"):
        shutil.copytree(made, tmp_path / "data.zarr")
    else:
        make_store(url, options or None)
    objects: Objects = FsspecObjects(url, options) if "://" in url else LocalObjects(Path(url))
    return Place(url, objects, options)


@pytest.fixture
def local(made: Path, tmp_path: Path) -> Place:
    url = shutil.copytree(made, tmp_path / "data.zarr")
    return Place(str(url), LocalObjects(url))
