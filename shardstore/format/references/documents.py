"""The metadata documents of a set of references: those of Zarr v2, of v3, or of both, and the chunk keys that go with them.

::

    "v2"      x/.zarray, x/.zattrs, g/.zgroup             x/0.1
    "v3"      x/zarr.json, g/zarr.json                    x/c/0/1, or as the array's document says
    "dual"    all of them; x/zarr.json says that keys     x/0.1
              are those of v2

Sets in Parquet know only keys of the second and of the third kind. In a dual set, an array that v2 cannot describe has a ``.zarray`` that
every reader of v2 refuses, for a filter that does not exist: programs take the grid of chunks from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.chunk_keys import ChunkKeyEncoding, parse_chunk_key_encoding
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import METADATA_NAME, is_array, item_nbytes
from shardstore.format.v2.documents import ARRAY_DIMENSIONS, array_from_v2, array_to_v2, group_from_v2, group_to_v2
from shardstore.format.v2.kept import hide_kept
from shardstore.format.v2.keys import ARRAY_NAME, ATTRIBUTES_NAME, GROUP_NAME

DocumentFlavour = Literal["v2", "v3", "dual"]

V2_KEYS = ChunkKeyEncoding("v2", ".")
_ONLY_V3 = {"id": "described-by-zarr-v3-only"}


@dataclass(frozen=True, slots=True)
class NodeDocuments:
    """The documents of one node as the source has them: that of v3, with its chunks as presented, or those of v2."""

    v3: JsonObject | None = None
    v2: JsonObject | None = None
    """The ``.zarray`` or ``.zgroup``."""
    attributes: JsonObject | None = None
    """The ``.zattrs``, of a node of v2 that has one."""
    is_array: bool = False

    def in_v2(self) -> tuple[JsonObject, JsonObject | None]:
        """Return ``.zarray`` or ``.zgroup``, and ``.zattrs``; keys have dots. Raises ``Unsupported`` if v2 cannot describe the array."""
        if self.v2 is not None:
            main, attributes = self.v2, self.attributes
        elif not self.is_array:
            main, attributes = group_to_v2(self.v3 or {"zarr_format": 3, "node_type": "group"})
        else:
            assert self.v3 is not None
            main, attributes = array_to_v2(self.v3)
            if not main["shape"]:  # which has no names of dimensions in v3, but xarray refuses a whole group of v2 for lack of the list
                attributes = {ARRAY_DIMENSIONS: []} | (attributes or {})
        return {name: value for name, value in main.items() if name != "dimension_separator"}, attributes

    def in_v3(self) -> JsonObject:
        """Return the ``zarr.json``. Raises ``Unsupported`` if Zarr v3 cannot describe the array."""
        if self.v3 is not None:
            document = self.v3
        elif not self.is_array:
            document = hide_kept(group_from_v2(self.v2 or {"zarr_format": 2}, self.attributes))
        else:
            assert self.v2 is not None
            try:
                document = hide_kept(array_from_v2(self.v2, self.attributes))
            except InvalidInput as exc:
                raise Unsupported(str(exc)) from exc
        # Consolidated metadata may name arrays that the set leaves out.
        return {name: value for name, value in document.items() if name != "consolidated_metadata"}


def node_documents(by_name: Mapping[str, JsonObject]) -> NodeDocuments | None:
    """Return the documents of a node from those at its path by name, ``None`` if there is none. That of v3 counts."""
    if (v3 := by_name.get(METADATA_NAME)) is not None:
        return NodeDocuments(v3, is_array=is_array(v3))
    v2 = by_name.get(ARRAY_NAME) or by_name.get(GROUP_NAME)
    return None if v2 is None else NodeDocuments(None, v2, by_name.get(ATTRIBUTES_NAME), is_array=ARRAY_NAME in by_name)


def documents(node: NodeDocuments, flavour: DocumentFlavour) -> dict[str, JsonObject]:
    """Return the documents of a node by name. Raises ``Unsupported``, with the reason, if the flavour cannot describe the array."""
    found: dict[str, JsonObject] = {}
    if flavour != "v2":
        found[METADATA_NAME] = node.in_v3()
        if flavour == "dual" and node.is_array:
            found[METADATA_NAME] |= {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}}
    if flavour != "v3":
        try:
            main, attributes = node.in_v2()
        except Unsupported:
            if flavour == "v2":
                raise
            main, attributes = _refused_by_v2(node.in_v3()), None
        found[ARRAY_NAME if node.is_array else GROUP_NAME] = main
        if attributes is not None:
            found[ATTRIBUTES_NAME] = attributes
    return found


def key_encoding(found: Mapping[str, JsonObject]) -> ChunkKeyEncoding:
    """Return the encoding of the chunk keys that go with an array's documents."""
    if METADATA_NAME not in found:
        return V2_KEYS
    encoding = parse_chunk_key_encoding(found[METADATA_NAME].get("chunk_key_encoding"))
    assert encoding is not None  # otherwise its chunks are not known
    return encoding


def _refused_by_v2(document: JsonObject) -> JsonObject:
    """Return a ``.zarray`` with the right grid of chunks that no reader of v2 takes for a description of the chunks."""
    return {
        "zarr_format": 2,
        "shape": document["shape"],
        "chunks": document["chunk_grid"]["configuration"]["chunk_shape"],
        "dtype": f"|V{item_nbytes(document.get('data_type')) or 1}",
        "order": "C",
        "fill_value": None,
        "compressor": None,
        "filters": [_ONLY_V3],
    }
