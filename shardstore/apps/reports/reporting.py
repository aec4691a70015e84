"""``shardstore.report``: opens the store, and puts the facts together. And what notebooks show of stores."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from shardstore._sync import run_sync
from shardstore.adapters.handle import FilesystemFace, Handle, StoreFace
from shardstore.apps.reports.facts import MOST_ARRAYS, Facts, Previewer, Verified, facts_of, occupancy_of_report
from shardstore.apps.reports.words import array_rows, no_v3, writers
from shardstore.errors import InvalidInput, NotFound, Unsupported
from shardstore.extras import needed
from shardstore.maintenance.advice import parse_access
from shardstore.maintenance.survey.run import glance, storage_facts, survey
from shardstore.maintenance.verify.run import VerifyReport
from shardstore.model.options import check_flags
from shardstore.model.words import plural, shape
from shardstore.progress.shown import reported
from shardstore.progress.steps import Step

VerifiedLike = VerifyReport | str | os.PathLike[str]
"""What ``verify`` returned, or a file of what ``shardstore verify --json`` printed."""

_GLANCE_ARRAYS = 20
_GLANCE_SECONDS = 2.0


class Report:
    """A report on a store: ``html`` is the page, ``json`` the same facts for programs. In a notebook it shows itself."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts

    def __repr__(self) -> str:
        return f"<Report on {self.facts.url!r}: {len(self.facts.survey.arrays)} arrays, {self.facts.state}>"

    @cached_property
    def html(self) -> str:
        """One page, which needs nothing else. Raises ``Unsupported`` if jinja2 is not installed."""
        text: str = page_module().page(self.facts)
        return text

    @cached_property
    def json(self) -> str:
        """The facts as a JSON text."""
        return self.facts.json()

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page into a local file, which is there whole or not at all. Raises ``Unsupported`` if jinja2 is not installed."""
        write_whole(path, self.html)

    def _repr_html_(self) -> str | None:
        try:
            page = self.html
        except Unsupported:
            return None
        # In a frame of its own: styles and scripts of a page are not for a notebook.
        return f'<iframe sandbox="allow-scripts" srcdoc="{escape(page)}" style="width:100%;height:40rem;border:1px solid #8885"></iframe>'


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write a local file, which is there whole or not at all.

    Raises:
        InvalidInput: it cannot be written there.
    """
    place = Path(os.path.realpath(path))  # a link stays one
    try:
        if place.exists() and not place.is_file():
            place.write_text(text, encoding="utf-8")  # a pipe, a terminal
            return
        temporary = place.with_name(f".{place.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(text)
            os.replace(temporary, place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise InvalidInput(f"{place} cannot be written: {exc.strerror}") from exc


def page_module() -> ModuleType:
    """Return the module that makes pages. Raises ``Unsupported`` if jinja2 is not installed."""
    return needed("shardstore.apps.reports.page", "report", "the page of a report takes jinja2", "; --json gives the same facts without")


def report(
    url: Any,
    *,
    path: str = "",
    fast: bool = False,
    pictures: bool = True,
    preview: bool = False,
    access: Sequence[str] = (),
    verified: VerifiedLike | None = None,
    most_arrays: int = MOST_ARRAYS,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | bool | None = None,
) -> Report:
    """Return a report on what a store is, and how it is: arrays, shards, sizes, which chunks exist, damage, and advice. Writes nothing.

    Takes one listing, a request for each metadata document, and one for the index of each shard.

    Args:
        url: the root of a store, as ``shardstore.open`` takes it; also ``URL@ref``, a snapshot of a versioned store.
        path: the node in it to report on, with all that is below; everything, if it is not given.
        fast: read metadata only: nothing is counted.
        pictures: draw which chunks exist.
        preview: show a slice of each array, read by zarr-python: at most 4 MiB of decoded chunks each.
        access: what is read at once, such as ``"1,:,: x10"``: arrays with as many dimensions get advice for it, as ``shardstore advise``
            gives.
        verified: what ``shardstore.verify`` returned, or a file of ``shardstore verify --json``: its findings are shown, and only what it
            has read and found right is called sound.
        most_arrays: how many arrays are shown; all are counted.
        storage_options: for the filesystem: credentials, endpoint, retries.
        progress: called with the number of objects that have been looked at; or ``True``: it is shown on stderr.

    Raises:
        NotFound: there is nothing at ``path``, or no such file of a verification.
        InvalidInput: an argument cannot be right, or ``verified`` is of another store.
        Unsupported: ``preview`` without zarr-python.
        StorageError: a request failed.
    """
    handle = Handle.find(url, None if storage_options is None else dict(storage_options), {})
    path = path.strip("/")
    shown = f"{handle.url.rstrip('/')}/{path}" if path else handle.url
    with reported(progress, lambda objects, /: Step("looking", objects)) as say:
        return report_on(
            handle,
            path,
            shown,
            fast=fast,
            pictures=pictures,
            preview=preview,
            access=access,
            verified=verified,
            most_arrays=most_arrays,
            progress=say,
        )


def report_on(
    handle: Handle,
    path: str,
    shown: str,
    *,
    fast: bool,
    pictures: bool,
    preview: bool,
    access: Sequence[str],
    verified: VerifiedLike | None,
    most_arrays: int,
    progress: Callable[[int], None],
) -> Report:
    """Return the report on the place ``path`` of an engine, whose URL without credentials is ``shown``; see ``report``. Not to be called
    on the IO loop.
    """
    check_flags(fast=fast, pictures=pictures, preview=preview)
    if type(most_arrays) is not int or most_arrays < 0:
        raise InvalidInput(f"most_arrays {most_arrays!r} is not a number of arrays")
    accesses = [parse_access(text) for text in access]
    engine = handle.engine
    previewer: Previewer | None = None
    if preview:
        previewer = needed("shardstore.apps.reports.preview", "zarr", "previews take zarr-python").Previews(handle)
    earlier = None if verified is None else _verified(verified, engine.canonical.storage.url, path)
    at = datetime.now(UTC)
    occupancy = None if fast else occupancy_of_report(pictures=pictures)
    found = run_sync(survey(engine.canonical, path, indices=not fast, occupancy=occupancy, progress=progress, shown=shown))
    storage = storage_facts(engine, handle.snapshot)
    return Report(
        facts_of(
            found,
            storage,
            url=shown,
            at=at,
            occupancy=occupancy,
            verified=earlier,
            accesses=accesses,
            previewer=previewer,
            most_arrays=most_arrays,
        )
    )


def _verified(given: VerifiedLike, url: str, path: str) -> Verified:
    if isinstance(given, VerifyReport):
        return Verified.parse(given.to_json(), url, path, "verified")
    file = Path(given)
    try:
        document = json.loads(file.read_bytes())
    except OSError as exc:
        raise NotFound(f"the report of verification {file} cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise InvalidInput(f"{file} is not JSON ({exc}): make it by shardstore verify --json") from exc
    return Verified.parse(document, url, path, str(file))


# -- notebooks ---------------------------------------------------------------------------------------------------------


def html_of(face: StoreFace | FilesystemFace) -> str:
    """Return a store, or a filesystem, as cards for notebooks, from metadata alone, within two seconds.

    Raises:
        ShardStoreError: it cannot be read, or there is nothing yet.
        Unsupported: jinja2 is not installed.
    """
    page = page_module()
    engine = face.engine
    path = "" if isinstance(face, StoreFace) else face.key_of("")
    found, is_complete = run_sync(glance(engine.canonical, path, most_arrays=_GLANCE_ARRAYS, seconds=_GLANCE_SECONDS))
    storage = storage_facts(engine, None)
    rows = [
        ("content", no_v3(found) or f"{plural(found.groups, 'group')}, {plural(len(found.arrays), 'array')}"),
        ("storage", f"{storage.kind}: {writers(storage.kind, storage.capabilities, storage.is_known)}"),
    ]
    arrays = [page.Card(f"{a.path or '/'}  {shape(a.shape)}  {a.data_type}", array_rows(a, storage.kind)) for a in found.arrays]
    text: str = page.cards(repr(face), rows, arrays, is_complete=is_complete)
    return text
