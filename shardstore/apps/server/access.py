"""Who may read: the names of the host, the origins of web pages, and the token.

A page of any web site can send requests to a server on the same machine. It cannot read the answers, unless CORS allows its origin; and
unless its own name has been made to lead here (DNS rebinding), which the check of ``Host`` finds. Browsers ask before a page of the public
web reaches a server on a private address; the answer is that allowed origins may.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import parse_qsl

from shardstore.apps.server.s3_answers import is_presigned
from shardstore.apps.server.values import Headers, Refusal, shown
from shardstore.errors import InvalidInput

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The names of this machine, as ``Host`` has them."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:/\[\]@]+)(?::\d*)?")
_CREDENTIAL = re.compile(r"Credential=([^,\s]+?)/[0-9]{8}/")
_EXPOSED = b"ETag, Content-Range, Accept-Ranges, Content-Length"
_DAY_SECONDS = b"86400"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address that is listened at."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Access:
    """What a request has to have. ``origins`` has ``"*"`` for all; ``hosts`` is ``None`` where any name is right."""

    hosts: frozenset[str] | None = None
    origins: frozenset[str] = frozenset()
    token: str | None = None

    @classmethod
    def of(cls, hosts: Sequence[str] | None, cors: Sequence[str], token: str | None) -> Access:
        """Return it, checked. Raises ``InvalidInput``."""
        for origin in cors:
            if origin != "*" and re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s?#]+", origin) is None:
                raise InvalidInput(f"{origin!r} is not an origin of web pages: give one as https://viewer.example, without a path, or '*'")
        if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
            raise InvalidInput("a token must consist of printable ASCII characters, without blanks")
        return cls(None if hosts is None else frozenset(host.lower() for host in hosts), frozenset(cors), token)

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise ``Refusal`` if the request is for another host."""
        if self.hosts is None:
            return
        text = headers.get(b"host", b"").decode("latin-1")
        found = _HOST.fullmatch(text)
        if found is None or found[1].lower().rstrip(".") not in self.hosts:
            raise Refusal(421, f"Host {shown(text)} is not allowed; add it with --allow-host")

    def check_token(self, headers: Mapping[bytes, bytes], query: bytes) -> None:
        """Raise ``Refusal`` unless the request has the token: in ``Authorization``, also as the key id of a client of S3, or as
        ``?token=``. A presigned URL is refused in any case.
        """
        if self.token is None:
            return
        parameters = parse_qsl(query.decode("latin-1"), keep_blank_values=True) if query else []
        if is_presigned(name for name, _ in parameters):
            raise Refusal(403, "signatures are not checked here, so a presigned URL would give the token away: send the token in a header")
        given = headers.get(b"authorization", b"").decode("latin-1")
        scheme, _, rest = given.partition(" ")
        tokens = [rest.strip()] if scheme.lower() == "bearer" else _CREDENTIAL.findall(rest)
        tokens += [value for name, value in parameters if name == "token"]
        if not any(hmac.compare_digest(one.encode(), self.token.encode()) for one in tokens):
            if scheme.startswith("AWS4"):
                raise Refusal(403, "the access key id is not the token of this server")
            raise Refusal(401, "this server asks for a token: Authorization: Bearer …, or ?token=…", [(b"www-authenticate", b"Bearer")])

    # -- CORS ----------------------------------------------------------------------------------------------------------

    def allows(self, origin: bytes | None) -> bool:
        """Return whether pages of an origin may read the answers."""
        return origin is not None and ("*" in self.origins or origin.decode("latin-1") in self.origins)

    def headers(self, origin: bytes | None) -> Headers:
        """Return what an answer says of this."""
        if not self.origins:
            return [(b"cross-origin-resource-policy", b"same-origin")]
        vary: Headers = [] if "*" in self.origins else [(b"vary", b"Origin")]
        if origin is None or not self.allows(origin):
            return vary
        allowed = b"*" if "*" in self.origins else origin
        return [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED), *vary]

    def preflight(self, headers: Mapping[bytes, bytes]) -> Headers:
        """Return the headers of the answer to OPTIONS: what pages of its origin may ask for."""
        origin = headers.get(b"origin")
        found = self.headers(origin)
        if not self.allows(origin):
            return found
        found += [(b"access-control-allow-methods", b"GET, HEAD, OPTIONS"), (b"access-control-max-age", _DAY_SECONDS)]
        if (asked := headers.get(b"access-control-request-headers")) is not None:
            found.append((b"access-control-allow-headers", asked))
        if headers.get(b"access-control-request-private-network", b"").lower() == b"true":
            found.append((b"access-control-allow-private-network", b"true"))
        return found
