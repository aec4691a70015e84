"""zarr-python's own conformance suites, on the stores of sessions.

``StoreTests`` writes any bytes under any keys, and a session holds documents and chunks only. So it runs on a store whose keys are chunk
keys of one array: on what was written, and on what was committed. Then it runs on the store as it is, with keys and documents of Zarr in
those tests that would use others.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype
from zarr.testing.stateful import ZarrHierarchyStateMachine
from zarr.testing.store import StoreTests
from zarr.testing.strategies import node_names

import shardstore
from shardstore.adapters.versioned.session import Session
from shardstore.adapters.zarr.store import byte_request
from shardstore.errors import InvalidInput, ReadOnly
from shardstore.model.ranges import resolve
from shardstore.snapshots import Repository
from shardstore.testing.storage_suite import SyncStorage
from tests.adapters.zarr.gate.test_zarr_suites import machine_settings, quiet, without_client_shards
from tests.harness.scale import EXAMPLES
from tests.snapshots.repositories import new_repository
from tests.snapshots.session_keys import array_document
from tests.under_array import GRID, RANK, UnderShardedArray, chunk_key

__all__ = ["machine_settings", "without_client_shards"]  # fixtures


def buffer(data: bytes) -> Buffer:
    return cpu.Buffer.from_bytes(data)


async def put(session: Session, key: str, value: Buffer) -> None:
    """Write past the store and its engine."""
    await asyncio.to_thread(SyncStorage(session.storage).put, key, value.to_bytes())


async def read(session: Session, key: str) -> Buffer:
    """Read past the store and its engine."""
    data = await asyncio.to_thread(SyncStorage(session.storage).get, key)
    assert data is not None
    return buffer(data)


async def refuses_to_travel(store: Store) -> None:
    with pytest.raises(InvalidInput, match="cannot be pickled"):
        pickle.dumps(store)


# -- keys of any kind, as chunks of one array --------------------------------------------------------------------------


class Sessions:
    """A writable session, and, if reads are to be of what was committed, read-only sessions of it."""

    def __init__(self, repo: Repository, *, committing: bool) -> None:
        self._repo = repo
        self._committing = committing
        self.writable = repo.writable_session()
        SyncStorage(self.writable.storage).put("zarr.json", array_document([GRID] * RANK, [1] * RANK))
        self._read_only = self.writable

    @property
    def to_read(self) -> Session:
        if self._committing and self.writable.has_uncommitted_changes:
            self.writable.commit("what was written")
            self.writable = self._repo.writable_session()
            self._read_only = self._repo.readonly_session()
        return self._read_only


class UnderArrayOfSession(UnderShardedArray):
    """A store whose keys are chunks of an array at the root of a session."""

    def __init__(self, sessions: Sessions, *, read_only: bool = False) -> None:
        self.sessions = sessions
        super().__init__(sessions.writable.store.with_read_only(read_only), read_only=read_only)

    @property
    def read_from(self) -> shardstore.ShardedStore:
        store = self.sessions.to_read.store
        self.sharded = self.sessions.writable.store.with_read_only(self.read_only)  # it may be a new session
        return store

    def with_read_only(self, read_only: bool = False) -> UnderArrayOfSession:
        return UnderArrayOfSession(self.sessions, read_only=read_only)


class ChunkSuite(StoreTests[UnderArrayOfSession, cpu.Buffer]):
    __test__ = False
    store_cls = UnderArrayOfSession
    buffer_cls = cpu.Buffer
    committing = False

    @pytest.fixture
    def repo(self, tmp_path: Path) -> Repository:
        return new_repository(tmp_path)

    @pytest.fixture
    def store_kwargs(self, repo: Repository) -> dict[str, Any]:
        return {"sessions": Sessions(repo, committing=self.committing)}

    async def set(self, store: UnderArrayOfSession, key: str, value: Buffer) -> None:
        await put(store.sessions.writable, chunk_key(key), value)

    async def get(self, store: UnderArrayOfSession, key: str) -> Buffer:
        return await read(store.sessions.to_read, chunk_key(key))

    def test_store_repr(self, store: UnderArrayOfSession) -> None:
        assert "@main" in repr(store)

    def test_store_supports_writes(self, store: UnderArrayOfSession) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: UnderArrayOfSession) -> None:
        assert store.supports_listing

    async def test_serializable_store(self, store: UnderArrayOfSession) -> None:
        """Not that of a writable session."""
        await refuses_to_travel(store)


class TestChunks(ChunkSuite):
    __test__ = True


class TestCommittedChunks(ChunkSuite):
    __test__ = True
    committing = True


@pytest.mark.night
class TestCommittedChunksLocal(ChunkSuite):
    __test__ = True
    committing = True

    @pytest.fixture
    def repo(self, tmp_path: Path) -> Repository:
        return Repository.create(tmp_path, fsync=False)


@pytest.mark.night
class TestCommittedChunksS3(ChunkSuite):
    __test__ = True
    committing = True

    @pytest.fixture
    def repo(self, s3_url: tuple[str, dict[str, Any]]) -> Repository:
        url, options = s3_url
        return Repository.create(url, storage_options=options)


# -- keys and documents as they are ------------------------------------------------------------------------------------

GROUP = b'{"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}'
V2 = {"name": "v2", "configuration": {"separator": "/"}}
DOTS = {"name": "default", "configuration": {"separator": "."}}

Documents = dict[str, bytes]
OF_CHUNKS: Documents = {
    "zarr.json": array_document([20], [1]),
    "foo/zarr.json": array_document([10, 10], [1, 1], chunk_key_encoding=V2),
    "bar/zarr.json": array_document([10, 10], [1, 1], chunk_key_encoding=DOTS),
}
CHUNKS = ["c/0", "foo/0/0", "bar/c.0.0"]

BYTES = b"\x01\x02\x03\x04"
RANGES = [None, RangeByteRequest(1, 4), OffsetByteRequest(1), SuffixByteRequest(1)]


async def collected(keys: AsyncIterator[str]) -> list[str]:
    return sorted([key async for key in keys])


class TestStore(StoreTests[shardstore.ShardedStore, cpu.Buffer]):
    """zarr's tests of what has no keys, or keys that a session holds, run as they are, some of them after arrays were created.

    The others are replaced by tests of the same name and the same content, with keys of chunks, and documents, in place of any bytes under
    any keys.
    """

    store_cls = shardstore.ShardedStore
    buffer_cls = cpu.Buffer
    written: Session

    @pytest.fixture
    def session(self, tmp_path: Path) -> Session:
        """Without even a root."""
        session = new_repository(tmp_path).writable_session()
        SyncStorage(session.storage).delete("zarr.json")
        self.written = session
        return session

    @pytest.fixture
    def store_kwargs(self, session: Session) -> dict[str, Any]:
        return {"url": session.storage, "chunks_per_shard": None, "stored": "codec"}

    async def set(self, store: shardstore.ShardedStore, key: str, value: Buffer) -> None:
        await put(self.written, key, value)

    async def get(self, store: shardstore.ShardedStore, key: str) -> Buffer:
        return await read(self.written, key)

    async def create(self, documents: Documents) -> None:
        """Write documents past the store."""
        for key, document in documents.items():
            await put(self.written, key, buffer(document))

    def test_store_repr(self, store: shardstore.ShardedStore) -> None:
        assert "@main" in repr(store)

    def test_store_supports_writes(self, store: shardstore.ShardedStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: shardstore.ShardedStore) -> None:
        assert store.supports_listing

    async def test_serializable_store(self, store: shardstore.ShardedStore) -> None:
        """Not that of a writable session."""
        await refuses_to_travel(store)

    # -- as they are, after arrays were created ------------------------------------------------------------------------

    @pytest.mark.parametrize("key", CHUNKS)
    @pytest.mark.parametrize(("data", "byte_range"), [(BYTES, byte_range) for byte_range in RANGES] + [(b"", None)])
    async def test_get(self, store: shardstore.ShardedStore, key: str, data: bytes, byte_range: ByteRequest) -> None:
        await self.create(OF_CHUNKS)
        await super().test_get(store, key, data, byte_range)

    async def test_get_not_open(self, store_not_open: shardstore.ShardedStore) -> None:
        await self.create(OF_CHUNKS)
        await super().test_get_not_open(store_not_open)

    async def test_get_raises(self, store: shardstore.ShardedStore) -> None:
        await self.create(OF_CHUNKS)
        await super().test_get_raises(store)

    async def test_get_many(self, store: shardstore.ShardedStore) -> None:
        await self.create({"zarr.json": array_document([20], [1], chunk_key_encoding=V2)})
        await super().test_get_many(store)

    @pytest.mark.parametrize("key", CHUNKS)
    @pytest.mark.parametrize("data", [BYTES, b""])
    async def test_getsize(self, store: shardstore.ShardedStore, key: str, data: bytes) -> None:
        await self.create(OF_CHUNKS)
        await super().test_getsize(store, key, data)

    async def test_getsize_prefix(self, store: shardstore.ShardedStore) -> None:
        await self.create({"zarr.json": array_document([2, 2], [1, 1]), "cc/zarr.json": array_document([9], [1], chunk_key_encoding=V2)})
        await super().test_getsize_prefix(store)

    @pytest.mark.parametrize("key", CHUNKS)
    @pytest.mark.parametrize("data", [BYTES, b""])
    async def test_set(self, store: shardstore.ShardedStore, key: str, data: bytes) -> None:
        await self.create(OF_CHUNKS)
        await super().test_set(store, key, data)

    async def test_set_not_open(self, store_not_open: shardstore.ShardedStore) -> None:
        await self.create(OF_CHUNKS)
        await super().test_set_not_open(store_not_open)

    # -- with other keys and values ------------------------------------------------------------------------------------

    async def test_with_read_only_store(self, open_kwargs: dict[str, Any]) -> None:
        await self.create(OF_CHUNKS)
        store = await self.store_cls.open(**open_kwargs)
        reader = store.with_read_only(read_only=True)
        writer = reader.with_read_only(read_only=False)
        assert (reader.read_only, writer.read_only, writer._is_open) == (True, False, False)
        await writer.set("c/0", buffer(BYTES))
        assert await reader.get("c/0", default_buffer_prototype()) == buffer(BYTES)
        await writer.delete("c/0")
        for key in ("c/0", "zarr.json"):
            with pytest.raises(ValueError, match="store was opened in read-only mode and does not support writing"):
                await reader.set(key, buffer(OF_CHUNKS["zarr.json"]))
            with pytest.raises(ValueError, match="store was opened in read-only mode and does not support writing"):
                await reader.delete(key)

    async def test_set_many(self, store: shardstore.ShardedStore) -> None:
        chunks = {key: key.encode() for key in CHUNKS}
        await store._set_many([(key, buffer(data)) for key, data in (OF_CHUNKS | chunks).items()])
        for key, data in (OF_CHUNKS | chunks).items():
            assert (await self.get(store, key)).to_bytes() == data

    @pytest.mark.parametrize(
        "key_ranges",
        [
            [],
            [("foo/zarr.json", RangeByteRequest(0, 2))],
            [("c/0", RangeByteRequest(0, 2)), ("zarr.json", OffsetByteRequest(0)), ("zarr.json", SuffixByteRequest(9))],
            [("foo/0/0", RangeByteRequest(0, 2)), ("foo/0/1", SuffixByteRequest(2)), ("c/2", OffsetByteRequest(2))],
        ],
    )
    async def test_get_partial_values(self, store: shardstore.ShardedStore, key_ranges: list[tuple[str, ByteRequest]]) -> None:
        await self.create(OF_CHUNKS)
        for key, _ in key_ranges:
            if not key.endswith("zarr.json"):
                await self.set(store, key, buffer(key.encode()))
        observed = await store.get_partial_values(default_buffer_prototype(), iter(key_ranges))
        assert len(observed) == len(key_ranges)
        for value, (key, byte_range) in zip(observed, key_ranges, strict=True):
            whole = (await self.get(store, key)).to_bytes()
            wanted = byte_request(byte_range)
            inside = resolve(wanted, len(whole))
            assert value is not None
            assert value.to_bytes() == whole[inside.start : inside.end]
            assert value == await store.get(key, default_buffer_prototype(), byte_range)

    async def test_exists(self, store: shardstore.ShardedStore) -> None:
        assert not await store.exists("foo")
        await store.set("foo/zarr.json", buffer(GROUP))
        assert await store.exists("foo/zarr.json")
        assert not await store.exists("foo")

    async def test_delete(self, store: shardstore.ShardedStore) -> None:
        await store.set("foo/zarr.json", buffer(GROUP))
        await store.delete("foo/zarr.json")
        assert not await store.exists("foo/zarr.json")

    async def test_delete_dir(self, store: shardstore.ShardedStore) -> None:
        await self.create({"zarr.json": GROUP, "foo-bar/zarr.json": GROUP, "foo/zarr.json": array_document([9], [1])})
        await store.set("foo/c/0", buffer(b"chunk"))
        await store.delete_dir("foo")
        assert await collected(store.list()) == ["foo-bar/zarr.json", "zarr.json"]

    async def test_is_empty(self, store: shardstore.ShardedStore) -> None:
        assert await store.is_empty("")
        await self.create({"foo/bar/zarr.json": GROUP})
        assert [await store.is_empty(prefix) for prefix in ("", "fo", "foo/", "foo", "foo/bar", "spam/")] == [
            *(False, True, False, False, False, True)
        ]

    async def test_clear(self, store: shardstore.ShardedStore) -> None:
        await self.create(OF_CHUNKS)
        await self.set(store, "c/0", buffer(BYTES))
        await store.clear()
        assert await store.is_empty("")

    async def test_list(self, store: shardstore.ShardedStore) -> None:
        assert await collected(store.list()) == []
        values = {"foo/zarr.json": array_document([10], [1]), **{f"foo/c/{i}": b"" for i in range(10)}}
        await store._set_many([(key, buffer(value)) for key, value in values.items()])
        assert await collected(store.list()) == sorted(values)

    async def test_list_prefix(self, store: shardstore.ShardedStore) -> None:
        keys = [f"{prefix}zarr.json" for prefix in ("", "a/", "a/b/", "a/b/c/")]
        await store._set_many([(key, buffer(GROUP)) for key in keys])
        for prefix in ("", "a/", "a/b/", "a/b/c/", "a/b/c/zarr.json", "b/"):
            assert await collected(store.list_prefix(prefix)) == sorted(key for key in keys if key.startswith(prefix))

    async def test_list_empty_path(self, store: shardstore.ShardedStore) -> None:
        values = {"foo/bar/zarr.json": array_document([9], [1]), "foo/baz/zarr.json": array_document([9], [1])}
        values |= {"foo/bar/c/1": b"", "foo/baz/c/0": b""}
        await store._set_many([(key, buffer(value)) for key, value in values.items()])
        assert await collected(store.list()) == sorted(values)
        assert await collected(store.list_prefix("")) == sorted(values)
        assert await collected(store.list_prefix("foo/bar/")) == ["foo/bar/c/1", "foo/bar/zarr.json"]

    async def test_list_dir(self, store: shardstore.ShardedStore) -> None:
        assert await collected(store.list_dir("")) == []
        await store._set_many([("foo/zarr.json", buffer(GROUP)), ("foo/bar/zarr.json", buffer(array_document([9], [1])))])
        await store.set("foo/bar/c/1", buffer(b"\x01"))
        for prefix, names in {
            "": ["foo"],
            "foo": ["bar", "zarr.json"],
            "foo/bar": ["c", "zarr.json"],
            "foo/bar/c": ["1"],
            "baz": [],
        }.items():
            assert await collected(store.list_dir(prefix)) == names
            assert await collected(store.list_dir(f"{prefix}/")) == names

    async def test_set_if_not_exists(self, store: shardstore.ShardedStore) -> None:
        await self.create(OF_CHUNKS)
        await self.set(store, "c/0", buffer(b"0000"))
        for key, value, expected in [
            ("c/0", b"1111", b"0000"),
            ("c/1", b"1111", b"1111"),
            ("zarr.json", GROUP, OF_CHUNKS["zarr.json"]),
            ("baz/zarr.json", GROUP, GROUP),
        ]:
            await store.set_if_not_exists(key, buffer(value))
            assert await store.get(key, default_buffer_prototype()) == buffer(expected)


# Of zarr 3.1: they store bytes that are no document as zarr.json, to test what its base class makes of get.
for _name in ("test_get_bytes", "test_get_bytes_sync", "test_get_json", "test_get_json_sync"):
    setattr(TestStore, _name, None)


# -- read-only sessions ------------------------------------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path: Path) -> shardstore.ShardedStore:
    repo = new_repository(tmp_path)
    session = repo.writable_session()
    storage = SyncStorage(session.storage)
    for key, data in (OF_CHUNKS | {"c/0": BYTES, "foo/0/0": b""}).items():
        storage.put(key, data)
    session.commit("data")
    return repo.readonly_session().store


async def test_a_read_only_session_refuses_every_write(read_only: shardstore.ShardedStore) -> None:
    before = await collected(read_only.list())
    writer = read_only.with_read_only(read_only=False)
    assert (read_only.read_only, writer.read_only) == (True, False)
    for store, message in [(read_only, "read-only mode"), (writer, "cannot write")]:
        for write in (
            store.set("c/0", buffer(b"2")),
            store.set("zarr.json", buffer(GROUP)),
            store.set_if_not_exists("c/1", buffer(b"2")),
            store._set_many([("c/0", buffer(b"2"))]),
            store.delete("c/0"),
            store.delete("zarr.json"),
            store.delete_dir("foo"),
            store.clear(),
        ):
            with pytest.raises(ReadOnly, match=message):
                await write
    assert await collected(read_only.list()) == before
    assert await read_only.get("c/0", default_buffer_prototype()) == buffer(BYTES)


async def test_the_store_of_a_read_only_session_travels(read_only: shardstore.ShardedStore) -> None:
    again = pickle.loads(pickle.dumps(read_only))
    assert again == read_only
    assert again.read_only
    assert await collected(again.list()) == await collected(read_only.list())
    assert await again.get("c/0", default_buffer_prototype()) == buffer(BYTES)


# -- zarr's machine of hierarchies -------------------------------------------------------------------------------------


class SessionMachine(ZarrHierarchyStateMachine):
    """Also commits, discards and moves. Committed snapshots stay as they are."""

    def __init__(self, repo: Repository) -> None:
        self.repo = repo
        self.session = repo.writable_session()
        super().__init__(self.session.store)

    @initialize()
    def init_store(self) -> None:
        super().init_store()
        self.snapshots: list[tuple[Session, dict[str, bytes]]] = []
        self.commit()

    def _shown(self, session: Session) -> dict[str, bytes]:
        return dict(session.mapping())

    @rule()
    def commit(self) -> None:
        before = self._shown(self.session)
        self.session.commit("changed", allow_empty=True)
        self.session = self.repo.writable_session()
        self.store = self.session.store
        after = self._shown(self.session)
        assert after.keys() == before.keys()
        for key in before:
            if not key.endswith("zarr.json"):
                assert after[key] == before[key]
        self.snapshots.append((self.repo.readonly_session(), after))
        self.saved = dict(self.model._store_dict), set(self.all_groups), set(self.all_arrays)

    @rule()
    def discard(self) -> None:
        self.session.discard_changes()
        values, groups, arrays = self.saved
        self.model._store_dict.clear()
        self.model._store_dict.update(values)
        self.all_groups, self.all_arrays = set(groups), set(arrays)
        assert self._shown(self.session) == self.snapshots[-1][1]

    @precondition(lambda self: bool(self.all_groups or self.all_arrays))
    @rule(data=st.data(), name=node_names)
    def move(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.all_groups | self.all_arrays)), label="Move source")
        parent = data.draw(st.sampled_from(["", *sorted(self.all_groups)]), label="Move target")
        target = f"{parent}/{name}".lstrip("/")
        hypothesis.assume(self.can_add(target) and not f"{target}/".startswith(f"{source}/"))
        hypothesis.note(f"moving {source!r} to {target!r}")
        self.session.move(source, target)

        def moved(path: str) -> str:
            return target + path[len(source) :] if f"{path}/".startswith(f"{source}/") else path

        values = {moved(key): value for key, value in self.model._store_dict.items()}
        self.model._store_dict.clear()
        self.model._store_dict.update(values)
        self.all_groups, self.all_arrays = set(map(moved, self.all_groups)), set(map(moved, self.all_arrays))

    def teardown(self) -> None:
        for session, shown in self.snapshots:
            again = Repository.open(self.repo.url, storage_options=self.repo._opened.options.storage_options)
            for one in (session, again.readonly_session(snapshot_id=session.snapshot_id)):
                assert self._shown(one) == shown
        super().teardown()


def run_machine(repo: Repository, settings: hypothesis.settings) -> None:
    class Machine(SessionMachine):
        def __init__(self) -> None:
            super().__init__(repo)

    run_state_machine_as_test(Machine, settings=settings)


@pytest.mark.night
@quiet
@pytest.mark.timeout(300 + 5 * EXAMPLES)
@pytest.mark.usefixtures("without_client_shards")
class TestHierarchyMachine:
    def test_in_memory(self, tmp_path: Path, machine_settings: hypothesis.settings) -> None:
        run_machine(new_repository(tmp_path), machine_settings)

    def test_on_local_disk(self, tmp_path: Path, machine_settings: hypothesis.settings) -> None:
        few = hypothesis.settings(machine_settings, max_examples=EXAMPLES // 10)
        run_machine(Repository.create(tmp_path, fsync=False), few)

    def test_on_s3(self, s3_url: tuple[str, dict[str, Any]], machine_settings: hypothesis.settings) -> None:
        url, options = s3_url
        few = hypothesis.settings(machine_settings, max_examples=EXAMPLES // 20, stateful_step_count=10)
        run_machine(Repository.create(url, storage_options=options), few)
