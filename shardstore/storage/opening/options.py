"""Options of filesystems: which link of a URL chain they are for, and whether anything will heed them.

Most of fsspec's filesystems take any keyword and ignore what they do not know. An endpoint or a token with a slip in its name
would vanish so, and the error that follows would be about something else.
"""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fsspec.spec import AbstractFileSystem

from shardstore.errors import InvalidInput
from shardstore.storage.opening.redaction import redacted

HARMLESS = frozenset(
    {"asynchronous", "auto_mkdir", "loop", "skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths"}
)
"""Options of fsspec itself, which mean nothing where a storage does without it."""

_OF_FSSPEC = frozenset({*HARMLESS, "batch_size"}) - {"auto_mkdir"}

# What goes on from a filesystem's **kwargs, to aiobotocore's session and aiohttp's requests.
_S3_SESSION = frozenset({"profile", "session_vars", "event_hooks", "include_builtin_handlers"})
_HTTP_REQUEST = frozenset(
    {
        "headers",
        "auth",
        "params",
        "cookies",
        "ssl",
        "server_hostname",
        "proxy",
        "proxy_auth",
        "proxy_headers",
        "timeout",
        "trace_request_ctx",
    }
    | {"allow_redirects", "max_redirects", "expect100", "read_until_eof", "read_bufsize", "auto_decompress", "max_line_size"}
)
_PASSED_ON = {"s3": _S3_SESSION, "s3a": _S3_SESSION, "http": _HTTP_REQUEST, "https": _HTTP_REQUEST}

# Filesystems that are known to ignore what they do not know, but for what is listed above.
_SWALLOW = frozenset(
    {"s3", "s3a", "gs", "gcs", "http", "https", "zip", "tar", "libarchive", "reference", "dir", "ftp", "memory", "file", "local"}
    | {"simplecache", "filecache", "blockcache", "cached"}
)

_GCS = frozenset({"gs", "gcs"})
_WITH_ENDPOINT = _GCS | {"s3", "s3a"}

_IN_CLIENT_KWARGS = frozenset({"region_name", "verify", "api_version", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"})


def by_link(url: str, protocols: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options of each protocol of a chain, outermost first: those under its name, and for the first those under none."""
    found: dict[str, dict[str, Any]] = {protocol: {} for protocol in protocols}
    for protocol, given in found.items():
        nested = options.get(protocol)
        if nested is None:
            continue
        if not isinstance(nested, Mapping):
            raise InvalidInput(f"storage_options[{protocol!r}] of {url!r} is not a dictionary of options")
        given.update(nested)
    found[protocols[0]].update({name: value for name, value in options.items() if name not in found})
    return found


def refuse(url: str, options: Mapping[str, Any]) -> None:
    """Refuse all options but the harmless, for a storage that has none."""
    if unknown := sorted(set(options) - HARMLESS):
        raise InvalidInput(f"{_named(unknown)} {'means' if len(unknown) == 1 else 'mean'} nothing to {url!r}")


def check(url: str, protocol: str, cls: type[AbstractFileSystem], options: Mapping[str, Any], chain: Sequence[str]) -> None:
    """Refuse options of one link that its filesystem ignores, or whose value cannot be right; warn where that is only likely."""
    if protocol in _WITH_ENDPOINT:
        _check_values(url, protocol, options)
    named, takes_any = _parameters(cls)
    unknown = sorted(set(options) - named - _OF_FSSPEC - _PASSED_ON.get(protocol, frozenset()))
    if not unknown or not takes_any:  # where it takes no others, the filesystem says so itself
        return
    name = unknown[0]
    one = len(unknown) == 1
    message = f"{_named(unknown)} of {url!r} {'is' if one else 'are'} not known to the filesystem {protocol!r}"
    if protocol not in _SWALLOW:
        warnings.warn(f"{message} by name: it may ignore {'it' if one else 'them'}", UserWarning, stacklevel=5)
        return
    hint = _hint(name, protocol, named | _PASSED_ON.get(protocol, frozenset()), chain)
    raise InvalidInput(f"{message}, which would ignore {'it' if one else 'them'}: {hint}")


def _named(names: Sequence[str]) -> str:
    return f"the storage option {names[0]}" if len(names) == 1 else f"the storage_options {', '.join(names)}"


def _check_values(url: str, protocol: str, options: Mapping[str, Any]) -> None:
    client = options.get("client_kwargs")
    for place in (options, client if isinstance(client, Mapping) else {}):
        endpoint = place.get("endpoint_url")
        if endpoint is not None and not (isinstance(endpoint, str) and endpoint.lower().startswith(("http://", "https://"))):
            raise InvalidInput(f"endpoint_url {redacted(str(endpoint))!r} of {url!r} needs http:// or https://")
    token = options.get("token")
    # Anything else that is no file is taken for the token itself, and sent to Google; those may hold a slash.
    if (
        protocol in _GCS
        and isinstance(token, str)
        and (token.startswith(("/", "./", "../", "~")) or token.endswith(".json"))
        and not os.path.exists(token)
    ):
        raise InvalidInput(
            f"token {token!r} of {url!r} is no file: give the path of a service account's key, a name such as 'anon', or a token"
        )


def unusable_options(what: str, options: Mapping[str, Any], exc: Exception) -> InvalidInput:
    """The error of a filesystem that fails on its options by an exception of Python's; names them, without their values."""
    given = ", ".join(sorted(set(options) - HARMLESS)) or "none"
    return InvalidInput(f"{what}: check the values of its storage_options, which are {given} ({type(exc).__name__}: {redacted(str(exc))})")


def _parameters(cls: type[AbstractFileSystem]) -> tuple[set[str], bool]:
    """The names of the parameters that a filesystem and what it inherits from have, and whether others are accepted."""
    named: set[str] = set()
    takes_any = True
    for base in cls.__mro__:
        if base in (AbstractFileSystem, object) or "__init__" not in vars(base):
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        named |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not takes_any:
            break
    return named - {"self"}, takes_any


def _hint(name: str, protocol: str, known: set[str] | frozenset[str], chain: Sequence[str]) -> str:
    if close := difflib.get_close_matches(name.lower(), known, 1, cutoff=0.7):
        return f"did you mean {close[0]!r}?"
    if protocol in ("s3", "s3a") and name in _IN_CLIENT_KWARGS:
        return f"give client_kwargs={{{name!r}: …}}"
    if len(chain) > 1 and protocol == chain[0]:
        return f"options of another link go under its name, as in {{{chain[-1]!r}: {{{name!r}: …}}}}"
    return "see the documentation of that filesystem for what it takes"
