"""The Azure storage, against Azurite, and against servers and networks that behave as they should not."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import adlfs
import pytest

from shardstore.errors import AccessDenied, Conflict, InvalidInput, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix, CopiedRange, NewBytes, Segment
from shardstore.opening.open import open_storage
from shardstore.storage.azure.blocks import committed_blocks
from shardstore.storage.azure.client import AzureClient
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import ABSENT, CHANGED, ConditionFailed, Failed, Found, ObjectInfo, Read
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.wrappers import innermost
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop, pieces, values
from tests.harness.azurite import connection_string, signed_connection_string
from tests.limits import resend_at_once

AzureUrl = tuple[str, dict[str, Any]]
Send = Callable[[], Awaitable[Any]]


@pytest.fixture
def storage(azure_url: AzureUrl) -> Iterator[AzureStorage]:
    url, options = azure_url
    opened = open_storage(url, options, transport="fsspec")
    assert isinstance(opened, AzureStorage)
    yield opened
    forget_facts()


class Calls:
    """Records the requests of an adlfs instance, and lets a test come between."""

    def __init__(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, Any]] = []
        self._acts: dict[str, list[Callable[[Send], Any]]] = {}
        run = fs.service_client._pipeline.run

        async def between(request: Any, **options: Any) -> Any:
            name = self._name(request)
            self.made.append((name, request))

            async def send() -> Any:
                if request.content is not None and not isinstance(request.content, bytes):
                    request.content.seek(0)
                return await run(request, **options)

            acts = self._acts.get(name)
            return await (acts.pop(0)(send) if acts else send())

        monkeypatch.setattr(fs.service_client._pipeline, "run", between)

    def _name(self, request: Any) -> str:
        asked = parse_qs(urlsplit(request.url).query)
        comp = asked.get("comp", [""])[0]
        match request.method, comp:
            case "PUT", "blocklist":
                return "commit"
            case "GET", "blocklist":
                return "blocks"
            case method, "":
                return str(method).lower()
            case _:
                return str(comp)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.made]

    @property
    def sent_nbytes(self) -> int:
        return sum(int(request.headers.get("Content-Length", 0)) for _, request in self.made)

    def when(self, name: str, act: Callable[[Send], Any], times: int = 1) -> None:
        """Let ``act(send)`` answer the next requests of this name."""
        self._acts[name] = [act] * times


async def twice(send: Send) -> Any:
    """As a proxy does whose answer was lost."""
    await send()
    return await send()


async def lose(send: Send) -> Any:
    await send()
    raise ConnectionResetError("the connection broke")


async def break_off(_send: Send) -> Any:
    raise ConnectionResetError("the connection broke")


@pytest.fixture
def calls(storage: AzureStorage, monkeypatch: pytest.MonkeyPatch) -> Calls:
    resend_at_once(monkeypatch)
    on_io_loop(storage.probe())
    return Calls(storage.fs, monkeypatch)


class TestAzureStorage(StorageSuite):
    pass


class TestAzureStorageInBlocks(StorageSuite):
    """Everything but what is empty is stored as blocks."""

    @pytest.fixture
    def storage(self, storage: AzureStorage) -> AzureStorage:
        return AzureStorage(storage.fs, storage.path, put_bytes=0)


# -- opening -----------------------------------------------------------------------------------------------------------


def test_probing_leaves_nothing(storage: AzureStorage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not storage.capabilities.compare_and_swap
    calls = Calls(storage.fs, monkeypatch)
    capabilities = on_io_loop(storage.probe())
    assert capabilities.atomic_commits
    assert capabilities.conditional_delete
    assert storage.capabilities == capabilities
    assert calls.names == ["put", "put", "put", "delete", "head", "head", "delete", "commit"]
    assert s.keys() == []
    on_io_loop(AzureStorage(storage.fs, storage.path).probe())
    assert calls.names.count("put") == 3


def test_azure_itself_is_asked_once_and_left_as_it_was(storage: AzureStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AzureClient, "is_azure", True)
    calls = Calls(storage.fs, monkeypatch)
    assert on_io_loop(storage.probe()).atomic_commits
    assert calls.names == ["put"]


@pytest.mark.parametrize(
    ("endpoint", "is_azure"),
    [
        ("https://lab.blob.core.windows.net", True),
        ("https://lab.z1.blob.storage.azure.net", True),
        ("http://127.0.0.1:10000/devstoreaccount1", False),
        ("https://blob.core.windows.net.example.org", False),
    ],
)
def test_which_servers_are_microsofts(endpoint: str, is_azure: bool) -> None:
    fs = adlfs.AzureBlobFileSystem(connection_string=f"BlobEndpoint={endpoint};SharedAccessSignature=sv=1&sig=x", skip_instance_cache=True)
    assert AzureClient(fs, "data", "x", 1).is_azure is is_azure
    assert AzureClient(fs, "data", "x", 1).endpoint == endpoint  # without the signature


def test_signature_in_place_of_a_key(storage: AzureStorage, azure_endpoint: str, s: SyncStorage) -> None:
    signed = open_storage(storage.url, {"connection_string": signed_connection_string(azure_endpoint)})
    generation = SyncStorage(signed).put("a ä+%?#&=", b"1", IF_ABSENT)
    assert s.infos() == SyncStorage(signed).infos() == [ObjectInfo("a ä+%?#&=", 1, generation)]
    assert "sig" not in repr(signed)


def test_every_protocol_opens_the_kind(azure_url: AzureUrl) -> None:
    url, options = azure_url
    opened = [open_storage(url.replace("az://", protocol), options) for protocol in ("az://", "abfs://", "abfss://")]
    assert all(isinstance(innermost(one), AzureStorage) for one in opened)
    assert opened[0] == opened[1] == opened[2]
    container, _, path = url.removeprefix("az://").partition("/")
    assert open_storage(f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/{path}", options).url == url


def test_places_that_cannot_be_used(azure_url: AzureUrl, azure_endpoint: str) -> None:
    url, options = azure_url
    with pytest.raises(StorageError, match="container 'missing' does not exist"):
        SyncStorage(open_storage("az://missing/x", options)).get("a")
    with pytest.raises(InvalidInput, match="version_aware"):
        open_storage(url, {**options, "version_aware": True})
    with pytest.raises(InvalidInput, match="account_nam"):
        open_storage(url, {**options, "account_nam": "x"})
    forged = connection_string(azure_endpoint).replace("Eby8", "AAAA")
    with pytest.raises(AccessDenied, match="account_key"):
        SyncStorage(open_storage(url, {"connection_string": forged})).get("a")
    away = open_storage(url, {"connection_string": connection_string("http://127.0.0.1:9/devstoreaccount1")})
    with pytest.raises(StorageError, match="cannot be reached"):
        SyncStorage(away).get("a")


def test_pickled_and_in_a_forked_process(storage: AzureStorage, s: SyncStorage, azure_url: AzureUrl) -> None:
    s.put("a", b"1")
    assert pickle.loads(pickle.dumps(storage)) == storage
    program = """if True:
        import os, sys
        from shardstore.opening.open import open_storage
        from shardstore.testing.storage_suite import SyncStorage
        url, options = eval(sys.argv[1])
        assert SyncStorage(open_storage(url, options)).get("a") == b"1"
        if (child := os.fork()) == 0:
            os._exit(0 if SyncStorage(open_storage(url, options)).get("a") == b"1" else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, repr(azure_url)], check=True, timeout=60)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_requests_of_reads(s: SyncStorage, calls: Calls) -> None:
    generation = s.put("a", b"0123456789")
    size = calls_storage(s)._sizes
    cases: list[tuple[tuple[ByteRequest, ...], Generation | None, list[str]]] = [
        ((ByteSuffix(3),), None, ["get"] * 2),
        ((ByteSuffix(3),), generation, ["get"] * 2),
        ((ByteSuffix(10),), None, ["get"]),
        ((ByteSuffix(100),), generation, ["get"]),
        ((ByteSuffix(9 << 20),), None, ["head", "get"]),
        ((ByteRange(0, 2), ByteRange(3, 3), ByteOffset(8)), None, ["get"] * 2),
        ((ByteRange(3, 3),), None, ["head"]),
        ((), generation, ["head"]),
        ((ByteOffset(10),), generation, ["get", "head"]),
    ]
    for ranges, pinned, expected in cases:
        size.clear()
        before = len(calls.made)
        assert isinstance(s.read("a", *ranges, generation=pinned), Found)
        assert calls.names[before:] == expected, ranges
    before = len(calls.made)
    assert s.read("nothing", ByteSuffix(3)) == ABSENT
    assert calls.names[before:] == ["get"]


