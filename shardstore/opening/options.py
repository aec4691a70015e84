"""Options of filesystems: the link of a URL chain that each is for, and checks that something uses it.

Most of fsspec's filesystems take any keyword and ignore what they do not know. A misspelt endpoint or token would be lost in this way,
and the error that follows would be about something else.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from fsspec.registry import get_filesystem_class
from fsspec.spec import AbstractFileSystem

from shardstore.errors import InvalidInput
from shardstore.model.advice import UNSAID, storage_option
from shardstore.model.redaction import HARMLESS, redacted
from shardstore.opening.address import Address, is_known, links_of_url, parameters_of, protocols_of_links, text_of
from shardstore.opening.kinds import kind_of_protocol

T = TypeVar("T")

_OF_FSSPEC = frozenset({*HARMLESS, "batch_size"}) - {"auto_mkdir"}

# Filesystems without a storage of their own here that are known to ignore what they do not know.
_SWALLOW = frozenset({"zip", "tar", "libarchive", "reference", "dir", "ftp", "simplecache", "filecache", "blockcache", "cached"})


def by_link(url: str, protocols: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each protocol of a chain, outermost first: those under its name, or another name of its kind, as ``gcs`` is of
    ``gs``; and those under no name that ``link_of`` gives it.
    """
    links = {name: protocol for protocol in protocols for name in _names_of_kind(protocol)} | {protocol: protocol for protocol in protocols}
    found: dict[str, dict[str, Any]] = {protocol: {} for protocol in protocols}
    for name in options.keys() & links.keys():
        if isinstance(nested := options[name], Mapping):
            found[links[name]].update(nested)
        elif nested is not None:
            raise InvalidInput(f"the options of {name!r} for {url!r} are no dictionary: give {storage_option(name, 'NAME')}")
    for name, value in options.items():
        if name not in links:
            found[link_of(name, protocols)][name] = value
    return found


def _names_of_kind(protocol: str) -> tuple[str, ...]:
    kind = kind_of_protocol(protocol)
    return () if kind is None else kind.protocols


def link_of(name: str, protocols: Sequence[str]) -> str:
    """Return the link of a chain that an option under no protocol is for: the only one that knows it; else the first, as in fsspec."""
    knowing = [protocol for protocol in protocols if knows(protocol, name)] if len(protocols) > 1 else []
    return knowing[0] if len(knowing) == 1 else protocols[0]


def knows(protocol: str, name: str) -> bool:
    """Return whether the filesystem of a protocol knows an option by name; false if its package is missing."""
    try:
        cls = get_filesystem_class(protocol or "file")
    except (ImportError, ValueError):
        return False
    named, _ = parameters_of(cls)
    kind = kind_of_protocol(protocol)
    return name in named or (kind is not None and name in kind.passed_on | kind.in_client_kwargs)


def how_to_give(target: object, name: str) -> str | None:
    """Return how an option of a filesystem, or all of those of a protocol, are given to a URL; ``None`` if no link of it knows it."""
    if not isinstance(target, str) or not target:
        return None
    chain = [protocol for protocol in protocols_of_links(links_of_url(target)) if protocol]
    if name in chain:
        return f"storage_options={{{name!r}: {{…}}}}"
    knowing = link_of(name, chain) if chain else ""
    return _as_given(knowing, name) if knows(knowing, name) else None


def _as_given(protocol: str, name: str) -> str:
    kind = kind_of_protocol(protocol)
    is_inner = kind is not None and name in kind.in_client_kwargs
    return storage_option(protocol, "client_kwargs", {name: UNSAID}) if is_inner else storage_option(protocol, name)


