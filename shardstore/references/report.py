"""The progress and the report of writing a set, and the lines that open the set in other programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardstore.errors import InvalidInput
from shardstore.progress.steps import Step
from shardstore.references.batches import ReferenceBatch, ReferencedArray, size_of

Format = Literal["json", "parquet", "icechunk"]


@dataclass(frozen=True, slots=True)
class ReferenceProgress:
    """The progress of a run: how many chunks are referred to so far, and in which array of how many the run is."""

    references: int
    array: int
    arrays: int
    path: str

    def step(self, /) -> Step:
        """Return the step that is shown."""
        return Step(f"array {self.array} of {self.arrays}", self.references, noun="references")


_SAME = {"s3a": "s3", "gcs": "gs", "https": "http", "": "file", "local": "file"}


@dataclass(slots=True)
class Tally:
    """Counts over all arrays of a set."""

    arrays: Sequence[ReferencedArray]
    progress: Callable[[ReferenceProgress], None] | None = None
    mixed_protocols: bool = False
    references: int = 0
    inlined: int = 0
    urls: set[int] = field(default_factory=set)
    """Hashes of all URLs: there may be millions."""
    protocols: dict[str, str] = field(default_factory=dict)
    """By protocol, one of its URLs."""

    @property
    def missing(self) -> int:
        return sum(map(size_of, self.arrays)) - self.references

    def counted(self, number: int, batches: Iterator[ReferenceBatch]) -> Iterator[ReferenceBatch]:
        """Yield the batches of one array, each part of which is counted by ``count``."""
        for batch in batches:
            for url in batch.rows.targets:
                self._note(url)
            yield batch
            if self.progress is not None:
                self.progress(ReferenceProgress(self.references, number + 1, len(self.arrays), self.arrays[number].path))

    def count(self, references: int, inlined: int) -> None:
        self.references += references
        self.inlined += inlined

    def _note(self, url: str) -> None:
        """Note the protocol of a URL. Raises ``InvalidInput`` if there is another one already: fsspec finds only one for a whole set."""
        self.urls.add(hash(url))
        protocol = url.partition("://")[0] if "://" in url else ""
        protocol = _SAME.get(protocol, protocol)
        if protocol in self.protocols:
            return
        self.protocols[protocol] = url
        if len(self.protocols) > 1 and not self.mixed_protocols:
            one, other = list(self.protocols.values())[:2]
            raise InvalidInput(
                f"references lead to {one!r} and to {other!r}: fsspec opens one protocol for a whole set, and fails for the other. "
                "mixed_protocols=True writes it all the same; shardstore reads it"
            )


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
    """Bytes of the set; in a repository of icechunk those of documents and of chunks that were copied into it."""
    is_pinned: bool
    """True if the set says which version of each object it was made of."""
    left_out: Mapping[str, str]
    """By path or key, what is not in the set, and the reason in words."""
    index_requests: int
    """The number of shards whose indices were read."""
    how_to_open: str
    """Lines of Python that open the set, for zarr 3, zarr 2, xarray and GDAL."""
    snapshot: str | None = None
    """The id of the commit, if it was committed to a repository of icechunk."""

    def __repr__(self) -> str:
        counts = f"{self.arrays} arrays, {self.references:,} references to {self.targets:,} objects, {self.inlined:,} inlined"
        return f"<ReferenceReport of {self.target!r}: {self.format}, {self.flavour}, {counts}, {self.nbytes:,} bytes>"


SYNCHRONOUS = ("file", "memory")
"""The protocols whose filesystems are not asynchronous, and need no options."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What the lines depend on that open a set."""

    target: str
    form: Format
    flavour: str
    remote_protocol: str
    """The protocol of the objects."""
    remote_needs_options: bool = False
    """True if the storage of the objects needs options that are the user's."""
    target_needs_options: bool = False
    """True if the storage of the set does."""
    is_versioned: bool = False
    """True if URLs name versions of objects."""
    is_root_array: bool = False
    """True if all of the set is one array, at the root."""
    is_pinned: bool = True
    """True if no bytes are read of objects that have changed since."""


