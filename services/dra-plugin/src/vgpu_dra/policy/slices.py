"""Devices and what the API server has → what to write. Pure.

A pool is the slices of one node with the highest generation; the scheduler uses it when it has as many as each of them says.

Source: k8s.io/dynamic-resource-allocation, resourceslice/resourceslicecontroller.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vgpu_dra import inventory
from vgpu_dra.slice_documents import (
    GROUP_VERSION,
    KIND,
    Create,
    Delete,
    Document,
    Replace,
    StoredSlice,
    Write,
    differences,
    with_times_of,
)
from vgpu_state.ids import NodeName

# The API takes 128, and 64 as soon as one device has a taint or costs something: a pool must not fail on its first taint.
DEVICES_PER_SLICE = 64
COUNTER_SETS_PER_SLICE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOwner:
    """The node that the pool belongs to, and dies with."""

    node: NodeName
    node_uid: str

    @property
    def references(self) -> list[Document]:
        return [{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.node_uid, "controller": True}]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The writes in their order, and the generation that the pool then has. No writes: the pool is as it should be."""

    generation: int
    writes: tuple[Write, ...]


def contents(gpus: Sequence[Sequence[Document]], counter_sets: Sequence[Document] = ()) -> tuple[Document, ...]:
    """What each slice of the pool holds: first the budgets, then the devices, those of each GPU in slices of their own.

    What becomes of one GPU so changes one slice, which leaves the pool its generation. A GPU without devices has an empty slice,
    so that the others keep their places; without a GPU one empty slice says "the driver is up, nothing here".
    """
    budgets = [{"sharedCounters": list(chunk)} for chunk in _chunks(counter_sets, COUNTER_SETS_PER_SLICE)]
    devices = [{"devices": list(chunk)} for one in gpus or [()] for chunk in _chunks(one, DEVICES_PER_SLICE) or [()]]
    return (*budgets, *devices)


def plan_pool(wishes: Sequence[Document], *, stored: Iterable[StoredSlice], owner: PoolOwner) -> Plan:
    """What makes the pool hold `wishes`, slice by slice in this order, with the fewest writes.

    The generation stays when no slice is missing and at most one differs, since one write is seen as a whole; otherwise it
    rises and every slice is written. Slices that are not of this pool, repeated or under another name are deleted. The slices are
    written in their order, so that the pool is not complete before the budgets of its devices are there.
    """
    kept, obsolete = _match(tuple(stored), names=[generate_name(i, owner.node) for i in range(len(wishes))], pool=owner.node)
    newest = max((s.generation for s in (*kept.values(), *obsolete) if s.pool == owner.node), default=0)
    generation = max(newest, 1)
    specs = _specs(wishes, owner=owner, generation=generation)
    changed = [i for i, s in kept.items() if _differs(specs[i], s, owner)]
    if newest and (len(kept) < len(wishes) or len(changed) > 1):
        generation += 1
        specs = _specs(wishes, owner=owner, generation=generation)
        changed = list(kept)
    missing = [i for i in range(len(wishes)) if i not in kept]
    return Plan(
        generation=generation,
        writes=(
            *(Delete(stored=s) for s in obsolete),
            *(
                Replace(stored=kept[i], document=_replaced(kept[i], spec=specs[i], owner=owner))
                if i in kept
                else Create(document=_created(i, spec=specs[i], owner=owner))
                for i in sorted({*changed, *missing})
            ),
        ),
    )


def content(spec: Document) -> Document:
    """What of a slice's spec is content: all but whose it is and its place in the pool."""
    return {field: value for field, value in spec.items() if field not in ("driver", "nodeName", "pool")}


def generate_name(index: int, node: NodeName) -> str:
    """The beginning of a slice's name. The index comes first: the scheduler goes by name, and the API server cuts at the end."""
    return f"{index:05x}-{inventory.DRIVER}-{node}-"


def _chunks(items: Sequence[Document], size: int) -> list[Sequence[Document]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def _match(
    stored: Sequence[StoredSlice], *, names: Sequence[str], pool: NodeName
) -> tuple[dict[int, StoredSlice], list[StoredSlice]]:
    """The slice to keep at each index, and the rest. Of several at one index the one of the highest generation, then by name."""
    kept: dict[int, StoredSlice] = {}
    obsolete: list[StoredSlice] = []
    alive = [s for s in stored if "deletionTimestamp" not in s.document["metadata"]]
    for candidate in sorted(alive, key=lambda s: (-s.generation, s.name)):
        index = names.index(candidate.generate_name) if candidate.generate_name in names else None
        if index is None or index in kept or candidate.pool != pool:
            obsolete.append(candidate)
        else:
            kept[index] = candidate
    return dict(sorted(kept.items())), obsolete


def _specs(wishes: Sequence[Document], *, owner: PoolOwner, generation: int) -> list[Document]:
    pool = {"name": owner.node, "generation": generation, "resourceSliceCount": len(wishes)}
    return [{"driver": inventory.DRIVER, "nodeName": owner.node, "pool": pool, **wish} for wish in wishes]


def _differs(spec: Document, stored: StoredSlice, owner: PoolOwner) -> bool:
    return bool(differences(spec, stored.spec)) or owner.node_uid not in stored.owner_uids


def _replaced(stored: StoredSlice, *, spec: Document, owner: PoolOwner) -> Document:
    metadata: Mapping[str, object] = {**stored.document["metadata"], "ownerReferences": owner.references}
    return {**stored.document, "metadata": metadata, "spec": with_times_of(spec, stored.spec)}


def _created(index: int, *, spec: Document, owner: PoolOwner) -> Document:
    return {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "metadata": {"generateName": generate_name(index, owner.node), "ownerReferences": owner.references},
        "spec": spec,
    }
