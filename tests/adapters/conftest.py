"""Fixtures of the tests of faces: a place of each kind of storage, and what lies there."""

from __future__ import annotations

import pytest

from tests.adapters.places import Place, make_place, put_sample


@pytest.fixture(params=["memory", "local", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    return make_place(request.param, request)


@pytest.fixture
def sample(place: Place) -> dict[str, bytes]:
    return put_sample(place.objects)
