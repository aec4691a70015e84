"""Formats that clients see in place of final Zarr v3: a view of one engine, under the keys and documents of a flavour.

Other rooms import ``flavours``, the table of what the option ``present`` names, to which more can be added, and
``engine_storage``. Begin with ``view.py``, then ``v2.py``.
"""
