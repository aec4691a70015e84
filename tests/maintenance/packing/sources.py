"""Hierarchies to pack, written by others, and what any reader has to find in the result."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import LocalStore

from tests.golden import FIXTURES

Values = dict[str, npt.NDArray[Any]]


def expected(folder: Path, name: str = "expected.npz") -> Values:
    with np.load(folder / name) as loaded:
        return {("" if path == "__root__" else path): loaded[path] for path in loaded.files}


def cases(family: str) -> list[Path]:
    return [description.parent for description in sorted((FIXTURES / family).glob("*/case.json"))]


def references(folder: Path) -> tuple[str, dict[str, Any]] | None:
    """URL and options of a set of references, with its targets in memory where it says they are; ``None`` of one without data."""
    description = json.loads((folder / "case.json").read_text())
    if not (folder / "targets").is_dir():
        return None
    memory = fsspec.filesystem("memory")
    for target in (folder / "targets").rglob("*"):
        if target.is_file():
            memory.pipe_file(f"/fx/{target.relative_to(folder / 'targets').as_posix()}", target.read_bytes())
    options: dict[str, Any] = {"fo": str(folder / description["refs"]), "remote_protocol": "memory"}
    return "reference://", options


def read_by_zarr(root: Path, path: str) -> npt.NDArray[Any]:
    array = zarr.open_array(LocalStore(root, read_only=True), path=path, mode="r", zarr_format=3)
    return np.asarray(array[...])


def stored(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# Objects by key as the source of a run.


def as_dict(_root: Path, objects: dict[str, bytes]) -> Any:
    return dict(objects)


def as_zip(root: Path, objects: dict[str, bytes]) -> Any:
    with zipfile.ZipFile(root / "all.zip", "w") as file:
        for key, data in objects.items():
            file.writestr(zipfile.ZipInfo(key), data)
    return f"zip://::{root / 'all.zip'}"


def as_tar(root: Path, objects: dict[str, bytes]) -> Any:
    with tarfile.open(root / "all.tar", "w") as file:
        for key, data in objects.items():
            entry = tarfile.TarInfo(key)
            entry.size = len(data)
            file.addfile(entry, io.BytesIO(data))
    return f"tar://::{root / 'all.tar'}"
