"""Mutants: the code of the engine and the storages with one promise broken each; and how many seeds the simulation takes to notice.

``python -m tests.simulation.mutants [NAME …]`` prints a table. Each mutant is a process of its own, in which one module is
loaded from changed source.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.campaign import Form
    from tests.simulation.world import Kind

MOST_SEEDS = 2000


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: in ``module``, ``old``, which is there once, becomes ``new``; to be found in worlds of ``kind``."""

    name: str
    module: str
    old: str
    new: str
    kind: Kind = "aws"
    form: Form | None = None
    """The form of the seeds that are tried; by default any."""


_COMMITTER = "shardstore.engine.writing.committer"
_READER = "shardstore.engine.reading.reader"
_PROOF = "shardstore.engine.index_cache"
_LOST = "shardstore.storage.requests.lost_answers"
_BUCKET = "shardstore.storage.requests.bucket"
_PROBES = "shardstore.storage.requests.probes"
_RANGED = "shardstore.storage.requests.ranged_reads"
_S3_UPLOAD = "shardstore.storage.s3.upload"
_TEMPORARY = "shardstore.storage.local.temporary"
_APPEND = "shardstore.storage.local.append"
_RULES = "shardstore.storage.local.rules"
_PACK_RUN = "shardstore.maintenance.packing.run"
_RECORD = "shardstore.maintenance.packing.record"
_GCS_UPLOAD = "shardstore.storage.gcs.upload"
_AZURE = "shardstore.storage.azure.storage"
_AZURE_BLOCKS = "shardstore.storage.azure.blocks"
_AZURE_CLIENT = "shardstore.storage.azure.client"
_LINE = "shardstore.engine.appending.line"

