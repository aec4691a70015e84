"""Programs of what each extra is for. An environment with this extra, and those that ``WITH`` names, can run its program."""

from __future__ import annotations

WITH = {"sql": ("parquet",)}
"""By extra, others that it is of use with only."""

_START = """
import io, json, sys
from contextlib import redirect_stdout
import numpy as np
import shardstore
with redirect_stdout(io.StringIO()) as shown:
    help(shardstore)
assert "get_mapper" in shown.getvalue()
given = json.loads(sys.argv[1])
url, new = given["url"], given["new"]  # an array of 16 chunks, and a path where nothing is
VALUES = np.arange(64, dtype="u1").reshape(8, 8)
def carried(**options):
    '''Another mapping reads what one has written.'''
    place, storage_options = given["place"]
    shardstore.get_mapper(place, storage_options=storage_options, **options)["zarr.json"] = b'{"zarr_format": 3, "node_type": "group"}'
    assert list(shardstore.get_mapper(place, storage_options=storage_options, read_only=True, **options)) == ["zarr.json"]
"""

_END = """
print(json.dumps("done"))
"""

_PROGRAMS = {
    "": """
assert len(shardstore.get_mapper(url)["a/c/0/0"]) > 0
assert shardstore.verify(url).is_sound
assert shardstore.pack(url, new, chunks_per_shard=(4, 4)).complete
assert shardstore.references.write_json(url, new + ".json").references == 16
with redirect_stdout(io.StringIO()):
    shardstore.show_versions()
""",
    "zarr": """
import zarr
zarr.create_array(shardstore.open(new, chunks_per_shard=(2, 2)), name="a", data=VALUES, chunks=(2, 2))
assert np.array_equal(zarr.open_array(new, path="a", mode="r")[...], VALUES)
assert shardstore.verify(new, deep=True).is_sound
""",
    "xarray": """
import xarray as xr
ds = xr.Dataset({"t": (("y", "x"), VALUES)}).chunk(y=3)
ds.to_zarr("sharded::" + new, consolidated=False)
assert xr.open_zarr("sharded::" + new, consolidated=False).equals(ds)
""",
    "s3": """
carried(transport="obstore")
carried()
""",
    "gcs": "carried()",
    "azure": """
nowhere = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:9/a;"
opened = shardstore.get_mapper("az://container/x", storage_options={"connection_string": nowhere})  # no server here speaks Azure's API
assert opened.url == "az://container/x"
""",
    "huggingface": """
try:
    shardstore.get_mapper("hf://datasets/owner/name/x.zarr", storage_options={"endpoint": "http://127.0.0.1:9"})  # no server speaks its API
except shardstore.errors.StorageError as exc:
    assert "cannot be reached" in str(exc)
else:
    raise AssertionError("nothing answers there")
""",
    "http": 'assert len(shardstore.get_mapper(given["place"])["a/c/0/0"]) > 0',
    "cli": """
from shardstore.__main__ import main
sys.argv[1:] = ["ls", url, "a/c/0"]
with redirect_stdout(io.StringIO()) as shown:
    try:
        main()
    except SystemExit as exc:
        assert not exc.code, exc.code
assert "a/c/0/0" in shown.getvalue()
""",
    "parquet": """
shardstore.Repository.create(new)
assert [info.message for info in shardstore.Repository.open(new).ancestry("main")] == ["Repository initialized"]
assert shardstore.references.write_parquet(url, new + "-refs").references == 16
assert len(shardstore.get_mapper("reference::" + new + "-refs")["a/0.0"]) > 0
""",
    "sql": """
catalog = shardstore.snapshots.SQLCatalog(f"sqlite:///{new}.db")
shardstore.Repository.create(new, catalog=catalog)
assert shardstore.Repository.exists(new, catalog=catalog)
""",
    "icechunk": """
import icechunk
config = icechunk.RepositoryConfig.default()
config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"file://{url}/", icechunk.local_filesystem_store(url)))
local = getattr(icechunk.credentials, "LocalFileSystemAccess", None)  # of icechunk 2
access = icechunk.containers_credentials({f"file://{url}/": local})
repository = icechunk.Repository.create(icechunk.in_memory_storage(), config, authorize_virtual_chunk_access=access)
assert shardstore.references.write_icechunk(url, repository, message="x").references == 16
""",
    "plot": """
from pathlib import Path
from shardstore.adapters.tools.verification import picture_saver
picture_saver()(shardstore.census(url), new + ".png", None)
assert Path(new + ".png").read_bytes().startswith(b"\\x89PNG")
""",
    "report": """
from pathlib import Path
shardstore.report(url).write(new + ".html")
assert "</html>" in Path(new + ".html").read_text()
assert "shardstore-cards" in shardstore.get_mapper(url)._repr_html_()
""",
    "serve": """
import urllib.request
with shardstore.serve(url, port=0) as serving:
    assert urllib.request.urlopen(serving.url.rstrip("/") + "/zarr3/zarr.json").status == 200
""",
}


def program_of(extra: str) -> str:
    """Return the program of an extra, or of an environment without any (``""``); it prints ``"done"``.

    Its argument is a JSON object: ``url``, ``new`` and, for extras of storages, ``place``.
    """
    return _START + _PROGRAMS[extra] + _END
