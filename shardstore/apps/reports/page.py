"""The page of a report, and cards for notebooks, as HTML: without network, and everything that comes from a store is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from shardstore.apps.reports.facts import Facts, Preview, ReportedArray, SizeBin
from shardstore.apps.reports.words import abilities, array_rows, no_v3, presented_as, stored_as, writers
from shardstore.maintenance.density import Density
from shardstore.maintenance.survey.run import ArraySurvey
from shardstore.model.words import count, is_utf8, plural, shape, size

MOST_PICTURE_NBYTES = 6 * 2**20
"""Of all pictures of a page together, so that the page stays below 10 MB."""

_MOST_TEXT = 200  # characters of a name or message that come from a store
_BAR_WIDTH, _BAR_HEIGHT = 18, 60

# From nothing to all chunks of a cell; whatever exists is visible.
_EMPTY, _FULL = (44, 48, 56), (96, 190, 255)
_LEAST_VISIBLE = 0.15
_COLOURS = 255


@cache
def _texts(name: str) -> str:
    return files("shardstore.apps.reports").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_texts), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"size": size, "count": count, "plural": plural, "shape": shape, "cut": _cut}
    return environment


def _cut(text: str, most: int = _MOST_TEXT) -> str:
    return text if len(text) <= most else text[:most] + "…"


def _encodable(html: str) -> str:
    """Return a page whose names UTF-8 can hold: what of them it cannot is shown escaped."""
    return html if is_utf8(html) else html.encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Serving:
    """What the page shows in addition where a server sends it."""

    views: Sequence[tuple[str, str]]
    """Names and words of the views; each is a directory next to the page."""
    absent: Sequence[tuple[str, str]]
    """Names of the views that are not there, and why."""
    snippets: str
    """How programs open it."""
    under_way: str = ""
    """What is being examined, while the report is made; the page reloads itself then."""


def page(facts: Facts, serving: Serving | None = None) -> str:
    """Return the page of a report as HTML."""
    script = _texts("page.js")
    shown = _Shown(facts.storage.kind)
    arrays = [shown.array(array) for array in facts.arrays]
    return _encodable(
        _environment()
        .get_template("page.html.j2")
        .render(
            facts=facts,
            arrays=arrays,
            groups=_tree(arrays),
            totals=_totals(facts),
            nothing=no_v3(facts.survey) if facts.is_complete else None,
            abilities=abilities(facts.storage.kind, facts.storage.capabilities),
            writers=writers(facts.storage.kind, facts.storage.capabilities, facts.storage.is_known),
            stored=stored_as(facts.storage.stored),
            presented=presented_as(facts.storage.stored),
            pictures_left_out=facts.pictures_left_out + shown.left_out,
            serving=serving,
            csp=policy(),
            style=Markup(_texts("page.css")),
            script=Markup(script),
            document=Markup(_inside_script(facts.document())),
        )
    )


def policy() -> str:
    """Return the Content-Security-Policy of the page: nothing from elsewhere, and no script but its own."""
    digest = base64.b64encode(hashlib.sha256(_texts("page.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


@dataclass(frozen=True, slots=True)
class Card:
    """A card in a notebook: ``rows`` are labels and texts."""

    title: str
    rows: Sequence[tuple[str, str]]
    picture: str | None = None
    """A picture as a URL."""


def cards(title: str, rows: Sequence[tuple[str, str]], arrays: Sequence[Card], *, is_complete: bool) -> str:
    """Return what notebooks show: a title, rows, and a card for each array; and a sign if there are more."""
    template = _environment().get_template("cards.html.j2")
    html = template.render(title=title, rows=rows, arrays=arrays, is_complete=is_complete, style=Markup(_texts("cards.css")))
    return _encodable(html)


def picture_of(density: Density) -> str | None:
    """Return the picture of which chunks exist as a URL; ``None`` if there are none."""
    return _as_url(_drawn(density)) if density.cells.size else None


def _totals(facts: Facts) -> list[str]:
    found = facts.survey
    totals = [plural(found.groups, "group"), plural(len(found.arrays), "array")]
    if found.objects is not None and found.stored_nbytes is not None:
        totals += [plural(found.objects, "object"), size(found.stored_nbytes)]
    return totals


def _inside_script(document: dict[str, Any]) -> str:
    """Return JSON that nothing in it can end: of HTML, a script ends at the first ``</``."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- arrays ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Picture:
    data: str
    """As a URL."""
    rows: int
    columns: int
    title: str
    down: str
    across: str
    chunks_down: int = 0
    chunks_across: int = 0


@dataclass(frozen=True, slots=True)
class _Bar:
    x: int
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class _Histogram:
    title: str
    width: int
    bars: list[_Bar]
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class _Card:
    array: ReportedArray
    rows: list[tuple[str, str]]
    share: float | None
    """The share of chunks that exist, 0 to 1."""
    pictures: list[_Picture]
    histograms: list[_Histogram]
    preview: _Picture | None
    no_preview: str
    """Why there is none; empty if none was asked for."""


