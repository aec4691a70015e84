"""A kernel in C that reads, decodes and places chunks of local shards, and encodes chunks, without holding the interpreter's lock.

It is optional: where it is missing, or lacks a codec, chunks are decoded and encoded in Python, with the same results. Begin with
``kernel.py``, its face; ``libraries.py`` finds the functions of codecs in libraries that are installed; ``build_hook.py`` compiles
``kernel.c`` while a wheel is built. The adapter for zarr imports this room, and the command line asks whether there is a kernel.
"""
