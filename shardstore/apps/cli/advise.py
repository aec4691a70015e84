"""``shardstore advise``: shard shapes for a way of reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from rich.cells import cell_len
from rich.text import Text

from shardstore._sync import run_sync
from shardstore.apps.cli.arguments import AsJson, Fast, StorageOptions, argument
from shardstore.apps.cli.output import columns_of_screen, complain, print_json, progress_bar, show
from shardstore.apps.reports.words import no_v3
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.metadata_v3 import item_nbytes
from shardstore.maintenance.advice import (
    Access,
    Advice,
    ArrayFacts,
    Candidate,
    ChunksPerShard,
    box,
    excess,
    facts_of_array,
    parse_access,
    read_limits,
)
from shardstore.maintenance.advice import advise as advised
from shardstore.maintenance.survey.run import ArraySurvey, survey
from shardstore.model.coalescing import ReadLimits
from shardstore.model.options import ACCESS, SHOW, CommandOption
from shardstore.model.words import count, plural, shape, size

_DEFAULT_KIND = "s3"
_TOO_MUCH = 100  # times what is wanted: then no shard shape helps
_GAP = 2  # blanks between columns


def advise(
    *,
    url: Annotated[str | None, argument("URL", "An array, or a store with one array.")] = None,
    access: Annotated[list[str] | None, ACCESS] = None,
    objects: Annotated[int | None, CommandOption("Make at most this many objects.", "N", default="twice those of auto")] = None,
    array_shape: Annotated[str | None, CommandOption("Without URL: the array's shape.", "N,N,…", flags=("--shape",), group="Shape")] = None,
    chunks: Annotated[str | None, CommandOption("Without URL: the chunk shape.", "N,N,…", group="Shape")] = None,
    dtype: Annotated[str | None, CommandOption("Without URL: the data type, such as uint16.", "TYPE", group="Shape")] = None,
    kind: Annotated[
        str | None, CommandOption("What is read from: s3, gcs, http, local.", "KIND", group="Expert", default="that of URL, or s3")
    ] = None,
    fast: Fast = False,
    most: Annotated[int, SHOW] = 8,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Compare shard shapes by what a way of reading costs, and recommend one.

    A PATTERN has one part for each dimension: a number of elements in a row, at a random position, or ":" for all. "1,:,: x10" is read ten
    times as often. Requests are those of a reader that knows the metadata, and no index yet. Every chunk is assumed to exist.

    Examples:
      shardstore advise data.zarr/ct --access "1,:,:"
      shardstore advise s3://bucket/data.zarr/ct -a "1,:,: x10" -a "64,64,64" --objects 1000
      shardstore advise --shape 10000,2048,2048 --chunks 64,64,64 --dtype uint16 -a "128,128,128"
    """
    accesses = [parse_access(text) for text in access or ()]
    if not accesses:
        raise InvalidInput("say what one read takes, such as --access '1,:,:'")
    present: ChunksPerShard | None = None
    if url is None:
        facts = _facts_without_data(array_shape, chunks, dtype)
        limits = read_limits(kind or _DEFAULT_KIND)
    else:
        if array_shape or chunks or dtype:
            raise InvalidInput("--shape, --chunks and --dtype are for advice without a URL: an existing array has its own")
        target = storage.resolve(url)
        path = target.path
        with progress_bar("looking", "objects") as bar:
            found = run_sync(survey(target.engine.canonical, path, indices=not fast, progress=bar, shown=target.shown(path)))
        if (nothing := no_v3(found)) is not None:
            raise NotFound(f"{target.shown(path)}: {nothing}")
        surveyed = _only(found.arrays, path)
        facts, present = facts_of_array(surveyed), surveyed.chunks_per_shard
        limits = target.engine.options.read_limits(kind or target.engine.storage.kind)
    if not facts.shape:
        accesses = [Access(())]  # there is one element, so every access reads it
    for wanted in accesses:
        _warn_of_cut(facts, wanted)
    with progress_bar("computing", "candidates") as bar:
        advice = advised(facts, accesses, limits, exists=url is not None, present=present, most_objects=objects, progress=bar)
    if as_json:
        print_json(_document(facts, accesses, limits, advice))
    else:
        _show(facts, accesses, advice, most)