class _Shown:
    """Arrays as cards, as long as there is room for pictures."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._room = MOST_PICTURE_NBYTES
        self.left_out = 0

    def array(self, array: ReportedArray) -> _Card:
        usage = array.surveyed.usage
        return _Card(
            array=array,
            rows=self._rows(array),
            share=usage.chunks / usage.possible_chunks if usage is not None and usage.possible_chunks else None,
            pictures=[picture for density in array.pictures if (picture := self._picture(array.surveyed, density)) is not None],
            histograms=_histograms(array),
            preview=self._preview(array.preview) if isinstance(array.preview, Preview) else None,
            no_preview="" if isinstance(array.preview, Preview) else array.preview,
        )

    def _rows(self, array: ReportedArray) -> list[tuple[str, str]]:
        usage = array.surveyed.usage
        rows = array_rows(array.surveyed, self._kind)
        if array.decoded_nbytes and usage is not None and usage.chunk_nbytes:
            rows.append(("decoded", f"{size(array.decoded_nbytes)}: {array.decoded_nbytes / usage.chunk_nbytes:.2g} × the chunks' bytes"))
        for label, extreme in (("smallest", array.smallest), ("largest", array.largest)):
            if extreme is not None and array.smallest != array.largest:
                rows.append((label, f"{_cut(extreme.key)}, {size(extreme.nbytes)}"))
        return rows

    def _picture(self, array: ArraySurvey, density: Density) -> _Picture | None:
        if not density.cells.size:
            return None
        down, across = (_axis(array, axis) for axis in density.axes)
        title = f"chunks that exist, {density.chunks[0]:,} down × {density.chunks[1]:,} across"
        data = self._fitting(_drawn(density))
        if data is None:
            return None
        rows, columns = density.cells.shape
        return _Picture(data, rows, columns, title, down, across, density.chunks[0], density.chunks[1])

    def _preview(self, preview: Preview) -> _Picture | None:
        data = self._fitting(encode_png(preview.pixels))
        rows, columns = preview.pixels.shape
        return None if data is None else _Picture(data, rows, columns, preview.what, "", "")

    def _fitting(self, png: bytes) -> str | None:
        url = _as_url(png)
        if len(url) > self._room:
            self.left_out += 1
            return None
        self._room -= len(url)
        return url


def _as_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _drawn(density: Density) -> bytes:
    shares = density.cells
    numbers = np.where(shares > 0, _LEAST_VISIBLE + (1 - _LEAST_VISIBLE) * shares, 0.0)
    return encode_png(np.rint(numbers * _COLOURS).astype(np.uint8), _palette())


def _palette() -> Any:
    share = np.arange(_COLOURS + 1)[:, np.newaxis] / _COLOURS
    return np.rint(np.array(_EMPTY) + (np.array(_FULL) - np.array(_EMPTY)) * share).astype(np.uint8)


def _axis(array: ArraySurvey, axis: int | None) -> str:
    if axis is None:
        return ""
    names = array.dimension_names
    name = names[axis] if names is not None and axis < len(names) else None
    return f"axis {axis}" if not name else f"{_cut(name)} (axis {axis})"


def _histograms(array: ReportedArray) -> list[_Histogram]:
    is_sharded = array.surveyed.is_sharded
    shown = [("shards" if is_sharded else "objects", array.object_sizes), ("chunks", array.chunk_sizes if is_sharded else ())]
    return [_histogram(what, bins) for what, bins in shown if bins]


def _histogram(what: str, bins: Sequence[SizeBin]) -> _Histogram:
    most = max(one.number for one in bins)
    bars = []
    for number, one in enumerate(bins):
        height = max(1.0, _BAR_HEIGHT * one.number / most) if one.number else 0.0
        title = f"{count(one.number)} of {size(one.start)} to {size(one.stop)}"
        bars.append(_Bar(number * _BAR_WIDTH, round(_BAR_HEIGHT - height, 1), round(height, 1), title))
    return _Histogram(f"sizes of {what}", len(bins) * _BAR_WIDTH, bars, size(bins[0].start), size(bins[-1].stop))


def _tree(arrays: Sequence[_Card]) -> list[tuple[str, list[_Card]]]:
    """Return the cards by the group that they are in, in the order of their paths."""
    groups: dict[str, list[_Card]] = {}
    for card in arrays:
        groups.setdefault(card.array.path.rpartition("/")[0], []).append(card)
    return list(groups.items())


# -- PNG (ISO/IEC 15948): eight bits a pixel, grey or by a palette ------------------------------------------------------

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _PALETTE = 0, 3  # colour types


def encode_png(pixels: npt.NDArray[np.uint8], palette: npt.NDArray[np.uint8] | None = None) -> bytes:
    """Return a picture of ``pixels``, ``(rows, columns)``: grey values, or numbers of the colours in ``palette``, ``(n, 3)``: red, green,
    blue.
    """
    rows, columns = pixels.shape
    filtered = np.zeros((rows, columns + 1), dtype=np.uint8)  # each row begins with the number of its filter: none
    filtered[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", columns, rows, 8, _GREY if palette is None else _PALETTE, 0, 0, 0)
    chunks = [(b"IHDR", header)]
    if palette is not None:
        chunks.append((b"PLTE", np.ascontiguousarray(palette, dtype=np.uint8).tobytes()))
    chunks += [(b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b"")]
    return _SIGNATURE + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
