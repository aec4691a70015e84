"""The words of the command line. Errors speak of arguments as Python does; here they become options of commands.

Messages write an argument as in a call, ``overwrite=True`` or ``storage_options={'s3': {'anon': True}}``. What only programs can do is in
brackets that begin with ``in Python:``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_BEFORE = r"(?<![\w.'/-])"
_VALUE = r"(True|False|None|…|\d+(?:\.\d+)?|'[^']*'|\([\d, ]*\))"

FLAGS = (
    *(
        "chunk_order",
        "chunks_per_shard",
        "copy",
        "exclusive",
        "flavour",
        "index_location",
        "locks",
        "missing",
        "mixed_protocols",
        "overwrite",
    ),
    *("root_as", "store", "templates", "urls"),
)
"""The arguments that are options of commands by the same name."""

BARE = ("chunk_order", "chunks_per_shard", "dead_ratio", "index_location", "max_memory")
"""Those with which errors begin, followed by the value."""

_OF_FILESYSTEMS = ("follow_links", "static", "transport")
"""Arguments that may be among the options of a filesystem."""


def in_own_words(text: str) -> str:
    """Return a message with options where it has arguments of Python."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def _shown(value: str) -> str:
    """Return a value as it is typed in a shell."""
    if value in ("True", "False", "None"):
        return value.lower()
    if value.startswith(("{", "[")):
        as_json = re.sub(r"\b(?:True|False)\b", lambda found: found[0].lower(), value.replace("'", '"')).replace("…", '"…"')
        return f"'{as_json}'"
    return value.strip("'()").replace(", ", ",").rstrip(",")


def _storage_option(found: re.Match[str]) -> str:
    return f"-o {found[1]}={_shown(found[2])}"


def _flag(found: re.Match[str]) -> str:
    name, value = found[1].replace("_", "-"), found[2]
    if value == "True":
        return f"--{name}"
    return f"--no-{name}" if value == "False" else f"--{name} {_shown(value)}"


_RULES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"^shardstore\.(\w+) needs"), r"shardstore \1 needs"),
    (re.compile(r" \(in Python: (?:[^()]|\([^()]*\))*\)"), ""),
    (re.compile(r"storage_options=\{'\w+': \{'(\w+)': ((?:[^{}]|\{[^{}]*\})*)\}\}"), _storage_option),
    (re.compile(r"storage_options=\{'\w+': \{…\}\}"), "-o NAME=…"),
    (re.compile(rf"\b({'|'.join(_OF_FILESYSTEMS)})={_VALUE}"), _storage_option),
    (re.compile(r"\bpaths=\{'([^']*)': None(?:, '\*': \{\})?\}"), r"--exclude \1"),
    (re.compile(r"\bpaths=\{'[^']*': \{'inline_nbytes': …\}\}"), "--inline BYTES"),
    (re.compile(r"\bvirtual_prefixes=\['([^']*)'\]"), r"--virtual-prefix \1"),
    (re.compile(r"\bon_error='skip'"), "--skip-damaged"),
    (re.compile(rf"{_BEFORE}version=(\d)"), r"--json-version \1"),
    (re.compile(rf"{_BEFORE}({'|'.join(FLAGS)})={_VALUE}"), _flag),
    (re.compile(rf"{_BEFORE}({'|'.join(BARE)}) (?=['(\d]){_VALUE}(?= )"), _flag),
)
