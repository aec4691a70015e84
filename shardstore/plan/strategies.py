"""The write strategies, in one table. ``strategy=`` takes a name of the table, or a ``Strategy`` of one's own."""

from __future__ import annotations

from shardstore.errors import InvalidInput
from shardstore.plan.appending import Append
from shardstore.plan.commits import Strategy
from shardstore.plan.rewriting import Rewrite

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in (Rewrite(), Append())}


def strategy_of(named: object) -> Strategy:
    """Return the strategy that an option names, or is.

    Raises:
        InvalidInput: there is none of that name.
    """
    if isinstance(named, Strategy):
        return named
    if not isinstance(named, str) or named not in STRATEGIES:
        raise InvalidInput(f"strategy {named!r} is not known: there are {', '.join(map(repr, STRATEGIES))}")
    return STRATEGIES[named]