@pytest.mark.parametrize("seen", ["written", "listed", "read"])
def test_size_that_was_seen_saves_a_request(storage: AzureStorage, s: SyncStorage, calls: Calls, seen: str) -> None:
    generation = s.put("a", b"0123456789")
    if seen != "written":
        storage._sizes.clear()
        assert s.infos() if seen == "listed" else s.read("a", ByteRange(0, 1))
    for pinned in (None, generation):
        calls.made.clear()
        assert s.read("a", ByteSuffix(3), generation=pinned) == Found(generation, 10, (memoryview(b"789"),))
        assert calls.names == ["get"]
    newer = SyncStorage(AzureStorage(storage.fs, storage.path)).put("a", b"abc")
    calls.made.clear()
    assert s.read("a", ByteSuffix(2), generation=generation) == CHANGED
    assert s.read("a", ByteSuffix(2)) == Found(newer, 3, (memoryview(b"bc"),))
    assert s.read("a", ByteSuffix(2), generation=generation) == CHANGED  # of what is remembered, which is another version
    assert s.delete("a")
    assert s.read("a", ByteSuffix(2)) == ABSENT


def test_only_so_many_sizes_are_remembered(storage: AzureStorage) -> None:
    storage.most_sizes = 2
    for key in "abcd":
        storage.remember(key, Generation(key), 1)
    assert list(storage._sizes) == ["c", "d"]


