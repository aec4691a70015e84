"""The structure file: the nodes of one snapshot, a row for each, and which manifests have the chunks of each array, as Parquet; and files
of attributes that are too long for it.

::

    id               uint32                   stays over history and renames, and is unique in a file (D14)
    type, path       utf8                     rows are sorted by path, segment by segment, and / is always there (D15)
    array_metadata   optional struct          see ``node_columns``; with extra, a column of our own where a document needs it (D17)
    inline_attrs     optional binary          attributes as JSON, or
    attrs_reference  {attrs_file, row, flags} their place in a file of attributes (D19); both is a contradiction, neither means none (D20)
    manifests        [{manifest_id, row, extent, flags}]
                                              where the rows of this array begin in which manifest (D23), and a box around its chunks,
                                              [start, stop) for each dimension (D24); what is later in the list counts (D25)

    metadata of the file
        icechunk.manifests    [{"id": 0, "file": "7CET…", "nbytes": 4410, "rows": 1000, "crc32c": 123, "footer": [900, 456]}, …]
                              what manifest_id means (D22); footer: the bytes of the file's footer and their checksum, by which parts of
                              it are read; run: the same in all files among which a commit has divided its references
        shardstore.changes    what the commit did, by which another one finds out whether it contradicts it, with nodes by id; the manifests
                              are those of the differences, which say what chunks were changed
                              {"created": {"9": "ct"}, "deleted": {"5": "old"}, "moved": {"6": ["a", "b"]}, "updated": [7],
                              "attributes": [8], "manifests": ["7CET…"]}
        shardstore.wide       "true", where numbers do not fit 16 bits and the columns are wider (D16)

    file of attributes, which every reader takes whole (D19)
        attrs                 binary, a row for each node that has such: JSON in UTF-8

``flags`` are null; where they are not, a file can be read, and not be the base of a commit (D21). Both files have a checksum, as
``arrow_tables.sealed`` says. Specification: Icechunk draft, "Structure Files" and "Attributes Files".
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.arrow_tables import column, read_sealed, write_sealed
from shardstore.format.json_text import JsonObject
from shardstore.format.snapshots.node_columns import NodeColumns, to_columns, to_document
from shardstore.format.store_keys import check_node_paths

if TYPE_CHECKING:  # an extra
    import pyarrow as pa

_MANIFESTS, _CHANGES, _WIDE = b"icechunk.manifests", b"shardstore.changes", b"shardstore.wide"
MOST_NARROW = 2**16 - 1
"""The largest number that the draft's structure can hold."""
_FEW_NODES = 64
"""Up to so many, zstd and dictionaries make no shorter file, and take twice the time."""

