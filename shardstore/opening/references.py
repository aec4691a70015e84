"""Open a set of references, from a URL or from the arguments that fsspec gives its filesystem, and the storages that the references lead
to: one for each protocol and host or bucket.

The options are those of fsspec's ``ReferenceFileSystem``, and some of this package's own.

A set that came over a network may not lead everywhere: its author would otherwise choose what is read of the reader's files. Nor does it
lead to servers of another protocol by accident: its pins have to name them, or the reader.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import fsspec
from fsspec.core import split_protocol
from fsspec.spec import AbstractFileSystem
from fsspec.utils import tokenize

from shardstore.errors import Corruption, InvalidInput, NotFound, StorageError
from shardstore.format.references.json import Expansion
from shardstore.format.references.pins import object_url
from shardstore.model.redaction import HARMLESS, redacted
from shardstore.opening.address import Address, links_of_url, protocols_of_links, scheme_of
from shardstore.opening.kinds import kind_of_filesystem, kind_of_protocol, read_sizes
from shardstore.storage.base import Storage
from shardstore.storage.generic.links import is_one, links_of, protocols_of
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.references.entries import ReferenceTarget, SetPlace
from shardstore.storage.references.parquet_set import CACHE_BYTES
from shardstore.storage.references.storage import ReferenceStorage, SetChoices

Opener = Callable[[Any, Mapping[str, Any] | None], Storage]
"""A function that opens a storage, as ``open_storage`` does."""

LOCAL = "local"
_OWN = frozenset({LOCAL, "memory"})
_CONTAINERS = frozenset({"zip", "tar", "libarchive"})
_PASSING = frozenset({"dir", "simplecache", "filecache", "blockcache", "cached"})

_NAMES_VERSION = {"s3": re.compile(r"\?versionId=[^/?]+$"), "gcs": re.compile(r"#[0-9]+$")}
"""By kind, the end of a URL that names one version of an object, for a bucket that keeps versions."""
_NEVER = re.compile("(?!)")

_MOST_REMEMBERED = 10_000


def canonical(protocol: str | None) -> str:
    """Return one name for all names of a protocol; of local files for ``None`` and an empty one."""
    if not protocol or (len(protocol) == 1 and protocol.isalpha()):  # a drive of Windows
        return LOCAL
    kind = kind_of_protocol(protocol)
    return protocol if kind is None else kind.name


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options that say where references lead, and how it is opened."""

    target: str | None = None
    """The URL of references that have none."""
    remote_protocol: str | None = None
    """The protocol of URLs that have none."""
    remote_options: Mapping[str, Any] = field(default_factory=dict)
    """Options for ``remote_protocol``, or else for the first protocol of the set that is not of local files."""
    by_protocol: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    of_set: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of the links that the set itself is read through, by protocol."""
    fs: Mapping[str, Any] | AbstractFileSystem | None = None
    """The filesystem, or one for each protocol, or its options."""
    allow_protocols: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class SetAddress:
    """The origin of a set."""

    directory: Address | None
    """The directory that the set is in; ``None`` if that has no URL."""
    name: str
    """The name of the set there."""
    protocols: frozenset[str]
    """Canonical names of the links to the set; empty if it came from Python."""
    options: Mapping[str, Any]
    """The options that the set is read with."""

    @property
    def is_remote(self) -> bool:
        """True if the set came over a network: then it may not lead everywhere."""
        return not self.protocols <= _OWN | _CONTAINERS | _PASSING


class ReferenceTargets:
    """The storages that the references of one set lead to, opened by ``opener`` when they are first needed."""

    def __init__(self, options: TargetOptions, origin: SetAddress, opener: Opener) -> None:
        self._options = options
        self._origin = origin
        self._opener = opener
        self._default_protocol = None if options.remote_protocol is None else canonical(options.remote_protocol)
        given = options.fs
        self._filesystems: Mapping[str, Any] = (
            {canonical(protocol): given for protocol in protocols_of(given)}
            if isinstance(given, AbstractFileSystem)
            else {canonical((protocol or "").partition(":")[0]): fs for protocol, fs in (given or {}).items()}
        )
        self._allowed = {
            *(canonical(protocol) for protocol in (*options.allow_protocols, *options.by_protocol)),
            *self._filesystems,
            *(() if self._default_protocol is None else (self._default_protocol,)),
            *(origin.protocols - _OWN),
        }
        self._optioned = self._default_protocol  # the protocol that remote_options are for
        self._directory = origin.directory
        self._opened: dict[str, Storage] = {}
        self._made: dict[str, AbstractFileSystem] = {}
        self._found: dict[str | None, ReferenceTarget] = {}
        self._pid = os.getpid()

    def settle(self, *, is_directory: bool) -> None:
        directory = self._origin.directory
        if is_directory and directory is not None and self._origin.name:
            self._directory = replace(directory, segments=(*directory.segments, self._origin.name), slash="/")

    def allow(self, urls: Sequence[str]) -> None:
        beginnings = {f"{protocol}://" if mark else "" for protocol, mark, _ in (url.partition("://") for url in urls)}
        self._allowed |= {canonical(split_protocol(beginning)[0]) for beginning in beginnings} - _OWN

    def target(self, url: str | None) -> ReferenceTarget:
        if self._pid != os.getpid():  # connections do not survive a fork
            self._opened, self._made, self._found, self._pid = {}, {}, {}, os.getpid()
        found = self._found.get(url)
        if found is None:
            if len(self._found) >= _MOST_REMEMBERED:
                self._found.clear()
            found = self._found[url] = self._target(url)
        return found

    def _target(self, url: str | None) -> ReferenceTarget:
        url = self._options.target if url is None else url
        if url is None:
            raise InvalidInput("a reference of the set has no URL: name its object by storage_options={'reference': {'target': URL}}")
        protocol, path = self._split(url)
        if protocol is None and not os.path.isabs(path):
            return self._relative(path)
        name = canonical(protocol)
        is_chain = "::" in (protocol or "") or (name in _CONTAINERS and "::" in path)
        self._check_allowed(set(map(canonical, protocols_in(url))) if is_chain else {name})
        if (given := self._filesystems.get(name)) is not None:
            return self._in_filesystem(given, protocol or "file", url, path)
        if is_chain:
            return self._in_address(Address.parse(url), {})
        if name == LOCAL:
            return self._opened_at("/", os.path.abspath(path).lstrip("/"), {})
        return self._elsewhere(url, str(protocol), name, path)

    def _split(self, url: str) -> tuple[str | None, str]:
        """Return protocol and path of a URL; one without a protocol has that of the user's filesystem, or ``remote_protocol``."""
        protocol, path = split_protocol(url)
        if protocol is not None:
            return protocol, path
        if isinstance(self._options.fs, AbstractFileSystem):
            return protocols_of(self._options.fs)[0], path
        return (None, path) if self._default_protocol in (None, LOCAL) else (self._options.remote_protocol, path.lstrip("/"))

    def _elsewhere(self, url: str, protocol: str, name: str, path: str) -> ReferenceTarget:
        """Return the object at a URL, without a chain, that is no local path; ``name`` is the canonical name of its protocol."""
        options = self._options_of(name)
        if name == "http":
            place, mark, query = path.partition("?")
            host, _, rest = place.partition("/")
            return self._opened_at(f"{protocol}://{host}{mark}{query}", unquote(rest), options)
        if name == "memory":
            return self._opened_at("memory://", path.lstrip("/"), {})
        if _NAMES_VERSION.get(name, _NEVER).search(path) is not None:
            return self._of_version(protocol, path, options)
        if kind_of_protocol(protocol) is not None:
            host, _, rest = path.lstrip("/").partition("/")
            return self._opened_at(f"{protocol}://{host}", rest, options)
        return self._in_address(Address.parse(url), options)

    def _of_version(self, protocol: str, path: str, options: Mapping[str, Any]) -> ReferenceTarget:
        """Return one version of an object in a bucket, which fsspec's filesystem of that protocol can read."""
        place = f"{protocol} by version"
        if place not in self._made:
            self._made[place] = fsspec.filesystem(protocol, **options, version_aware=True)
        bucket, _, rest = path.lstrip("/").partition("/")
        storage = self._opened.setdefault(f"{place} {bucket}", GenericStorage(self._made[place], bucket))
        return ReferenceTarget(storage, rest, read_sizes(protocol)[0])

    # -- where it may lead ---------------------------------------------------------------------------------------------

    def _check_allowed(self, protocols: Collection[str]) -> None:
        if not self._origin.is_remote:
            return
        for protocol in protocols:
            if protocol not in self._allowed:
                shown = "file" if protocol == LOCAL else protocol
                raise InvalidInput(
                    "the set was read over a network, so its references may not lead to files of this machine or to another protocol. "
                    "If you trust it, give "
                    f"storage_options={{'reference': {{'allow_protocols': [{shown!r}]}}}}"
                )

    def _options_of(self, protocol: str) -> Mapping[str, Any]:
        """Return the options that were given for a protocol, by its canonical name."""
        if self._options.remote_options:
            self._optioned = self._optioned or protocol
            if protocol == self._optioned:
                return self._options.remote_options
        for given in (self._options.by_protocol, self._options.of_set):
            for name, options in given.items():
                if canonical(name) == protocol and options:
                    return options
        return {}

    # -- storages ------------------------------------------------------------------------------------------------------

    def _opened_at(self, root: Any, key: str, options: Mapping[str, Any], name: str | None = None) -> ReferenceTarget:
        if not key:
            raise Corruption("the URL names a directory, not an object")
        name = name or str(root)
        storage = self._opened.get(name)
        if storage is None:
            try:
                storage = self._opened[name] = self._opener(root, options or None)
            except NotFound as exc:  # else the chunk would be taken for one that was never written
                raise StorageError(f"the object does not exist: {exc}. Restore it, or correct the reference") from exc
        return ReferenceTarget(storage, key, read_sizes(storage.kind)[0])

    def _in_address(self, address: Address, options: Mapping[str, Any]) -> ReferenceTarget:
        if not address.segments:
            raise Corruption("the URL names a directory, not an object")
        return self._opened_at(address.at(0), address.path_from(0), options)

    def _in_filesystem(self, given: Any, protocol: str, url: str, path: str) -> ReferenceTarget:
        """Return the object in a filesystem of the user's, or in one that is made with the user's options."""
        if isinstance(given, Mapping):
            if protocol not in self._made:
                self._made[protocol] = fsspec.filesystem(protocol, **given)
            given = self._made[protocol]
        fs: AbstractFileSystem = vars(given).get("sync_fs", given)
        stripped = str(fs._strip_protocol(url))
        if is_one(fs, frozenset({"http", "https"})):
            host, _, rest = path.partition("/")
            return self._opened_at((fs, f"{protocol}://{host}"), unquote(rest), {}, f"{id(fs)} {protocol}://{host}")
        if kind_of_filesystem(fs) is not None:
            root, _, rest = stripped.partition("/")
            return self._opened_at((fs, root or "/"), rest, {}, f"{id(fs)} {root}")
        above, _, last = stripped.rpartition("/")
        return self._opened_at((fs, above or "/"), last, {}, f"{id(fs)} {above}")

    def absolute(self, url: str) -> str:
        protocol, path = split_protocol(url)
        if protocol is not None or os.path.isabs(path) or self._default_protocol not in (None, LOCAL):
            return url
        directory = self._directory
        return f"file://{os.path.abspath(path)}" if directory is None else absolute_url(directory, path)

    def _relative(self, path: str) -> ReferenceTarget:
        """Return the object at a URL without protocol, relative to the directory of the set."""
        directory = self._directory
        if directory is None:
            self._check_allowed({LOCAL})
            return self._opened_at("/", os.path.abspath(path).lstrip("/"), {})
        joined = _joined(directory, path)
        name = canonical(directory.protocol)
        if name in self._filesystems and not directory.tail:
            url = f"{directory.protocol}://{joined}"
            return self._in_filesystem(self._filesystems[name], directory.protocol, url, joined)
        is_chain = bool(directory.tail) or "::" in directory.head
        options = self._origin.options if is_chain else {} if name in _OWN else self._options_of(name)
        return self._opened_at(directory.at(0), joined, options)


