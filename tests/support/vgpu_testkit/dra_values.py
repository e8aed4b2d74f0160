"""The example claim of examples/ and the node it is prepared on, as values: two requests on two GPUs of eight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from vgpu_dra.inventory import Gpu, Inventory, MigDevice, Traits
from vgpu_dra.policy.admission import ContainerFacts, ShownDevice
from vgpu_dra.policy.listing import ListedDevice
from vgpu_dra.rules import NodeRules
from vgpu_state.claims import (
    Binding,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Consumed,
    ContainerKind,
    EagerAssignment,
    EagerContainer,
    EagerPartition,
    EagerReason,
    Grant,
    HolderState,
    PodRef,
    PreparedGpu,
    PreparedMig,
    PreparedVgpu,
)
from vgpu_state.container_abi import Mount
from vgpu_state.grants import ShownGrant
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
)
from vgpu_state.layout import Layout

GIB = 1 << 30
MIB = 1 << 20

CLAIM_UID = ClaimUid("3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10")
CLAIM = ClaimRef(namespace="research", name="two-workers", uid=CLAIM_UID)
BOOT_ID = "5d9c1f2e-3c57-4c0f-8a0b-0d6a3d1f7b21"
POD = PodRef(uid=PodUid("0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11"), namespace="research", name="two-workers-0")
RUNTIME_ID = RuntimeId("9f3d6c0e4b6a41d2b7b0f5a1d2c3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b")
NEXT_RUNTIME_ID = RuntimeId("a" * 64)
# A container of another pod of the same kind.
OTHER_POD = PodRef(uid=PodUid("11111111-2222-4333-8444-555555555555"), namespace="research", name="two-workers-1")
OTHER_ID = RuntimeId("c" * 64)
SESSION = 918273645000111
PARTITION = PartitionName("0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11_train")
HOST = Layout(PurePosixPath("/etc/vgpu-manager"))


def gpu_uuid(index: int) -> GpuUuid:
    return GpuUuid(f"GPU-5e5a3bb1-7d0c-4d58-9c1a-{index:012d}")


def h100(index: int, *, minor: int | None = None) -> Gpu:
    return Gpu(
        index=index,
        minor=index if minor is None else minor,
        uuid=gpu_uuid(index),
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=81559 * MIB,
        traits=Traits(
            brand="Nvidia",
            architecture="Hopper",
            compute_capability=(9, 0),
            pci_bus_id=f"0000:{0x1B + index:02x}:00.0",
            pcie_root="pci0000:15",
            numa_node=0 if index < 4 else 1,
        ),
    )


INVENTORY = Inventory(gpus=tuple(h100(i) for i in range(8)), driver_version="550.90.07", cuda_version=(12, 4))

TRAINER = PreparedVgpu(
    request=RequestName("trainer"),
    pool=PoolName("node-a"),
    device=DeviceName("vgpu-5"),
    share_id=ShareId("8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01"),
    consumed=Consumed(cores_percent=50, memory_bytes=40 * GIB),
    gpu_uuid=gpu_uuid(5),
    cdi_device="3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10-trainer-vgpu-5-8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01",
    grant=Grant(key=GrantKey("4e2893ec0fa33030"), nonce=Nonce("c0ffee00c0ffee00c0ffee00c0ffee05")),
)
SERVER = PreparedVgpu(
    request=RequestName("server"),
    pool=PoolName("node-a"),
    device=DeviceName("vgpu-1"),
    share_id=ShareId("51c7b0de-9a39-4d0c-a3b4-5d4f9d3a7702"),
    consumed=Consumed(cores_percent=20, memory_bytes=8 * GIB),
    gpu_uuid=gpu_uuid(1),
    cdi_device="3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10-server-vgpu-1-51c7b0de-9a39-4d0c-a3b4-5d4f9d3a7702",
    grant=Grant(key=GrantKey("a8de55c43130f206"), nonce=Nonce("c0ffee00c0ffee00c0ffee00c0ffee01")),
)
WHOLE = PreparedGpu(
    request=RequestName("solver"),
    pool=PoolName("node-a"),
    device=DeviceName("gpu-2"),
    share_id=ShareId(""),
    gpu_uuid=gpu_uuid(2),
    cdi_device="3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10-solver-gpu-2",
    has_admin_access=False,
)
MIG = MigDevice(
    uuid=MigUuid("MIG-5e5a3bb1-7d0c-4d58-9c1a-0000000003a0"),
    gpu_instance=9,
    compute_instance=0,
    profile="1g.10gb",
    profile_id=19,
    start=2,
    size=1,
    memory_bytes=9856 * MIB,
    multiprocessors=16,
    copy_engines=1,
    decoders=1,
    encoders=0,
    jpeg_engines=1,
    ofa_engines=0,
)
SLICE = PreparedMig(
    request=RequestName("tester"),
    pool=PoolName("node-a"),
    device=DeviceName("gpu-3-mig-19-2-1"),
    share_id=ShareId(""),
    gpu_uuid=gpu_uuid(3),
    cdi_device="3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10-tester-gpu-3-mig-19-2-1",
    mig_uuid=MIG.uuid,
)
# The same node with GPU 3 in MIG mode and one device on it.
MIG_INVENTORY = replace(
    INVENTORY, gpus=tuple(replace(g, is_mig=True, mig_devices=(MIG,)) if g.index == 3 else g for g in INVENTORY.gpus)
)
RECORD = ClaimRecord(claim=CLAIM, boot_id=BOOT_ID, state=ClaimState.PREPARED, results=(TRAINER, SERVER))
# The same claim as it is prepared without NRI, for a pod whose containers `warm` (init) and `serve` take turns on one request.
TRAIN_PARTITION = EagerPartition(
    name=PartitionName("cg-fb9d07f1d087"),
    containers=(EagerContainer(name=ContainerName("train"), kind=ContainerKind.APP),),
    requests=(RequestName("trainer"),),
    register_uuid=RegisterUuid("6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3c001"),
)
SERVE_PARTITION = EagerPartition(
    name=PartitionName("cg-e059ca630ba9"),
    containers=(
        EagerContainer(name=ContainerName("serve"), kind=ContainerKind.APP),
        EagerContainer(name=ContainerName("warm"), kind=ContainerKind.INIT),
    ),
    requests=(RequestName("server"),),
    register_uuid=RegisterUuid("6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3c002"),
)
EAGER_RECORD = replace(
    RECORD,
    eager=EagerAssignment(reason=EagerReason.NRI_LOST, pod=POD, partitions=(TRAIN_PARTITION, SERVE_PARTITION)),
)
BINDING = Binding(
    pod=POD,
    container=ContainerName("train"),
    runtime_id=RUNTIME_ID,
    session=SESSION,
    cgroup="",
    state=HolderState.CREATED,
    grants=(GrantKey("4e2893ec0fa33030"),),
)

TRAINER_GRANT = ShownGrant(
    key=TRAINER.grant.key, claim_uid=CLAIM_UID, request=TRAINER.request, nonce=Nonce("c0ffee00c0ffee00c0ffee00c0ffee05")
)
SERVER_GRANT = ShownGrant(
    key=SERVER.grant.key, claim_uid=CLAIM_UID, request=SERVER.request, nonce=Nonce("c0ffee00c0ffee00c0ffee00c0ffee01")
)

# What the CDI edits of the example claim mount into a container of it.
CDI_MOUNTS = (
    Mount(destination="/etc/vgpu-manager", source="/etc/vgpu-manager/skeleton"),
    Mount(destination="/etc/vgpu-manager/registry", source="/etc/vgpu-manager/registry"),
    Mount(destination="/etc/vgpu-manager/driver/libvgpu-control.so", source="/etc/vgpu-manager/libvgpu-control.so.v1.0.0"),
    Mount(destination="/etc/ld.so.preload", source="/etc/vgpu-manager/ld.so.preload"),
    Mount(
        destination="/etc/vgpu-manager/config",
        source="/etc/vgpu-manager/claims/3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10/created-without-nri",
    ),
)
CONTROL_NODES = (
    ShownDevice(path="/dev/nvidiactl", major=195, minor=255),
    ShownDevice(path="/dev/nvidia-uvm", major=510, minor=0),
    ShownDevice(path="/dev/nvidia-uvm-tools", major=510, minor=1),
)


def gpu_node(minor: int) -> ShownDevice:
    return ShownDevice(path=f"/dev/nvidia{minor}", major=195, minor=minor)


# The container `train`, as the runtime shows it after the CDI edits.
FACTS = ContainerFacts(
    runtime_id=RUNTIME_ID,
    name=ContainerName("train"),
    pod=POD,
    runtime_handler="",
    grants=(TRAINER_GRANT,),
    mounts=CDI_MOUNTS,
    devices=(gpu_node(5), *CONTROL_NODES),
    allows_all_devices=False,
)
# What kubelet says of `train`, which has the share of TRAINER.
LISTED = ListedDevice(
    claim_namespace="research",
    claim_name="two-workers",
    driver="manager.nvidia.com",
    pool="node-a",
    device="vgpu-5",
    share_id="8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01",
)
RULES = NodeRules(
    host=HOST,
    library_version="v1.0.0",
    private_paths=(
        "/etc/vgpu-manager",
        "/var/run/cdi",
        "/run/vgpu-manager",
        "/var/lib/kubelet/plugins",
        "/var/lib/kubelet/plugins_registry",
    ),
    runtime_handlers=("", "nvidia*"),
    allows_privileged=False,
)
