"""The GPUs of this node, as values. Devices are known by UUID; index and minor may change at every boot."""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_state import container_abi
from vgpu_state.ids import DeviceName, GpuUuid

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
class Gpu:
    """One GPU: `index` is NVML's (the slot in the limits file), `minor` that of /dev/nvidia<minor> (the device's name)."""

    index: int
    minor: int
    uuid: GpuUuid
    name: str
    memory_bytes: int
    traits: Traits

    @property
    def vgpu_device(self) -> DeviceName:
        return DeviceName(f"vgpu-{self.minor}")

    @property
    def has_slot(self) -> bool:
        """Whether the limits file has a slot at this GPU's index."""
        return self.index < container_abi.MAX_DEVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs and the driver's versions, as read at one moment.

    `unreadable` has a sentence for each GPU that NVML counts and says nothing of; it is not among `gpus`.
    """

    gpus: tuple[Gpu, ...]
    driver_version: str
    cuda_version: tuple[int, int]
    unreadable: tuple[str, ...] = ()

    def by_device(self, name: DeviceName) -> Gpu | None:
        return next((g for g in self.gpus if g.vgpu_device == name), None)

    def by_uuid(self, uuid: GpuUuid) -> Gpu | None:
        return next((g for g in self.gpus if g.uuid == uuid), None)
