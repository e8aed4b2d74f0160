"""What the partitions' operations take and answer."""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state.container_abi import Mount
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, PodUid, RuntimeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A container's partition and what the runtime must add to the container for it."""

    claim_uid: ClaimUid
    partition: PartitionName
    mounts: tuple[Mount, ...]
    env: tuple[tuple[str, str], ...]
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A live vGPU container as the runtime's replay has it. `facts` None: its grants are malformed; `pid` 0: not started."""

    runtime_id: RuntimeId
    facts: ContainerFacts | None
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrant:
    """Who registers: by the kernel's word, but for `container`, which it says itself, "" where it does not."""

    runtime_id: RuntimeId
    pod_uid: PodUid
    pid: int
    container: ContainerName


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What Synchronize found: containers without a binding, with other limits or mounts than theirs, bindings released."""

    unbound: tuple[RuntimeId, ...]
    drifted: tuple[RuntimeId, ...]
    released: tuple[RuntimeId, ...]
