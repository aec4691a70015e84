"""Programs on top of the faces: the command line, the server, the mount, and the pages and cards of reports.

They use documented names of adapters, maintenance, snapshots and references, never an engine or a storage. Begin with
``cli/app.py``.
"""