Extent = tuple[tuple[int, int], ...]
"""A box of chunks: the first coordinate, and that behind the last, of each dimension."""


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest that a structure refers to."""

    name: str
    """Its name below ``m/``."""
    nbytes: int
    rows: int
    crc32c: int
    footer: tuple[int, int] | None = None
    """The length of its footer, in bytes from the end of the file, and their crc32c; ``None``: not known."""
    run: str = ""
    """What all manifests have in common among which the references of one commit are divided."""


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """The rows of one array in a manifest."""

    file: ManifestFile
    row: int
    """The first; they end where another array begins."""
    extent: Extent


@dataclass(frozen=True, slots=True)
class AttributesPlace:
    """The place of attributes in a file of attributes."""

    file: str
    """Its name below ``a/``."""
    row: int


@dataclass(frozen=True, slots=True)
class Node:
    """One array or group."""

    id: int
    path: str
    """``""`` for the root."""
    columns: NodeColumns
    """Its document, without the attributes that are elsewhere."""
    attributes: AttributesPlace | None = None
    manifests: tuple[ManifestPart, ...] = ()

    @classmethod
    def of(cls, id_: int, path: str, document: JsonObject, manifests: tuple[ManifestPart, ...] = ()) -> Node:
        """Return the node with this document. Raises ``InvalidInput`` if it is that of none."""
        return cls(id_, path, to_columns(document), None, manifests)

    def says_the_same(self, other: Node) -> bool:
        """Return whether another node has the same document, attributes included."""
        return (self.columns, self.attributes) == (other.columns, other.attributes)

    @property
    def is_array(self) -> bool:
        return self.columns.array is not None

    @property
    def document(self) -> JsonObject:
        """The document, without attributes that are elsewhere."""
        return to_document(self.columns)


@dataclass(frozen=True, slots=True)
class Structure:
    """The content of a structure file."""

    nodes: Mapping[str, Node]
    """By path, in the order of the file."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """What the commit did."""
    is_flagged: bool = False
    """True if there are flags, whose meaning is not known: no commit can be based on it."""


@lru_cache
def structure_schema(*, wide: bool = False, extra: bool = False) -> pa.Schema:
    """Return the schema of a structure file: the draft's, or with wider numbers, or with the column ``extra``."""
    import pyarrow as pa  # an extra

    size, number = (pa.uint64(), pa.uint32()) if wide else (pa.uint16(), pa.uint16())

    def required(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=False)

    def described(name: str, kind: pa.DataType, text: str, *, nullable: bool = True) -> pa.Field:
        return pa.field(name, kind, nullable=nullable, metadata={"description": text})

    grid = pa.struct([required("name", pa.string()), required("configuration", pa.struct([required("chunk_shape", pa.list_(size))]))])
    encoding = pa.struct([required("name", pa.string()), required("configuration", pa.struct([required("separator", pa.string())]))])
    array = pa.struct(
        [
            required("shape", pa.list_(size)),
            required("data_type", pa.string()),
            pa.field("fill_value", pa.binary()),
            pa.field("dimension_names", pa.list_(pa.string())),
            pa.field("chunk_grid", grid),
            pa.field("chunk_key_encoding", encoding),
            pa.field("codecs", pa.list_(pa.struct([required("name", pa.string()), pa.field("configuration", pa.binary())]))),
        ]
    )
    place = pa.struct([required("attrs_file", pa.string()), required("row", number), pa.field("flags", pa.uint16())])
    extent = pa.list_(pa.list_(size, 2))
    part = pa.struct([required("manifest_id", number), required("row", number), required("extent", extent), pa.field("flags", pa.uint16())])
    members = [
        described("id", pa.uint32(), "unique identifier for the node", nullable=False),
        described("type", pa.string(), "array or group", nullable=False),
        described("path", pa.string(), "path to the node within the store", nullable=False),
        described("array_metadata", array, "All the Zarr array metadata"),
        described("inline_attrs", pa.binary(), "user-defined attributes, stored inline with this entry"),
        described("attrs_reference", place, "user-defined attributes, stored in a separate attributes file"),
        pa.field("manifests", pa.list_(part)),
    ]
    if extra:
        members.append(described("extra", pa.binary(), "the document of the node, where the other columns cannot hold it"))
    return pa.schema(members)


def encode_structure(nodes: Iterable[Node], changes: Mapping[str, Any], *, draft: bool = False) -> bytes:
    """Return the bytes of a structure file. Raises ``InvalidInput`` if ``decode_structure`` would refuse it: there is no root, two nodes
    have one path or id, or a path that no node can have; or, with ``draft``, something does not fit the draft's types.
    """
    ordered = sorted(nodes, key=lambda node: node.path.split("/") if node.path else [])
    _check_nodes(ordered)
    files = {file: number for number, file in enumerate(dict.fromkeys(part.file for node in ordered for part in node.manifests))}
    documents = _Documents(node.columns for node in ordered)
    wide = max(len(files) - 1, _largest_in_documents(documents), *map(_largest_elsewhere, ordered)) > MOST_NARROW
    extra = any(one.extra is not None for one in documents)
    if draft and (wide or extra):
        raise InvalidInput(_why_not_draft(ordered, len(files)))
    table = [_listed(number, file) for file, number in files.items()]
    metadata = {_MANIFESTS: json.dumps(table, separators=(",", ":")).encode()}
    if changes:
        metadata[_CHANGES] = json.dumps(dict(changes), separators=(",", ":")).encode()
    if wide:
        metadata[_WIDE] = b"true"
    rows = _rows(ordered, files, documents, structure_schema(wide=wide, extra=extra).with_metadata(metadata))
    compression: dict[str, Any] = {"compression": "zstd", "compression_level": 3}
    if len(ordered) <= _FEW_NODES:
        compression = {"compression": "snappy", "use_dictionary": False}
    return write_sealed(rows, write_statistics=False, **compression)


