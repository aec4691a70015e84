"""Zarr v2: its documents, data types, fill values, codecs and keys, and their translation to Zarr v3 and back.

::

    .zarray + .zattrs   ⇄   zarr.json, node_type array, presented: without sharding     array_from_v2, array_to_v2
    .zgroup + .zattrs   ⇄   zarr.json, node_type group                                  group_from_v2, group_to_v2
    .zmetadata          ⇄   consolidated_metadata in the group's zarr.json              consolidated_from_v2, consolidated_to_v2

Pure functions on parsed JSON. They promise:

- The chunks' bytes are the same in both formats. A document that would make them differ is refused: with ``InvalidInput`` on the way
  to v3, where a client asked for it, with ``Unsupported`` on the way to v2, where it is stored.
- A v2 document is given back exactly, except for the order of its members. What has no member in v3 is kept in the attribute
  ``RESERVED``, which both views hide.
- A change made in v3 takes precedence over kept members.

``NaN`` and the like as numbers, which JSON does not have and zarr-python of both versions writes in attributes, stay unchanged;
stricter readers, tensorstore among them, refuse a ``zarr.json`` that holds one.

Other rooms import ``documents``, ``kept`` and ``keys``. Begin with ``documents.py``. Specifications: Zarr v2, "Metadata"; Zarr v3,
"Array metadata" and "Group metadata".
"""