def _warn_of_cut(facts: ArrayFacts, access: Access) -> None:
    box(facts, access)
    for axis, (wanted, there) in enumerate(zip(access.extents, facts.shape, strict=True)):
        if wanted is not None and wanted > there:
            complain("warning", f"access '{access}' is longer than axis {axis}, which has {plural(there, 'element')}: all of it is taken")


# -- the array ---------------------------------------------------------------------------------------------------------


def _only(arrays: tuple[ArraySurvey, ...], path: str) -> ArraySurvey:
    if len(arrays) == 1:
        return arrays[0]
    if not arrays:
        raise NotFound(f"there is no array at {path!r}: shardstore info shows the arrays of a store")
    names = ", ".join(array.path for array in arrays[:10])
    raise InvalidInput(f"{repr(path) if path else 'the store'} has {len(arrays)} arrays ({names}): choose one by the URL")


def _facts_without_data(array_shape: str | None, chunks: str | None, dtype: str | None) -> ArrayFacts:
    if array_shape is None or chunks is None or dtype is None:
        raise InvalidInput("give the URL of an array, or --shape, --chunks and --dtype of a new one")
    facts = ArrayFacts(_sizes(array_shape, "--shape"), _sizes(chunks, "--chunks"), _item_nbytes(dtype), 1)
    return replace(facts, chunk_nbytes=facts.decoded_chunk_nbytes)


