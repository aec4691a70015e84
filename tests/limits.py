"""Small limits for tests, set on the objects that hold them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from shardstore.storage.local import rules as local_rules
from shardstore.storage.local import storage as local_storage
from shardstore.storage.local.rules import sweep_once, sweep_tree
from shardstore.storage.requests import lost_answers


def limit_pipeline(array: Any, **limits: int) -> None:
    """Change some of the limits of an array's codec pipeline; see ``PipelineLimits``. To be done before the array is used."""
    pipeline = array.async_array.codec_pipeline
    pipeline.limits = replace(pipeline.limits, **limits)


def sweep_young_files() -> None:
    """Let this process, one of a test's own, remove what dead writers left on network mounts however young it is."""
    local_rules.__dict__["sweep_once"] = partial(sweep_once, network_age_seconds=0.0)
    local_storage.__dict__["sweep_tree"] = partial(sweep_tree, network_age_seconds=0.0)


def resend_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait before a request is sent again whose answer was lost: whatever client of whatever kind of storage sends it."""

    async def no_wait(sends: int) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(lost_answers, "wait_to_resend", no_wait)
