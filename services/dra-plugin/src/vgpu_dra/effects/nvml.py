"""NVML → Inventory, through nvidia-ml-py. Every call may block for ever: only `gpus.Gpus` calls this, on its own thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from vgpu_dra.effects import nvml_mig, pci
from vgpu_dra.effects.driver_files import find_nvml
from vgpu_dra.inventory import Gpu, Inventory, Traits
from vgpu_state import ids
from vgpu_state.errors import MalformedInput, NotReady

_T = TypeVar("_T")

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
_NOT_SAID = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA})


class NvmlReader:
    """Reads all GPUs of the node. The library is loaded once, from the driver root, and stays."""

    def __init__(self, driver_root: Path, *, sys_root: Path = Path("/sys")) -> None:
        self._driver_root = driver_root
        self._sys_root = sys_root
        self._library: ctypes.CDLL | None = None
        self._is_initialised = False

    def read(self) -> Inventory:
        """The GPUs now, in NVML's order; one that is lost takes no other with it.

        Raises:
            NotReady: no driver under the driver root, NVML answered an error, or it says nothing of any GPU.
        """
        try:
            self._load()
            return self._read()
        except pynvml.NVMLError as exc:
            raise NotReady(f"NVML answered: {exc}") from exc

    def _load(self) -> None:
        if self._library is None:
            path = find_nvml(self._driver_root)
            if path is None:
                raise NotReady(f"no libnvidia-ml.so.1 under {self._driver_root} (--driver-root): is the NVIDIA driver installed?")
            # nvidia-ml-py asks the loader for the bare name; the loader then finds this one, already loaded, by its SONAME.
            try:
                self._library = ctypes.CDLL(str(path))
            except OSError as exc:
                raise NotReady(f"cannot load {path}: {exc}") from exc
        if not self._is_initialised:
            pynvml.nvmlInit()
            self._is_initialised = True

    def _read(self) -> Inventory:
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        gpus: list[Gpu] = []
        unreadable: list[str] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpu, left_out = _read_gpu(index, sys_root=self._sys_root)
                gpus.append(gpu)
                unreadable += [f"GPU at NVML index {index}: {reason}" for reason in left_out]
            except (pynvml.NVMLError, MalformedInput) as exc:
                unreadable.append(f"GPU at NVML index {index}: {exc}")
        if unreadable and not gpus:
            raise NotReady(f"NVML answered: {'; '.join(unreadable)}")
        return Inventory(
            gpus=tuple(gpus),
            unreadable=tuple(unreadable),
            driver_version=_text(pynvml.nvmlSystemGetDriverVersion()),
            cuda_version=(cuda // 1000, cuda % 1000 // 10),
        )


def _read_gpu(index: int, *, sys_root: Path) -> tuple[Gpu, tuple[str, ...]]:
    """The GPU, and a sentence for each of its MIG devices that is left out."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).total
    is_mig = nvml_mig.is_partitioned(handle)
    mig_devices, left_out = nvml_mig.read_mig_devices(handle, gpu_memory_bytes=memory_bytes) if is_mig else ((), ())
    gpu = Gpu(
        index=index,
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        uuid=ids.parse_gpu_uuid(_text(pynvml.nvmlDeviceGetUUID(handle))),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory_bytes,
        traits=_read_traits(handle, sys_root=sys_root),
        is_mig=is_mig,
        mig_devices=mig_devices,
    )
    return gpu, left_out


def _read_traits(handle: Any, *, sys_root: Path) -> Traits:  # Any: pynvml's opaque pointer
    info = _said(lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    bus_id = None if info is None else pci.bus_id(_text(info.busId))
    return Traits(
        brand=_BRANDS.get(_said(lambda: pynvml.nvmlDeviceGetBrand(handle))),
        architecture=_ARCHITECTURES.get(_said(lambda: pynvml.nvmlDeviceGetArchitecture(handle))),
        compute_capability=_said(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        pci_bus_id=bus_id,
        pcie_root=None if bus_id is None else pci.root_complex(bus_id, sys_root=sys_root),
        # NVML's own NumaNodeId is another thing: the node that a coherent GPU's memory is, not the one it sits next to.
        numa_node=None if bus_id is None else pci.numa_node(bus_id, sys_root=sys_root),
    )


def _said(ask: Callable[[], _T]) -> _T | None:
    """The answer, or None where this GPU or driver has none. Other errors mean that the GPU is not well."""
    try:
        return ask()
    except pynvml.NVMLError as exc:
        if exc.value in _NOT_SAID:
            return None
        raise


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
