"""Servers and the places on them under one name each, however their URLs are spelled."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import unquote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}

# All regions, and all kinds of addresses of AWS's S3, lead to the same buckets: a bucket's name is one of a kind. So is one of GCS.
_SERVICES = (
    (re.compile(r"(?:(?P<bucket>.+)\.)?s3(?:[.-][a-z0-9.-]+)?\.amazonaws\.com"), "https://s3.amazonaws.com"),
    (re.compile(r"(?:(?P<bucket>.+)\.)?s3(?:[.-][a-z0-9.-]+)?\.amazonaws\.com\.cn"), "https://s3.amazonaws.com.cn"),
    (
        re.compile(r"(?:(?P<bucket>.+)\.)?(?:storage(?:\.mtls)?\.googleapis|commondatastorage\.googleapis|storage\.cloud\.google)\.com"),
        "https://storage.googleapis.com",
    ),
)
_OF_INTERFACE = re.compile(r"(?:(?P<bucket>.+)\.)?bucket\.vpce-[^.]+")
"""The name before that of the service, in addresses of a private network's own interface to AWS's S3."""


def canonical_url(url: str) -> str:
    """Return the URL of a place on a server, of HTTP or HTTPS, as any other spelling of it gives it: scheme and host in lower case; no
    user, query, default port or slashes at the end; no percent-encoding; one host for all of AWS's S3, where the bucket is in the path.
    """
    parts = urlsplit(url)
    scheme, host, path = parts.scheme, (parts.hostname or "").rstrip("."), unquote(parts.path).rstrip("/")
    for pattern, service in _SERVICES:
        if (match := pattern.fullmatch(host)) is not None:
            bucket = match["bucket"]
            if bucket is not None and (inside := _OF_INTERFACE.fullmatch(bucket)) is not None:
                bucket = inside["bucket"]
            return f"{service}/{bucket}{path}" if bucket else service + path
    return f"{scheme}://{_with_port(host, parts.port, scheme)}{path}"


def urls_in_bucket(endpoint: str, bucket: str, key: str) -> tuple[str, str]:
    """Return the URLs by which an object, or a prefix, can be reached over HTTP: with the bucket in the path, and with it in the host."""
    server, inside = canonical_url(endpoint), f"/{key}" if key else ""
    scheme, separator, host = server.partition("://")
    return f"{server}/{bucket}{inside}", f"{scheme}{separator}{bucket}.{host}{inside}"


def _with_port(host: str, port: int | None, scheme: str) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port in (None, _DEFAULT_PORTS.get(scheme)) else f"{host}:{port}"


def may_be_one(one: str, other: str) -> bool:
    """Return whether two servers, ``scheme://host:port``, may be one by two names: with the same port, or the default ones of HTTP and
    HTTPS, at a common address or at one that cannot be found out. Asks for addresses.
    """
    a, b = urlsplit(one), urlsplit(other)
    if _port(a.port) != _port(b.port) or any(server == service for _, service in _SERVICES for server in (one, other)):
        return one == other
    ours, theirs = _addresses(a.hostname), _addresses(b.hostname)
    return ours is None or theirs is None or not ours.isdisjoint(theirs)


def _port(port: int | None) -> int:
    return 0 if port is None or port in _DEFAULT_PORTS.values() else port


def _addresses(host: str | None) -> set[str] | None:
    """Return the addresses of a host, all those of this machine's own loop as one; ``None`` where they cannot be found out."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return None
    parsed = {address: ipaddress.ip_address(address) for address in found}
    return {"loopback" if ip.is_loopback or ip.is_unspecified else address for address, ip in parsed.items()}