def _sizes(text: str, name: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip("() ").rstrip(",").split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise InvalidInput(f"{name} {text!r} is not a list of sizes, such as 512,512,300")
    return tuple(map(int, parts))


def _item_nbytes(dtype: str) -> int:
    known = item_nbytes(dtype)
    if known is not None:
        return known
    import numpy as np

    try:
        return max(1, np.dtype(dtype).itemsize)
    except TypeError as exc:
        raise InvalidInput(f"--dtype {dtype!r} is not known: give one such as uint16, float32 or <f8") from exc


# -- the answer --------------------------------------------------------------------------------------------------------


def _document(facts: ArrayFacts, accesses: list[Access], limits: ReadLimits, advice: Advice) -> dict[str, Any]:
    best = advice.candidates[0] if advice.candidates else None
    return {
        "array": asdict(facts),
        "accesses": [{"pattern": str(Access(a.extents)), "weight": a.weight} for a in accesses],
        "limits": asdict(limits),
        "most_objects": advice.most_objects,
        "is_over": advice.is_over,
        "recommended": None if best is None else best.chunks_per_shard,
        "candidates": [asdict(candidate) for candidate in advice.candidates],
        "compared": [asdict(candidate) for candidate in advice.compared],
    }


def _show(facts: ArrayFacts, accesses: list[Access], advice: Advice, most: int) -> None:
    show(
        Text(
            f"array of {shape(facts.shape)}, chunks of {shape(facts.chunk_shape)}: {plural(facts.objects(None), 'chunk')}, "
            f"{size(facts.chunk_nbytes)} each, {size(facts.decoded_chunk_nbytes)} decoded"
        )
    )
    if not advice.candidates:
        show(Text("A shard of it would hold a single chunk: leave it unsharded."))
        return
    rows = [*advice.candidates[:most], *(c for c in advice.candidates[most:] if c.is_present), *advice.compared]
    best = advice.candidates[0]
    if len(accesses) > 1:
        show(Text("requests: " + ", ".join(f"#{number} is {access}" for number, access in enumerate(accesses, 1))))
    _show_rows(_columns(rows, best, accesses), columns_of_screen())
    show(Text("* recommended" + (", = present" if any(c.is_present for c in rows) else "")))
    show("")
    if advice.is_over:
        show(Text(f"No shard within reason makes as few as {count(advice.most_objects)} objects; these make the fewest."))
    for access in accesses:
        if (found := excess(facts, access)).factor >= _TOO_MUCH:
            axes = ", ".join(map(str, found.axes))
            factor, wanted = count(round(found.factor)), Access(access.extents)
            show(
                Text(
                    f"every shard shape reads at least {factor} times what '{wanted}' needs: chunks are too long along axis {axes}; rechunk"
                )
            )
    show(Text.assemble(("recommended: ", "bold"), (f"chunks_per_shard={best.chunks_per_shard}", "bold green")))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: ``cells`` below ``head``. Where the screen is narrow, columns are dropped in the order of ``given_up``; those of 0 stay."""

    head: str
    cells: list[str]
    given_up: int = 0
    is_number: bool = True

    @property
    def width(self) -> int:
        return max(cell_len(text) for text in (self.head, *self.cells))

    def padded(self, text: str) -> str:
        blanks = " " * (self.width - cell_len(text))
        return blanks + text if self.is_number else text + blanks


def _columns(rows: list[Candidate], best: Candidate, accesses: list[Access]) -> list[_Column]:
    def texts(head: str, cell: Callable[[Candidate], str], given_up: int = 0) -> _Column:
        return _Column(head, [cell(c) for c in rows], given_up, is_number=False)

    def numbers(head: str, cell: Callable[[Candidate], str], given_up: int = 0) -> _Column:
        return _Column(head, [cell(c) for c in rows], given_up)

    heads = [f"requests {accesses[0]}"] if len(accesses) == 1 else [f"#{number + 1}" for number in range(len(accesses))]
    requests = [_Column(head, [count(c.predictions[number].requests) for c in rows]) for number, head in enumerate(heads)]
    return [
        texts("", lambda c: "*" if c is best else "=" if c.is_present else ""),
        texts("chunks per shard", lambda c: str(c.chunks_per_shard or "unsharded")),
        texts("shard shape", lambda c: shape(c.shard_shape), given_up=4),
        numbers("decoded", lambda c: size(c.decoded_nbytes), given_up=1),
        numbers("stored", lambda c: size(c.stored_nbytes), given_up=3),
        numbers("objects", lambda c: count(c.objects)),
        *requests,
        *([numbers("mean", lambda c: count(c.requests))] if len(accesses) > 1 else []),
        numbers("fetched", lambda c: size(c.nbytes)),
        numbers("one-chunk write", lambda c: f"{count(c.write_amplification)}×", given_up=2),
    ]


def _show_rows(columns: list[_Column], width: int | None) -> None:
    """Print a table without the columns that do not fit into ``width``, or a block for each row if even that is too wide."""
    kept = list(columns)
    while not _fits(kept, width):
        loose = [column for column in kept if column.given_up]
        if not loose:
            _show_blocks(columns)
            return
        kept.remove(min(loose, key=lambda column: column.given_up))
    marks = columns[0].cells
    show(Text(_line(kept, [column.head for column in kept]), style="bold"))
    for mark, *cells in zip(marks, *(column.cells for column in kept), strict=True):
        show(Text(_line(kept, cells), style="bold green" if mark == "*" else ""))
    if missing := [column.head for column in columns if column not in kept]:
        show(Text(f"no room for: {', '.join(missing)} (--json has all)"))


def _fits(columns: list[_Column], width: int | None) -> bool:
    return width is None or sum(column.width + _GAP for column in columns) - _GAP <= width


def _line(columns: list[_Column], cells: list[str]) -> str:
    return (" " * _GAP).join(column.padded(cell) for column, cell in zip(columns, cells, strict=True)).rstrip()


def _show_blocks(columns: list[_Column]) -> None:
    mark, name, *values = columns
    for number, title in enumerate(name.cells):
        show(Text(f"{mark.cells[number]:1} {title}", style="bold"))
        for column in values:
            show(Text(f"    {column.head}: {column.cells[number]}"))
