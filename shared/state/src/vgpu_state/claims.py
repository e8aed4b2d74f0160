"""Values of a claim on this node: what was allocated, what was prepared, who holds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from vgpu_state.ids import (
    ClaimUid,
    ContainerName,
    DeviceName,
    GpuUuid,
    GrantKey,
    MigUuid,
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


class ComputePolicy(StrEnum):
    """What a vGPU's percent of compute means: FIXED is never exceeded, BALANCE is on an idle GPU, NONE limits nothing."""

    FIXED = "fixed"
    BALANCE = "balance"
    NONE = "none"


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
class _Prepared:
    """One allocation result of a claim, prepared: request × device × share, and all that undoing it needs."""

    kind: ClassVar[DeviceKind]

    request: RequestName
    pool: PoolName
    device: DeviceName
    share_id: ShareId
    gpu_uuid: GpuUuid
    cdi_device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedVgpu(_Prepared):
    """A share of a GPU: what its container may use of it, and the grant by which the container shows that it was given it."""

    kind: ClassVar[DeviceKind] = DeviceKind.VGPU

    consumed: Consumed
    grant: Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedGpu(_Prepared):
    """A whole GPU, nothing of which we limit. With admin access it is looked at beside its users."""

    kind: ClassVar[DeviceKind] = DeviceKind.GPU

    has_admin_access: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedMig(_Prepared):
    """A MIG device, which the hardware limits. Its instances' numbers are looked up by its UUID."""

    kind: ClassVar[DeviceKind] = DeviceKind.MIG

    mig_uuid: MigUuid


PreparedResult = PreparedVgpu | PreparedGpu | PreparedMig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """A claim on this node as claim.json holds it. `results` stand in the order of the allocation."""

    claim: ClaimRef
    boot_id: str
    state: ClaimState
    mode: AssignmentMode
    policy: ComputePolicy = ComputePolicy.FIXED
    results: tuple[PreparedResult, ...]

    @property
    def vgpus(self) -> tuple[PreparedVgpu, ...]:
        """The results that a container needs a grant for, in their order."""
        return tuple(r for r in self.results if isinstance(r, PreparedVgpu))

    def vgpu_by_key(self) -> dict[GrantKey, PreparedVgpu]:
        return {r.grant.key: r for r in self.vgpus}


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
