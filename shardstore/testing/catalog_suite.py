"""The contract of every catalog of versioned stores, as a class for pytest.

Inherit from ``CatalogSuite`` in a class whose name starts with ``Test``, and give it a fixture ``catalog`` that returns a catalog
without stores, which can be pickled. Nothing is to be overridden but the fixture ``rounds``, where races are to be short.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Coroutine
from typing import Any

import pytest

from shardstore.errors import InvalidInput
from shardstore.snapshots.catalog import Catalog, Pointer, PointerMoved
from shardstore.testing.storage_suite import on_io_loop

__all__ = ["CatalogSuite"]

SWAPPERS = 32
ROUNDS = 200


def pointer(generation: int, of: str = "x", store_id: str = "id") -> Pointer:
    """Return the pointer to a state of this generation that ``of`` has made."""
    return Pointer(f"t/{generation:020d}-{of}.json", generation, store_id)


class SyncCatalog:
    """The methods of a catalog, for tests that are no coroutines."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def get(self, name: str) -> Pointer | None:
        return on_io_loop(self.catalog.get(name))

    def swap(self, name: str, before: Pointer | None, after: Pointer) -> Pointer:
        return on_io_loop(self.catalog.swap(name, before, after))

    def delete(self, name: str, before: Pointer) -> None:
        on_io_loop(self.catalog.delete(name, before))

    def names(self) -> list[str]:
        async def collect() -> list[str]:
            return [name async for name in self.catalog.list()]

        return sorted(on_io_loop(collect()))

    def another(self) -> SyncCatalog:
        """Return the same catalog as another client has it, who shares nothing with this one."""
        return SyncCatalog(pickle.loads(pickle.dumps(self.catalog)))


async def attempt(call: Coroutine[Any, Any, object]) -> bool:
    """Return whether a swap or a deletion was carried out: false if another client was first."""
    try:
        await call
    except PointerMoved:
        return False
    return True


