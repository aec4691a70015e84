"""The flavours that ``present`` names, in one table. The option takes a ``PresentedFlavour`` of one's own too."""

from __future__ import annotations

from typing import TypeAlias

from shardstore.engine.engine import Engine
from shardstore.engine.options import V3, Flavour
from shardstore.errors import InvalidInput
from shardstore.presented.draft2022 import DraftFlavour
from shardstore.presented.v2 import V2Flavour
from shardstore.presented.view import PresentedFlavour, View

Presented: TypeAlias = Engine | View
"""A store as its clients see it: an engine, or a view of one."""

_FLAVOURS: dict[str, Flavour] = {flavour.name: flavour for flavour in (V3, V2Flavour(), DraftFlavour())}


def flavour_of(present: object) -> Flavour:
    """Return the flavour that ``present`` names, or is.

    Raises:
        InvalidInput: there is none.
    """
    if isinstance(present, Flavour):
        return present
    if not isinstance(present, str) or present not in _FLAVOURS:
        raise InvalidInput(f"present {present!r} is not known: there are {', '.join(map(repr, _FLAVOURS))}")
    return _FLAVOURS[present]


def presented(engine: Engine) -> Presented:
    """Return the engine as its clients see it, by the flavour in its options."""
    flavour = engine.options.present
    return View(engine, flavour) if isinstance(flavour, PresentedFlavour) else engine
