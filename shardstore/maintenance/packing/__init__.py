"""Move encoded chunks from one layout into another, byte for byte: into shards, into other shards, or out of shards.

::

    pack                                 the public functions; source, target and record, opened, and known to be apart
    plan                                 one run, decided before anything is written: listed, translated, cut into units, estimated
    run                                  a plan that is carried out, and the report on it
    listing                              what is there: listed once, a few numbers per object
    translation                          documents and keys of the target, or the reasons why there are none
    units                                whole shards, or groups of chunks; what each is made from, and what it has made
    record                               which units are done, of what, and what is about to be written
    target                               documents of the target, and objects that are replaced or removed
    streams, writing                     one unit: its chunks in order, through bounded memory, into one object

The faces and the command line import ``pack`` and ``run``. Begin with ``plan.py`` and ``run.py``, then ``units.py`` and ``writing.py``;
how a second run finds what is done is in ``record.py``.
"""
