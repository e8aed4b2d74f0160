"""A ResourceSlice as the API server has it ↔ values; when two documents say the same; the three kinds of write.

Knows nothing of what we want to publish: that is `policy`.

Source: resource.k8s.io/v1, ResourceSlice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vgpu_dra import quantity
from vgpu_state import jsonshape
from vgpu_state.errors import MalformedInput

GROUP_VERSION = "resource.k8s.io/v1"
KIND = "ResourceSlice"

Document = Mapping[str, Any]  # Any: JSON

# Below these fields every text is a quantity.
_QUANTITIES = ("capacity", "counters")
_TIME_ADDED = "timeAdded"
_ABSENT: tuple[Any, ...] = (None, {}, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlice:
    """One ResourceSlice of ours. `document` is all of it, with fields that we do not know."""

    name: str
    generate_name: str
    uid: str
    resource_version: str
    pool: str
    generation: int
    document: Document

    @property
    def spec(self) -> Document:
        spec: Document = self.document["spec"]
        return spec

    @property
    def owner_uids(self) -> frozenset[str]:
        return frozenset(owner["uid"] for owner in self.document["metadata"].get("ownerReferences") or [])


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete `stored`, if it is still that object in that version."""

    stored: StoredSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Make `stored` into `document`, if it is still in that version."""

    stored: StoredSlice
    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create `document`; the API server completes its name."""

    document: Document


Write = Delete | Replace | Create


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """All slices of this driver on this node at one moment, which `resource_version` names."""

    slices: tuple[StoredSlice, ...]
    resource_version: str


def parse_slice(doc: Document) -> StoredSlice:
    """The slice of an API document.

    Raises:
        ShapeError: a field that every stored slice has is missing.
    """
    metadata, spec = jsonshape.mapping(doc, "metadata"), jsonshape.mapping(doc, "spec")
    pool = jsonshape.mapping(spec, "pool")
    return StoredSlice(
        name=jsonshape.text(metadata, "name"),
        generate_name=str(metadata.get("generateName", "")),
        uid=jsonshape.text(metadata, "uid"),
        resource_version=jsonshape.text(metadata, "resourceVersion"),
        pool=jsonshape.text(pool, "name"),
        generation=jsonshape.whole(pool, "generation"),
        document=doc,
    )


def parse_list(doc: Document) -> Listed:
    """The slices of an API list.

    Raises:
        ShapeError: it is no list of slices.
    """
    # The API server leaves out what every item of a list has.
    items = jsonshape.mappings(doc, "items") if doc.get("items") is not None else []
    return Listed(
        slices=tuple(parse_slice({"apiVersion": GROUP_VERSION, "kind": KIND, **item}) for item in items),
        resource_version=jsonshape.text(jsonshape.mapping(doc, "metadata"), "resourceVersion"),
    )


def differences(wish: Document, stored: Document) -> tuple[str, ...]:
    """The paths at which two documents say something else, ascending.

    Quantities are compared as numbers, since the API server writes "80Gi" and "85899345920" its own way; an absent field equals
    null and the empty list or object. The order of a list counts: the scheduler takes the first device that fits. When a taint
    was added is the API server's to say where the wish leaves it out.
    """
    return tuple(sorted(_differences("", _canonical(wish, is_quantity=False), _canonical(stored, is_quantity=False))))


def with_times_of(spec: Document, stored: Document) -> Document:
    """`spec` where each taint that its device has in `stored` too was added when it was: the API server would say "now" again.

    Source: k8s.io/dynamic-resource-allocation, resourceslicecontroller.go, copyTaintTimeAdded.
    """
    times = {
        (device["name"], *_identity(taint)): taint[_TIME_ADDED]
        for device in stored.get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get(_TIME_ADDED)
    }
    devices = [_with_times(device, times) for device in spec.get("devices") or ()]
    return {**spec, "devices": devices} if devices else spec


def _with_times(device: Document, times: Mapping[tuple[Any, ...], str]) -> Document:
    taints = device.get("taints")
    if not taints:
        return device
    found = [(taint, times.get((device["name"], *_identity(taint)))) for taint in taints]
    return {**device, "taints": [taint if time is None else {_TIME_ADDED: time, **taint} for taint, time in found]}


def _identity(taint: Document) -> tuple[Any, ...]:
    return taint["key"], taint.get("value") or "", taint["effect"]


def _canonical(value: Any, *, is_quantity: bool) -> Any:
    if isinstance(value, dict):
        fields = {k: _canonical(v, is_quantity=is_quantity or k in _QUANTITIES) for k, v in value.items()}
        return {k: v for k, v in fields.items() if v not in _ABSENT}
    if isinstance(value, list):
        return [_canonical(v, is_quantity=is_quantity) for v in value]
    if is_quantity and isinstance(value, str | int) and not isinstance(value, bool):
        return _number(str(value))
    return value


def _number(text: str) -> Any:
    try:
        return quantity.parse_exactly(text, field="quantity")
    except MalformedInput:
        return text  # not ours to judge: it differs from every number


def _differences(path: str, one: Any, other: Any) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        fields = [k for k in one.keys() | other.keys() if k != _TIME_ADDED or k in one]
        return [d for k in fields for d in _differences(f"{path}.{k}".lstrip("."), one.get(k), other.get(k))]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in _differences(f"{path}[{i}]", a, b)]
    # True == 1 in Python, and not in JSON.
    return [] if one == other and isinstance(one, bool) == isinstance(other, bool) else [path]
