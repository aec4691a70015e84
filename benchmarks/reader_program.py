"""One reader, in an environment of its own: reads the array of each store, and writes its values.

    python reader_program.py READER STORES OUT CASE …

``STORES/CASE`` is a group with the array ``0``. It is read whole, and then ``PART`` of it, which begins and ends inside shards. For
each case a line of JSON goes to stdout, with ``shape``, or with ``error``; the values go to ``OUT/CASE.whole.bin`` and
``OUT/CASE.part.bin`` as little-endian integers of 32 bits in C order. Imports nothing of shardstore.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

ARRAY = "0"
PART = (slice(3, 21), slice(5, 30))
"""As in ``reader_program.mjs``."""

Region = tuple[slice, ...]


def zarr_python(store: Path, region: Region) -> Any:
    return import_module("zarr").open_array(store / ARRAY, mode="r")[region]


def zarrs(store: Path, region: Region) -> Any:
    zarr = import_module("zarr")
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it hands what it cannot read to zarr-python, with a warning
        return zarr.open_array(store / ARRAY, mode="r")[region]


def tensorstore(store: Path, region: Region) -> Any:
    ts = import_module("tensorstore")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store / ARRAY}/"}}
    return ts.open(spec, open=True, read=True).result()[region].read().result()


def zarrita(store: Path, region: Region) -> Any:
    module = import_module("zarrita")
    return module.Array.open(module.LocalStore(store) / ARRAY)[region]


def xarray(store: Path, region: Region) -> Any:
    return import_module("xarray").open_zarr(store, consolidated=False, mask_and_scale=False)[ARRAY][region].values


def dask(store: Path, region: Region) -> Any:
    return import_module("dask.array").from_zarr(str(store), component=ARRAY)[region].compute()


def anndata(store: Path, region: Region) -> Any:
    element = import_module("zarr").open_group(store, mode="r")[ARRAY]
    if region == PART:
        return import_module("anndata").experimental.read_elem_lazy(element)[region].compute()
    return import_module("anndata").io.read_elem(element)


def ome_zarr(store: Path, region: Region) -> Any:
    location = import_module("ome_zarr.io").parse_url(str(store))
    (image,) = import_module("ome_zarr.reader").Reader(location)()
    return image.data[0][region].compute()


def _manifest_store(store: Path) -> Any:
    registry = import_module("obspec_utils.registry").ObjectStoreRegistry({"file://": import_module("obstore.store").LocalStore()})
    return import_module("virtualizarr.parsers").ZarrParser()(url=f"file://{store}", registry=registry)


def virtualizarr(store: Path, region: Region) -> Any:
    manifests = _manifest_store(store)
    return import_module("xarray").open_zarr(manifests, consolidated=False, zarr_format=3, mask_and_scale=False)[ARRAY][region].values


def icechunk(store: Path, region: Region) -> Any:
    """The documents in a repository of its own, which refers to the shards as virtual chunks; read by zarr-python through it."""
    module = import_module("icechunk")
    prefix = f"file://{store}/"
    config = module.RepositoryConfig.default()
    config.set_virtual_chunk_container(module.VirtualChunkContainer(prefix, module.local_filesystem_store(str(store))))
    allowed = module.containers_credentials({prefix: None})
    repository = module.Repository.create(module.in_memory_storage(), config=config, authorize_virtual_chunk_access=allowed)
    target = repository.writable_session("main").store
    buffer = import_module("zarr.core.buffer").default_buffer_prototype().buffer
    for key in ("zarr.json", f"{ARRAY}/zarr.json"):
        asyncio.run(target.set(key, buffer.from_bytes((store / key).read_bytes())))
    references = []
    for shard in (store / ARRAY).rglob("*"):
        if shard.is_file() and shard.name != "zarr.json":
            index = [int(part) for part in re.findall(r"\d+", str(shard.relative_to(store / ARRAY)))]
            references.append(module.VirtualChunkSpec(index, f"file://{shard}", 0, shard.stat().st_size))
    target.set_virtual_refs(ARRAY, references)
    return import_module("zarr").open_group(target, mode="r")[ARRAY][region]


def rasterio(store: Path, region: Region) -> Any:
    with import_module("rasterio").open(f'ZARR:"{store}":/{ARRAY}') as image:
        rows, columns = region
        return image.read(1, window=((rows.start or 0, rows.stop or image.height), (columns.start or 0, columns.stop or image.width)))


def gdal(store: Path, region: Region) -> Any:
    module = import_module("osgeo.gdal")
    module.UseExceptions()
    group = module.OpenEx(str(store), module.OF_MULTIDIM_RASTER, allowed_drivers=["Zarr"]).GetRootGroup()
    return group.OpenMDArray(ARRAY)[region].ReadAsArray()


READERS: dict[str, Callable[[Path, Region], Any]] = {
    reader.__name__: reader
    for reader in (zarr_python, zarrs, tensorstore, zarrita, xarray, dask, anndata, ome_zarr, virtualizarr, icechunk, rasterio, gdal)
}


def read(reader: str, store: Path, region: Region, file: Path) -> list[int]:
    """Write the values of a region to ``file``; their shape."""
    values = np.asarray(READERS[reader](store, region))
    file.write_bytes(np.ascontiguousarray(values).astype("<i4", casting="safe").tobytes())
    return list(values.shape)


def main(reader: str, stores: str, out: str, *cases: str) -> None:
    for case in cases:
        print(json.dumps({"case": case}), flush=True)  # which one it was, should this process die
        store = Path(stores) / case
        what = ""
        try:
            dimensions = len(json.loads((store / ARRAY / "zarr.json").read_text())["shape"])
            shape = read(reader, store, (slice(None),) * dimensions, Path(out, f"{case}.whole.bin"))
            what = "of a part: "
            read(reader, store, PART[:dimensions], Path(out, f"{case}.part.bin"))
            told: dict[str, object] = {"case": case, "shape": shape}
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as exc:  # noqa: BLE001 - whatever it is, panics of extension modules too, this reader failed
            told = {"case": case, "error": f"{what}{type(exc).__name__}: {exc}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
