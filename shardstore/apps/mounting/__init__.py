"""Mounts a store by FUSE: a tree of plain chunk files, for programs that know neither shards nor object stores.

A mount is a process of its own (``__main__``), which ``mounts`` starts and ends. In it ``operations`` answers the kernel, ``files``
and ``contents`` give files their meaning, ``names`` keeps their paths right, ``tree`` knows names and sizes, ``reading`` and ``writing``
hold the bytes that are read and written, and ``held_back`` commits them. Only ``operations`` imports pyfuse3. The faces' users import
``mounts``. Begin with ``contents.py``.
"""
