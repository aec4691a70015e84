"""The files of a versioned store, as the Icechunk draft of August 2024 describes them.

::

    $ROOT/t/<generation>-<random>.json    state: all snapshots, branches and tags; the catalog points to one
    $ROOT/s/<id>                          structure of one snapshot: its nodes, and which manifests have their chunks (Parquet)
    $ROOT/a/<id>                          attributes that are too long for the structure (Parquet)
    $ROOT/m/<id>                          manifest: where chunks are (Parquet)
    $ROOT/c/<id>                          chunk file: the bytes of some chunks; full ones are shards

No file is changed once it is written. Where the draft is silent or contradicts itself, comments name the decision, D1 to D40, of
``docs/design/snapshots.md``.

Begin with ``state.py``.
"""