def how_to_open(opening: Opening) -> str:
    """Return the lines that open a set; ``…`` in them stands for options that are the user's."""
    target, flavour = json.dumps(opening.target, ensure_ascii=False), opening.flavour
    zarr_format = 2 if flavour == "v2" else 3
    flat = ", use_consolidated=False" if flavour == "dual" else ""
    node, opens = ("array", "open_array") if opening.is_root_array else ("group", "open_group")
    given = _given(opening, {"asynchronous": "True"} if opening.remote_protocol not in SYNCHRONOUS else {})
    options = "{" + ", ".join(f'"{name}": {value}' for name, value in given.items()) + "}"
    keywords = ", ".join(f"{name}={value}" for name, value in _given(opening, {}).items())
    place = json.dumps(f"reference::{opening.target}", ensure_ascii=False)
    needs = ": with the package zstandard, for fsspec" if target.endswith('.zst"') else ""
    lines = [
        f"# shardstore: lazy{', and no bytes of objects that were rewritten since' if opening.is_pinned else ''}",
        f'{node} = zarr.{opens}(shardstore.open({place}{_own_options(opening)}), mode="r")',
        f"# zarr 3{needs}",
        f'{node} = zarr.{opens}("reference://", mode="r", zarr_format={zarr_format}{flat}, storage_options={options})',
    ]
    if not opening.is_root_array:  # xarray opens groups only
        lines += [
            f"# xarray{needs}",
            f'ds = xr.open_zarr("reference://", consolidated=False, zarr_format={zarr_format}, storage_options={options})',
        ]
    if flavour != "v3":
        lines += [f"# zarr 2{needs}", f'{node} = zarr.{opens}(fsspec.get_mapper("reference://", {keywords}), mode="r")']
    return "\n".join([*lines, *_gdal_lines(opening)])


def _gdal_lines(opening: Opening) -> list[str]:
    """Return the lines for GDAL; none if it cannot open the set."""
    protocol, _, rest = opening.target.partition("://")
    if opening.flavour != "v2" or protocol not in _GDAL or opening.target.endswith((".gz", ".zst")) or opening.is_versioned:
        return []
    kind = "/vsikerchunk_json_ref" if opening.form == "json" else "/vsikerchunk_parquet_ref"
    return ["# GDAL 3.11", f"gdalmdiminfo 'ZARR:\"{kind}/{{{_GDAL[protocol]}{rest}}}\"'"]


def _given(opening: Opening, remote: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments of fsspec's filesystem; the objects' one gets the options ``remote``.

    zarr makes the filesystem of the set asynchronous, and fsspec wants that of the objects to be so too.
    """
    target = json.dumps(opening.target, ensure_ascii=False)
    given = {"fo": target}
    set_options = {"compression": '"infer"'} if target.endswith(_COMPRESSED) else {}  # by default fsspec does not decompress
    if set_options or opening.target_needs_options:
        given["target_options"] = _dictionary(set_options, opening.target_needs_options)
    given["remote_protocol"] = f'"{opening.remote_protocol}"'
    object_options = {**remote, **({"version_aware": "True"} if opening.is_versioned else {})}
    if object_options or opening.remote_needs_options:
        given["remote_options"] = _dictionary(object_options, opening.remote_needs_options)
    return given


def _own_options(opening: Opening) -> str:
    """Return the argument ``storage_options`` of ``shardstore.open``, which has options by protocol; empty if there is no need for any."""
    protocols = {
        **({opening.target.partition("://")[0]: None} if opening.target_needs_options else {}),
        **({opening.remote_protocol: None} if opening.remote_needs_options else {}),
    }
    return ", storage_options={" + ", ".join(f'"{protocol}": {{…}}' for protocol in protocols) + "}" if protocols else ""


def _dictionary(options: Mapping[str, str], has_more: bool) -> str:
    return "{" + ", ".join([*(f'"{name}": {value}' for name, value in options.items()), *["…"] * has_more]) + "}"


_COMPRESSED = ('.gz"', '.zst"')
_GDAL = {"file": "", "s3": "/vsis3/", "gs": "/vsigs/", "https": "/vsicurl/https://", "http": "/vsicurl/http://"}
