"""Small limits for tests, set on the objects that hold them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def limit_pipeline(array: Any, **limits: int) -> None:
    """Change some of the limits of an array's codec pipeline; see ``PipelineLimits``. To be done before the array is used."""
    pipeline = array.async_array.codec_pipeline
    pipeline.limits = replace(pipeline.limits, **limits)
