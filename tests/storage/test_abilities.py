"""Optional abilities of storages: which kinds have them, and what wrappers pass on."""

from __future__ import annotations

from pathlib import Path

from fsspec.implementations.memory import MemoryFileSystem

from shardstore.storage.abilities import (
    BlockingReads,
    CopiesFrom,
    DocumentsFirst,
    FileTree,
    HasIdentity,
    ListsLeftovers,
    OnFilesystem,
    VersionedByRange,
)
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalFiles, LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.static import StaticStorage
from shardstore.storage.wrappers import CheckedStorage
from shardstore.testing.trace import TraceStorage


def test_wrapper_passes_on_abilities_of_the_place(tmp_path: Path) -> None:
    local = LocalStorage(tmp_path)
    wrapped = CheckedStorage(TraceStorage(local))
    for kind in (LocalFiles, FileTree, HasIdentity, ListsLeftovers):
        assert wrapped.ability(kind) is local, kind


def test_wrapper_refuses_abilities_that_would_pass_by_it(tmp_path: Path) -> None:
    local = LocalStorage(tmp_path)
    for kind in (BlockingReads, CopiesFrom, LocalStorage):
        assert local.ability(kind) is local, kind
        assert CheckedStorage(local).ability(kind) is None, kind


def test_static_place_is_read_directly_but_not_copied_into(tmp_path: Path) -> None:
    local = LocalStorage(tmp_path)
    static = StaticStorage(local)
    assert static.ability(BlockingReads) is local
    assert static.ability(CopiesFrom) is None
    assert static.ability(LocalStorage) is None
    identity = static.ability(HasIdentity)
    assert identity is static
    assert identity.identity == f"static {local.identity}"


def test_kinds_without_an_ability() -> None:
    memory = MemoryStorage("abilities")
    for kind in (LocalFiles, FileTree, BlockingReads, CopiesFrom, DocumentsFirst, OnFilesystem, VersionedByRange):
        assert memory.ability(kind) is None, kind
    generic = GenericStorage(MemoryFileSystem(), "/abilities")
    assert generic.ability(OnFilesystem) is generic
    assert generic.ability(VersionedByRange) is None
