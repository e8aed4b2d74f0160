"""What the tree of a dead predecessor means: pure, over what was found on disk.

A claim is fully prepared or fully undone: a Prepare that was interrupted never answered kubelet, so nothing uses it, and
kubelet's retry prepares it anew. A directory that a container may have mounted is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vgpu_state.claims import Binding, ClaimRecord, ClaimState
from vgpu_state.ids import ClaimUid, PartitionName


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundClaim:
    """One claim directory. `record` is None without claim.json. What cannot be used is the reason's text.

    A partition has a binding, or None where it has no binding.json.
    """

    record: ClaimRecord | str | None
    bindings: Mapping[PartitionName, Binding | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Keep `kept` as they are, write `renewed` anew without their bindings, undo the others.

    `discarded` partitions go; `vacated` ones, which were made at Prepare, stay without their holder.
    """

    kept: Mapping[ClaimUid, ClaimRecord]
    renewed: Mapping[ClaimUid, ClaimRecord]
    quarantined: Mapping[ClaimUid, str]
    undone: tuple[ClaimUid, ...]
    bindings: Mapping[ClaimUid, Mapping[PartitionName, Binding]]
    discarded: tuple[tuple[ClaimUid, PartitionName], ...]
    vacated: tuple[tuple[ClaimUid, PartitionName], ...]


def plan_recovery(found: Mapping[ClaimUid, FoundClaim], *, boot_id: str) -> RecoveryPlan:
    """A record of another boot loses its bindings, since their containers ended with it.

    In the same boot a partition whose binding cannot be used may be a live container's: nobody can say whose, so the claim is
    quarantined and its directory stays as it is.
    """
    kept: dict[ClaimUid, ClaimRecord] = {}
    renewed: dict[ClaimUid, ClaimRecord] = {}
    quarantined: dict[ClaimUid, str] = {}
    undone: list[ClaimUid] = []
    bindings: dict[ClaimUid, dict[PartitionName, Binding]] = {}
    discarded: list[tuple[ClaimUid, PartitionName]] = []
    vacated: list[tuple[ClaimUid, PartitionName]] = []
    for uid, claim in found.items():
        match claim.record:
            case str() as reason:
                quarantined[uid] = reason
            case ClaimRecord() as record if record.claim.uid != uid:
                quarantined[uid] = f"claim.json speaks of claim {record.claim.uid}"
            case ClaimRecord(state=ClaimState.PREPARED, boot_id=then) as record if then != boot_id:
                renewed[uid] = replace(record, boot_id=boot_id)
                own = _made_at_prepare(record)
                discarded += [(uid, name) for name in claim.bindings if name not in own]
                vacated += [(uid, name) for name in claim.bindings if name in own]
            case ClaimRecord(state=ClaimState.PREPARED) as record:
                unusable = _unusable(claim.bindings, vacant=_made_at_prepare(record))
                if unusable:
                    quarantined[uid] = unusable[0]
                    continue
                kept[uid] = record
                bindings[uid] = {name: b for name, b in claim.bindings.items() if isinstance(b, Binding)}
            case _:
                undone.append(uid)
    return RecoveryPlan(
        kept=kept,
        renewed=renewed,
        quarantined=quarantined,
        undone=tuple(undone),
        bindings=bindings,
        discarded=tuple(discarded),
        vacated=tuple(vacated),
    )


def _made_at_prepare(record: ClaimRecord) -> frozenset[PartitionName]:
    return frozenset(p.name for p in record.eager.partitions) if record.eager is not None else frozenset()


def _unusable(bindings: Mapping[PartitionName, Binding | str | None], *, vacant: frozenset[PartitionName]) -> list[str]:
    """Why nobody can say whose a partition is, for each such; those that may be `vacant` are nobody's without a binding."""
    found = {name: b for name, b in bindings.items() if not isinstance(b, Binding) and not (b is None and name in vacant)}
    return [f"partition {name}: {reason or 'it has no binding.json'}" for name, reason in found.items()]
