"""Files below a directory, by direct calls of the system: locks, temporary files, appends in place, durable names.

``opening`` imports ``storage``. Begin with ``storage.py``, then ``rules.py`` for how a file is replaced and ``reading.py`` for how one is
read.
"""
