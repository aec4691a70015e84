"""A place without Zarr is not looked through; one store in it is enough that it is."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import zarr

from shardstore.engine.engine import Engine
from shardstore.errors import NotFound
from shardstore.maintenance.survey.run import survey
from shardstore.opening.open import open_storage
from tests.stored import on_io_loop


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for number in range(4):
        (tmp_path / f"file-{number}").write_bytes(b"x")
    return tmp_path


def test_a_place_without_zarr_is_given_up(place: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no Zarr among the first 4 objects below ./tmp: name the store itself"):
        on_io_loop(survey(Engine(open_storage(place)), shown="./tmp", most_without_nodes=4))
    assert on_io_loop(survey(Engine(open_storage(place)), most_without_nodes=5)).other_objects == 4


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_place_with_a_store_is_looked_through(place: Path, zarr_format: Literal[2, 3]) -> None:
    zarr.create_group(place / "data.zarr", zarr_format=zarr_format)
    assert on_io_loop(survey(Engine(open_storage(place)), most_without_nodes=1)).objects in (5, 6)


def test_what_a_group_holds_besides_nodes_does_not_count(tmp_path: Path, place: Path) -> None:
    zarr.create_group(tmp_path, zarr_format=3)
    assert on_io_loop(survey(Engine(open_storage(place)), most_without_nodes=1)).other_objects == 4
