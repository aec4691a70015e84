"""Index pages, as web servers make them for directories: the links to children."""

from __future__ import annotations

import codecs
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from shardstore.errors import Unsupported
from shardstore.storage.http.client import ABSENT_STATUS, HTTPClient
from shardstore.storage.requests.ranged_reads import exactly

_NO_PAGE_STATUS = (400, 403)
_MOST_PAGE_NBYTES = 256 << 20  # some millions of links


def _known(charset: str | None) -> str:
    """Return the name of an encoding that Python knows."""
    try:
        return codecs.lookup(charset or "utf-8").name
    except LookupError:
        return "utf-8"


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def children(page: str, url: str) -> list[str]:
    """Return the names directly below ``page``, which is at ``url``, that its links point to; names of directories end with ``/``.

    They are sorted, each once. A link to another place, to a deeper level, or to the page itself in another order is no child.
    """
    parser = _Links()
    parser.feed(page)
    parser.close()
    base = urlsplit(url)
    directory = base.path if base.path.endswith("/") else base.path + "/"
    names: set[str] = set()
    for href in parser.found:
        try:
            link = urlsplit(urljoin(base._replace(path=directory).geturl(), href.strip()))
        except ValueError:  # not a URL
            continue
        if link.netloc != base.netloc or not unquote(link.path).startswith(unquote(directory)):
            continue
        name = unquote(link.path)[len(unquote(directory)) :]
        if name.rstrip("/") in ("", ".", "..") or "/" in name.removesuffix("/"):
            continue
        names.add(name)
    return sorted(names)


async def page(client: HTTPClient, directory: str) -> list[str]:
    """Return full keys of what the index page of ``directory`` links to; keys of directories end with ``/``.

    Raises ``Unsupported`` if the server makes no such pages.
    """
    names = await _names(client, directory)
    if names is None and directory and await _names(client, "") is not None:
        return []  # there are pages, but not of this one: it does not exist
    if names is None or (not names and not directory):
        raise Unsupported(
            f"listing {client.url}: this server makes no pages that list what is there. Open arrays by their path, or a hierarchy that "
            "has consolidated metadata with zarr.open_consolidated; if it is a bucket, use its own protocol (s3://, gs://)"
        )
    return [directory + name for name in names]


async def _names(client: HTTPClient, directory: str) -> list[str] | None:
    """Return the children that the page of ``directory`` shows; ``None`` if there is no such page."""

    async def take(response: Any) -> list[str] | None:
        if response.status != 200 or response.content_type not in ("text/html", "application/xhtml+xml"):
            return None
        page = await exactly(response.content.iter_any(), _MOST_PAGE_NBYTES, f"listing {directory!r}")
        return children(page.decode(_known(response.charset), "replace"), str(response.url))

    return await client.request(
        "GET",
        client.url_of(directory),
        {},
        f"listing {directory!r}" if directory else "listing what is there",
        take,
        (*ABSENT_STATUS, *_NO_PAGE_STATUS),
    )
