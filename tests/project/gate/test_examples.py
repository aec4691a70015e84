"""The examples run as they stand, and what they leave behind is what it says it is, to readers without shardstore."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr

from tests.shards import presented, sharded_arrays
from tests.stored import LocalObjects

ROOT = Path(__file__).parents[3]


def run(example: str, *arguments: str, cwd: Path, **environment: str) -> str:
    """What the program prints. A warning that it does not expect is an error."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / example), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the module of an example."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield importlib.import_module
    for name in ("ome_pyramid", "climate", "nifti"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("example", ["ome_pyramid.py", pytest.param("climate.py", marks=pytest.mark.night)])
def test_without_arguments_nothing_is_left(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert "DIFFERENT" not in run(example, cwd=tmp_path)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("example", ["ome_pyramid.py", "climate.py"])
def test_a_place_that_cannot_be_written(example: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    command = [sys.executable, str(ROOT / "examples" / example), str(tmp_path / "file" / "x")]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=240, check=False).returncode != 0


# -- the pyramid -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pyramid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pyramid") / "head.ome.zarr"
    said = run("ome_pyramid.py", str(root), cwd=root.parent, SHARDSTORE_KERNEL="0")  # so that all encode by one version of zstd
    assert said.count("  ok ") == 4
    return root


def test_the_pyramid(pyramid: Path, tmp_path: Path, examples: Any) -> None:
    root = pyramid
    example = examples("ome_pyramid")
    levels = example.pyramid(np.ascontiguousarray(example.read_nifti(example.VOLUME).transpose()))
    assert [level.shape for level in levels] == [(189, 233, 197), (95, 117, 99), (48, 59, 50), (24, 30, 25)]

    group = zarr.open_group(root, mode="r")
    for number, level in enumerate(levels):
        array = group[str(number)]
        assert isinstance(array, zarr.Array)
        assert (array.chunks, array.shards) == (example.CHUNKS, (128, 128, 128))
        np.testing.assert_array_equal(array[...], level)
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root}/{number}/"}}
        np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), level)

    # Chunk by chunk, the shards hold what zarr-python stores one by one.
    plain = tmp_path / "plain.zarr"
    example.write(zarr.storage.LocalStore(plain), levels)
    shown, expected = presented(LocalObjects(root)), presented(LocalObjects(plain))
    assert shown.keys() == expected.keys()
    assert all(shown[key] == expected[key] for key in expected if not key.endswith("zarr.json"))
    assert len(LocalObjects(root).keys()) < len(expected) / 10


def test_the_levels_are_means(examples: Any) -> None:
    example = examples("ome_pyramid")
    volume = np.arange(3 * 4 * 5, dtype="u2").reshape(3, 4, 5)
    half = example.halved(volume)
    assert half.shape == (2, 2, 3)
    assert half.dtype == volume.dtype
    assert half[0, 0, 0] == round(volume[:2, :2, :2].mean())
    assert half[1, 1, 2] == round(volume[2:, 2:, 4:].mean())


def test_the_pyramid_says_what_ome_zarr_0_5_asks_for(pyramid: Path) -> None:
    """The rules of the specification's "multiscales" and "axes" sections, on the stored document."""
    root = pyramid
    document = json.loads((root / "zarr.json").read_text())
    assert (document["zarr_format"], document["node_type"]) == (3, "group")
    ome = document["attributes"]["ome"]
    assert ome["version"] == "0.5"
    (multiscale,) = ome["multiscales"]
    assert isinstance(multiscale["name"], str)

    axes = multiscale["axes"]
    assert 2 <= len(axes) <= 5
    assert len({axis["name"] for axis in axes}) == len(axes)
    assert 2 <= sum(axis["type"] == "space" for axis in axes) <= 3
    order = {"time": 0, "channel": 1, "space": 2}
    assert [order[axis["type"]] for axis in axes] == sorted(order[axis["type"]] for axis in axes)
    assert [axis["name"] for axis in axes if axis["type"] == "space"] == ["z", "y", "x"]
    assert {axis["unit"] for axis in axes} == {"millimeter"}  # of the units of UDUNITS-2 that the specification names

    shapes, scales = [], []
    for dataset in multiscale["datasets"]:
        array = json.loads((root / dataset["path"] / "zarr.json").read_text())
        assert array["node_type"] == "array"
        assert array["dimension_names"] == [axis["name"] for axis in axes]
        assert len(array["shape"]) == len(axes)
        kinds = [transformation["type"] for transformation in dataset["coordinateTransformations"]]
        assert kinds == ["scale", "translation"]  # exactly one scale, then at most one translation
        scale, translation = (t[t["type"]] for t in dataset["coordinateTransformations"])
        assert len(scale) == len(translation) == len(axes)
        assert all(s > 0 for s in scale)
        # The first corner of the volume is the same at every level.
        np.testing.assert_allclose(np.subtract(translation, np.divide(scale, 2)), -0.5)
        shapes.append(array["shape"])
        scales.append(scale)
    assert shapes == sorted(shapes, reverse=True)  # the highest resolution first
    assert scales == sorted(scales)


# -- the climate -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["0", pytest.param("2", marks=pytest.mark.night)])
def climate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program stores, with so many workers."""
    root = tmp_path_factory.mktemp("climate") / "climate.zarr"
    run("climate.py", str(root), "--workers", request.param, cwd=root.parent)
    return root


def test_the_climate(climate: Path, examples: Any) -> None:
    root = climate
    example = examples("climate")
    native = xr.open_zarr(root).load()
    xr.testing.assert_identical(native, example.expected())
    assert native.sizes == {"time": 3 * 365, "lat": 24, "lon": 32}
    assert native["tas"].encoding["shards"] == (120, 16, 16)
    layouts = sharded_arrays(LocalObjects(root))
    assert {path: layout.chunk_shape for path, layout in layouts.items()} == {"tas": (30, 8, 8), "pr": (30, 8, 8)}
    assert len([key for key in LocalObjects(root).keys() if key.startswith("tas/c/")]) == 10 * 4  # noqa: SIM118 - no mapping


def test_the_climate_follows_the_conventions(climate: Path) -> None:
    """What CF asks of coordinates and packed data, in the stored attributes."""
    raw = xr.open_zarr(climate, decode_cf=False)
    assert raw.attrs["Conventions"] == "CF-1.11"
    assert raw["time"].attrs["units"] == "days since 1970-01-01"
    assert raw["time"].attrs["calendar"] == "standard"
    assert (np.diff(raw["time"]) == 1).all()
    assert raw["lat"].attrs["units"] == "degrees_north"
    assert raw["lon"].attrs["units"] == "degrees_east"
    for name in ("tas", "pr"):
        assert raw[name].dtype == np.dtype("int16")
        assert {"scale_factor", "add_offset", "_FillValue", "standard_name", "units", "cell_methods"} <= raw[name].attrs.keys()
    assert int((raw["pr"] == raw["pr"].attrs["_FillValue"]).sum()) == 3 * 365 * 32 * 2
    assert int((raw["tas"] == raw["tas"].attrs["_FillValue"]).sum()) == 0
