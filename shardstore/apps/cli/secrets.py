"""Credentials on the command line: found, and hidden from lists of the machine's processes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from shardstore.model.redaction import redacted

_SECRETS = re.compile(r"(.*_)?(key|secret|token|password|username|user|credentials?|connection_string|auth)", re.IGNORECASE)
_DESCRIPTOR = "SHARDSTORE_ARGUMENTS"
"""The variable that has, in the environment of a restarted program, the descriptor of a file with its arguments."""


def secret_in(url: str, options: Mapping[str, Any]) -> str | None:
    """Return the name of something in a URL or in options, at whatever depth, that seems to be a credential."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            if (found := secret_in("", value)) is not None:
                return found
        elif _SECRETS.fullmatch(name) and value not in (None, "anon", False):
            return name
    return "user in the URL" if redacted(url) != url else None


class HiddenArguments:
    """The arguments of this program. A program that runs for days restarts itself, with its arguments in a file without a name."""

    def __init__(self) -> None:
        self._given: list[str] | None = None

    def restore(self) -> None:
        """Take the arguments out of the file, if that is where they are; the program calls it first."""
        descriptor = os.environ.pop(_DESCRIPTOR, None)
        if descriptor is None:
            self._given = sys.argv[1:]
            return
        with open(int(descriptor), "rb") as file:
            file.seek(0)
            sys.argv[1:] = json.load(file)

    def hide(self, shown: list[str]) -> None:
        """Restart the program, with the arguments ``shown`` in lists of processes. Does nothing if that was done, or if none are known."""
        if self._given is None or not hasattr(os, "memfd_create"):
            return
        descriptor = os.memfd_create("arguments", 0)  # without a flag it stays open
        os.write(descriptor, json.dumps(self._given).encode())
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-P", "-m", "shardstore", *shown], os.environ | {_DESCRIPTOR: str(descriptor)})


ARGUMENTS = HiddenArguments()
