"""Move encoded chunks from one layout into another, byte for byte: into shards, into other shards, or out of shards.

::

    listing ──► tables of objects        what is there: listed once, a few numbers per object
    translation ──► documents            or the reasons why there is none
    plan ──► units                       whole shards, or groups of chunks; what each is made from
    streams, writing                     one unit: its chunks in order, through bounded memory, into one object
    record                               which units are done, and of what
    packing                              drives it all: begins, continues, and makes the result visible at the end
"""
