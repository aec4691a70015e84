"""The report of a written set, and the lines that open it in other programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Format = Literal["json", "parquet", "icechunk"]


@dataclass(frozen=True, slots=True)
class ReferenceProgress:
    """The progress of a run: how many chunks are referred to so far, and in which array of how many the run is."""

    references: int
    array: int
    arrays: int
    path: str


@dataclass(frozen=True, slots=True)
class ReferenceReport:
    """The content of a set that was written."""

    source: str
    target: str
    format: Format
    flavour: str
    """The documents in the set: ``"v2"``, ``"v3"`` or ``"dual"``."""
    why: str
    """The reason for the flavour, in words."""
    arrays: int
    references: int
    """The number of chunks in the set, those inside the set too."""
    inlined: int
    """The number of chunks whose bytes are in the set itself."""
    missing: int
    """The number of chunks that the source does not have."""
    targets: int
    """The number of objects that the set refers to."""
    nbytes: int
    """Bytes of the set."""
    is_pinned: bool
    """True if the set says which version of each object it was made of."""
    left_out: Mapping[str, str]
    """By path or key, what is not in the set, and the reason in words."""
    index_requests: int
    """The number of shards whose indices were read."""
    how_to_open: str
    """Lines of Python that open the set, for zarr 3, zarr 2, xarray and GDAL."""

    def __repr__(self) -> str:
        counts = f"{self.arrays} arrays, {self.references:,} references to {self.targets:,} objects, {self.inlined:,} inlined"
        return f"<ReferenceReport of {self.target!r}: {self.format}, {self.flavour}, {counts}, {self.nbytes:,} bytes>"


def how_to_open(target: str, form: Format, flavour: str, remote_protocol: str, *, has_options: bool) -> str:
    """Return the lines that open a set. ``remote_protocol`` is that of the objects; with ``has_options`` their storage needs some."""
    given = {"fo": target, "remote_protocol": remote_protocol}
    options = ", ".join(f'"{name}": "{value}"' for name, value in given.items())
    if remote_protocol not in _SYNCHRONOUS:  # zarr makes the one filesystem asynchronous, and fsspec wants the other to be so too
        options += ', "remote_options": {"asynchronous": True' + ", …" * has_options + "}"
    keywords = ", ".join(f'{name}="{value}"' for name, value in given.items()) + ", remote_options={…}" * has_options
    zarr_format = 2 if flavour == "v2" else 3
    flat = ", use_consolidated=False" if flavour == "dual" else ""
    lines = [
        "# shardstore: lazy, and no bytes of shards that were rewritten since",
        f'group = zarr.open_group(shardstore.open("reference::{target}"), mode="r")',
        "# zarr 3",
        f'group = zarr.open_group("reference://", mode="r", zarr_format={zarr_format}{flat}, storage_options={{{options}}})',
        "# xarray",
        f'ds = xr.open_zarr("reference://", consolidated=False, zarr_format={zarr_format}, storage_options={{{options}}})',
    ]
    if flavour != "v3":
        lines += ["# zarr 2", f'group = zarr.open_group(fsspec.get_mapper("reference://", {keywords}), mode="r")']
    if flavour == "v2" and target.partition("://")[0] in _GDAL:
        place = _GDAL[target.partition("://")[0]] + target.partition("://")[2]
        kind = "/vsikerchunk_json_ref" if form == "json" else "/vsikerchunk_parquet_ref"
        lines += ["# GDAL 3.11", f"gdalmdiminfo 'ZARR:\"{kind}/{{{place}}}\"'"]
    return "\n".join(lines)


_SYNCHRONOUS = ("file", "memory")
_GDAL = {"file": "", "s3": "/vsis3/", "gs": "/vsigs/", "https": "/vsicurl/https://", "http": "/vsicurl/http://"}
