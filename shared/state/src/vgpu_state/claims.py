"""Values of a claim on this node: what was allocated, what was prepared, who holds it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.ids import (
    ClaimUid,
    ContainerName,
    DeviceName,
    GpuUuid,
    GrantKey,
    MigUuid,
    Nonce,
    PartitionName,
    PodUid,
    PoolName,
    RegisterUuid,
    RequestName,
    RuntimeId,
    ShareId,
    main_request,
)


class ClaimState(StrEnum):
    """STARTED: side effects may exist, kubelet has no answer yet. PREPARED: kubelet has, or may have, the devices."""

    STARTED = "started"
    PREPARED = "prepared"


class AssignmentMode(StrEnum):
    """When a container's partition is made: at its creation through NRI, or at Prepare."""

    LAZY = "lazy"
    EAGER = "eager"


class EagerReason(StrEnum):
    """Why the partitions of a claim were made at Prepare."""

    NRI_DISABLED = "nri_disabled"  # by the feature gate
    NRI_ABSENT = "nri_absent"  # nri-plugin has had no session since this dra-plugin started
    NRI_LOST = "nri_lost"  # it had one, and did not come back in time


class ContainerKind(StrEnum):
    """When a container of a pod runs: INIT before the app containers and one at a time, SIDECAR from its turn among them on."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


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
class PodRef:
    """Which pod: the uid identifies, namespace and name are for people and for the limits file."""

    uid: PodUid
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerContainer:
    """A container of the claim's pod that may hold a partition."""

    name: ContainerName
    kind: ContainerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerPartition:
    """A partition made at Prepare: for whom, over which requests (main names), and the UUID to register with.

    `register_uuid` is None where nothing registers. Its containers run one after the other.
    """

    name: PartitionName
    containers: tuple[EagerContainer, ...]
    requests: tuple[RequestName, ...]
    register_uuid: RegisterUuid | None

    @property
    def sole_container(self) -> ContainerName:
        """The container whose partition it is; "" where several take turns."""
        return self.containers[0].name if len(self.containers) == 1 else ContainerName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerAssignment:
    """The partitions of a claim that were made at Prepare, for the containers of one pod."""

    reason: EagerReason
    pod: PodRef
    partitions: tuple[EagerPartition, ...]

    def partition_of(self, request: RequestName) -> EagerPartition | None:
        """The partition that a request belongs to; None where no container of the pod refers to it."""
        return next((p for p in self.partitions if main_request(request) in p.requests), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """A claim on this node as claim.json holds it. `results` stand in the order of the allocation.

    `eager` are the partitions made at Prepare; None: each is made as its container is created.
    """

    claim: ClaimRef
    boot_id: str
    state: ClaimState
    policy: ComputePolicy = ComputePolicy.FIXED
    compatibility: CompatibilityMode = CompatibilityMode.CLIENT
    eager: EagerAssignment | None = None
    results: tuple[PreparedResult, ...]

    @property
    def mode(self) -> AssignmentMode:
        return AssignmentMode.LAZY if self.eager is None else AssignmentMode.EAGER

    @property
    def vgpus(self) -> tuple[PreparedVgpu, ...]:
        """The results that a container needs a grant for, in their order."""
        return tuple(r for r in self.results if isinstance(r, PreparedVgpu))

    def vgpu_by_key(self) -> dict[GrantKey, PreparedVgpu]:
        return {r.grant.key: r for r in self.vgpus}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Who holds a partition. `cgroup` is the path as /proc shows it, "" until the start is recorded.

    `container` is "" where a partition that several take turns in was taken without a word of who it is. `home` is the claim that
    has the container's partition, where that is another: this one's requests are then part of it.
    """

    pod: PodRef
    container: ContainerName
    runtime_id: RuntimeId
    session: int
    cgroup: str
    state: HolderState
    grants: tuple[GrantKey, ...]
    home: ClaimUid | None = None

    def __str__(self) -> str:
        container = f"container {self.container}" if self.container else f"a container ({self.runtime_id[:12]})"
        return f"{container} of pod {self.pod}"

    @property
    def is_started(self) -> bool:
        return self.cgroup != ""
