"""Convert the metadata of OME-Zarr 0.4, which are attributes of Zarr v2, to those of 0.5, which are in one attribute of Zarr v3.

::

    0.4  .zattrs of a group                          0.5  attributes in the group's zarr.json
    {"multiscales": [{"version": "0.4", …}],         {"ome": {"version": "0.5",
     "omero": {"version": "0.4", …},                          "multiscales": [{…}],
     "other": …}                                              "omero": {…}},
                                                      "other": …}

The members are the same. Their versions are removed, since there is one for all of them; only ``plate``, ``well`` and ``image-label``
keep theirs, as the text of 0.5 demands. Attributes that are not of OME-Zarr stay where they are.

Specification: OME-Zarr 0.4 and 0.5, "OME-Zarr Metadata" and the sections of each member.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardstore.format.json_text import JsonObject

OME = "ome"
_FROM, _TO = "0.4", "0.5"
_KEEP_VERSION = ("plate", "well", "image-label")


@dataclass(frozen=True, slots=True)
class OmeAttributes:
    """The attributes of one group that are metadata of OME-Zarr before 0.5."""

    members: tuple[str, ...]
    reason: str = ""
    """The reason why they cannot be rewritten; empty where they can."""


def find_ome(attributes: JsonObject, name: str, is_image: Callable[[str], bool]) -> OmeAttributes | None:
    """Find metadata of OME-Zarr before 0.5 in the attributes of the group ``name``, the last part of its path.

    ``is_image`` returns whether a path relative to the group is that of an image: lists named ``labels`` exist outside OME-Zarr too.
    """
    multiscales: Any = attributes.get("multiscales")
    is_multiscales = _is_list_of(multiscales, lambda one: isinstance(one.get("datasets"), list))
    versions: list[Any] = [one.get("version", _implied_version(one)) for one in multiscales] if is_multiscales else []
    if None in versions:
        return None  # a pyramid of another convention

    found = {member for member in ("omero", "image-label") if isinstance(attributes.get(member), dict)} | {"multiscales"}
    found = found if is_multiscales else set()
    found |= {member for member, value in attributes.items() if _is_alone(member, value, name, is_image)}
    ordered = tuple(member for member in attributes if member in found)
    if not ordered:
        return None
    versions += [attributes[member].get("version", _FROM) for member in ordered if isinstance(attributes[member], dict)]
    if newer := sorted({str(version) for version in versions} - {_FROM}):
        return OmeAttributes(ordered, f"they are of version {', '.join(newer)}: bring them to 0.4 first")
    if OME in attributes:
        return OmeAttributes(ordered, f"there is an attribute {OME!r} as well as {ordered[0]!r}: remove the one that does not count")
    return OmeAttributes(ordered)


def _is_alone(member: str, value: Any, name: str, is_image: Callable[[str], bool]) -> bool:
    """Return whether an attribute is metadata of OME-Zarr by itself, in a group that need not be an image."""
    match member:
        case "plate" | "well":
            return isinstance(value, dict) and isinstance(value.get("wells" if member == "plate" else "images"), list)
        case "bioformats2raw.layout":
            return bool(value == 3)
        case "series":
            return name == "OME" and _is_list_of_text(value)
        case "labels":
            return _is_list_of_text(value) and (any(map(is_image, value)) or (name == "labels" and not value))
    return False


def to_ome_05(attributes: JsonObject, found: OmeAttributes) -> JsonObject:
    """Return the attributes with those of ``found`` moved into the member ``ome``, of version 0.5."""
    ome: JsonObject = {"version": _TO}
    for member in found.members:
        if member in attributes:
            ome[member] = _without_version(member, attributes[member])
    return {OME: ome} | {name: value for name, value in attributes.items() if name not in found.members}


def level_axes(attributes: JsonObject) -> dict[str, list[str]]:
    """Return the names of the axes of each array of a multiscale image, by its path relative to the group; for 0.4 and 0.5."""
    axes: dict[str, list[str]] = {}
    found = attributes.get(OME) if isinstance(attributes.get(OME), dict) else attributes
    multiscales = found.get("multiscales") if isinstance(found, dict) else None
    for image in multiscales if isinstance(multiscales, list) else []:
        if not isinstance(image, dict) or _implied_version(image) is None:
            continue
        names = [axis["name"] for axis in image["axes"]]
        for dataset in image["datasets"]:
            axes.setdefault(dataset["path"].strip("/"), names)
    return axes


def _without_version(member: str, value: Any) -> Any:
    if member == "multiscales":
        return [{name: inner for name, inner in one.items() if name != "version"} for one in value]
    if not isinstance(value, dict):
        return value
    if member in _KEEP_VERSION:
        return value | {"version": _TO} if "version" in value or member == "plate" else value
    return {name: inner for name, inner in value.items() if name != "version"}


def _implied_version(multiscale: JsonObject) -> str | None:
    """Return 0.4 where members exist that it demands and 0.3 did not know, else ``None``; the version itself is not demanded."""
    axes, datasets = multiscale.get("axes"), multiscale.get("datasets")
    has_axes = _is_list_of(axes, lambda axis: isinstance(axis.get("name"), str))
    return _FROM if has_axes and _is_list_of(datasets, lambda dataset: isinstance(dataset.get("path"), str)) else None


def _is_list_of(value: Any, is_it: Callable[[JsonObject], bool]) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and is_it(one) for one in value)


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
