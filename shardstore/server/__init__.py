"""Read-only HTTP of a store: the presented values for viewers and clients that know no shards, the stored objects, and the read operations
of S3 on both.

Other rooms import ``application`` and ``serve`` from here. Begin with ``application.py``.
"""

from __future__ import annotations

from shardstore.errors import Unsupported
from shardstore.extras import how_to_install

try:
    from shardstore.server.application import Application, application
    from shardstore.server.running import Serving, serve
except ModuleNotFoundError as exc:
    if (exc.name or "").partition(".")[0] not in ("starlette", "uvicorn", "httptools"):
        raise
    raise Unsupported(f"serving needs {exc.name}: {how_to_install('serve')}") from exc

__all__ = ["Application", "Serving", "application", "serve"]
