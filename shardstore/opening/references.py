"""Open a set of references from a URL, or from the arguments that fsspec gives its filesystem.

The options are those of fsspec's ``ReferenceFileSystem``, and some of this package's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from shardstore.errors import InvalidInput
from shardstore.format.references.json import Expansion
from shardstore.model.redaction import HARMLESS, redacted
from shardstore.opening.address import Address
from shardstore.opening.chains import links_of_url, scheme_of
from shardstore.opening.reference_targets import Opener, ReferenceTargets, SetAddress, TargetOptions, canonical, protocols_in
from shardstore.storage.generic.links import links_of, protocols_of
from shardstore.storage.references.entries import SetPlace
from shardstore.storage.references.parquet_set import CACHE_BYTES
from shardstore.storage.references.storage import ReferenceStorage, SetChoices

OWN_OPTIONS = frozenset({"pins", "allow_protocols", "cache_bytes"})
"""The options of a set that fsspec's filesystem does not have."""

_OF_A_CHAIN = frozenset({"fo", "fs", "target_protocol"})

Chained = Callable[[str, Mapping[str, Any]], AbstractFileSystem]
"""A function that makes the filesystem of a link from the arguments that fsspec makes of the chain behind it."""


@dataclass(frozen=True)
class GivenSet:
    """A set by the arguments that it was opened with."""

    fo: str | Mapping[str, Any]
    given: Mapping[str, Any]
    """The options of the link."""
    of_links: Mapping[str, Mapping[str, Any]]
    """Options by protocol, for what references lead to."""
    shown: str | None
    """The URL that it was opened by, if it was."""
    opener: Opener = field(compare=False)
    chained: Chained = field(compare=False)

    def __post_init__(self) -> None:
        _check_options(self.given)

    @property
    def url(self) -> str:
        if self.shown is not None:
            return redacted(self.shown)
        return f"reference::{self._shown_set}" if isinstance(self.fo, str) else "reference://"

    @property
    def identity(self) -> str:
        return f"references {tokenize(self.fo, dict(self.given), dict(self.of_links))}"

    @property
    def document(self) -> Mapping[str, Any] | None:
        return None if isinstance(self.fo, str) else self.fo

    @property
    def choices(self) -> SetChoices:
        given = self.given
        limits = {name: given[option] for name, option in (("gap_bytes", "max_gap"), ("request_bytes", "max_block")) if option in given}
        return SetChoices(
            Expansion(given.get("template_overrides") or {}, bool(given.get("simple_templates", False))),
            given.get("pins", True),
            given.get("cache_bytes", CACHE_BYTES),
            {name: max(0, limit) for name, limit in limits.items()},
        )

    @property
    def _own_options(self) -> dict[str, Any]:
        """The options that the set itself is read with; those of several links by their protocols."""
        given = self.given.get("ref_storage_args") or self.given.get("target_options") or {}
        return {name: value for name, value in given.items() if not (isinstance(value, Mapping) and not value)}

    @property
    def _address(self) -> str:
        """The set's URL."""
        assert isinstance(self.fo, str)
        protocol = self.given.get("target_protocol")
        return f"{protocol}://{self.fo}" if isinstance(protocol, str) and "://" not in self.fo else self.fo

    def _chain(self) -> AbstractFileSystem | None:
        """Return the filesystem that the set is read through, if the options describe a chain of them."""
        protocol = self.given.get("target_protocol")
        if not isinstance(protocol, str) or _OF_A_CHAIN.isdisjoint(self._own_options):
            return None
        fs: AbstractFileSystem = self.chained(protocol, self._own_options)
        return fs

    def place(self) -> SetPlace:
        if (fs := self._chain()) is not None:
            above, _, name = str(fs._strip_protocol(self.fo)).rstrip("/").rpartition("/")
            return SetPlace(partial(self.opener, (fs, above or "/"), None), name, self._shown_set)
        directory, name = split_url(self._address)
        return SetPlace(partial(self.opener, directory, self._own_options or None), name, self._shown_set)

    @property
    def _shown_set(self) -> str:
        return redacted(self._address)

    def targets(self) -> ReferenceTargets:
        given = self.given
        allowed = given.get("allow_protocols", ())
        options = TargetOptions(
            given.get("target"),
            given.get("remote_protocol"),
            given.get("remote_options") or {},
            self.of_links,
            {name: value for name, value in self._own_options.items() if isinstance(value, Mapping)} | self._of_own_protocol(),
            given.get("fs"),
            [allowed] if isinstance(allowed, str) else list(allowed),
        )
        return ReferenceTargets(options, self._set_address(), self.opener)

    def _of_own_protocol(self) -> dict[str, Mapping[str, Any]]:
        """Return the options of the set's own link under its protocol, if they are given without one."""
        if not isinstance(self.fo, str) or len(links_of_url(self._address)) > 1 or self._chain() is not None:
            return {}
        protocol, options = protocols_in(self._address)[0], self._own_options
        return {} if protocol in options else {protocol: options}

    def _set_address(self) -> SetAddress:
        if not isinstance(self.fo, str):
            return SetAddress(None, "", frozenset(), {})
        if (fs := self._chain()) is not None:
            return SetAddress(None, "", frozenset(canonical(name) for link in links_of(fs) for name in protocols_of(link)), {})
        directory, name = split_url(self._address)
        protocols = frozenset(map(canonical, protocols_in(self._address)))
        return SetAddress(Address.parse(directory), name, protocols, self._own_options)


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of the directory that a URL is in, and the name in it."""
    address = Address.parse(url)
    if address.segments:
        return address.at(len(address.segments) - 1), address.segments[-1]
    before, mark, query = url.partition("?") if address.protocol.startswith("http") else (url, "", "")
    links = links_of_url(before)
    own = next((i for i, link in enumerate(links) if scheme_of(link)), len(links) - 1)
    above, _, name = links[own].rstrip("/").rpartition("/")
    if not name or above.endswith(":/"):
        raise InvalidInput(f"{redacted(url)!r} names no set of references")
    links[own] = above
    return "::".join(links) + mark + query, name


def _check_options(given: Mapping[str, Any]) -> None:
    """Refuse values of options that mean nothing."""
    checks: Mapping[str, tuple[type | tuple[type, ...], str]] = {
        "pins": (bool, "True or False"),
        "simple_templates": (bool, "True or False"),
        "allow_protocols": ((str, list, tuple, set, frozenset), "a protocol, or several"),
        "cache_bytes": (int, "a number of bytes"),
        "max_gap": (int, "a number of bytes"),
        "max_block": (int, "a number of bytes"),
        "target": (str, "a URL"),
        "remote_protocol": (str, "a protocol"),
        "remote_options": (Mapping, "a dictionary of options"),
        "target_options": (Mapping, "a dictionary of options"),
        "ref_storage_args": (Mapping, "a dictionary of options"),
        "template_overrides": (Mapping, "a dictionary of templates"),
        "fs": ((AbstractFileSystem, Mapping), "a filesystem, or a dictionary of filesystems or their options by protocol"),
    }
    for name, (kind, meaning) in checks.items():
        value = given.get(name)
        if value is not None and not isinstance(value, kind):
            raise InvalidInput(f"the option {name} of a set of references is {meaning}, not {value!r:.100}")


def open_set(
    fo: object,
    given: Mapping[str, Any],
    of_links: Mapping[str, Mapping[str, Any]],
    path: str,
    shown: str | None,
    opener: Opener,
    chained: Chained,
) -> ReferenceStorage:
    """Return the storage of a set, which is read now.

    Raises:
        InvalidInput: an option has a value that means nothing.
        NotFound, Corruption, StorageError, Unsupported: the set cannot be read.
    """
    if not isinstance(fo, str | Mapping):
        raise InvalidInput(f"the set of references fo={fo!r:.100} is neither a path or URL, nor a dictionary")
    options = {name: value for name, value in given.items() if name != "fo" and name not in HARMLESS}
    storage = ReferenceStorage(GivenSet(fo, options, of_links, shown, opener, chained), path)
    storage.load()
    return storage