def _rows(nodes: Sequence[Node], files: Mapping[ManifestFile, int], documents: _Documents, schema: pa.Schema) -> pa.Table:
    """Return a row for each node, with the numbers of its manifests' files. Raises ``InvalidInput`` if a type cannot hold a value."""
    import pyarrow as pa  # an extra

    columns: dict[str, list[Any]] = {
        "id": [node.id for node in nodes],
        "path": [f"/{node.path}" for node in nodes],
        "attrs_reference": [None if (at := node.attributes) is None else {"attrs_file": at.file, "row": at.row} for node in nodes],
        "manifests": [
            [{"manifest_id": files[part.file], "row": part.row, "extent": part.extent} for part in node.manifests]
            if node.is_array
            else None
            for node in nodes
        ],
    }
    try:
        arrays = {name: column(schema.field(name).type, values) for name, values in columns.items()}
        arrays |= _document_columns(documents, schema.remove_metadata())
    except (pa.ArrowInvalid, OverflowError, UnicodeError) as exc:
        raise InvalidInput(f"a node cannot be stored in a structure file: {type(exc).__name__}: {exc}. Nothing was stored") from exc
    return pa.Table.from_arrays([arrays[member.name] for member in schema], schema=schema)


class _Documents(tuple[NodeColumns, ...]):
    """The documents of many nodes; equal only if each is the same object: few of them change from commit to commit."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(tuple(map(id, self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Documents) and len(self) == len(other) and all(map(operator.is_, self, other))


@lru_cache(maxsize=4)
def _document_columns(documents: _Documents, schema: pa.Schema) -> dict[str, pa.Array]:
    """Return the columns that hold the documents."""
    columns: dict[str, list[Any]] = {
        "type": ["group" if one.array is None else "array" for one in documents],
        "array_metadata": [one.array for one in documents],
        "inline_attrs": [one.attributes for one in documents],
        "extra": [one.extra for one in documents],
    }
    return {member.name: column(member.type, columns[member.name]) for member in schema if member.name in columns}


def decode_structure(data: bytes | memoryview) -> Structure:
    """Return the content of a structure file. Raises ``Corruption`` if it is none, or contradicts itself."""
    import pyarrow as pa  # an extra

    try:
        table = read_sealed(data)
        metadata = table.schema.metadata or {}
        files = {one["id"]: _manifest_file(one) for one in json.loads(metadata.get(_MANIFESTS, b"[]"))}
        changes = json.loads(metadata.get(_CHANGES, b"{}"))
        rows = table.to_pylist()
        nodes = [_node_of(row, files) for row in rows]
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Corruption(f"this is no structure file of a versioned store: {type(exc).__name__}: {exc}") from exc
    found = Structure({node.path: node for node in nodes}, changes, any(map(_has_flags, rows)))
    if len(found.nodes) != len(nodes) or len({node.id for node in nodes}) != len(nodes):
        raise Corruption("a structure file has two nodes with one path or id")
    if "" not in found.nodes:
        raise Corruption("a structure file has no root")
    return found


def _listed(number: int, file: ManifestFile) -> dict[str, Any]:
    said = {"id": number, "file": file.name, "nbytes": file.nbytes, "rows": file.rows, "crc32c": file.crc32c}
    said |= {} if file.footer is None else {"footer": list(file.footer)}
    return said | ({"run": file.run} if file.run else {})


def _manifest_file(said: Mapping[str, Any]) -> ManifestFile:
    footer = said.get("footer")
    place = None if footer is None else (int(footer[0]), int(footer[1]))
    return ManifestFile(
        said["file"].removeprefix("m/"), int(said["nbytes"]), int(said["rows"]), int(said["crc32c"]), place, said.get("run", "")
    )


def _node_of(row: Mapping[str, Any], files: Mapping[int, ManifestFile]) -> Node:
    path, kind, place = row["path"], row["type"], row["attrs_reference"]
    if not path.startswith("/") or (path != "/" and path.endswith("/")):
        raise Corruption(f"a node of a structure file has the path {path!r}")
    if kind not in ("array", "group") or (kind == "array") != (row["array_metadata"] is not None):
        raise Corruption(f"{path!r} of a structure file is of type {kind!r}, and has {'no ' * (kind == 'array')}array_metadata")
    if place is not None and row["inline_attrs"] is not None:
        raise Corruption(f"{path!r} of a structure file has its attributes in two places")
    parts = []
    for part in row["manifests"] or ():
        if part["manifest_id"] not in files:
            raise Corruption(f"{path!r} of a structure file names manifest {part['manifest_id']}, which the file does not list")
        extent = tuple((int(start), int(stop)) for start, stop in part["extent"])
        parts.append(ManifestPart(files[part["manifest_id"]], part["row"], extent))
    columns = NodeColumns(row["array_metadata"], row["inline_attrs"], row.get("extra"))
    attributes = None if place is None else AttributesPlace(place["attrs_file"].removeprefix("a/"), place["row"])
    return Node(row["id"], path[1:], columns, attributes, tuple(parts))


def _has_flags(row: Mapping[str, Any]) -> bool:
    place = row["attrs_reference"]
    return (place is not None and place["flags"] is not None) or any(part["flags"] is not None for part in row["manifests"] or ())


def _check_nodes(nodes: Sequence[Node]) -> None:
    try:
        check_node_paths(node.path for node in nodes)
    except InvalidInput as exc:
        raise InvalidInput(f"{exc}. A node that is there already can be moved, session.move(old, new), or deleted") from exc
    if not any(not node.path for node in nodes):
        raise InvalidInput("a structure file needs a root, and no node is at the path ''")
    for what, values in (("path", [node.path for node in nodes]), ("id", [node.id for node in nodes])):
        if len(set(values)) != len(values):
            raise InvalidInput(f"two nodes have one {what}")
    for node in nodes:
        if node.attributes is not None and node.columns.attributes is not None:
            raise InvalidInput(f"{node.path!r} has its attributes in two places")
        if node.manifests and not node.is_array:
            raise InvalidInput(f"{node.path!r} is a group, and has chunks in manifests")


@lru_cache(maxsize=4)
def _largest_in_documents(documents: _Documents) -> int:
    return max(map(_largest_in_document, documents), default=0)


def _largest_in_document(columns: NodeColumns) -> int:
    array = columns.array
    if array is None:
        return 0
    shape: list[int] = array["shape"]
    most: int = max((0, *shape, *(array["chunk_grid"]["configuration"]["chunk_shape"] if array["chunk_grid"] is not None else ())))
    return most


def _largest_elsewhere(node: Node) -> int:
    """Return the largest number that a structure file has of a node, besides those of its document."""
    most = 0 if node.attributes is None else node.attributes.row
    for part in node.manifests:
        most = max((most, part.row, *(number for one in part.extent for number in one)))
    return most


def _why_not_draft(nodes: Sequence[Node], nfiles: int) -> str:
    for node in nodes:
        if node.columns.extra is not None:
            return f"the draft's structure cannot hold the document of {node.path!r}: use schema='auto'"
        if (most := max(_largest_in_document(node.columns), _largest_elsewhere(node))) > MOST_NARROW:
            return f"the draft's numbers go to 65,535, and {node.path!r} has {most}: use schema='auto'"
    return (
        f"the draft's structure names 65,536 manifests, and there are {nfiles:,}: merge them (Repository.rewrite_manifests, or shardstore "
        "snapshots rewrite), or use schema='auto'"
    )


# -- what a commit did -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """Changes of nodes, by id."""

    created: Mapping[int, str] = field(default_factory=dict)
    """To the path."""
    deleted: Mapping[int, str] = field(default_factory=dict)
    moved: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """From one path to another."""
    updated: frozenset[int] = frozenset()
    """Documents of which more than attributes has changed."""
    attributes: frozenset[int] = frozenset()
    """Documents of which the attributes have changed."""

    @classmethod
    def between(cls, before: Mapping[str, Node], after: Mapping[str, Node]) -> NodeChanges:
        """Return what differs between the nodes of two structures, by path."""
        if before is after:
            return cls()
        was, now = {node.id: node for node in before.values()}, {node.id: node for node in after.values()}
        both = [(was[one], now[one]) for one in was.keys() & now.keys()]
        return cls(
            {one: node.path for one, node in now.items() if one not in was},
            {one: node.path for one, node in was.items() if one not in now},
            {new.id: (old.path, new.path) for old, new in both if old.path != new.path},
            frozenset(new.id for old, new in both if (old.columns.array, old.columns.extra) != (new.columns.array, new.columns.extra)),
            frozenset(new.id for old, new in both if (old.columns.attributes, old.attributes) != (new.columns.attributes, new.attributes)),
        )

    def __bool__(self) -> bool:
        return bool(self.created or self.deleted or self.moved or self.updated or self.attributes)

    def to_json(self, manifests: list[str]) -> dict[str, Any]:
        """Return the member of the structure's metadata."""
        return {
            "created": {str(one): path for one, path in self.created.items()},
            "deleted": {str(one): path for one, path in self.deleted.items()},
            "moved": {str(one): list(paths) for one, paths in self.moved.items()},
            "updated": sorted(self.updated),
            "attributes": sorted(self.attributes),
            "manifests": manifests,
        }


