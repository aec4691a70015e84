"""Sets of references as filesystems, by the arguments that fsspec gives them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from fsspec.implementations.reference import LazyReferenceMapper, ReferenceFileSystem
from fsspec.spec import AbstractFileSystem

from shardstore.errors import InvalidInput, Unsupported
from shardstore.storage.generic.links import REFERENCES, links_of
from shardstore.storage.references.expansion import is_generated
from shardstore.storage.references.json import CHOICE, JSONReferences, ReferenceSet, document_of
from shardstore.storage.references.parquet import ParquetReferences, is_parquet_set


def reference_filesystem(given: Mapping[str, Any]) -> AbstractFileSystem:
    """Return the filesystem of a set of references, in Parquet or JSON, from the arguments of ``ReferenceFileSystem``.

    Raises as the class of either does, and whatever the filesystem below raises.
    """
    return (ParquetReferences if is_parquet_set(**{"fo": None, **given}) else JSONReferences)(**given)


def for_inner_link(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a set of references that another link of a chain reads through, and that fsspec itself opens.

    Raises:
        Unsupported: jinja2 is not installed, without which fsspec would leave generated keys out.
    """
    if CHOICE not in options and find_spec("jinja2") is None:
        raise Unsupported(
            "a set of references behind another link needs jinja2: pip install jinja2; or say that it has neither generated keys nor "
            "templates, by storage_options={'reference': {'simple_templates': True}}"
        )
    return {CHOICE: False, **options}


def for_inner_links(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a filesystem that fsspec makes of a chain, with ``for_inner_link`` if it reads through references."""
    inner = options.get("target_options")
    if not isinstance(inner, Mapping):
        return dict(options)
    below = for_inner_links(inner)
    return {**options, "target_options": for_inner_link(below) if options.get("target_protocol") in REFERENCES else below}


def check_made_by_user(fs: AbstractFileSystem) -> None:
    """Refuse a filesystem of references that was opened without ``simple_templates``, if fsspec has left generated keys out of it.

    Raises:
        InvalidInput: generated keys were left out of ``fs``, or of a set that it reads through.
    """
    for link in links_of(fs):
        if not isinstance(link, ReferenceFileSystem) or isinstance(link, ReferenceSet) or isinstance(link.references, LazyReferenceMapper):
            continue
        given = dict(link.storage_options)
        if CHOICE in given or len(link.storage_args) > 1:
            continue
        if link.storage_args:
            given["fo"] = link.storage_args[0]
        where = [given.get(name) for name in ("target_protocol", "target_options", "ref_storage_args")]
        if is_generated(document_of(given["fo"], *where)):
            raise InvalidInput(
                "the filesystem of references was made with simple_templates=True, fsspec's default, which leaves generated keys (gen) "
                "out: make it with simple_templates=False, or give the URL (reference::…)"
            )
