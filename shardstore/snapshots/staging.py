"""Stages a hierarchy: it is written into a session of its own, and becomes part of another session as a whole, or never."""

from __future__ import annotations

from dataclasses import replace

from shardstore.errors import InvalidInput
from shardstore.format.store_keys import check_node_path, groups_above, join
from shardstore.snapshots.session import Session


def staging_session(session: Session) -> Session:
    """Return a session without nodes. Its chunks go into the same chunk files as those of ``session``, and its nodes get ids that no node
    of that has.
    """
    staged = Session(session.files, session.snapshot, replace(session.base, nodes={}), session.branch)
    staged.gatherer, staged.ids = session.gatherer, session.ids
    return staged


def insert(session: Session, staged: Session, path: str, *, replaces: bool) -> None:
    """Put a staged hierarchy at a path of its session, in place of what is there. Groups above the path are made.

    With ``replaces`` all that is there is another node from then on, but the root: whoever changes any of it meanwhile contradicts that.
    Without it, a group that takes the place of a group keeps its id, and whoever writes into that group meanwhile is not contradicted.

    Raises:
        InvalidInput: a node above the path is an array, or no node can have this path. Nothing was changed.
        ReadOnly: nothing can be changed.
    """
    session.check_writable(f"writing {path!r}")
    check_node_path(path)
    for parent in groups_above(path):
        if (above := session.nodes.get(parent)) is not None and above.is_array:
            raise InvalidInput(f"nothing can be put at {path!r}: {parent!r} is an array")
    old = {one: node for one, node in session.nodes.items() if not path or f"{one}/".startswith(f"{path}/")}
    for one in old:
        session.remove_node(one)
    for parent in groups_above(path):
        if parent not in session.nodes:
            session.make_group(parent)
    for below, node in staged.nodes.items():
        at = join(path, below) if below else path
        was = old.get(at)
        is_kept = was is not None and not was.is_array and not node.is_array and (not replaces or not at)
        new = session.nodes[at] = replace(node, path=at, id=was.id if was is not None and is_kept else node.id)
        session.documents[new.id] = staged.documents[node.id][0], session.new_serial()
    for changes in staged.changes.values():
        for chunk in changes.chunks.values():
            if chunk is not None:
                chunk.serial += session.serial  # no two versions of one key have the same
    session.serial += staged.serial
    session.changes |= staged.changes
