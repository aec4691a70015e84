"""Small limits for tests, set on the objects that hold them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from shardstore.storage.local import rules as local_rules
from shardstore.storage.local import storage as local_storage
from shardstore.storage.local.sweep import sweep_once, sweep_tree


def limit_pipeline(array: Any, **limits: int) -> None:
    """Change some of the limits of an array's codec pipeline; see ``PipelineLimits``. To be done before the array is used."""
    pipeline = array.async_array.codec_pipeline
    pipeline.limits = replace(pipeline.limits, **limits)


def sweep_young_files() -> None:
    """Let this process, one of a test's own, remove what dead writers left on network mounts however young it is."""
    local_rules.__dict__["sweep_once"] = partial(sweep_once, network_age_seconds=0.0)
    local_storage.__dict__["sweep_tree"] = partial(sweep_tree, network_age_seconds=0.0)
