"""What one commit did to the nodes of a store, as the structure file keeps it: by this another commit finds out whether it contradicts it.

::

    {"created": {"9": "ct"}, "deleted": {"5": "old"}, "moved": {"6": ["a", "b"]}, "updated": [7], "attributes": [8], "manifests": ["7CET…"]}

Nodes are named by their ids, which stay (D14). The manifests are those of the differences: which chunks were changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardstore.errors import Corruption
from shardstore.format.snapshots.structure import Node


@dataclass(frozen=True, slots=True)
class NodeChanges:
    """Changes of nodes, by id."""

    created: Mapping[int, str] = field(default_factory=dict)
    """To the path."""
    deleted: Mapping[int, str] = field(default_factory=dict)
    moved: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """From one path to another."""
    updated: frozenset[int] = frozenset()
    """Documents of which more than attributes has changed."""
    attributes: frozenset[int] = frozenset()
    """Documents of which the attributes have changed."""

    @classmethod
    def between(cls, before: Mapping[str, Node], after: Mapping[str, Node]) -> NodeChanges:
        """Return what differs between the nodes of two structures, by path."""
        if before is after:
            return cls()
        was, now = {node.id: node for node in before.values()}, {node.id: node for node in after.values()}
        both = [(was[one], now[one]) for one in was.keys() & now.keys()]
        return cls(
            {one: node.path for one, node in now.items() if one not in was},
            {one: node.path for one, node in was.items() if one not in now},
            {new.id: (old.path, new.path) for old, new in both if old.path != new.path},
            frozenset(new.id for old, new in both if (old.columns.array, old.columns.extra) != (new.columns.array, new.columns.extra)),
            frozenset(new.id for old, new in both if (old.columns.attributes, old.attributes) != (new.columns.attributes, new.attributes)),
        )

    def __bool__(self) -> bool:
        return bool(self.created or self.deleted or self.moved or self.updated or self.attributes)

    def to_json(self, manifests: list[str]) -> dict[str, Any]:
        """Return the member of the structure's metadata."""
        return {
            "created": {str(one): path for one, path in self.created.items()},
            "deleted": {str(one): path for one, path in self.deleted.items()},
            "moved": {str(one): list(paths) for one, paths in self.moved.items()},
            "updated": sorted(self.updated),
            "attributes": sorted(self.attributes),
            "manifests": manifests,
        }


def parse_changes(said: Mapping[str, Any]) -> tuple[NodeChanges, list[str]]:
    """Return the changes of nodes, and the names of the manifests of differences. Raises ``Corruption`` if that is not what is said."""
    try:
        return (
            NodeChanges(
                {int(one): str(path) for one, path in said["created"].items()},
                {int(one): str(path) for one, path in said["deleted"].items()},
                {int(one): (str(before), str(after)) for one, (before, after) in said["moved"].items()},
                frozenset(map(int, said["updated"])),
                frozenset(map(int, said["attributes"])),
            ),
            [str(name) for name in said["manifests"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise Corruption(f"a structure file does not say what its commit did: {type(exc).__name__}: {exc}") from exc
