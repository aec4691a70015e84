"""By what a storage shows that an array's document still means what it meant."""

from __future__ import annotations

import pytest

from tests.engine.hooked import read_apart, tell_times


@pytest.fixture(params=["documents beside", "documents apart", "documents apart, times told"])
def documents(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The storage checks the document in the same step as the chunk; or cannot; or tells when it stored what it answers with."""
    how = str(request.param)
    if "apart" in how:
        read_apart(monkeypatch)
    if "told" in how:
        tell_times(monkeypatch)
    return how
