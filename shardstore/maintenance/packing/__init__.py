"""Move encoded chunks from one layout into another, byte for byte: into shards, into other shards, or out of shards.

::

    pack                                 the public functions
    plan                                 one run, decided before anything is written: listed, translated, cut into units
    run, report                          a plan that is carried out, and the report on it
    places                               source, target and record, opened, and known to be apart
    listing ──► object_table             what is there: listed once, a few numbers per object; what units made
    translation ──► documents            or the reasons why there is none
    collisions, estimate                 refuse before anything is written: keys that collide, room that is not there
    units                                whole shards, or groups of chunks; what each is made from
    record                               which units are done, of what, and what is about to be written
    removal                              objects of the target that are replaced or removed
    streams, writing                     one unit: its chunks in order, through bounded memory, into one object

The faces and the command line import ``pack`` and ``report``. Begin with ``plan.py`` and ``run.py``, then ``units.py`` and
``writing.py``; how a second run finds what is done is in ``record.py``.
"""
