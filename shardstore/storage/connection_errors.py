"""Recognise the exceptions of client libraries that say that a server was not reached at all.

Nothing of aiohttp, botocore or requests is imported: their classes are recognised by name.
"""

from __future__ import annotations

# aiohttp's, botocore's and requests' words for it; the rest are Python's own.
_NAMES = frozenset(
    {"ClientConnectorError", "ConnectionTimeoutError"}
    | {"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError"}
    | {"ConnectTimeout", "ProxyError", "gaierror", "ConnectionRefusedError"}
)
_OF_REQUESTS = "ConnectionError"  # elsewhere the name stands for connections that broke, too

CHECK_ENDPOINT = "check the network and storage_options={'endpoint_url': …}"
CHECK_ADDRESS = "check the network, and host and port of the URL"


def is_unreachable(exc: BaseException) -> bool:
    """Return whether no connection was made. A connection that broke, or an answer that was a refusal, is another error."""
    return any(
        base.__name__ in _NAMES or (base.__name__ == _OF_REQUESTS and base.__module__.partition(".")[0] == "requests")
        for error in (exc, exc.__cause__)
        if error is not None
        for base in type(error).__mro__
    )
