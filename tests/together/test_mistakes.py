"""Common mistakes of new users, each with the parts of the message that it has to have: what is wrong, where, and what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.together.mistakes import Mistake, check, make_places, mistake, said

IN_PYTHON = (
    mistake("shardstore.open('data.zarr', mode='r')", "option 'mode' is not known", "did you mean read_only=True?"),
    mistake("shardstore.open('data.zarr', chunk_per_shard=(2, 2))", "'chunk_per_shard' is not known: did you mean 'chunks_per_shard'?"),
    mistake("shardstore.open('data.zarr', shards=(64, 64))", "'shards' is not known", "chunks_per_shard", "counts chunks"),
    mistake("shardstore.open('data.zarr', chunks_per_shard='automatic')", "'automatic' is neither 'auto', None", "such as (4, 4)"),
    mistake("shardstore.open('data.zarr', chunks_per_shard=4)", "4 is neither 'auto', None", "such as (4, 4)"),
    mistake(
        "zarr.create_array(shardstore.open('new.zarr', chunks_per_shard=(2, 2)), shape=(8, 8, 8), chunks=(2, 2, 2), dtype='i4')",
        "chunks_per_shard (2, 2) has 2 dimensions, array '' has 3",
        "give a function",
        "or a mapping",
    ),
    mistake("shardstore.open('data.zarr', strategy='apend')", "strategy 'apend' is not known: there are 'rewrite', 'append', 'keep'"),
    mistake("shardstore.open('data.zarr', storage_options={'anon': True})", "anon means nothing to", "data.zarr", "leave it out"),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options={'read_only': True})",
        "'read_only' is not a storage option",
        "shardstore.open(URL, read_only=…)",
    ),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options={'mode': 'r'})",
        "'mode' is not a storage option",
        "did you mean read_only=True?",
    ),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options={'s3': {'chunks_per_shard': (2, 2)}})",
        "'chunks_per_shard' is not a storage option",
        "shardstore.open(URL, chunks_per_shard=…)",
    ),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options={'endpoint': 'http://host'})",
        "the storage option endpoint of 's3://bucket/a.zarr' is not known",
        "did you mean storage_options={'s3': {'endpoint_url': …}}?",
    ),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options={'region': 'eu-west-1'})",
        "region",
        "did you mean storage_options={'s3': {'client_kwargs': {'region_name': …}}}?",
    ),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options={'endpoint_url': 'localhost:9000'})",
        "endpoint_url 'localhost:9000' of 's3://bucket/a.zarr' needs http:// or https:// in front",
    ),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options={'gs': {'token': 'anon'}})",
        "has no link 'gs': give storage_options={'s3': {'NAME': …}}",
    ),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', anon=True)",
        "'anon' is not known",
        "belongs to the filesystem: give storage_options={'s3': {'anon': …}}",
    ),
    mistake("shardstore.open('s3://bucket/a.zarr', s3={'anon': True})", "'s3' is not known", "give storage_options={'s3': {…}}"),
    mistake(
        "shardstore.open('s3://bucket/a.zarr', storage_options='{\"anon\": true}')",
        "storage_options is a str, not a dictionary: give it as storage_options={'s3': {'anon': True}}",
    ),
    mistake("zarr.open_group('sharded::data.zarr', storage_options={'anon': True})", "anon means nothing to", "data.zarr", "leave it out"),
    mistake("shardstore.open('S3://bucket/a.zarr')", "the protocol 'S3' of 'S3://bucket/a.zarr' is not known: did you mean 's3'?"),
    mistake("shardstore.open('s3:/bucket/a.zarr')", "'s3:/bucket/a.zarr' is not a path that exists: did you mean s3://bucket/a.zarr?"),
    mistake("shardstore.open('s4://bucket/a.zarr')", "the protocol 's4' of 's4://bucket/a.zarr' is not known: did you mean 's3'?"),
    mistake("shardstore.open('s3://')", "'s3://' names no bucket: give s3://BUCKET/PATH"),
    mistake(
        "shardstore.open('s3://KEY:SECRET@bucket/a.zarr')",
        "begins with the name of the bucket",
        "options: storage_options={'s3': {'key': …}}",
    ),
    mistake("shardstore.open('')", "an empty string names no target; '.' is the current directory"),
    mistake("shardstore.open(fsspec.filesystem('memory'))", "a filesystem needs a path in it: give (fs, path)"),
    mistake("shardstore.open(zarr.open_group('plain.zarr'))", "a target is a path, a URL", "not of type Group: give its store"),
    mistake(
        "shardstore.open('gs://bucket/a.zarr', storage_options={'token': 'missing.json'})",
        "token 'missing.json' of 'gs://bucket/a.zarr' is not a file: give the path of a service account's key",
    ),
    mistake(
        "zarr.open_array(shardstore.open('data.zarr', read_only=True), path='ct')[0, 0] = 1", "read-only", "data.zarr with read_only=False"
    ),
    mistake("shardstore.get_mapper('data.zarr')['ct/c/5/6']", "'ct/c/5/6' does not exist in", "data.zarr"),
    mistake("shardstore.get_mapper('data.zarr')['ct/c/0/0'] = 5", "the value for 'ct/c/0/0' is not bytes but int: encode it first"),
    mistake(
        "shardstore.get_mapper('data.zarr')['ct/c/0/0'] = b'abc'", "'ct/c/0/0' is not written: it would have 3 bytes", "Give all 50 bytes"
    ),
    mistake(
        "zarr.open_array(shardstore.open('broken.zarr'), path='ct', mode='r')[...]",
        "the index of shard 'ct/c/0/0' of array 'ct' is damaged",
        "Write or erase all 6 chunks of the shard, or restore the object",
    ),
    mistake("shardstore.pack('missing.zarr', 'out.zarr')", "there is no Zarr node at", "missing.zarr: check the address"),
    mistake("shardstore.pack('plain.zarr', 'plain.zarr')", "overlap", "The target has to be another place; nothing was changed"),
    mistake(
        "shardstore.pack('plain.zarr', 'data.zarr')", "there is something at", "data.zarr already", "or give overwrite=True to replace it"
    ),
    mistake("shardstore.pack('plain.zarr', 'out.zarr', mode='w')", "'mode' is not known: did you mean overwrite=True?"),
    mistake("shardstore.pack('plain.zarr', 'out.zarr', shards=(4, 4))", "'shards' is not known", "chunks_per_shard", "counts chunks"),
    mistake("shardstore.verify('missing.zarr')", "there is no node at", "missing.zarr", "check the address"),
    mistake(
        "shardstore.append('data.zarr', {'ct': np.zeros((1, 3))}, dim='time')", "data.zarr has the dimension 'time'", "dimension_names"
    ),
    mistake("snapshots.Repository.open('data.zarr')", "there is no versioned store at", "data.zarr", "Repository.create"),
    mistake("shardstore.open('versions.ice@mian')", "'mian' is not a branch, tag or snapshot: there are", "snapshots log"),
)

ON_THE_COMMAND_LINE = (
    mistake("$ shardstore pak plain.zarr out.zarr", "No such command 'pak'. Did you mean 'pack'", "? See shardstore --help"),
    mistake("$ shardstore pack plain.zarr", "Missing argument 'DST'. See shardstore pack --help"),
    mistake("$ shardstore pack plain.zarr out.zarr --chunk-per-shard 2,2", "No such option: --chunk-per-shard", "--chunks-per-shard"),
    mistake("$ shardstore pack plain.zarr out.zarr -s '(2,2)'", "--chunks-per-shard '(2,2)'", "such as 4,4,4, or 'auto' or 'none'"),
    mistake("$ shardstore pack plain.zarr out.zarr -s 2,2,2", "--chunks-per-shard 2,2,2 has 3 dimensions, the arrays have 2"),
    mistake("$ shardstore pack plain.zarr data.zarr", "there is something at", "data.zarr already", "or give --overwrite to replace it"),
    mistake("$ shardstore pack missing.zarr out.zarr", "there is no Zarr node at", "missing.zarr"),
    mistake("$ shardstore pack plain.zarr out.zarr --max-memory lots", "'lots' is not a number of bytes: give one such as 512MiB or 2GB"),
    mistake("$ shardstore pack plain.zarr out.zarr --part 5/4", "there is no part 5/4: parts are counted from 1, as in 1/4"),
    mistake("$ shardstore info missing.zarr", "there is no node at", "missing.zarr", "check the address"),
    mistake("$ shardstore info data.zarr -o anon", "option 'anon' is not of the form key=value, such as -o anon=true"),
    mistake("$ shardstore info data.zarr -o anon=true", "the storage option anon means nothing to", "data.zarr'", "leave it out"),
    mistake("$ shardstore info s3://b/a --storage-options '{anon: true}'", "--storage-options is not JSON", "or use -o anon=true"),
    mistake("$ shardstore info s3://b/a -o endpoint=http://host", "endpoint of 's3://b/a' is not known", "did you mean -o endpoint_url=…?"),
    mistake(
        "$ shardstore info s3://b/a -o endpoint_url=host:9000", "endpoint_url 'host:9000' of 's3://b/a' needs http:// or https:// in front"
    ),
    mistake("$ shardstore info s3:/bucket/a.zarr", "'s3:/bucket/a.zarr' is not a path that exists: did you mean s3://bucket/a.zarr?"),
    mistake("$ shardstore info gs://b/a -o transport=curl", "-o transport=curl is not one of 'auto', 'fsspec', 'obstore'"),
    mistake("$ shardstore cat data.zarr ct", "data.zarr/ct is a node, not a key: its document is 'ct/zarr.json'"),
    mistake("$ shardstore cat data.zarr ct/c/5/6", "there is no key at", "ct/c/5/6; a chunk that was never written does not exist"),
    mistake("$ shardstore ls data.zarr cts", "there is nothing at", "data.zarr/cts: list the directory above it, or check the spelling"),
    mistake("$ shardstore rm data.zarr/ct", "this would remove array", "data.zarr/ct", "--yes"),
    mistake("$ shardstore cp data.zarr/ct data.zarr/time", "there is something at 'time'", "or give --overwrite to replace it"),
    mistake("$ shardstore mv data.zarr/ct data.zarr/ct/in", "'ct/in' in", "nothing can be copied or moved onto, into or out of itself"),
    mistake("$ shardstore advise data.zarr/ct --access 1,2,3", "access '1,2,3' names 3 dimensions, the array has 2"),
    mistake("$ shardstore append plain.zarr data.zarr --dim time", "xarray cannot open plain.zarr", "dimension_names"),
    mistake("$ shardstore snapshots log data.zarr", "there is no versioned store at", "make one by `shardstore snapshots init`"),
    mistake("$ shardstore snapshots tag versions.ice v1 --at mian", "'mian' is not a branch, tag or snapshot: there are"),
    mistake("$ shardstore refs write data.zarr data.zarr", "overlap: a set has to lie outside of what it refers to"),
    mistake("$ shardstore mount data.zarr missing-dir", "missing-dir is not a directory: make it first"),
    mistake("$ shardstore unmount data.zarr", "nothing of shardstore is mounted at", "data.zarr"),
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mistakes")
    make_places(root)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("one", [*IN_PYTHON, *ON_THE_COMMAND_LINE], ids=lambda one: one.made)
def test_a_mistake_is_refused_with_what_to_do(one: Mistake, places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if one.made.startswith("$ shardstore mount "):
        pytest.importorskip("pyfuse3")
    monkeypatch.chdir(places)
    before = contents(places)
    check(one, said(one))
    assert contents(places) == before, "nothing was changed"
    assert os.getcwd() == str(places)