def parse_changes(said: Mapping[str, Any]) -> tuple[NodeChanges, list[str]]:
    """Return the changes of nodes, and the names of the manifests of differences. Raises ``Corruption`` if that is not what is said."""
    try:
        return (
            NodeChanges(
                {int(one): str(path) for one, path in said["created"].items()},
                {int(one): str(path) for one, path in said["deleted"].items()},
                {int(one): (str(before), str(after)) for one, (before, after) in said["moved"].items()},
                frozenset(map(int, said["updated"])),
                frozenset(map(int, said["attributes"])),
            ),
            [str(name) for name in said["manifests"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise Corruption(f"a structure file does not say what its commit did: {type(exc).__name__}: {exc}") from exc


# -- attributes --------------------------------------------------------------------------------------------------------

MOST_INLINE_NBYTES = 16 << 10
"""Attributes up to this stay in the structure file."""


def encode_attributes(rows: Sequence[bytes]) -> bytes:
    """Return the bytes of a file of these attributes."""
    import pyarrow as pa  # an extra

    schema = pa.schema([pa.field("attrs", pa.binary(), nullable=False)])
    return write_sealed(pa.Table.from_arrays([column(pa.binary(), rows)], schema=schema), compression="zstd", use_dictionary=False)


def decode_attributes(data: bytes | memoryview) -> list[bytes]:
    """Return the attributes of a file, by row. Raises ``Corruption`` if it is none."""
    import pyarrow as pa  # an extra

    try:
        rows: list[bytes | None] = read_sealed(data, ["attrs"])["attrs"].to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as exc:
        raise Corruption(f"this is no file of attributes: {type(exc).__name__}: {exc}") from exc
    if any(row is None for row in rows):
        raise Corruption("a file of attributes has a row without any")
    return [row for row in rows if row is not None]
