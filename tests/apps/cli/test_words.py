"""Errors in the words of the command line."""

from __future__ import annotations

import pytest

from shardstore.apps.cli.words import in_own_words
from shardstore.model.advice import UNSAID, check_endpoint, storage_option


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (storage_option("s3", "anon", True), "-o anon=true"),
        (f"give {storage_option('s3', 'endpoint_url')}, or not", "give -o endpoint_url=…, or not"),
        (storage_option("gs", "token", "anon"), "-o token=anon"),
        (storage_option("s3", "client_kwargs", {"region_name": UNSAID}), """-o client_kwargs='{"region_name": "…"}'"""),
        (storage_option("https", "client_kwargs", {"ssl": False}), """-o client_kwargs='{"ssl": false}'"""),
        (storage_option("s3", "NAME"), "-o NAME=…"),
        ("storage_options={'reference': {'allow_protocols': […]}}", """-o allow_protocols='["…"]'"""),
        ("storage_options={'s3': {…}}", "-o NAME=…"),
        (check_endpoint("s3"), "check the network, and the address of the server, -o endpoint_url=…"),
        ("transport='obstore' is for s3://", "-o transport=obstore is for s3://"),
        ("was opened with static=True, which", "was opened with -o static=true, which"),
        ("or give overwrite=True to replace it", "or give --overwrite to replace it"),
        ("give locks='cluster' where", "give --locks cluster where"),
        ("version=0 has none", "--json-version 0 has none"),
        ("shardstore.serve needs starlette", "shardstore serve needs starlette"),
        ("store=…", "--store …"),
        ("flavour='v3' cannot be read; urls='relative' needs", "--flavour v3 cannot be read; --urls relative needs"),
        ("chunks_per_shard (2, 2, 2) has 3 dimensions", "--chunks-per-shard 2,2,2 has 3 dimensions"),
        ("chunks_per_shard (2,) has", "--chunks-per-shard 2 has"),
        ("chunks_per_shard=None", "--chunks-per-shard none"),
        ("chunk_order 'Z' is not known", "--chunk-order Z is not known"),
        ("dead_ratio 2.0 is not a number", "--dead-ratio 2.0 is not a number"),
        ("leave it out by paths={'a/b': None}", "leave it out by --exclude a/b"),
        ("out by paths={'a': None, '*': {}}. Nothing", "out by --exclude a. Nothing"),
        ("by paths={'a': {'inline_nbytes': …}} with", "by --inline BYTES with"),
        ("with virtual_prefixes=['s3://b/c/'], or", "with --virtual-prefix s3://b/c/, or"),
        ("on_error='skip' leaves it out", "--skip-damaged leaves it out"),
        ("init` (in Python: Repository.create)", "init`"),
        ("x (in Python: a(b=1) or c). Then", "x. Then"),
    ],
)
def test_arguments_become_options(said: str, shown: str) -> None:
    assert in_own_words(said) == shown
    assert in_own_words(shown) == shown


@pytest.mark.parametrize(
    "text",
    ["there is nothing at data.zarr/copy=True", "chunks_per_shard of the array", "the store (2 objects)", "no version 'x'", "a store 'x'"],
)
def test_other_words_stay(text: str) -> None:
    assert in_own_words(text) == text
