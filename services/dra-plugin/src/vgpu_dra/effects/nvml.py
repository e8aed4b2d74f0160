"""NVML → Look, through nvidia-ml-py. Every call may block for ever: only `gpus.Gpus` calls this, on its own thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml

from vgpu_dra.effects import nvml_health, nvml_mig, pci
from vgpu_dra.effects.nvml_library import NvmlLibrary, ends_session, said, text
from vgpu_dra.inventory import Gpu, Inventory, Traits
from vgpu_dra.readings import Look, Reading
from vgpu_state import ids
from vgpu_state.errors import MalformedInput, NotReady

# The words of NVIDIA's own drivers, which claims select by. Source: go-nvlib, device.GetBrandAsString, GetArchitectureAsString.
_BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NvidiaVApps",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NvidiaVPC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NvidiaVCS",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NvidiaVWS",
    pynvml.NVML_BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForceRTX",
    pynvml.NVML_BRAND_TITAN_RTX: "TitanRTX",
}
_ARCHITECTURES = {
    pynvml.NVML_DEVICE_ARCH_KEPLER: "Kepler",
    pynvml.NVML_DEVICE_ARCH_MAXWELL: "Maxwell",
    pynvml.NVML_DEVICE_ARCH_PASCAL: "Pascal",
    pynvml.NVML_DEVICE_ARCH_VOLTA: "Volta",
    pynvml.NVML_DEVICE_ARCH_TURING: "Turing",
    pynvml.NVML_DEVICE_ARCH_AMPERE: "Ampere",
    pynvml.NVML_DEVICE_ARCH_ADA: "Ada Lovelace",
    pynvml.NVML_DEVICE_ARCH_HOPPER: "Hopper",
    pynvml.NVML_DEVICE_ARCH_BLACKWELL: "Blackwell",
}

# NVML finds GPUs when it is opened: one that fell off the bus comes back in a new session only. Rarely, since events are missed
# while the session changes.
_LOOKS_IN_A_SESSION_OF_LOST_GPUS = 6


class NvmlReader:
    """Looks at all GPUs of the node, in the library's session, which it opens anew when the driver was replaced."""

    def __init__(self, library: NvmlLibrary, *, sys_root: Path = Path("/sys")) -> None:
        self._library = library
        self._sys_root = sys_root
        self._incomplete_looks = 0
        self._most_gpus = 0

    def look(self) -> Look:
        """The GPUs now, in NVML's order, and how each is; one that is lost takes no other with it.

        Raises:
            NotReady: no driver under the driver root, NVML answered an error, or it says nothing of any GPU.
        """
        try:
            self._library.open()
            found = self._look()
        except pynvml.NVMLError as exc:
            self._close_after(exc)
            raise NotReady(f"NVML answered: {exc}") from exc
        self._most_gpus = max(self._most_gpus, len(found.inventory.gpus))
        is_complete = len(found.inventory.gpus) == self._most_gpus
        self._incomplete_looks = 0 if is_complete else self._incomplete_looks + 1
        if self._incomplete_looks >= _LOOKS_IN_A_SESSION_OF_LOST_GPUS:
            self._library.close()
            self._incomplete_looks = 0
        return found

    def _look(self) -> Look:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        gpus: list[Gpu] = []
        readings: dict[ids.GpuUuid, Reading] = {}
        unreadable: list[str] = []
        failure: Exception | None = None
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpu, left_out = _read_gpu(handle, index, sys_root=self._sys_root)
                readings[gpu.uuid] = nvml_health.read(handle)
                gpus.append(gpu)
                unreadable += [f"GPU at NVML index {index}: {reason}" for reason in left_out]
            except (pynvml.NVMLError, MalformedInput) as exc:
                failure = exc
                unreadable.append(f"GPU at NVML index {index}: {exc}")
        if failure is not None and not gpus:
            self._close_after(failure)
            raise NotReady(f"NVML answered: {'; '.join(unreadable)}")
        return Look(
            inventory=Inventory(
                gpus=tuple(gpus),
                unreadable=tuple(unreadable),
                driver_version=text(pynvml.nvmlSystemGetDriverVersion()),
                cuda_version=(cuda // 1000, cuda % 1000 // 10),
            ),
            readings=readings,
        )

    def _close_after(self, failure: Exception) -> None:
        if isinstance(failure, pynvml.NVMLError) and ends_session(failure):
            self._library.close()


def _read_gpu(handle: Any, index: int, *, sys_root: Path) -> tuple[Gpu, tuple[str, ...]]:  # Any: pynvml's opaque pointer
    """The GPU, and a sentence for each of its MIG devices that is left out."""
    memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    is_mig = nvml_mig.is_partitioned(handle)
    mig_devices, left_out = nvml_mig.read_mig_devices(handle, gpu_memory_bytes=memory_bytes) if is_mig else ((), ())
    gpu = Gpu(
        index=index,
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        uuid=ids.parse_gpu_uuid(text(pynvml.nvmlDeviceGetUUID(handle))),
        name=text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory_bytes,
        traits=_read_traits(handle, sys_root=sys_root),
        is_mig=is_mig,
        mig_devices=mig_devices,
    )
    return gpu, left_out


def _read_traits(handle: Any, *, sys_root: Path) -> Traits:  # Any: pynvml's opaque pointer
    info = said(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    bus_id = None if info is None else pci.bus_id(text(info.busId))
    return Traits(
        brand=_BRANDS.get(said(lambda: pynvml.nvmlDeviceGetBrand(handle))),
        architecture=_ARCHITECTURES.get(said(lambda: pynvml.nvmlDeviceGetArchitecture(handle))),
        compute_capability=said(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        pci_bus_id=bus_id,
        pcie_root=None if bus_id is None else pci.root_complex(bus_id, sys_root=sys_root),
        # NVML's own NumaNodeId is another thing: the node that a coherent GPU's memory is, not the one it sits next to.
        numa_node=None if bus_id is None else pci.numa_node(bus_id, sys_root=sys_root),
    )
