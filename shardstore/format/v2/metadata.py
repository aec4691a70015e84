"""Zarr v2 metadata documents as Zarr v3 ones, and back: the documents that the v2 view writes and shows.

::

    .zarray + .zattrs   ⇄   zarr.json, node_type array, presented: without sharding     array_from_v2, array_to_v2
    .zgroup + .zattrs   ⇄   zarr.json, node_type group                                  group_from_v2, group_to_v2
    .zmetadata          ⇄   consolidated_metadata in the group's zarr.json              consolidated_from_v2, consolidated_to_v2

Pure functions on parsed JSON (``json_text.loads_object``; ``dumps`` here writes v2's bytes). Three promises:

- The chunks' bytes are the same in both formats. A document that would make them differ is refused: with ``InvalidInput`` on the way
  to v3, where a client asked for it, with ``Unsupported`` on the way to v2, where it is stored.
- A v2 document is given back exactly: parts without a member in v3 are kept in the attribute ``RESERVED``, which is usually absent.
  Both views hide it: ``array_to_v2`` and ``group_to_v2`` leave it out, ``hide_kept`` takes it out of what the v3 view shows, and
  ``carry_kept`` puts it back into what a client of that view writes. The order of members is not kept, as ``dumps`` sorts them.
- A change made in v3 takes precedence over kept members.

``NaN`` and the like as numbers, which JSON does not have and zarr-python of both versions writes in attributes, stay unchanged;
stricter readers, tensorstore among them, refuse a ``zarr.json`` that holds one.

Specifications: Zarr v2, "Metadata"; Zarr v3, "Array metadata" and "Group metadata". ``dtypes``, ``fill_values`` and
``codecs`` say how each member is translated.
"""

from __future__ import annotations

from shardstore.format.v2.arrays import ARRAY_DIMENSIONS, array_from_v2, array_to_v2
from shardstore.format.v2.groups import consolidated_from_v2, consolidated_to_v2, group_from_v2, group_to_v2
from shardstore.format.v2.json import dumps
from shardstore.format.v2.kept import RESERVED, carry_kept, hide_kept
from shardstore.format.v2.keys import ARRAY_NAME, ATTRIBUTES_NAME, CONSOLIDATED_NAME, GROUP_NAME

__all__ = [
    "ARRAY_DIMENSIONS",
    "ARRAY_NAME",
    "ATTRIBUTES_NAME",
    "CONSOLIDATED_NAME",
    "GROUP_NAME",
    "RESERVED",
    "array_from_v2",
    "array_to_v2",
    "carry_kept",
    "consolidated_from_v2",
    "consolidated_to_v2",
    "dumps",
    "group_from_v2",
    "group_to_v2",
    "hide_kept",
]