def absolute_url(directory: Address, path: str) -> str:
    """Return the URL that a path relative to a directory means.

    Raises:
        InvalidInput: the directory has no URL that other programs know.
        Corruption: the path leads out of the storage.
    """
    if directory.tail or "::" in directory.head:
        raise InvalidInput(f"{path!r} is relative to {redacted(str(directory))}, which has no URL that another program can open")
    root = directory.at(0) if directory.protocol else "file:///"
    return object_url(root if root.endswith("/") else f"{root}/", _joined(directory, path))


def _joined(directory: Address, path: str) -> str:
    """Return the path from the root of a directory's storage that a relative path in it means."""
    joined = posixpath.normpath("/".join(("/", *directory.segments, path))).lstrip("/")
    up = sum(1 for part in posixpath.normpath(path).split("/") if part == "..")
    if up > len(directory.segments) or not joined:
        raise Corruption("the relative URL leads above the directory of the set")
    return joined


def names_version(url: str) -> bool:
    """Return whether a URL names one version of an object."""
    return _NAMES_VERSION.get(canonical(split_protocol(url)[0]), _NEVER).search(url) is not None


def protocols_in(url: str) -> list[str]:
    """Return the protocols of all links of a chain, of which each is a protocol alone, or a URL; of a path without one, ``file``."""
    return [protocol or "file" for protocol in protocols_of_links(links_of_url(url))]


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
        raise InvalidInput(f"{redacted(url)!r} is not the URL of a set of references")
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
    given: Mapping[str, Any],
    of_links: Mapping[str, Mapping[str, Any]],
    path: str,
    shown: str | None,
    opener: Opener,
    chained: Chained,
) -> ReferenceStorage:
    """Return the storage of the set ``given["fo"]``, which is read now.

    Raises:
        InvalidInput: an option has a value that means nothing.
        NotFound, Corruption, StorageError, Unsupported: the set cannot be read.
    """
    fo = given["fo"]
    if not isinstance(fo, str | Mapping):
        raise InvalidInput(f"the set of references fo={fo!r:.100} is neither a path or URL, nor a dictionary")
    options = {name: value for name, value in given.items() if name != "fo" and name not in HARMLESS}
    storage = ReferenceStorage(GivenSet(fo, options, of_links, shown, opener, chained), path)
    storage.load()
    return storage
