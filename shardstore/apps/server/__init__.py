"""Read-only HTTP of a store: the presented values for viewers and clients that know no shards, the stored objects, and the read operations
of S3 on both.

``application`` and ``serve`` need the extra ``serve``; this module can be imported without it.

Contributors: other rooms import from here. Begin with ``asgi.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardstore import extras

if TYPE_CHECKING:
    from shardstore.apps.server.asgi import Application, application
    from shardstore.apps.server.running import Serving, serve
else:  # with stand-ins where the extra is missing
    Application = extras.load("shardstore.apps.server.Application", "shardstore.apps.server.asgi", "serve")
    application = extras.load("shardstore.apps.server.application", "shardstore.apps.server.asgi", "serve")
    Serving = extras.load("shardstore.apps.server.Serving", "shardstore.apps.server.running", "serve")
    serve = extras.load("shardstore.serve", "shardstore.apps.server.running", "serve")

__all__ = ["Application", "Serving", "application", "serve"]