MUTANTS = (
    Mutant(
        "a commit without a condition",
        _COMMITTER,
        "return self._storage.capabilities.condition_on(None if cached is None else cached.generation)",
        "return UNCONDITIONAL",
    ),
    Mutant(
        "an emptied shard is deleted without a condition",
        _COMMITTER,
        "await self._storage.delete(shard.key, condition)",
        "await self._storage.delete(shard.key, UNCONDITIONAL)",
        "local",
    ),
    Mutant(
        "a server that ignores conditions on DELETE is trusted",
        _COMMITTER,
        "if capabilities.compare_and_swap and not capabilities.conditional_delete:",
        "if False:",
        "weak",
    ),
    Mutant(
        "a cached index says that there is nothing to do",
        _COMMITTER,
        "            if from_cache:\n                raise Outdated\n            if updates:",
        "            if updates:",
    ),
    Mutant(
        "chunks are read from any version",
        _READER,
        "return Read(self.shard.key, self.coalesced.requests, self.index.generation)",
        "return Read(self.shard.key, self.coalesced.requests)",
    ),
    Mutant("a cached index says that a chunk is missing", _READER, "or not makes_a_request(places, shard)", "or False"),
    Mutant(
        "an object that changed is taken for one that is gone",
        _RANGED,
        "if exc.status == 412 and generation is not None:\n            return CHANGED",
        "if exc.status == 412 and generation is not None:\n            return ABSENT",
    ),
    Mutant(
        "after a lost answer any object is taken for the writer's own",
        _LOST,
        "if head is not None and head.write_id == self.write_id:\n            logger.info",
        "if head is not None:\n            logger.info",
    ),
    Mutant(
        "a lost answer of a DELETE is taken for success",
        _LOST,
        "if not holds(condition, head.generation):\n            raise failed(key, url) from error",
        "if not holds(condition, head.generation):\n            return True",
    ),
    Mutant(
        "a shard is created although there is one",
        _S3_UPLOAD,
        "return condition_parameters(self.condition, facts)",
        "return condition_parameters(self.condition, facts) if isinstance(self.condition, IfGeneration) else {}",
    ),
    Mutant(
        "a shard is replaced without a condition",
        _S3_UPLOAD,
        "return condition_parameters(self.condition, facts)",
        "return {} if isinstance(self.condition, IfGeneration) else condition_parameters(self.condition, facts)",
    ),
    Mutant(
        "a multipart upload is completed without its condition",
        _S3_UPLOAD,
        "MultipartUpload=listed, **write.headers",
        "MultipartUpload=listed",
    ),
    Mutant(
        "conditions on multipart uploads are trusted without a probe",
        _S3_UPLOAD,
        "facts.multipart_conditions = await probe_multipart(client)",
        "facts.multipart_conditions = True",
        "weak",
    ),
    Mutant(
        "conditions on DELETE are trusted without a probe",
        _PROBES,
        "conditional_delete=delete is True",
        "conditional_delete=True",
        "weak",
    ),
    Mutant(
        "a refusal that was sent twice is a failed condition",
        _LOST,
        "if (stored := await self.stored_in_spite_of(lost)) is not None:\n            return stored\n        raise lost",
        "raise lost",
    ),
    Mutant(
        "GCS: a shard is replaced without a condition",
        _GCS_UPLOAD,
        '{"uploadType": "multipart", **condition_query(write.condition)}',
        '{"uploadType": "multipart", **({} if isinstance(write.condition, IfGeneration) else condition_query(write.condition))}',
        "gcs",
    ),
    Mutant(
        "GCS: a shard is created although there is one",
        _GCS_UPLOAD,
        '{"uploadType": "multipart", **condition_query(write.condition)}',
        '{"uploadType": "multipart", **(condition_query(write.condition) if isinstance(write.condition, IfGeneration) else {})}',
        "gcs",
    ),
    Mutant(
        "GCS: an emptied shard is deleted without a condition",
        _BUCKET,
        "return await self._delete(key, sent, condition)",
        "return await self._delete(key, UNCONDITIONAL, condition)",
        "gcs",
    ),
    Mutant(
        "GCS: an object that changed is taken for one that is gone",
        _RANGED,
        "if exc.status == 412 and generation is not None:\n            return CHANGED",
        "if exc.status == 412 and generation is not None:\n            return ABSENT",
        "gcs",
    ),
    Mutant("Azure: a shard is replaced without a condition", _AZURE_CLIENT, 'return {"If-Match": generation.token}', "return {}", "azure"),
    Mutant("Azure: a shard is created although there is one", _AZURE_CLIENT, 'return {"If-None-Match": "*"}', "return {}", "azure"),
    Mutant(
        "Azure: a list of blocks is committed without a condition",
        _AZURE_BLOCKS,
        'write.client.commit(write.key, listed, "writing", write.headers)',
        'write.client.commit(write.key, listed, "writing", {WRITE_ID_HEADER: write.write_id})',
        "azure",
    ),
    Mutant(
        "Azure: a list of blocks that another writer discarded counts as committed",
        _AZURE_BLOCKS,
        "            raise failed(self.key, self.client.url) from exc\n",
        "            head = await self.client.head(self.key)\n"
        "            if head is None:\n                raise failed(self.key, self.client.url) from exc\n"
        "            return head.generation\n",
        "azure",
    ),
    Mutant(
        "Azure: the answer that a blob is there counts as success",
        _AZURE_BLOCKS,
        "    except ConditionFailed:\n",
        "    except ConditionFailed:\n"
        "        if isinstance(condition, IfAbsent) and (head := await client.head(key)) is not None:\n"
        "            return head.generation\n",
        "azure",
    ),
    Mutant(
        "Azure: blocks of all writers have the same ids",
        _AZURE_BLOCKS,
        'f"{write_id}-{number:06d}"',
        "f\"{'0' * 32}-{number:06d}\"",
        "azure",
    ),
    Mutant(
        "Azure: blocks are kept that lie partly in what is copied",
        _AZURE_BLOCKS,
        "if segment.offset <= at and at + block.nbytes <= segment.offset + segment.nbytes:",
        "if segment.offset <= at < segment.offset + segment.nbytes:",
        "azure",
    ),
    Mutant(
        "Azure: a list of no blocks has to name a version",
        _AZURE_BLOCKS,
        '    if not answer.headers.get("ETag"):\n        return None, []\n',
        "",
        "azure",
    ),
    Mutant(
        "Azure: blocks that a dead writer sent are a blob that is there",
        _AZURE_BLOCKS,
        "if not (isinstance(condition, IfAbsent) and write.found_none):",
        "if True:",
        "azure",
        "appends",
    ),
    Mutant(
        "Azure: the end of a blob is read of any version",
        _AZURE,
        "resolve(request, first.nbytes), first.generation)",
        "resolve(request, first.nbytes), generation)",
        "azure",
    ),
    Mutant(
        "Azure: the end of a blob of any version is read by the size that is remembered",
        _AZURE,
        "end = await reader.get(key, resolve(request, nbytes), version)",
        "end = await reader.get(key, resolve(request, nbytes), generation)",
        "azure",
    ),
    Mutant(
        "Azure: a page without names ends a listing",
        _AZURE,
        'if not (marker := page.findtext("NextMarker")):',
        'if not (marker := page.findtext("NextMarker")) or not (infos or prefixes):',
        "azure",
    ),
    Mutant(
        "Azure: an emptied shard is deleted without a condition",
        _AZURE_CLIENT,
        'f"{action} {key!r}", headers=condition_headers(condition))',
        'f"{action} {key!r}")',
        "azure",
    ),
    Mutant(
        "an emptied shard is removed where requests can be late",
        _COMMITTER,
        "(self._swap_in_empty if self._leaves_emptied else self._remove)",
        "self._remove",
    ),
    Mutant(
        "a whole shard is written without a condition",
        _COMMITTER,
        "if capabilities.exactly_once or not capabilities.atomic_commits:",
        "if True:",
    ),
    Mutant("versions on S3 may have equal bytes", _COMMITTER, "if self._storage.capabilities.unique_versions or not", "if True or not"),
    Mutant(
        "local: a file gets its name before it is synced",
        _TEMPORARY,
        "        if self._rules.fsync:\n            os.fsync(self._fd)\n        if self._rules.is_network",
        "        if self._rules.is_network",
        "local",
    ),
    Mutant("local: the name of a file is not synced", _TEMPORARY, "        fsync_directory(self._parent)\n", "", "local"),
    Mutant(
        "local: the names of the directories above are not synced",
        _TEMPORARY,
        "        if not is_kept:\n            kept_names.flush_above(self._parent, self._rules.status)\n",
        "",
        "local",
    ),
    Mutant(
        "local: the version is not compared under the lock",
        _RULES,
        "or not _is_version(path, status, condition.generation)",
        "or False",
        "local",
    ),
    Mutant(
        "local: a removal is not synced",
        _RULES,
        "                if self.fsync:\n                    fsync_directory(directory)\n",
        "",
        "local",
    ),
    Mutant("local: no object is locked", _RULES, "                held.enter_context(locked(path))", "                pass", "local"),
    Mutant(
        "local: the lock of a removed lock file counts as the object's lock",
        "shardstore.storage.local.locks",
        "            if is_called(status, name):\n                return fd",
        "            return fd",
        "local",
    ),
    Mutant(
        "local: a sweep removes the temporary file of a live writer",
        "shardstore.storage.local.rules",
        "if is_old and lock_whole(fd, path, wait=False) and is_called(status, path):",
        "if is_old and is_called(status, path):",
        "local",
    ),
    Mutant(
        "local: bytes are appended before the attribute is synced",
        _APPEND,
        "            os.fsync(fd)  # the attribute: before the file can be longer",
        "            pass",
        "local",
    ),
    Mutant(
        "local: an append is complete before its bytes are synced", _APPEND, "            os.fdatasync(fd)", "            pass", "local"
    ),
    Mutant(
        "local: a finished append is not synced",
        _APPEND,
        "    set_done(fd)\n    if fsync:\n        os.fsync(fd)\n",
        "    set_done(fd)\n",
        "local",
    ),
    Mutant(
        "local: a tail stays below the next append",
        _APPEND,
        "            if status.st_size != version.nbytes:",
        "            if False:",
        "local",
    ),
    Mutant(
        "local: a record of zeros, as a loss of power leaves it, is not recognised",
        "shardstore.storage.local.append_record",
        "all(byte in (0, wanted) for byte, wanted in zip(found, record, strict=False))",
        "record.startswith(found)",
        "local",
    ),
    Mutant(
        "an array's document is trusted for ever",
        "shardstore.engine.metadata.hierarchy",
        "return node.path in self._pending or self.is_recent(node.validated_at)",
        "return True",
    ),
    Mutant(
        "indices of an array that was created again stay in the cache",
        _PROOF,
        '                self._indices.drop_prefix(join(path, ""))\n                changed = True',
        "                pass",
    ),
    Mutant(
        "an index counts as verified though its array's document was not read after it",
        _PROOF,
        "(n.path in unproven and self.is_needed(n)) or not self._is_fresh(n)",
        "not self._is_fresh(n)",
    ),
    Mutant(
        "a read by a layout that was replaced is guarded by the new document",
        _PROOF,
        "if same_shards(known.layout, node.layout) else None",
        "if True else None",
        "local",
    ),
    Mutant(
        "an object that is as young as the array's document is of its layout",
        _PROOF,
        "return outcome.times.stored + _CERTAIN_SECONDS < max(renewed, node.metadata_server_time)",
        "return max(renewed, node.metadata_server_time) > NEVER",
    ),
    Mutant(
        "an array's document from a pickle counts as fresh",
        "shardstore.engine.metadata.hierarchy",
        "return [replace(n, validated_at=NEVER) for n in arrays]",
        "return [replace(n, validated_at=1e12) for n in arrays]",
    ),
    Mutant(
        "compaction: shards are removed where DELETE has no conditions",
        "shardstore.maintenance.shards",
        "return capabilities.conditional_delete or not capabilities.compare_and_swap",
        "return True",
        "weak",
    ),
    Mutant(
        "compaction and repair: an object is removed without a condition",
        _COMMITTER,
        "            await self._remove(shard, condition)\n        else:\n            self._remember(shard, await self._plans",
        "            await self._remove(shard, UNCONDITIONAL)\n        else:\n            self._remember(shard, await self._plans",
    ),
    Mutant(
        "repair: an emptied shard with a nonce counts as damaged",
        "shardstore.maintenance.repair.shard",
        "as_emptied = self._nbytes in (self._format.nbytes, self._format.nbytes + NONCE_NBYTES)",
        "as_emptied = self._nbytes == self._format.nbytes",
    ),
    Mutant(
        "packing: a unit counts as done although the source has changed since",
        _RECORD,
        "or entry.fingerprint != unit.fingerprint or not",
        "or not",
    ),
    Mutant(
        "packing: the target counts as complete while other parts are not",
        _PACK_RUN,
        "        if not self.outcome.missing:\n",
        "        if True:\n",
    ),
    Mutant(
        "packing: objects are not recorded before they are written",
        _PACK_RUN,
        "            await self.write_down(record.announce(announced))\n        restricted",
        "            pass\n        restricted",
    ),
    Mutant(
        "packing: it is not checked which result is newer",
        _RECORD,
        "found.units[path, name] = entry if last.run <= entry.run else last",
        "pass",
    ),
    Mutant("packing: what the source no longer has stays in the target", _PACK_RUN, "        await remove(self._storage, gone)\n", ""),
    Mutant(
        "packing: the record of a finished run is not kept",
        _RECORD,
        "            self._written += self._new\n            self._new = []",
        "            self._new = []",
    ),
    Mutant(
        "appends: no fence",
        "shardstore.engine.appending.view",
        "        self._place.check(self._record_key, record)\n",
        "",
        "gcs",
        "appends",
    ),
    Mutant(
        "appends: offsets are not kept",
        "shardstore.plan.strategies",
        "return plan_keep(commit, commit.old, self.dead_bytes_kept)",
        "return plan_rewrite(commit.index_format, commit.old, commit.old_nbytes, commit.updates, commit.order)",
        form="appends",
    ),
    Mutant("appends: a reservation that was taken back is made again", _LINE, "if id_ in record.evicted:", "if False:", form="appends"),
    Mutant(
        "appends: a writer that has stored its rows counts as alive",
        _LINE,
        "if beat != one.beat:",
        "if one.done or beat != one.beat:",
        "local",
        "appends",
    ),
    Mutant(
        "appends: the root shows the rows before the arrays do",
        "shardstore.engine.appending.documents",
        "        await asyncio.gather(*(self._publish(path, shown, stop) for path in self.axes))\n        for group in self._groups:\n",
        "        for group in [*self._groups, *self.axes]:\n",
        form="appends",
    ),
    Mutant(
        "appends: a reservation that is not done is committed",
        "shardstore.format.append_record",
        "while open_ and open_[0].done:",
        "while open_:",
        form="appends",
    ),
)


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from changed source."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutant.module:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        assert found is not None
        return importlib.util.spec_from_file_location(name, found.origin, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__file__ is not None
        with open(module.__file__) as file:
            source = file.read()
        if source.count(self._mutant.old) != 1:
            raise AssertionError(f"the mutant {self._mutant.name!r} fits {source.count(self._mutant.old)} places")
        exec(compile(source.replace(self._mutant.old, self._mutant.new), module.__file__, "exec"), vars(module))


def seeds_to_find(mutant: Mutant, most: int = MOST_SEEDS) -> int | None:
    """Return how many seeds it takes to notice a mutant, in this process, which has not loaded the module yet; ``None``: more."""
    sys.meta_path.insert(0, _Loader(mutant))
    logging.disable(logging.CRITICAL)
    from tests.simulation.campaign import form_of, run

    seeds = islice((seed for seed in count() if mutant.form in (None, form_of(seed))), most)
    return next((tried for tried, seed in enumerate(seeds, start=1) if run(seed, mutant.kind).violation is not None), None)


def _in_process(name: str, most: int) -> str:
    command = [sys.executable, "-m", "tests.simulation.mutants", "--one", name, "--most", str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="parts of the names of mutants")
    parser.add_argument("--most", type=int, default=MOST_SEEDS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        (mutant,) = (mutant for mutant in MUTANTS if mutant.name == given.one)
        print(seeds_to_find(mutant, given.most) or f"not in {given.most}")
        return 0
    chosen = [mutant for mutant in MUTANTS if not given.names or any(name in mutant.name for name in given.names)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda mutant: _in_process(mutant.name, given.most), chosen))
    for mutant, seeds in zip(chosen, found, strict=True):
        print(f"| {mutant.name} | {mutant.kind} | {seeds} |")
    return any(not seeds.isdecimal() for seeds in found)


if __name__ == "__main__":
    sys.exit(main())
