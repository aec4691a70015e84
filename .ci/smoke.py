"""Run on the installed wheel, away from the checkout: does it do its job?"""

import importlib.metadata
import importlib.resources
import os
import sys
import tempfile

import shardstore

heavy = {"zarr", "s3fs", "gcsfs"} & set(sys.modules)
assert not heavy, f"importing shardstore imported {heavy}"
assert "site-packages" in (shardstore.__file__ or ""), f"tested the checkout, not the wheel: {shardstore.__file__}"
assert shardstore.__version__ == importlib.metadata.version("shardstore") != "unknown"
scripts = importlib.metadata.entry_points(group="console_scripts", name="shardstore")
assert [script.value for script in scripts] == ["shardstore.__main__:main"], "the wheel has no command shardstore"

from shardstore.native.kernel import kernel, why_no_kernel  # noqa: E402  (after the check above)

has_kernel = importlib.resources.files("shardstore.native").joinpath("libkernel.2.so").is_file()
[tag] = [line for line in importlib.metadata.distribution("shardstore").read_text("WHEEL").splitlines() if line.startswith("Tag: ")]
assert tag.startswith("Tag: py3-none-linux_" if has_kernel else "Tag: py3-none-any"), f"the kernel is {has_kernel}, and {tag}"
if has_kernel:
    os.environ.pop("SHARDSTORE_KERNEL", None)
    found = kernel()
    assert found is not None, f"the wheel has a kernel that is not used: {why_no_kernel()}"
    print("the wheel has a kernel:", found.libraries())
else:
    assert kernel() is None
    assert os.environ.get("SHARDSTORE_KERNEL") != "1", "the wheel has no kernel"
    print("the wheel has no kernel:", why_no_kernel())

import numpy as np  # noqa: E402
import zarr  # noqa: E402

with tempfile.TemporaryDirectory() as directory:
    values = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    store = shardstore.open(directory, chunks_per_shard=(4, 4))
    array = zarr.create_array(store, name="a", shape=values.shape, chunks=(8, 8), dtype=values.dtype)
    array[...] = values
    np.testing.assert_array_equal(array[...], values)

    native = zarr.open_group(directory, mode="r")["a"]
    assert isinstance(native, zarr.Array)
    assert native.shards == (32, 32)
    np.testing.assert_array_equal(native[...], values)

    by_url = zarr.open_group(f"sharded::file://{directory}", mode="r")["a"]  # the entry point for fsspec is in the wheel
    assert isinstance(by_url, zarr.Array)
    assert by_url.chunks == (8, 8)
    np.testing.assert_array_equal(by_url[...], values)

print("smoke test passed:", shardstore.__file__)
