"""Read-only HTTP of a store: the presented values for viewers and clients that know no shards, the stored objects, and the read operations
of S3 on both.

Other rooms import ``application`` and ``serve`` from here. They need the extra ``serve``; this module can be imported without it. Begin
with ``application.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardstore import optional

if TYPE_CHECKING:
    from shardstore.server.application import Application, application
    from shardstore.server.running import Serving, serve
else:  # with stand-ins where the extra is missing
    Application = optional.load("shardstore.server.Application", "shardstore.server.application", "serve")
    application = optional.load("shardstore.server.application", "shardstore.server.application", "serve")
    Serving = optional.load("shardstore.server.Serving", "shardstore.server.running", "serve")
    serve = optional.load("shardstore.serve", "shardstore.server.running", "serve")

__all__ = ["Application", "Serving", "application", "serve"]
