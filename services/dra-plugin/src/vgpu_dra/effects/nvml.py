"""NVML → Inventory, through nvidia-ml-py. Every call may block for ever: only `gpus.Gpus` calls this, on its own thread."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pynvml

from vgpu_dra.effects.driver_files import find_nvml
from vgpu_dra.inventory import Gpu, Inventory
from vgpu_state import ids
from vgpu_state.errors import MalformedInput, NotReady


class NvmlReader:
    """Reads all GPUs of the node. The library is loaded once, from the driver root, and stays."""

    def __init__(self, driver_root: Path) -> None:
        self._driver_root = driver_root
        self._library: ctypes.CDLL | None = None
        self._is_initialised = False

    def read(self) -> Inventory:
        """The GPUs now, in NVML's order.

        Raises:
            NotReady: no driver under the driver root, or NVML answered an error.
        """
        try:
            self._load()
            return self._read()
        except pynvml.NVMLError as exc:
            raise NotReady(f"NVML answered: {exc}") from exc
        except MalformedInput as exc:
            raise NotReady(f"NVML answered something unexpected: {exc}") from exc

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
        return Inventory(
            gpus=tuple(_read_gpu(i) for i in range(pynvml.nvmlDeviceGetCount())),
            driver_version=_text(pynvml.nvmlSystemGetDriverVersion()),
            cuda_version=(cuda // 1000, cuda % 1000 // 10),
        )


def _read_gpu(index: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        index=index,
        minor=pynvml.nvmlDeviceGetMinorNumber(handle),
        uuid=ids.parse_gpu_uuid(_text(pynvml.nvmlDeviceGetUUID(handle))),
        name=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total,
    )


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