def test_version_that_changes_between_the_requests_of_a_suffix(storage: AzureStorage, s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"0123456789")
    storage._sizes.clear()

    async def replaced(send: Send) -> Any:
        answer = await send()
        await storage.write("a", [b"abcdefghijkl"], 12, UNCONDITIONAL)
        return answer

    calls.when("get", replaced)
    found = s.read("a", ByteSuffix(3))
    assert isinstance(found, Found)
    assert values(found) == [b"jkl"]


def test_read_whose_body_breaks_off_is_repeated(s: SyncStorage, calls: Calls) -> None:
    generation = s.put("a", b"0123456789")
    calls.when("get", lose, times=3)
    assert s.read("a", ByteRange(2, 4)) == Found(generation, 10, (memoryview(b"23"),))
    calls.when("get", break_off, times=9)
    (outcome,) = s.read_many(Read("a", (EVERYTHING,)))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StorageError)
    assert "'a'" in str(outcome.error)


def sdk(storage: AzureStorage, key: str) -> Any:
    """Microsoft's own client of a blob."""
    return storage.fs.service_client.get_blob_client(storage.client.bucket, storage.client.full_key(key))


def test_markers_of_directories_are_no_objects(storage: AzureStorage, s: SyncStorage) -> None:
    """As accounts with a hierarchical namespace list them, and tools make them in others."""
    s.put("d/a", b"1")
    s.put("empty", b"")
    on_io_loop(sdk(storage, "d").upload_blob(b"", metadata={"hdi_isfolder": "true"}))
    on_io_loop(sdk(storage, "e/").upload_blob(b""))
    assert s.keys() == ["d/a", "empty"]
    assert s.children() == (["empty"], ["d/", "e/"])
    assert s.read("d", EVERYTHING) == ABSENT
    assert s.stat("d") is None


def test_what_no_request_can_do_says_why(storage: AzureStorage, s: SyncStorage) -> None:
    s.put("cold", b"1")
    on_io_loop(sdk(storage, "cold").set_standard_blob_tier("Archive"))
    with pytest.raises(StorageError, match=r"'cold'.*archive tier.*rehydrate"):
        s.get("cold")
    generation = s.put("leased", b"1")
    on_io_loop(sdk(storage, "leased").acquire_lease())
    for condition in (UNCONDITIONAL, IfGeneration(generation)):
        with pytest.raises(StorageError, match=r"'leased'.*LeaseIdMissing") as caught:
            s.put("leased", b"2", condition)
        assert not isinstance(caught.value, ConditionFailed | WriteOutcomeUnknown)
    with pytest.raises(StorageError, match=r"1 of 2 objects.*LeaseIdMissing"):
        s.delete_many("cold", "leased")
    assert s.keys() == ["leased"]
    s.put("compressed", b"1")
    settings = type(on_io_loop(sdk(storage, "compressed").get_blob_properties()).content_settings)(content_encoding="gzip")
    on_io_loop(sdk(storage, "compressed").set_http_headers(settings))
    with pytest.raises(StorageError, match=r"'compressed'.*Content-Encoding gzip"):
        s.get("compressed")


# -- lost answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("put_bytes", [1 << 20, 0], ids=["whole", "in blocks"])
@pytest.mark.parametrize("fault", [twice, lose], ids=["sent twice", "answer lost"])
def test_own_write_is_no_conflict(storage: AzureStorage, calls: Calls, put_bytes: int, fault: Any) -> None:
    s = SyncStorage(AzureStorage(storage.fs, storage.path, put_bytes=put_bytes))
    storing = "put" if put_bytes else "commit"
    calls.when(storing, fault)
    first = s.put("a", b"1", IF_ABSENT)
    calls.when(storing, fault)
    second = s.put("a", b"22", IfGeneration(first))
    assert s.infos() == [ObjectInfo("a", 2, second)]
    calls.when(storing, fault)
    third = s.put("a", b"333")
    assert s.infos() == [ObjectInfo("a", 3, third)]
    calls.when(storing, fault)
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IfGeneration(second))
    calls.when("delete", fault)
    assert s.delete("a", IfGeneration(third)) is (fault is lose)  # sent twice, the second finds nothing
    assert s.keys() == []


