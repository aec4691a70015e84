"""Mounts as processes: begun, ended, killed and cut off; what the system shows of them; several of them on one store."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import shardstore
from shardstore.apps.mounting.mounts import Mount
from shardstore.errors import Conflict, InvalidInput, NotFound, StorageError
from tests.apps.mounting.conftest import DATA, make_store, run, take_away

MakeMount = Callable[..., Mount]
NEW = b"what is new"
COMMAND = [sys.executable, "-m", "shardstore"]


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds; fail if it does not in time."""
    ended = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ended, "it does not come to hold"
        time.sleep(0.02)


@contextmanager
def raises_errno(number: int) -> Iterator[None]:
    """Check that the system refuses something by this number."""
    with pytest.raises(OSError, match=f"Errno {number}"):
        yield


def native(store: Path, key: str) -> bytes:
    return bytes(shardstore.get_mapper(str(store))[key])


# -- one version, and others who write -------------------------------------------------------------------------------------------


def test_a_chunk_that_grows_while_it_is_open_is_never_short(store: Path, mount: MakeMount) -> None:
    mapper = shardstore.get_mapper(str(store))
    with mount(store) as mounted:
        path = f"{mounted.directory}/ct/c/0/0/0"
        for n in range(1, 30):
            mapper["ct/c/0/0/0"] = b"%d" % (n % 10) * (100 * n)
            os.stat(path)  # the kernel remembers a size
            mapper["ct/c/0/0/0"] = b"x" * (100 * n + 50)
            descriptor = os.open(path, os.O_RDONLY)
            nbytes = os.fstat(descriptor).st_size  # as tensorstore reads: so many bytes as the system says
            mapper["ct/c/0/0/0"] = b"y" * (100 * n + 99)
            data = os.read(descriptor, 1 << 20)
            os.close(descriptor)
            assert len(set(data)) == 1
            assert len(data) == nbytes
            assert len(data) in (100 * n, 100 * n + 50)  # what was current not more than attr_seconds before


@pytest.mark.parametrize("on_s3", [False, True])
def test_two_mounts_and_a_native_writer_lose_nothing(store: Path, mount: MakeMount, request: pytest.FixtureRequest, on_s3: bool) -> None:
    url, options = str(store), None
    if on_s3:
        url, options = request.getfixturevalue("s3_url")
        make_store(url, storage_options=options)
    first, second = mount(url, storage_options=options), mount(url, durable="fsync", storage_options=options)
    arrays: list[Any] = [
        zarr.open_group(LocalStore(first.directory), mode="r+")["ct"],
        zarr.open_group(LocalStore(second.directory), mode="r+")["ct"],
        zarr.open_group(shardstore.open(url, storage_options=options), mode="r+")["ct"],
    ]
    expected = DATA.copy()
    for z in range(0, 16, 4):
        expected[z : z + 4] = z

    def write(who: int) -> None:
        for z in range(0, 16, 4):  # of each shard, every third row of chunks
            for y in range(8 * who, 64, 24):
                arrays[who][z : z + 4, y : y + 8] = z

    threads = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mounted in (first, second):
        mounted.unmount()
    stored: Any = zarr.open_group(shardstore.open(url, storage_options=options), mode="r")["ct"]
    np.testing.assert_array_equal(stored[:], expected)


def test_a_file_is_one_version_while_it_is_read(store: Path, mount: MakeMount) -> None:
    mapper = shardstore.get_mapper(str(store))
    big = b"a" * (17 << 20)  # longer than what is read whole
    mapper["big"] = big
    with mount(store) as mounted:
        with open(f"{mounted.directory}/big", "rb", buffering=0) as file:
            assert file.read(1 << 20) == big[: 1 << 20]
            mapper["big"] = b"b" * (17 << 20)
            with pytest.raises(OSError, match="Input/output error"):
                file.read(1 << 20)
        with open(f"{mounted.directory}/ct/c/0/0/0", "rb", buffering=0) as file:
            before = native(store, "ct/c/0/0/0")
            mapper["ct/c/0/0/0"] = NEW
            assert file.read() == before


# -- the end of a mount ----------------------------------------------------------------------------------------------------------


