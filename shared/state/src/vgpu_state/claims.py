"""Values of a claim on this node: what was allocated, what was prepared, who holds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vgpu_state.ids import (
    ClaimUid,
    ContainerName,
    DeviceName,
    GpuUuid,
    GrantKey,
    Nonce,
    PodUid,
    PoolName,
    RequestName,
    RuntimeId,
    ShareId,
)


class ClaimState(StrEnum):
    """STARTED: side effects may exist, kubelet has no answer yet. PREPARED: kubelet has, or may have, the devices."""

    STARTED = "started"
    PREPARED = "prepared"


class AssignmentMode(StrEnum):
    """When a container's partition is made: at its creation through NRI, or at Prepare."""

    LAZY = "lazy"
    EAGER = "eager"


class DeviceKind(StrEnum):
    """How a device uses its GPU: VGPU as one of several shares, GPU as a whole, MIG as a partition that the hardware keeps."""

    VGPU = "vgpu"
    GPU = "gpu"
    MIG = "mig"


class HolderState(StrEnum):
    """CREATED: its requests are taken. STOPPED: they are free, the directory stays until the container is removed."""

    CREATED = "created"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """Which ResourceClaim: the uid identifies, namespace and name are for people and for the API server."""

    namespace: str
    name: str
    uid: ClaimUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} ({self.uid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """One share of a device: percent of its compute (0 = not limited) and bytes of its memory."""

    cores_percent: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The right to one prepared device: `key` names it, `nonce` is the secret and is never logged."""

    key: GrantKey
    nonce: Nonce

    def __repr__(self) -> str:
        return f"Grant(key={self.key!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedResult:
    """One allocation result of a claim, prepared: request × device × share, and all that undoing it needs."""

    request: RequestName
    pool: PoolName
    device: DeviceName
    share_id: ShareId
    consumed: Consumed
    gpu_uuid: GpuUuid
    cdi_device: str
    grant: Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """A claim on this node as claim.json holds it. `results` stand in the order of the allocation."""

    claim: ClaimRef
    boot_id: str
    state: ClaimState
    mode: AssignmentMode
    results: tuple[PreparedResult, ...]

    def result_by_key(self) -> dict[GrantKey, PreparedResult]:
        return {r.grant.key: r for r in self.results}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """Which pod: the uid identifies, namespace and name are for people and for the limits file."""

    uid: PodUid
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Who holds a partition. `cgroup` is the path as /proc shows it, "" until the start is recorded."""

    pod: PodRef
    container: ContainerName
    runtime_id: RuntimeId
    session: int
    cgroup: str
    state: HolderState
    grants: tuple[GrantKey, ...]

    @property
    def is_started(self) -> bool:
        return self.cgroup != ""