def test_answers_that_stay_away(s: SyncStorage, calls: Calls) -> None:
    calls.when("put", break_off, times=9)
    with pytest.raises(WriteOutcomeUnknown, match="'a'"):
        s.put("a", b"1", IF_ABSENT)
    assert s.get("a") is None
    calls.when("put", break_off)
    calls.when("head", break_off, times=9)
    with pytest.raises(WriteOutcomeUnknown, match="cannot be looked up"):
        s.put("a", b"1")


# -- blocks ------------------------------------------------------------------------------------------------------------

OLD = bytes(range(256)) * 64
APPEND: tuple[Segment, ...] = (NewBytes(b"new chunk"), NewBytes(b"index"))


def compose(s: SyncStorage, source: Generation, *segments: Segment, condition: Condition | None = None) -> Generation:
    return s.compose("a", source, segments, IfGeneration(source) if condition is None else condition)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AzureClient, "block_bytes", 4096)
    monkeypatch.setattr(AzureClient, "max_blocks", 20)


@pytest.mark.usefixtures("small_blocks")
def test_appends_move_no_old_byte(storage: AzureStorage, s: SyncStorage, calls: Calls) -> None:
    """The first one stores the blob as blocks: one of a single request has none."""
    version, whole = s.put("a", OLD + b"index"), OLD
    version = compose(s, version, CopiedRange(0, len(OLD)), *APPEND)
    whole += b"new chunk"
    for number in range(3):
        calls.made.clear()
        version = compose(s, version, CopiedRange(0, len(whole)), NewBytes(b"more %d" % number), NewBytes(b"index"))
        whole += b"more %d" % number
        assert calls.names == ["blocks", "block", "block", "commit"]
        assert calls.sent_nbytes < len(b"more 0index") + 4096
        assert s.infos() == [ObjectInfo("a", len(whole) + 5, version)]
    assert s.get("a") == whole + b"index"
    with pytest.raises(ConditionFailed):
        compose(s, Generation('"0x1"'), CopiedRange(0, 1), *APPEND)
    with pytest.raises(ConditionFailed):
        compose(s, version, CopiedRange(0, 1), *APPEND, condition=IF_ABSENT)


@pytest.mark.usefixtures("small_blocks")
def test_blob_of_too_many_blocks_is_stored_as_few(storage: AzureStorage, s: SyncStorage) -> None:
    version, whole, most = s.put("a", OLD), OLD, 0
    for number in range(40):
        version = compose(s, version, CopiedRange(0, len(whole)), NewBytes(b"%2d" % number), NewBytes(b"index"))
        whole += b"%2d" % number
        most = max(most, len(on_io_loop(committed_blocks(storage.client, "a"))[1]))
    assert s.get("a") == whole + b"index"
    assert most == 20


@pytest.mark.usefixtures("small_blocks")
def test_ranges_of_any_order_are_kept_or_sent(s: SyncStorage, calls: Calls) -> None:
    blocks = SyncStorage(AzureStorage(calls_storage(s).fs, calls_storage(s).path, put_bytes=0))
    version = blocks.put("a", OLD)
    calls.made.clear()
    compose(s, version, NewBytes(b"<"), CopiedRange(8000, 8384), CopiedRange(0, 5000), NewBytes(b">"))
    assert s.get("a") == b"<" + OLD[8000:16384] + OLD[:5000] + b">"
    assert calls.sent_nbytes < 192 + 904 + 2 + 4096
    version = s.put("a", OLD)
    calls.made.clear()
    compose(s, version, CopiedRange(5, 10), NewBytes(b"new"), CopiedRange(30, 1))
    assert s.get("a") == OLD[5:15] + b"new" + OLD[30:31]
    assert calls.names[:3] == ["blocks", "get", "put"]  # nothing was kept, and it is no append


