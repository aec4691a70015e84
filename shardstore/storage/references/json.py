"""Sets of references as filesystems: fsspec's own, with the whole specification applied.

fsspec silently leaves generated keys out, unless ``simple_templates=False`` is given; it knows only the protocol of the first
reference; and it loads JSON by itself. Here the set is written out first (``expansion.py``), and fsspec gets plain references.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any

import fsspec
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.reference import ReferenceFileSystem
from fsspec.spec import AbstractFileSystem

from shardstore.errors import NotFound, ShardStoreError
from shardstore.storage.redaction import redacted
from shardstore.storage.references.expansion import expanded, is_generated

CHOICE = "simple_templates"


class _Targets(dict[str | None, AbstractFileSystem]):
    """The filesystems that references lead to, by protocol: a missing one is made with the defaults of its protocol."""

    def __init__(self, known: Mapping[str | None, AbstractFileSystem], *, asynchronous: bool) -> None:
        super().__init__(known)
        self._asynchronous = asynchronous

    def __missing__(self, protocol: str | None) -> AbstractFileSystem:
        fs = fsspec.filesystem(protocol)
        if not fs.async_impl:
            fs = AsyncFileSystemWrapper(fs, asynchronous=self._asynchronous)
        self[protocol] = fs
        return fs


class ReferenceSet(ReferenceFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The objects that ``references`` name, by key: text, JSON objects, bytes, ``[url]``, or ``[url, offset, nbytes]``.

    ``options`` are those of ``ReferenceFileSystem``. ``remote_options`` are for ``remote_protocol``, or the protocol of the first
    reference; other protocols of references are opened by their defaults, or as ``fs`` says by protocol.
    """

    protocol = "reference"

    def __init__(self, references: Mapping[str, Any], **options: Any) -> None:
        super().__init__({"version": 1, "refs": references}, **options)
        targets: dict[str | None, AbstractFileSystem] = vars(self)["fss"]
        self.fss = _Targets(targets, asynchronous=self.asynchronous)


class JSONReferences(ReferenceSet):
    """The objects that a set in JSON refers to.

    The arguments are those of ``ReferenceFileSystem``; a pickle reads the set again. If ``simple_templates`` is true, generated keys
    are left out, with a warning.

    Raises:
        Corruption: the set contradicts its specification.
        NotFound: there is no such set.
        Unsupported: an annotation in a template needs jinja2, which is not installed.
    """

    def __init__(
        self,
        fo: str | Mapping[str, Any],
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        ref_storage_args: Mapping[str, Any] | None = None,
        template_overrides: Mapping[str, str] | None = None,
        simple_templates: bool = False,
        **options: Any,
    ) -> None:
        document = document_of(fo, target_protocol, target_options, ref_storage_args)
        if simple_templates and is_generated(document):
            warnings.warn(
                "a set of references has generated keys (gen), which simple_templates=True leaves out: their chunks will be missing",
                UserWarning,
                stacklevel=2,
            )
        try:
            references = expanded(document, template_overrides, only_plain=simple_templates)
        except ShardStoreError as exc:
            if isinstance(fo, str):
                raise type(exc)(f"{redacted(fo)}: {exc}") from exc
            raise
        super().__init__(references, **options)


def document_of(
    fo: str | Mapping[str, Any], protocol: str | None, options: Mapping[str, Any] | None, others: Mapping[str, Any] | None
) -> Any:
    if not isinstance(fo, str):
        return fo
    try:
        with fsspec.open(fo, "rb", **{**(others or options or {}), "protocol": protocol}) as file:
            return json.loads(file.read())
    except IsADirectoryError as exc:
        raise NotFound(f"{redacted(fo)} is a directory, and no set of references: one in Parquet has a file .zmetadata") from exc