def test_what_is_held_back_is_stored_by_fsync_and_when_it_is_unmounted(store: Path, mount: MakeMount) -> None:
    with mount(store, durable="fsync") as mounted:
        Path(mounted.directory, "ct/c/0/0/0").write_bytes(NEW)
        descriptor = os.open(mounted.directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        assert native(store, "ct/c/0/0/0") == NEW
        Path(mounted.directory, "ct/c/0/0/1").write_bytes(NEW)
    assert native(store, "ct/c/0/0/1") == NEW


def test_a_killed_mount_leaves_old_values_and_can_be_mounted_again(store: Path, mount: MakeMount) -> None:
    mounted = mount(store)
    old = native(store, "ct/c/0/0/0")
    Path(mounted.directory, "ct/c/7/7/7").write_bytes(NEW)  # closed
    descriptor = os.open(f"{mounted.directory}/ct/c/0/0/0", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"half")
    os.kill(mounted.pid, signal.SIGKILL)
    with pytest.raises(OSError, match=r"Errno 10[37]"):
        os.close(descriptor)
    with pytest.raises(StorageError, match="has died"):
        mounted.wait(10)
    with raises_errno(errno.ENOTCONN):
        os.listdir(mounted.directory)
    with pytest.raises(InvalidInput, match="shardstore unmount"):
        shardstore.mount(str(store), mounted.directory)
    shardstore.unmount(mounted.directory)
    assert native(store, "ct/c/7/7/7") == NEW
    assert native(store, "ct/c/0/0/0") == old
    with mount(store) as again:
        assert Path(again.directory, "ct/c/7/7/7").read_bytes() == NEW


def test_a_mount_in_use_is_not_unmounted_but_by_force(store: Path, mount: MakeMount) -> None:
    mounted = mount(store, outlives=True)
    with open(f"{mounted.directory}/ct/c/0/0/0", "rb"):
        with pytest.raises(Conflict, match="in use"):
            shardstore.unmount(mounted.directory)
        assert os.path.ismount(mounted.directory)
    with open(f"{mounted.directory}/ct/c/0/0/0", "rb") as file:
        unmounting = threading.Thread(target=shardstore.unmount, args=(mounted.directory,), kwargs={"force": True})
        unmounting.start()
        wait_until(lambda: not os.path.ismount(mounted.directory))
        assert file.read()  # it goes on for who has a file open
    unmounting.join(30)
    assert not unmounting.is_alive()


def test_a_mount_ends_with_the_program_that_began_it(store: Path, can_mount: None, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    program = "import shardstore, sys, os; m = shardstore.mount(sys.argv[1], sys.argv[2]); print(m.pid); sys.stdout.flush(); os._exit(0)"
    done = run(sys.executable, "-c", program, store, tmp_path / "mnt")
    try:
        wait_until(lambda: not os.path.ismount(tmp_path / "mnt"))
        wait_until(lambda: not os.path.exists(f"/proc/{done.stdout.strip()}"))
    finally:
        take_away(str(tmp_path / "mnt"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_stores_and_unmounts_when_it_is_interrupted(store: Path, can_mount: None, tmp_path: Path, number: int) -> None:
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    command = [*COMMAND, "mount", str(store), str(mnt), "--durable", "fsync"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"mounted file://{store} at {mnt}\n"
            (mnt / "ct/c/0/0/0").write_bytes(NEW)
            descriptor = os.open(mnt / "zarr.json", os.O_RDONLY)  # busy
            process.send_signal(number)
            assert process.wait(30) == 0
            with raises_errno(errno.ENOTCONN):
                os.close(descriptor)
        finally:
            process.kill()
            take_away(str(mnt))
    assert native(store, "ct/c/0/0/0") == NEW
    assert not os.path.ismount(mnt)


def test_the_commands_mount_in_the_background_and_unmount(store: Path, can_mount: None, tmp_path: Path) -> None:
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    try:
        done = run(*COMMAND, "mount", store, mnt, "--background", "--log", tmp_path / "log", "--read-only")
        assert f"mounted file://{store} at {mnt}, for reading only by process " in done.stdout
        assert (mnt / "ct/c/0/0/0").read_bytes() == native(store, "ct/c/0/0/0")
        with raises_errno(errno.EROFS):
            (mnt / "ct/c/0/0/0").write_bytes(NEW)
        assert run(*COMMAND, "mount", store, mnt, check=False).returncode == 2
        run(*COMMAND, "unmount", mnt)
        assert not os.path.ismount(mnt)
        state = Path(f"/proc/{done.stdout.split()[-1]}/stat")
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z", "unmount waits for the process"
        assert run(*COMMAND, "unmount", mnt, check=False).returncode == 2
    finally:
        take_away(str(mnt))


def test_files_that_cannot_be_stored_are_named_at_the_end(mount: MakeMount, tmp_path: Path, s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    make_store(url, storage_options=options)
    mounted = mount(url, storage_options=options, durable="fsync", log_file=tmp_path / "log")
    Path(mounted.directory, "ct/zarr.json").write_bytes(b'{"zarr_format": 3, "node_type": "array", "shape": [1]}')  # of another array
    with pytest.raises(StorageError, match="could not all be stored"):
        mounted.unmount()
    assert os.path.ismount(mounted.directory)
    with pytest.raises(StorageError, match=r"ct/zarr\.json"):
        mounted.unmount(force=True)
    assert not os.path.ismount(mounted.directory)
    assert "ct/zarr.json" in (tmp_path / "log").read_text()
    stored: Any = zarr.open_group(shardstore.open(url, storage_options=options), mode="r")["ct"]
    np.testing.assert_array_equal(stored[:], DATA)


def test_a_mount_goes_on_when_the_network_comes_back(mount: MakeMount, tmp_path: Path) -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "test", "secret": "test", "endpoint_url": f"http://{host}:{port}", "config_kwargs": {"retries": {"max_attempts": 1}}}
    import s3fs

    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="here")
    make_store("s3://here/data.zarr", storage_options=options)
    mounted = mount("s3://here/data.zarr", storage_options=options, log_file=tmp_path / "log")
    path = Path(mounted.directory, "ct/c/0/0/0")
    old = path.read_bytes()
    server.stop()
    with raises_errno(errno.EIO):
        path.write_bytes(NEW)
    again = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)  # which has the same objects, being of one process
    again.start()
    try:
        time.sleep(1.1)  # names are asked for anew
        assert path.read_bytes() == old
        path.write_bytes(NEW)
        assert path.read_bytes() == NEW
        mounted.unmount()
    finally:
        again.stop()
    assert "cannot be reached" in (tmp_path / "log").read_text()


# -- what the system shows, and what is refused ------------------------------------------------------------------------------------


def test_credentials_are_shown_nowhere(mount: MakeMount, can_mount: None, tmp_path: Path, s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    make_store(url, storage_options=options)
    secret = "hush-0123456789"
    mnt = tmp_path / "mnt"
    mnt.mkdir()
    arguments = ["-o", "key=test", "-o", f"secret={secret}", "-o", f"endpoint_url={options['endpoint_url']}"]
    command = [*COMMAND, "mount", url, str(mnt), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("mounted s3://")
            shown = Path("/proc/mounts").read_text()
            lines = [line for line in shown.splitlines() if f" {mnt} " in line]
            assert len(lines) == 1
            assert lines[0].split()[:3] == [f"shardstore:{url}", str(mnt), "fuse.shardstore"]
            assert {"nosuid", "nodev", "noexec", "default_permissions"} <= set(lines[0].split()[3].split(","))
            listed = run("ps", "axww", "-o", "args").stdout
            assert str(mnt) in listed
            assert secret not in shown + listed
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
            take_away(str(mnt))


def test_names_that_no_key_has_are_refused(store: Path, mount: MakeMount) -> None:
    with mount(store) as mounted:
        root = mounted.directory
        for name, number in (("a\\b", errno.EINVAL), ("n" * 300, errno.ENAMETOOLONG)):
            with raises_errno(number):
                Path(root, name).write_bytes(NEW)
        with raises_errno(errno.EILSEQ):
            os.mkdir(root.encode() + b"/\xff\xfe")
        for attempt in (os.symlink, os.link):
            with raises_errno(errno.EOPNOTSUPP):
                attempt(f"{root}/ct/c/0/0/0", f"{root}/other")
        assert sorted(os.listdir(root)) == ["ct", "zarr.json"]


def test_what_cannot_be_mounted_is_told_before(store: Path, can_mount: None, tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_bytes(b"")
    (store / "inside").mkdir()
    attempts: list[tuple[Any, str, dict[str, Any], type[Exception], str]] = [
        (store, "none", {}, InvalidInput, "is not a directory"),
        (store, "full", {}, InvalidInput, "is not empty"),
        (store, str(store / "inside"), {}, InvalidInput, "may not contain each other"),
        (tmp_path, "mnt", {}, InvalidInput, "may not contain each other"),
        (store, "mnt", {"durable": "never"}, InvalidInput, "neither 'close' nor 'fsync'"),
        (store, "mnt", {"attr_ttl": -1}, InvalidInput, "is not a duration"),
        (store, "mnt", {"present": "v4"}, InvalidInput, "'v4'"),
        (store, "mnt", {"chunks_per_shard": lambda array: None}, InvalidInput, "cannot be given to the process"),
        (tmp_path / "no.zarr", "mnt", {"read_only": True}, NotFound, "there is nothing at"),
        (f"{store}@main", "mnt", {"read_only": True}, NotFound, "main"),
    ]
    for url, directory, options, error, words in attempts:
        with pytest.raises(error, match=words):
            shardstore.mount(str(url), tmp_path / directory, **options)
        assert not os.path.ismount(tmp_path / directory)
    with pytest.raises(InvalidInput, match="nothing of shardstore"):
        shardstore.unmount(tmp_path / "mnt")


def test_what_has_to_be_installed_is_said(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyfuse3'] = None; import shardstore; shardstore.mount('data.zarr', sys.argv[1])"
    done = run(sys.executable, "-c", program, tmp_path, check=False)
    for words in (
        "pip install 'shardstore[mount]'. With",
        "apt-get install gcc",
        "dnf install gcc",
        "conda install -c conda-forge pyfuse3",
    ):
        assert words in done.stderr


def test_a_snapshot_is_mounted_for_reading(mount: MakeMount, tmp_path: Path) -> None:
    repo = shardstore.snapshots.Repository.create(tmp_path / "run.ice", fsync=False)
    with repo.transaction(message="one") as made:
        zarr.create_array(made, name="ct", data=DATA, chunks=(8, 8, 8))
    with mount(f"{tmp_path}/run.ice@main") as mounted:
        assert mounted.read_only
        array: Any = zarr.open_group(LocalStore(mounted.directory, read_only=True), mode="r")["ct"]
        np.testing.assert_array_equal(array[:], DATA)
        with raises_errno(errno.EROFS):
            Path(mounted.directory, "ct/c/0/0/0").unlink()


@pytest.mark.parametrize("name", ["run.ice::v2", "run.ice@main"])
def test_a_path_object_is_never_a_url(name: str, mount: MakeMount, tmp_path: Path) -> None:
    repo = shardstore.snapshots.Repository.create(tmp_path / "run.ice", fsync=False)
    with repo.transaction(message="one") as made:
        zarr.create_array(made, name="ct", data=DATA, chunks=(8, 8, 8))
    zarr.create_array(LocalStore(tmp_path / name), name="ct", data=DATA + 1, chunks=(8, 8, 8), shards=(16, 16, 16))
    with mount(tmp_path / name) as mounted:
        array: Any = zarr.open_group(LocalStore(mounted.directory, read_only=True), mode="r")["ct"]
        np.testing.assert_array_equal(array[:], DATA + 1)


def test_the_draft_is_shown_under_its_own_keys(mount: MakeMount, tmp_path: Path) -> None:
    url = str(tmp_path / "draft")
    chunks = shardstore.ShardingTransformer(url, present="draft", stored="transformer")
    core = "https://purl.org/zarr/spec/protocol/core/3.0"
    metadata = json.dumps({"zarr_format": core, "metadata_encoding": core, "metadata_key_suffix": ".json", "extensions": []}).encode()
    chunks.set("zarr.json", metadata)
    with mount(url, present="draft") as mounted:
        assert Path(mounted.directory, "zarr.json").read_bytes()
        assert os.listdir(mounted.directory) == ["zarr.json"]


def test_the_place_of_a_chunk_is_an_extended_attribute(store: Path, mount: MakeMount) -> None:
    with mount(store, xattrs=True) as mounted:
        path = f"{mounted.directory}/ct/c/1/2/3"
        key, offset, nbytes = os.getxattr(path, "user.shardstore.place").decode().split()
        assert (store / key).read_bytes()[int(offset) : int(offset) + int(nbytes)] == Path(path).read_bytes()
        before = os.getxattr(path, "user.shardstore.version")
        Path(path).write_bytes(NEW)
        assert os.getxattr(path, "user.shardstore.version") != before
        with pytest.raises(OSError, match="No data"):
            os.getxattr(path, "user.other")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_the_mount_to_its_parent(store: Path, mount: MakeMount) -> None:
    mounted = mount(store)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:  # a failure must not run the rest of the tests here
            with mounted:
                pass
            for refused in (mounted.unmount, mounted.end, mounted.wait):
                with pytest.raises(InvalidInput, match="forked"):
                    refused()
            os.write(writing, b"right")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"right"
    os.waitpid(child, 0)
    assert native(store, "zarr.json") == Path(mounted.directory, "zarr.json").read_bytes()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_unmounting_does_not_wait_for_children_that_were_forked_meanwhile(store: Path, mount: MakeMount) -> None:
    mounted = mount(store)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until its parent has unmounted
        os._exit(0)
    os.close(reading)
    try:
        mounted.end()
        assert mounted.wait(60)
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_what_is_removed_while_a_directory_is_read_is_not_shown_again(store: Path, mount: MakeMount) -> None:
    with mount(store) as mounted:
        directory = Path(mounted.directory, "notes")
        directory.mkdir()
        names = [f"{n:03d}-{'x' * 200}" for n in range(600)]  # more than the kernel asks for at once
        for name in names:
            (directory / name).write_bytes(b"1")
        with os.scandir(directory) as entries:
            next(entries)
            (directory / names[-1]).unlink()
            (directory / names[-2]).write_bytes(b"12345")
            seen = {entry.name for entry in entries}
        assert names[-3] in seen
        with raises_errno(errno.ENOENT):
            os.stat(directory / names[-1])
        assert os.stat(directory / names[-2]).st_size == 5
