"""Clients that know nothing of each other behave, together, like one dictionary of keys.

Each has its own policy, caches and memory of what the others have since changed. Metadata is always revalidated here; how long it
may be believed otherwise is the user's choice.
"""

from __future__ import annotations

import uuid

import hypothesis
import hypothesis.strategies as st
import pytest
import zarr
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from zarr.storage import MemoryStore

import shardstore
from shardstore.errors import InvalidInput, NotFound
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests import view
from tests.harness.scale import EXAMPLES

POLICIES = ((2,), (3,), None)
NAMES = ("ct", "ct2")
CHUNKS = 5

names = st.sampled_from(NAMES)
chunks = st.integers(0, CHUNKS - 1)
clients = st.integers(0, len(POLICIES) - 1)
values = st.binary(max_size=4)
lookers = st.sets(clients)  # who looks afterwards; the others go on with what they remember


def array_document(name: str, shape: int) -> bytes:
    memory = MemoryStore()
    zarr.create_array(memory, name=name, shape=(shape,), chunks=(1,), dtype="u1", fill_value=0)  # of chunks of any length
    data = view.get(memory, f"{name}/zarr.json")
    assert data is not None
    return data


DOCUMENTS = {name: [array_document(name, shape) for shape in (CHUNKS, CHUNKS + 3)] for name in NAMES}


class ClientsMachine(RuleBasedStateMachine):
    """``model`` is what any client has to see."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, bytes] = {}

    @initialize()
    def open(self) -> None:
        self.storage = MemoryStorage(f"/clients-{uuid.uuid4().hex}")
        self.clients = [self.client(policy) for policy in POLICIES]

    def client(self, policy: tuple[int, ...] | None) -> shardstore.ShardedStore:
        return shardstore.open(TraceStorage(self.storage), chunks_per_shard=policy, metadata_ttl=0.0)

    def exists(self, name: str) -> bool:
        return f"{name}/zarr.json" in self.model

    def chunks_of(self, name: str) -> list[str]:
        return [key for key in self.model if key.startswith(f"{name}/c/")]

    @rule(client=clients, name=names, items=st.dictionaries(chunks, values, min_size=1, max_size=CHUNKS), lookers=lookers)
    def make_anew(self, client: int, name: str, items: dict[int, bytes], lookers: set[int]) -> None:
        self.delete_node(client, name, set())
        self.set_document(client, name, 0, set())
        self.set_chunks(client, name, items, lookers)

    @rule(client=clients, name=names, which=st.integers(0, 1), lookers=lookers)
    def set_document(self, client: int, name: str, which: int, lookers: set[int]) -> None:
        """Creation, or another shape. Chunks that lie there unsharded cannot become shards."""
        key, data = f"{name}/zarr.json", DOCUMENTS[name][which]
        would_reinterpret = not self.exists(name) and POLICIES[client] is not None and self.chunks_of(name)
        try:
            view.put(self.clients[client], key, data)
        except InvalidInput:
            assert would_reinterpret
        else:
            assert not would_reinterpret
            self.model[key] = view.get(self.clients[client], key) or b""
        self.looks(lookers)

    @rule(client=clients, name=names, items=st.dictionaries(chunks, values, min_size=1, max_size=CHUNKS), lookers=lookers)
    def set_chunks(self, client: int, name: str, items: dict[int, bytes], lookers: set[int]) -> None:
        new = {f"{name}/c/{chunk}": value for chunk, value in items.items()}
        try:
            view.put_many(self.clients[client], new.items())
        except NotFound:
            # This client has seen an array there that another one deleted, and cannot mean objects.
            assert not self.exists(name)
        else:
            self.model.update(new)
        self.looks(lookers)

    @rule(client=clients, name=names, chunk=chunks, value=values, lookers=lookers)
    def set_if_absent(self, client: int, name: str, chunk: int, value: bytes, lookers: set[int]) -> None:
        key = f"{name}/c/{chunk}"
        try:
            view.put_if_absent(self.clients[client], key, value)
        except NotFound:
            assert not self.exists(name)
        else:
            self.model.setdefault(key, value)
        self.looks(lookers)

    @rule(client=clients, name=names, chunk=chunks, lookers=lookers)
    def delete_chunk(self, client: int, name: str, chunk: int, lookers: set[int]) -> None:
        key = f"{name}/c/{chunk}"
        try:
            view.delete(self.clients[client], key)
        except NotFound:
            assert not self.exists(name)
        else:
            self.model.pop(key, None)
        self.looks(lookers)

    @precondition(lambda self: bool(self.model))
    @rule(client=clients, name=names, lookers=lookers)
    def delete_node(self, client: int, name: str, lookers: set[int]) -> None:
        view.delete_dir(self.clients[client], name)
        self.model = {key: value for key, value in self.model.items() if not key.startswith(f"{name}/")}
        self.looks(lookers)

    @precondition(lambda self: any(self.exists(name) for name in NAMES))
    @rule(client=clients, name=names, lookers=lookers)
    def delete_document(self, client: int, name: str, lookers: set[int]) -> None:
        if not self.exists(name):
            return
        sharded = self.clients[client].chunks_per_shard(name) is not None
        try:
            view.delete(self.clients[client], f"{name}/zarr.json")
        except InvalidInput:
            assert sharded
            assert self.chunks_of(name)
        else:
            assert not (sharded and self.chunks_of(name))
            del self.model[f"{name}/zarr.json"]
        self.looks(lookers)

    @rule(client=clients)
    def look(self, client: int) -> None:
        """Everything that one client sees; between two looks of it the others may have changed much."""
        store = self.clients[client]
        keys = [f"{name}/c/{chunk}" for name in NAMES for chunk in range(CHUNKS)]
        singly = [view.get(store, key) for key in keys]
        assert singly == view.get_many(store, [(key, None) for key in keys])
        for key, got in zip(keys, singly, strict=True):
            assert got in self.acceptable(key), key
            assert view.exists(store, key) == (got is not None)
            if got is not None:
                assert view.getsize(store, key) == len(got)

    def looks(self, lookers: set[int]) -> None:
        for client in sorted(lookers):
            self.look(client)

    def acceptable(self, key: str) -> list[bytes | None]:
        """What lies where a client knew a sharded array that is gone is no chunk to that client."""
        expected = self.model.get(key)
        return [expected] if self.exists(key.split("/")[0]) else [expected, None]

    @rule(client=clients, prefix=st.sampled_from(["", "ct/", "ct2/c/", "ct/c/"]))
    def list_keys(self, client: int, prefix: str) -> None:
        assert view.keys(self.clients[client], prefix) == sorted(key for key in self.model if key.startswith(prefix))
        names_below = {key.removeprefix(prefix).split("/")[0] for key in self.model if key.startswith(prefix)}
        assert view.list_dir(self.clients[client], prefix) == sorted(names_below)

    @invariant()
    def a_newcomer_sees_the_same(self) -> None:
        if hasattr(self, "storage"):
            assert view.contents(self.client(None)) == self.model


@pytest.mark.timeout(300 + EXAMPLES)  # the run's is for the usual number of examples
def test_clients_together_are_one_dictionary() -> None:
    run_state_machine_as_test(
        ClientsMachine,
        settings=hypothesis.settings(
            max_examples=EXAMPLES // 4, stateful_step_count=25, suppress_health_check=list(hypothesis.HealthCheck)
        ),
    )