def calls_storage(s: SyncStorage) -> AzureStorage:
    assert isinstance(s.storage, AzureStorage)
    return s.storage


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ours", ["write", "create", "append"])
@pytest.mark.parametrize("theirs", ["put", "blocks", "delete", "blocks, and delete"])
def test_other_writer_between_our_blocks_and_their_list_is_a_conflict(
    storage: AzureStorage, s: SyncStorage, calls: Calls, ours: str, theirs: str
) -> None:
    """Any commit discards the blocks of all other writers."""
    if ours == "create" and theirs == "delete":
        pytest.skip("there is nothing to delete")
    blocks = AzureStorage(storage.fs, storage.path, put_bytes=0)
    version = None if ours == "create" else s.put("a", OLD)

    async def meanwhile(send: Send) -> Any:
        if theirs != "delete":
            await (storage if theirs == "put" else blocks).write("a", [b"theirs"], 6, UNCONDITIONAL)
        if "delete" in theirs:
            await storage.delete("a", UNCONDITIONAL)
        return await send()

    calls.when("commit", meanwhile)
    if "blocks" in theirs:  # whose own commit is the second one
        calls._acts["commit"].append(lambda send: send())
    with pytest.raises(ConditionFailed):
        on_io_loop(
            storage.compose("a", version, [CopiedRange(0, len(OLD)), *APPEND], IfGeneration(version))
            if ours == "append" and version is not None
            else blocks.write("a", [b"ours"], 4, IF_ABSENT if version is None else IfGeneration(version))
        )
    assert s.get("a") == (None if "delete" in theirs else b"theirs")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_kept", [False, True])
def test_source_that_is_replaced_while_blocks_are_sent(storage: AzureStorage, s: SyncStorage, calls: Calls, is_kept: bool) -> None:
    """Without a condition nothing but a look shows it."""
    version = (SyncStorage(AzureStorage(storage.fs, storage.path, put_bytes=0)) if is_kept else s).put("a", OLD)

    async def replaced(send: Send) -> Any:
        answer = await send()
        await storage.write("a", [b"theirs"], 6, UNCONDITIONAL)
        return answer

    calls.when("block", replaced)
    with pytest.raises(ConditionFailed):
        compose(s, version, CopiedRange(0, 4096), NewBytes(b"index"), condition=UNCONDITIONAL)
    assert s.get("a") == b"theirs"


def test_blocks_are_sent_again(storage: AzureStorage, calls: Calls) -> None:
    blocks = SyncStorage(AzureStorage(storage.fs, storage.path, put_bytes=0))
    calls.when("block", break_off, times=3)
    blocks.put("a", b"1")
    calls.when("block", lose)
    blocks.put("a", b"2")
    assert blocks.get("a") == b"2"
    calls.when("block", break_off, times=9)
    with pytest.raises(StorageError, match="a block of 'a'"):
        blocks.put("a", b"3")
    assert blocks.get("a") == b"2"


def test_other_writer_of_an_unconditional_write_in_blocks_is_an_error_that_says_so(storage: AzureStorage, calls: Calls) -> None:
    blocks = SyncStorage(AzureStorage(storage.fs, storage.path, put_bytes=0))

    async def meanwhile(send: Send) -> Any:
        await blocks.storage.write("a", [b"theirs"], 6, UNCONDITIONAL)
        return await send()

    calls.when("commit", meanwhile)
    calls._acts["commit"].append(lambda send: send())  # theirs
    with pytest.raises(StorageError, match=r"'a'.*another writer.*write it again") as caught:
        blocks.put("a", b"ours")
    assert not isinstance(caught.value, ConditionFailed)
    assert blocks.get("a") == b"theirs"


def test_body_that_breaks_off_leaves_the_old_blob(storage: AzureStorage) -> None:
    s = SyncStorage(AzureStorage(storage.fs, storage.path, put_bytes=0))
    s.put("a", b"old")
    for body, nbytes in ((pieces(b"12", b"3"), 4), (pieces(b"12", b"3"), 2)):
        with pytest.raises(InvalidInput, match="'a'"):
            s.write("a", body, nbytes)
    assert s.get("a") == b"old"
    assert s.keys() == ["a"]


@pytest.mark.usefixtures("small_blocks")
def test_copy_of_a_source_that_is_replaced(storage: AzureStorage, s: SyncStorage, calls: Calls) -> None:
    s.put("a", OLD)

    async def replaced(send: Send) -> Any:
        answer = await send()
        await storage.write("a", [OLD[::-1]], len(OLD), UNCONDITIONAL)
        return answer

    calls.when("get", replaced)
    assert s.copy("a", "b") is not None
    assert s.get("b") == OLD[::-1]
    calls.when("get", replaced, times=99)
    with pytest.raises(Conflict, match=r"'a'.*kept changing"):
        s.copy("a", "c")
    assert s.keys() == ["a", "b"]
