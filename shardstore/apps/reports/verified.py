"""What a verification found, read from its report in JSON, and whether it still holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from shardstore.errors import InvalidInput

State = Literal["sound", "not looked at", "damaged"]
"""``sound``: a verification of everything read every chunk and found no error. ``damaged``: something cannot be read, or is wrong."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``verify`` found, from its report in JSON."""

    at: str
    """When, in UTC; empty if it does not say."""
    path: str
    is_whole: bool
    errors: int
    notes: int
    unread: int
    findings: tuple[Mapping[str, Any], ...]
    arrays: Mapping[str, Mapping[str, Any]]
    document: Mapping[str, Any]

    @classmethod
    def parse(cls, document: object, url: str, path: str, name: str) -> Verified:
        """Read the report of a verification of the store at ``url``. ``name`` is that of its file in messages.

        Raises:
            InvalidInput: it is no such report, or one of another store or node.
        """
        wrong = f"{name} is not a report of verification: make it by shardstore verify --json"
        if not isinstance(document, dict):
            raise InvalidInput(wrong)
        try:
            found = cls(
                at=str(document.get("at", "")),
                path=str(document["path"]),
                is_whole=document.get("is_whole", False) is True,
                errors=int(document["errors"]),
                notes=int(document["notes"]),
                unread=len(document["unread"]),
                findings=tuple({name: str(one[name]) for name in _FINDING_MEMBERS} for one in document["findings"]),
                arrays={str(array["path"]): _checked(array) for array in document["arrays"]},
                document=document,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            raise InvalidInput(wrong) from exc
        if min(found.errors, found.notes) < 0:
            raise InvalidInput(wrong)
        if document.get("url") != url:
            raise InvalidInput(f"{name} is a report on {document.get('url')}, not on {url}")
        if found.path and path != found.path and not path.startswith(found.path + "/"):
            raise InvalidInput(f"{name} is a report on {found.path!r} in {url}: verify {path or 'all of it'} for this report")
        return found._of(path)

    def _of(self, path: str) -> Verified:
        """Return what was found at and below ``path``."""
        findings = tuple(one for one in self.findings if _is_below(path, one["path"] or one["key"]))
        errors = sum(one["severity"] == "error" for one in findings)
        if path == self.path:
            return replace(self, errors=max(self.errors, errors))
        arrays = {name: array for name, array in self.arrays.items() if _is_below(path, name)}
        errors = max(errors, sum(array["errors"] for array in arrays.values()))
        return replace(self, findings=findings, arrays=arrays, errors=errors, notes=len(findings) - errors)

    def state_of(self, path: str, digest: str | None) -> State:
        """Return the state of an array whose objects, as they are listed now, have this digest (``None``: not listed)."""
        array = self.arrays.get(path)
        if array is None:
            return "not looked at"
        if array["errors"]:
            return "damaged"
        is_the_same = digest is not None and digest == array["digest"]  # nothing was written or erased since
        is_complete = is_the_same and self.is_whole and not self.unread and array["detectable"].get("reads_chunks") is True
        return "sound" if is_complete else "not looked at"


def _is_below(path: str, name: str) -> bool:
    return not path or name == path or name.startswith(f"{path}/")


_FINDING_MEMBERS = ("severity", "kind", "path", "key", "what", "remedy")


def _checked(array: Mapping[str, Any]) -> Mapping[str, Any]:
    detectable = array["detectable"]
    return {
        "errors": int(array["errors"]),
        "notes": int(array["notes"]),
        "chunks": int(array["chunks"]),
        "digest": array.get("digest"),
        "detectable": {
            "found": [str(sentence) for sentence in detectable["found"]],
            "missed": [str(sentence) for sentence in detectable["missed"]],
            "reads_chunks": detectable.get("reads_chunks"),
        },
    }
