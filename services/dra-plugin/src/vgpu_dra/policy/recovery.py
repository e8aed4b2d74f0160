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
    """One claim directory. `record` is None without claim.json, and the reason's text when it is unusable."""

    record: ClaimRecord | str | None
    bindings: Mapping[PartitionName, Binding | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPlan:
    """Keep `kept` as they are, write `renewed` anew without their bindings, undo the others."""

    kept: Mapping[ClaimUid, ClaimRecord]
    renewed: Mapping[ClaimUid, ClaimRecord]
    quarantined: Mapping[ClaimUid, str]
    undone: tuple[ClaimUid, ...]
    bindings: Mapping[ClaimUid, Mapping[PartitionName, Binding]]
    discarded: tuple[tuple[ClaimUid, PartitionName], ...]


def plan_recovery(found: Mapping[ClaimUid, FoundClaim], *, boot_id: str) -> RecoveryPlan:
    """A record of another boot loses its bindings, since their containers ended with it; a partition without a readable
    binding never had a container.
    """
    kept: dict[ClaimUid, ClaimRecord] = {}
    renewed: dict[ClaimUid, ClaimRecord] = {}
    quarantined: dict[ClaimUid, str] = {}
    undone: list[ClaimUid] = []
    bindings: dict[ClaimUid, dict[PartitionName, Binding]] = {}
    discarded: list[tuple[ClaimUid, PartitionName]] = []
    for uid, claim in found.items():
        match claim.record:
            case str() as reason:
                quarantined[uid] = reason
            case ClaimRecord() as record if record.claim.uid != uid:
                quarantined[uid] = f"claim.json speaks of claim {record.claim.uid}"
            case ClaimRecord(state=ClaimState.PREPARED, boot_id=then) as record if then != boot_id:
                renewed[uid] = replace(record, boot_id=boot_id)
                discarded += [(uid, name) for name in claim.bindings]
            case ClaimRecord(state=ClaimState.PREPARED) as record:
                kept[uid] = record
                bindings[uid] = {name: b for name, b in claim.bindings.items() if b is not None}
                discarded += [(uid, name) for name, b in claim.bindings.items() if b is None]
            case _:
                undone.append(uid)
    return RecoveryPlan(
        kept=kept,
        renewed=renewed,
        quarantined=quarantined,
        undone=tuple(undone),
        bindings=bindings,
        discarded=tuple(discarded),
    )
