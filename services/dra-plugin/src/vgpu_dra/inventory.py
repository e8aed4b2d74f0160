"""The GPUs of this node, as values. Devices are known by UUID; index and minor may change at every boot."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vgpu_state import container_abi
from vgpu_state.claims import DeviceKind
from vgpu_state.ids import DeviceName, GpuUuid, MigUuid

_SHARE_PREFIX = "vgpu-"
DRIVER = "manager.nvidia.com"
WHOLE_CORES_PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a claim may select a GPU by. None is what the driver or the kernel does not say of it.

    `pci_bus_id` is the kernel's spelling ("0000:1b:00.0"), `pcie_root` the root complex above it ("pci0000:15"), `numa_node` the
    memory next to its slot. `brand` and `architecture` are NVIDIA's words for NVML's numbers.
    """

    brand: str | None
    architecture: str | None
    compute_capability: tuple[int, int] | None
    pci_bus_id: str | None
    pcie_root: str | None
    numa_node: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG device that exists now: one compute instance in a GPU instance, which others made and only they remove.

    `profile` is NVIDIA's name ("1g.10gb", "1g.10gb+me"), `profile_id` the board's number for it (19). `start` and `size` are the
    GPU instance's memory slices. The counts are of units that the device has, shared ones included.
    """

    uuid: MigUuid
    gpu_instance: int
    compute_instance: int
    profile: str
    profile_id: int
    start: int
    size: int
    memory_bytes: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: `index` is NVML's (the slot in the limits file), `minor` that of /dev/nvidia<minor> (the device's name).

    With `is_mig` the driver lets nothing run on it as a whole; `mig_devices` are those that exist.
    """

    index: int
    minor: int
    uuid: GpuUuid
    name: str
    memory_bytes: int
    traits: Traits
    is_mig: bool = False
    mig_devices: tuple[MigDevice, ...] = ()

    @property
    def vgpu_device(self) -> DeviceName:
        return DeviceName(f"{_SHARE_PREFIX}{self.minor}")

    @property
    def whole_device(self) -> DeviceName:
        return DeviceName(f"gpu-{self.minor}")

    def mig_device(self, mig: MigDevice) -> DeviceName:
        """Source: vgpu-manager pkg/kubeletplugin/deviceinfo.go, static MIG devices."""
        return DeviceName(f"gpu-{self.minor}-mig-{mig.profile_id}-{mig.start}-{mig.size}")

    @property
    def has_slot(self) -> bool:
        """Whether the limits file has a slot at this GPU's index."""
        return self.index < container_abi.MAX_DEVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a device's name stands for: a kind of use of `gpu`, of `mig` on it where the kind is MIG."""

    kind: DeviceKind
    gpu: Gpu
    mig: MigDevice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs and the driver's versions, as read at one moment.

    `unreadable` has a sentence for each GPU that NVML counts and says nothing of, which is not among `gpus`, and for each MIG
    device that is left out of its GPU's. `lost` names those of `gpus` that were known and cannot be reached now: all said of
    them is what was read last.
    """

    gpus: tuple[Gpu, ...]
    driver_version: str
    cuda_version: tuple[int, int]
    unreadable: tuple[str, ...] = ()
    lost: frozenset[GpuUuid] = frozenset()

    def keeping(self, known: Inventory) -> Inventory:
        """With the GPUs of `known` that are missing here, as lost; not those whose minor another GPU has now.

        Their index says nothing: where NVML counts a GPU no more, those behind it move up.
        """
        missing = [g for g in known.gpus if not any(g.uuid == other.uuid or g.minor == other.minor for other in self.gpus)]
        return replace(
            self,
            gpus=tuple(sorted((*missing, *self.gpus), key=lambda gpu: gpu.index)),  # before who has moved up to its index
            lost=frozenset(gpu.uuid for gpu in missing),
        )

    def all_lost(self) -> Inventory:
        """The same GPUs, none of which can be reached."""
        return replace(self, lost=frozenset(gpu.uuid for gpu in self.gpus))

    def devices(self) -> dict[DeviceName, Device]:
        """Every device that the GPUs can be used as, by name, whether it is offered or not."""
        found: dict[DeviceName, Device] = {}
        for gpu in self.gpus:
            found[gpu.vgpu_device] = Device(kind=DeviceKind.VGPU, gpu=gpu)
            found[gpu.whole_device] = Device(kind=DeviceKind.GPU, gpu=gpu)
            found |= {gpu.mig_device(m): Device(kind=DeviceKind.MIG, gpu=gpu, mig=m) for m in gpu.mig_devices}
        return found

    def by_uuid(self, uuid: GpuUuid) -> Gpu | None:
        return next((g for g in self.gpus if g.uuid == uuid), None)


def names_share(device: DeviceName) -> bool:
    """Whether a device of this name is given away in shares, on this node or another."""
    return device.startswith(_SHARE_PREFIX)
