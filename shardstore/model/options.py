"""Options of functions: checks of their values, and how the command line shows them."""

from __future__ import annotations

from shardstore.errors import InvalidInput


def check_flag(name: str, value: object) -> None:
    """Refuse a value that Python would silently take for true or false, such as ``"no"`` for true.

    Raises:
        InvalidInput: it is neither ``True`` nor ``False``.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} {value!r} is neither True nor False")


def check_flags(**values: object) -> None:
    """Check several options by name, as ``check_flag`` does."""
    for name, value in values.items():
        check_flag(name, value)
