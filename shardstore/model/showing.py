"""Stores and results as HTML in notebooks: made by modules far above them, so that none of them knows HTML."""

from __future__ import annotations

from importlib import import_module


class ShownInNotebooks:
    """Base class of objects that notebooks show as HTML. Where jinja2 is missing, or showing fails, their ``repr`` is shown."""

    __slots__ = ()

    _shown_by = "shardstore.apps.reports.results"  # a module whose ``html_of`` returns HTML, or None

    def _repr_html_(self) -> str | None:
        try:
            text: str | None = import_module(self._shown_by).html_of(self)
        except Exception:  # noqa: BLE001  # to show something must not fail
            return None
        return text