class CatalogSuite:
    """The contract of ``shardstore.snapshots.Catalog``."""

    @pytest.fixture
    def c(self, catalog: Catalog) -> SyncCatalog:
        """Return the catalog that is tested."""
        return SyncCatalog(catalog)

    @pytest.fixture
    def rounds(self) -> int:
        """The rounds of a race."""
        return ROUNDS

    # -- looking -------------------------------------------------------------------------------------------------------

    def test_url_names_the_place(self, catalog: Catalog) -> None:
        assert "://" in catalog.url

    def test_looking_at_nothing_changes_nothing(self, c: SyncCatalog) -> None:
        assert c.get("a") is None
        on_io_loop(c.catalog.check_able())
        assert c.names() == []
        assert c.another().get("a") is None

    def test_names_are_listed(self, c: SyncCatalog) -> None:
        for number, name in enumerate(["b", "a", "c"]):
            c.swap(name, None, pointer(number))
        assert c.names() == ["a", "b", "c"]
        c.delete("b", pointer(0))
        assert c.names() == ["a", "c"]
        assert c.another().names() == ["a", "c"]

    # -- names ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", ["", ".", ".a", "a/b", "a\\b", "a@b", " a", "a ", "a\0b", "\n"])
    def test_names_that_cannot_be(self, c: SyncCatalog, name: str) -> None:
        with pytest.raises(InvalidInput, match="name of a store"):
            c.get(name)
        with pytest.raises(InvalidInput, match="name of a store"):
            c.swap(name, None, pointer(0))
        with pytest.raises(InvalidInput, match="name of a store"):
            c.delete(name, pointer(0))
        assert c.names() == []

    @pytest.mark.parametrize("name", ["a.json", "it's", 'a"b', "50%", "a%2Fb", "a b", "a;b--", "ünïcødé 键", "x" * 200, "_", "*", "?a=b#c"])
    def test_names(self, c: SyncCatalog, name: str) -> None:
        first = c.swap(name, None, pointer(0))
        assert c.swap(name, first, pointer(1)) == pointer(1) == c.get(name)
        assert c.names() == [name]
        c.delete(name, pointer(1))
        assert c.names() == []

    def test_stores_do_not_disturb_each_other(self, c: SyncCatalog) -> None:
        stores = {"a": pointer(0, "a"), "b": pointer(7, "b"), "ab": pointer(0, "ab"), "a%": pointer(1, "a%"), "a_": pointer(2, "a_")}
        for name, first in stores.items():
            c.swap(name, None, first)
        stores["a"] = c.swap("a", stores["a"], pointer(1, "a"))
        c.delete("ab", stores.pop("ab"))
        assert {name: c.get(name) for name in c.names()} == stores

    # -- swapping ------------------------------------------------------------------------------------------------------

    def test_a_pointer_is_created_once(self, c: SyncCatalog) -> None:
        first = c.swap("a", None, pointer(0))
        assert first == pointer(0) == c.get("a")
        with pytest.raises(PointerMoved, match="generation 0") as caught:
            c.swap("a", None, pointer(0, "y"))
        assert caught.value.now == first
        assert c.get("a") == first

    def test_a_swap_is_seen_by_everybody(self, c: SyncCatalog) -> None:
        other = c.another()
        assert other.get("a") is None
        now = c.swap("a", None, pointer(0, store_id="9f0c"))
        for number in range(1, 6):
            now = (c if number % 2 else other).swap("a", now, pointer(number, store_id="9f0c"))
            for client in (c, other, c.another()):
                found = client.get("a")
                assert found == now == Pointer(f"t/{number:020d}-x.json", number, "9f0c")

    def test_a_swap_from_what_was_is_refused(self, c: SyncCatalog) -> None:
        first = c.swap("a", None, pointer(0))
        second = c.swap("a", first, pointer(1))
        # The returned pointer, and such as the catalog has never returned.
        for stale in (first, pointer(0), pointer(0, "y"), pointer(1, "y"), pointer(7)):
            with pytest.raises(PointerMoved, match="generation 1") as caught:
                c.swap("a", stale, pointer(stale.generation + 1, "z"))
            assert caught.value.now == second
        assert c.get("a") == second
        assert c.swap("a", pointer(1), pointer(2)) == pointer(2) == c.get("a")

    def test_a_swap_of_nothing_is_refused(self, c: SyncCatalog) -> None:
        first = c.swap("a", None, pointer(0))
        c.delete("a", first)
        for stale in (first, pointer(0), pointer(7)):
            with pytest.raises(PointerMoved, match="it is gone") as caught:
                c.swap("a", stale, pointer(1))
            assert caught.value.now is None
        assert c.get("a") is None
        assert c.names() == []

    def test_what_another_client_has_read_can_be_swapped(self, c: SyncCatalog) -> None:
        """A pointer travels: it is read by one process, and swapped by another."""
        c.swap("a", None, pointer(0))
        read = pickle.loads(pickle.dumps(c.another().get("a")))
        assert c.swap("a", read, pointer(1)) == pointer(1) == c.get("a")

    def test_the_same_swap_again_is_the_same_success(self, c: SyncCatalog) -> None:
        """A client that lost an answer may ask again: locations are unique, so what is there is its own."""
        first = c.swap("a", None, pointer(0))
        assert c.swap("a", None, pointer(0)) == first
        second = c.swap("a", first, pointer(1))
        for before in (first, pointer(0)):
            for client in (c, c.another()):
                assert client.swap("a", before, pointer(1)) == second == c.get("a")
        third = c.swap("a", c.swap("a", first, pointer(1)), pointer(2))
        with pytest.raises(PointerMoved) as caught:
            c.swap("a", first, pointer(1))  # was carried out, and other swaps followed: only the state shows it
        assert caught.value.now == third == c.get("a")

    def test_the_same_swap_by_several_at_once(self, c: SyncCatalog) -> None:
        async def swap_all(before: Pointer | None, after: Pointer) -> list[Pointer]:
            clients = [c.another().catalog for _ in range(4)]
            return await asyncio.gather(*(client.swap("a", before, after) for client in clients))

        now: Pointer | None = None
        for number in range(4):
            outcomes = on_io_loop(swap_all(now, pointer(number)))
            assert outcomes == [pointer(number)] * 4
            now = c.get("a")
            assert now == pointer(number)

    # -- deleting ------------------------------------------------------------------------------------------------------

    def test_a_pointer_is_deleted(self, c: SyncCatalog) -> None:
        c.swap("a", None, pointer(0))
        c.delete("a", pointer(0))
        assert c.get("a") is None
        assert c.another().get("a") is None
        with pytest.raises(PointerMoved, match="it is gone") as caught:
            c.delete("a", pointer(0))
        assert caught.value.now is None
        with pytest.raises(PointerMoved, match="it is gone"):
            c.delete("never", pointer(0))

    def test_a_pointer_that_was_is_not_deleted(self, c: SyncCatalog) -> None:
        first = c.swap("a", None, pointer(0))
        second = c.swap("a", first, pointer(1))
        for stale in (first, pointer(0), pointer(1, "y"), pointer(7)):
            with pytest.raises(PointerMoved, match="generation 1") as caught:
                c.delete("a", stale)
            assert caught.value.now == second
        assert c.get("a") == second

    def test_a_name_can_be_given_again(self, c: SyncCatalog) -> None:
        old = c.swap("a", None, pointer(0, "x", "one"))
        c.delete("a", old)
        new = c.swap("a", None, pointer(0, "y", "two"))
        with pytest.raises(PointerMoved) as caught:
            c.swap("a", old, pointer(1, "x", "one"))
        assert caught.value.now == new
        assert c.get("a") == new

    # -- races ---------------------------------------------------------------------------------------------------------

    def test_of_those_who_swap_at_once_one_succeeds(self, c: SyncCatalog, rounds: int) -> None:
        """They are four clients. A concurrent reader sees only what one of them has written, and never an older pointer again."""
        catalogs = [c.catalog, *(c.another().catalog for _ in range(3))]
        seen: list[int] = []

        async def look(is_over: asyncio.Event) -> None:
            while not is_over.is_set():
                found = await catalogs[1].get("a")
                if found is not None:
                    assert found.location in {pointer(found.generation, str(who)).location for who in range(SWAPPERS)}
                    seen.append(found.generation)
                await asyncio.sleep(0)

        async def race(now: Pointer | None, number: int) -> Pointer:
            is_over = asyncio.Event()
            looking = asyncio.ensure_future(look(is_over))
            given = [pointer(number, str(who)) for who in range(SWAPPERS)]
            swaps = [attempt(catalogs[who % len(catalogs)].swap("a", now, after)) for who, after in enumerate(given)]
            outcomes = await asyncio.gather(*swaps)
            is_over.set()
            await looking
            winners = [after for after, is_first in zip(given, outcomes, strict=True) if is_first]
            assert len(winners) == 1, f"round {number} was won by {winners}"
            found = await catalogs[number % len(catalogs)].get("a")
            assert found is not None
            assert found == winners[0]
            return found

        now: Pointer | None = None
        for number in range(rounds):
            now = on_io_loop(race(now, number))
        assert seen == sorted(seen)

    def test_of_those_who_swap_and_delete_at_once_one_swap_succeeds_at_most(self, c: SyncCatalog) -> None:
        """Where nothing is deleted on a condition, a swap and the deletion may both succeed, in either order."""

        async def race(now: Pointer) -> tuple[list[bool], bool]:
            swaps = [attempt(c.catalog.swap("a", now, pointer(now.generation + 1, str(who)))) for who in range(4)]
            *swapped, is_deleted = await asyncio.gather(*swaps, attempt(c.catalog.delete("a", now)))
            return swapped, is_deleted

        for number in range(0, 10, 2):
            swapped, is_deleted = on_io_loop(race(c.swap("a", None, pointer(number))))
            now = c.get("a")
            assert sum(swapped) <= 1
            assert sum(swapped) + is_deleted >= 1
            if now is not None:
                assert now == pointer(number + 1, str(swapped.index(True)))
                c.delete("a", now)
            else:
                assert is_deleted
