"""Sets of references that fsspec's own filesystem reads: behind another link of a chain, as in ``simplecache::reference::…``, or made by
the user.

fsspec silently leaves generated keys out, unless ``simple_templates=False`` is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from shardstore.errors import InvalidInput, Unsupported
from shardstore.extras import how_to_install
from shardstore.format.references.json import is_generated
from shardstore.model.advice import storage_option
from shardstore.storage.generic.links import REFERENCES, links_of

CHOICE = "simple_templates"


def for_inner_link(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for a set of references that another link of a chain reads through, and that fsspec itself opens. Raises
    ``Unsupported`` if jinja2 is not installed, without which fsspec would leave generated keys out.
    """
    if CHOICE not in options and find_spec("jinja2") is None:
        raise Unsupported(
            f"a set of references behind another link needs jinja2: {how_to_install('report')}; or say that it has neither "
            f"generated keys nor templates: {storage_option('reference', CHOICE, True)}"
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
    """Refuse a filesystem of references that was opened without ``simple_templates``, if fsspec has left generated keys out of it. Raises
    ``InvalidInput`` if generated keys were left out of ``fs``, or of a set that it reads through.
    """
    from fsspec.implementations.reference import LazyReferenceMapper, ReferenceFileSystem  # it loads a JSON library

    for link in links_of(fs):
        if not isinstance(link, ReferenceFileSystem) or isinstance(link.references, LazyReferenceMapper):
            continue
        given = dict(link.storage_options)
        if CHOICE in given or len(link.storage_args) > 1:
            continue
        if link.storage_args:
            given["fo"] = link.storage_args[0]
        if is_generated(_document_of(given)):
            raise InvalidInput(
                "the filesystem of references was made with simple_templates=True, fsspec's default, which leaves generated keys (gen) "
                "out: make it with simple_templates=False, or give the URL (reference::…)"
            )


def _document_of(given: Mapping[str, Any]) -> Any:
    fo = given["fo"]
    if not isinstance(fo, str):
        return fo
    options = given.get("ref_storage_args") or given.get("target_options") or {}
    with fsspec.open(fo, "rb", **{**options, "protocol": given.get("target_protocol")}) as file:
        return json.loads(file.read())
