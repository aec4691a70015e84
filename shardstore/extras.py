"""The packages of each extra, for errors that say how to install what is missing.

The packages are named, instead of ``shardstore[zarr]``: so the same command works with a release, a checkout and a copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "zarr": ("zarr>=3.1.6",),
    "s3": ("s3fs>=2025.10.0",),
    "gcs": ("gcsfs>=2025.10.0",),
    "http": ("aiohttp>=3.10",),
    "obstore": ("obstore>=0.12",),
    "cli": ("rich>=13.7", "typer>=0.15"),
    "parquet": ("pyarrow>=16",),
    "snapshots": ("pyarrow>=16",),
    "sql": ("sqlalchemy>=2.0",),
    "icechunk": ("icechunk>=1.1",),
    "references": ("jinja2>=3.1",),
    "plot": ("matplotlib>=3.8",),
    "report": ("jinja2>=3.1",),
    "mount": ("pyfuse3>=3.4; sys_platform == 'linux'",),
    "serve": ("httptools>=0.6", "jinja2>=3.1", "starlette>=0.45", "uvicorn>=0.34"),
}
"""The requirements of each extra, as in pyproject.toml; a test compares them."""


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra."""
    # Without the systems that they are for: those are in quotes too.
    return " ".join(["pip install", *(f"'{requirement.partition(';')[0]}'" for requirement in EXTRAS[extra])])


def packages_of(extra: str) -> set[str]:
    """Return the names of the packages of an extra, as they are imported."""
    return {re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0] for requirement in EXTRAS[extra]}
