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
    """One claim directory. `record` is None without claim.json. What cannot be used is the reason's text."""

    record: ClaimRecord | str | None
    bindings: Mapping[PartitionName, Binding | str]


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
                unusable = [f"partition {name}: {b}" for name, b in claim.bindings.items() if isinstance(b, str)]
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
    )
