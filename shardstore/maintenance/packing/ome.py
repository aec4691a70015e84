"""OME-Zarr 0.4 in a hierarchy that is packed: rewritten to 0.5 if that was asked for, otherwise reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from shardstore.errors import Unsupported
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import is_array, sizes
from shardstore.format.ome_zarr import OmeAttributes, find_ome, level_axes, to_ome_05
from shardstore.format.store_keys import join
from shardstore.maintenance.packing.report import some_of
from shardstore.maintenance.packing.translation import TargetNodes


@dataclass(frozen=True, slots=True)
class OmeNodes:
    """The nodes to rewrite, by path."""

    groups: Mapping[str, OmeAttributes]
    dimension_names: Mapping[str, list[str]]
    """The dimension names for the arrays of images: 0.5 demands that they are the names of the axes."""

    @property
    def refused(self) -> dict[str, str]:
        return {path: found.reason for path, found in self.groups.items() if found.reason}


def ome_nodes(target: TargetNodes) -> OmeNodes:
    """Find metadata of OME-Zarr before 0.5 in the groups of the target."""
    groups: dict[str, OmeAttributes] = {}
    names: dict[str, list[str]] = {}
    for path, document in target.groups.items():
        found = find_ome(_attributes(document), path.rpartition("/")[2], partial(_is_image, target, path))
        if found is None:
            continue
        groups[path] = found
        if not found.reason:
            names |= {join(path, below): axes for below, axes in level_axes(_attributes(document)).items()}
    return OmeNodes(groups, names)


def with_ome_05(target: TargetNodes, found: OmeNodes) -> TargetNodes:
    """Return the same nodes with the metadata of OME-Zarr 0.5, also if consolidated metadata repeat them.

    Raises:
        Unsupported: some cannot be rewritten; the message names all of them.
    """
    if refused := found.refused:
        listed = "; ".join(f"{path or '(root)'!r}: {reason}" for path, reason in sorted(refused.items()))
        raise Unsupported(
            f"OME-Zarr metadata cannot be rewritten to 0.5, and nothing was written: {listed}. Leave the nodes out by exclude, or pack "
            "without ome (--ome), which leaves all attributes unchanged"
        )
    return TargetNodes(
        arrays={path: replace(array, document=_rewritten(path, array.document, found)) for path, array in target.arrays.items()},
        groups={path: _rewritten(path, document, found) for path, document in target.groups.items()},
        passed={path: _rewritten(path, document, found) for path, document in target.passed.items()},
        reasons=target.reasons,
    )


def ome_notice(found: OmeNodes) -> str | None:
    """Return the notice about metadata that stay unchanged, or ``None``."""
    if not found.groups:
        return None
    named = some_of([path or "(root)" for path in found.groups])
    remedy = "pack with --ome (ome=True), which rewrites them to 0.5" if not found.refused else "bring them to 0.4, then pack with --ome"
    what = f"metadata of OME-Zarr for Zarr v2 ({named})"
    return f"{what}: its readers look for those of 0.5 in Zarr v3, and find no images here. To have them, {remedy}"


def _is_image(target: TargetNodes, path: str, below: str) -> bool:
    return bool(level_axes(_attributes(target.groups.get(join(path, below.strip("/")), {}))))


def _attributes(document: JsonObject) -> JsonObject:
    attributes = document.get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def _rewritten(path: str, document: JsonObject, found: OmeNodes) -> JsonObject:
    if path in found.groups and not is_array(document):
        document = document | {"attributes": to_ome_05(_attributes(document), found.groups[path])}
    names = found.dimension_names.get(path)
    if names is not None and is_array(document) and sizes(document.get("shape"), 0, len(names)) is not None:
        document = document | {"dimension_names": names}
    consolidated = document.get("consolidated_metadata")
    inside = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(consolidated, dict) or not isinstance(inside, dict):
        return document
    repeated = {name: _rewritten(join(path, name), child, found) if isinstance(child, dict) else child for name, child in inside.items()}
    return document | {"consolidated_metadata": consolidated | {"metadata": repeated}}
