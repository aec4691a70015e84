"""What names a version, and the 64 bits of it by which very many are compared."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.errors import StorageError
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.storage.inferred_versions import is_unversioned, unversioned
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.temporary import TemporaryFile
from shardstore.storage.local.versions import generation_of
from tests.stored import on_io_loop


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "object"
    path.write_bytes(b"data")
    return path


def test_a_files_version_is_its_numbers(file: Path) -> None:
    status = os.stat(file)
    numbers = (status.st_dev, status.st_ino, 4, status.st_mtime_ns, status.st_ctime_ns)
    version = generation_of(status, str(file))
    assert version.token == "-".join(f"{number:x}" for number in numbers)
    assert (version, hash(version)) == (Generation(version.token), hash(Generation(version.token)))
    assert Generation(version.token) == version
    assert version != Generation("another")
    assert version != version.token
    assert version.digest == generation_of(os.stat(file), str(file)).digest != 0
    os.utime(file, ns=(0, status.st_mtime_ns + 1))
    other = generation_of(os.stat(file), str(file))
    assert (other == version, other.digest == version.digest) == (False, False)


def test_versions_travel(file: Path) -> None:
    status = os.stat(file)
    for version in (generation_of(status, str(file)), Generation('"etag"'), unversioned(4)):
        there = pickle.loads(pickle.dumps(version))
        assert there == version
        assert there.digest == version.digest
        assert type(there) is type(version)


def test_digests_are_the_same_in_every_process(file: Path) -> None:
    program = """if True:
        import os, sys
        from shardstore.model.generation import Generation
        from shardstore.storage.local.versions import generation_of
        print(generation_of(os.stat(sys.argv[1]), sys.argv[1]).digest, Generation("some").digest)
    """
    said = {
        subprocess.run(
            [sys.executable, "-c", program, str(file)], capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1")
    }
    assert said == {f"{generation_of(os.stat(file), str(file)).digest} {Generation('some').digest}\n".encode()}


def test_what_has_no_version_has_no_digest() -> None:
    assert unversioned(4).digest == 0
    assert is_unversioned(unversioned(4))
    assert unversioned(4) != unversioned(4)
    assert Generation("some").digest != 0
    assert Generation("a\udcff").digest != Generation("a").digest


def digest_at(path: Path) -> int:
    return generation_of(os.stat(path), str(path)).digest


# -- files one behind the other ----------------------------------------------------------------------------------------


def concatenated(source: LocalStorage, target: LocalStorage, files: list[tuple[str, int, int]]) -> bytes | None:
    done = target.concatenate_blocking("c/0", source, files, lambda: None, b"<", b">", UNCONDITIONAL)
    path = Path(target.root) / "c/0"
    assert (done is not None) == path.exists()
    assert not list(Path(target.root).rglob(".*"))
    return path.read_bytes() if done is not None else None


def test_files_one_behind_the_other(tmp_path: Path) -> None:
    source, target = LocalStorage(tmp_path / "source", fsync=False), LocalStorage(tmp_path / "target", fsync=False)
    for key, data in (("a", b"one"), ("b/c", b""), ("b/.d", b"three")):
        on_io_loop(source.write(key, [data], len(data), UNCONDITIONAL))

    async def listed() -> list[tuple[str, int, int]]:
        return [(info.key, info.nbytes, info.generation.digest) async for info in source.list("") if info.generation is not None]

    files = on_io_loop(listed())
    assert [key for key, _, _ in files] == ["a", "b/.d", "b/c"]
    assert concatenated(source, target, files) == b"<onethree>"


@pytest.mark.parametrize("fault", ["gone", "shorter", "longer", "rewritten", "directory", "pipe", "outside", "reserved"])
def test_a_file_that_is_not_what_was_listed_stores_nothing(fault: str, tmp_path: Path) -> None:
    if fault == "pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("no pipes here")
    source, target = LocalStorage(tmp_path / "source", fsync=False), LocalStorage(tmp_path / "target", fsync=False)
    on_io_loop(source.write("a", [b"one"], 3, UNCONDITIONAL))
    path = tmp_path / "source/a"
    key, version = "a", digest_at(path)
    assert concatenated(source, target, [(key, 3, version)]) == b"<one>"
    (tmp_path / "target/c/0").unlink()
    match fault:
        case "gone":
            path.unlink()
        case "shorter":
            path.write_bytes(b"on")
        case "longer":
            path.write_bytes(b"ones")
        case "rewritten":
            path.write_bytes(b"ONE")
        case "directory":
            path.unlink()
            path.mkdir()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "outside":
            key = "../source/a"
        case "reserved":
            key = ".a.lock.shardstore-tmp"
            path.rename(path.with_name(key))
            version = digest_at(path.with_name(key))
    assert concatenated(source, target, [(key, 3, version)]) is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_changes_while_it_is_copied_stores_nothing(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = LocalStorage(tmp_path / "source", fsync=False), LocalStorage(tmp_path / "target", fsync=False)
    on_io_loop(source.write("a", [b"one"], 3, UNCONDITIONAL))
    path = tmp_path / "source/a"
    copy = TemporaryFile.copy_data

    def beside_a_writer(file: TemporaryFile, *arguments: int) -> None:
        if when == "before":
            path.write_bytes(b"ONE")
        copy(file, *arguments)
        if when == "after":
            path.write_bytes(b"ONE")

    version = digest_at(path)
    monkeypatch.setattr(TemporaryFile, "copy_data", beside_a_writer)
    assert concatenated(source, target, [("a", 3, version)]) is None


def test_an_unreadable_source_is_not_called_an_unwritable_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = LocalStorage(tmp_path / "source", fsync=False), LocalStorage(tmp_path / "target", fsync=False)
    on_io_loop(source.write("a", [b"one"], 3, UNCONDITIONAL))
    version = digest_at(tmp_path / "source/a")
    error = OSError(errno.EIO, "Input/output error")

    def fails(file: TemporaryFile, *arguments: int) -> None:
        raise error

    monkeypatch.setattr(TemporaryFile, "copy_data", fails)
    assert concatenated(source, target, [("a", 3, version)]) is None
    error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(StorageError, match="No space left"):
        concatenated(source, target, [("a", 3, version)])
