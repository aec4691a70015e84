"""The page at ``/``: what is served, and how programs open it."""

from __future__ import annotations

from html import escape

from shardstore.server.buckets import Served
from shardstore.server.values import Headers

_CSP = b"default-src 'none'; style-src 'unsafe-inline'"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "pre{padding:.8rem;overflow:auto;border:1px solid #8886;border-radius:.4rem}dt{margin-top:.8rem}"
)

FRONT_HEADERS: Headers = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", _CSP),
    (b"cache-control", b"no-cache"),
]


def front_page(served: Served, base: str, *, has_token: bool) -> bytes:
    """Return the page as HTML, without scripts. ``base``: the URL of the server as the client has it, with ``/`` at its end."""
    views = "".join(
        f'<dt><a href="./{bucket.name}/">/{bucket.name}/</a></dt><dd>{escape(bucket.words)}</dd>' for bucket in served.buckets.values()
    )
    views += "".join(f"<dt>/{name}/</dt><dd>not there: {escape(why)}</dd>" for name, why in served.absent.items())
    snapshot = "" if served.snapshot is None else f"<p>Snapshot {escape(served.snapshot.described)}</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(served.url)}</title><style>{_STYLE}</style></head><body><h1>{escape(served.url)}</h1>{snapshot}"
        f"<p>Served for reading by shardstore. Chunks are shown one by one, whatever shards they are stored in.</p><dl>{views}</dl>"
        f"<h2>Open it</h2><pre>{escape(_snippets(base, has_token=has_token))}</pre></body></html>"
    ).encode()


def _snippets(base: str, *, has_token: bool) -> str:
    host = base.rstrip("/")
    key = '"the token", "secret": "unused"' if has_token else '"any", "secret": "any"'
    headers = ', "client_kwargs": {"headers": {"Authorization": "Bearer the token"}}' if has_token else ""
    return (
        "# Python\n"
        f'zarr.open("{base}zarr3/", mode="r", storage_options={{{headers.removeprefix(", ")}}})\n'
        f'zarr.open("s3://zarr3/", mode="r", storage_options={{"endpoint_url": "{host}", "key": {key}}})\n'
        f'shardstore.open("{base}stored/", read_only=True)\n\n'
        "// JavaScript, with zarrita\n"
        f'const root = await zarr.open(new zarr.FetchStore("{base}zarr3"), {{ kind: "group" }})\n'
    )