def options_of_another(
    other: object, given: Mapping[str, Any] | None, own: object, own_options: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the options of another place than ``own``: those given, or without any those of ``own`` if both are URLs of one protocol."""
    if given is None and own_options and protocol_of(other) == protocol_of(own):
        return dict(own_options)
    return None if given is None else dict(given)


def protocol_of(target: object) -> str | None:
    """Return the protocol of a URL, ``""`` of a path; ``None`` of what is neither."""
    return Address.parse(text_of(target)).protocol if isinstance(target, str | os.PathLike) and os.fspath(target) else None


def own_option(
    options: MutableMapping[str, Any], name: str, check: Callable[[object], T | None], given: T | None, is_of: Callable[[str], bool]
) -> T | None:
    """Remove an option of this package from ``options``, and return its value, or else the ``given`` one.

    It may be among ``storage_options``, so that everything that takes those takes it, and under the name of a protocol that it ``is_of``.

    Raises:
        InvalidInput: the value is no value of the option, or another one was given too.
    """
    found = {given}
    if name in options:
        found.add(check(options.pop(name)))
    for protocol, of_link in list(options.items()):
        if is_of(protocol) and isinstance(of_link, Mapping) and name in of_link:
            found.add(check(of_link[name]))
            options[protocol] = {inner: value for inner, value in of_link.items() if inner != name}
    values = [value for value in found if value is not None]
    if len(values) > 1:
        raise InvalidInput(f"{name} is given twice, with different values: {' and '.join(sorted(map(repr, values)))}")
    return values[0] if values else None


def refuse(url: str, options: Mapping[str, Any]) -> None:
    """Refuse all options except harmless ones, for a storage that has no options."""
    if unknown := sorted(set(options) - HARMLESS):
        one = len(unknown) == 1
        raise InvalidInput(f"{_named(unknown)} {'means' if one else 'mean'} nothing to {url!r}: leave {'it' if one else 'them'} out")


def check(
    url: str,
    protocol: str,
    cls: type[AbstractFileSystem],
    options: Mapping[str, Any],
    chain: Sequence[str],
    own: frozenset[str] = frozenset(),
) -> None:
    """Refuse options of one link that its filesystem ignores, or whose value cannot be right; warn if that is only likely. ``own`` are
    options that this package has for it.
    """
    kind = kind_of_protocol(protocol)
    if kind is not None and kind.has_endpoint:
        _check_endpoint(url, options)
    if kind is not None and kind.check_options is not None:
        kind.check_options(url, options)
    named, takes_any = parameters_of(cls)  # type: ignore[arg-type]  # mypy does not take type[Any] for Hashable
    named |= own
    if kind is not None:
        named |= kind.passed_on
    unknown = sorted(set(options) - named - _OF_FSSPEC)
    if not unknown or not takes_any:  # if it takes no other option, the filesystem says so itself
        return
    name = unknown[0]
    one = len(unknown) == 1
    message = f"{_named(unknown)} of {url!r} {'is' if one else 'are'} not known to the filesystem {protocol!r}"
    if protocol not in _SWALLOW and not (kind is not None and kind.swallows_options):
        warnings.warn(f"{message} by name: it may ignore {'it' if one else 'them'}", UserWarning, stacklevel=5)
        return
    hint = _hint(name, protocol, named, chain)
    raise InvalidInput(f"{message}, which would ignore {'it' if one else 'them'}: {hint}")


def _named(names: Sequence[str]) -> str:
    return f"the storage option {names[0]}" if len(names) == 1 else f"the storage_options {', '.join(names)}"


def _check_endpoint(url: str, options: Mapping[str, Any]) -> None:
    client = options.get("client_kwargs")
    for place in (options, client if isinstance(client, Mapping) else {}):
        endpoint = place.get("endpoint_url")
        if endpoint is not None and not (isinstance(endpoint, str) and endpoint.lower().startswith(("http://", "https://"))):
            raise InvalidInput(f"endpoint_url {redacted(str(endpoint))!r} of {url!r} needs http:// or https:// in front")


def _hint(name: str, protocol: str, known: frozenset[str], chain: Sequence[str]) -> str:
    kind = kind_of_protocol(protocol)
    inner = frozenset[str]() if kind is None else kind.in_client_kwargs
    if name in inner:
        return f"give {_as_given(protocol, name)}"
    if is_known(name):  # options under the protocol of no link
        return f"the URL has no link {name!r}: give {storage_option(chain[-1], 'NAME')}"
    if close := difflib.get_close_matches(name.lower(), known | inner, 1, cutoff=0.7):
        return f"did you mean {_as_given(protocol, close[0])}?"
    if len(chain) > 1 and protocol == chain[0]:
        return f"options of another link go under its name: {storage_option(chain[-1], name)}"
    return "see the documentation of that filesystem for what it takes"
