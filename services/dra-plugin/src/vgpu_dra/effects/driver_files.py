"""What of the NVIDIA driver is on this node: libraries under the driver root, device nodes under the dev root.

Which node opens a MIG instance is the kernel driver's choice and is read from its files below /proc, never computed. No toolkit
is needed: libraries are mounted by name, under each name they are looked up by, into one directory of their own.
Source: what nvidia-container-toolkit's pkg/nvcdi finds and mounts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from vgpu_dra.cdi import LIBRARY_DIR, DeviceNode, NodeFiles
from vgpu_dra.inventory import Gpu, Inventory, MigDevice
from vgpu_state.container_abi import Mount

_SEARCH = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_NVML = "libnvidia-ml.so.1"
# What compute needs: name without version → the further names it is opened by.
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "libcuda.so": ("libcuda.so.1", "libcuda.so"),
    "libcudadebugger.so": ("libcudadebugger.so.1",),
    "libnvidia-allocator.so": ("libnvidia-allocator.so.1",),
    "libnvidia-cfg.so": ("libnvidia-cfg.so.1",),
    "libnvidia-gpucomp.so": (),
    "libnvidia-ml.so": (_NVML,),
    "libnvidia-nvvm.so": ("libnvidia-nvvm.so.4",),
    "libnvidia-opencl.so": ("libnvidia-opencl.so.1",),
    "libnvidia-ptxjitcompiler.so": ("libnvidia-ptxjitcompiler.so.1",),
}
_SMI = "usr/bin/nvidia-smi"
_CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_CAPABILITIES = "driver/nvidia/capabilities"
_CAPABILITY_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d{1,7})\s*$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePaths:
    """Where the driver, the device nodes and the kernel's files are, as this process and as the runtime see them."""

    driver_root: Path
    host_driver_root: Path
    dev_root: Path
    proc_root: Path


def find_nvml(driver_root: Path) -> Path | None:
    """The management library under the driver root, None when there is no driver."""
    for directory in _SEARCH:
        if (path := driver_root / directory / _NVML).exists():
            return path
    return None


def find_node_files(inventory: Inventory, paths: NodePaths) -> NodeFiles:
    """Device nodes and libraries as they exist now. A GPU or a MIG device that lacks a node is left out."""
    dev_root = paths.dev_root
    return NodeFiles(
        control_nodes=tuple(_node(dev_root, name) for name in _CONTROL if os.path.exists(os.path.join(dev_root, name))),
        node_by_gpu={
            gpu.uuid: _node(dev_root, f"nvidia{gpu.minor}")
            for gpu in inventory.gpus
            if os.path.exists(os.path.join(dev_root, f"nvidia{gpu.minor}"))
        },
        caps_by_mig={
            mig.uuid: nodes for gpu in inventory.gpus for mig in gpu.mig_devices if (nodes := _capability_nodes(gpu, mig, paths))
        },
        libraries=tuple(_libraries(inventory.driver_version, paths.driver_root, paths.host_driver_root)),
    )


def has_cuda(files: NodeFiles, version: str) -> bool:
    """Whether the CUDA library of this driver version is among the found ones."""
    return any(mount.destination == f"{LIBRARY_DIR}/libcuda.so.{version}" for mount in files.libraries)


def _libraries(version: str, driver_root: Path, host_root: Path) -> list[Mount]:
    mounts: list[Mount] = []
    # Every claim looks: what no directory can have is not asked for once per library.
    directories = [directory for directory in _SEARCH if (driver_root / directory).is_dir()]
    for stem, names in _LIBRARIES.items():
        versioned = f"{stem}.{version}"
        for directory in directories:
            if os.path.exists(os.path.join(driver_root, directory, versioned)):
                source = str(host_root / directory / versioned)
                mounts += [Mount(destination=f"{LIBRARY_DIR}/{name}", source=source) for name in (versioned, *names)]
                break
    if mounts and (driver_root / _SMI).exists():
        mounts.append(Mount(destination=f"/{_SMI}", source=str(host_root / _SMI)))
    return mounts


def _capability_nodes(gpu: Gpu, mig: MigDevice, paths: NodePaths) -> tuple[DeviceNode, ...]:
    """Those of the GPU instance and of the compute instance, or none where one is missing."""
    instance = f"gpu{gpu.minor}/mig/gi{mig.gpu_instance}"
    minors = [
        _capability_minor(paths.proc_root / _CAPABILITIES / f"{instance}{ci}/access") for ci in ("", f"/ci{mig.compute_instance}")
    ]
    names = [f"nvidia-caps/nvidia-cap{minor}" for minor in minors if minor is not None]
    found = tuple(_node(paths.dev_root, name) for name in names if (paths.dev_root / name).exists())
    return found if len(found) == len(minors) else ()


def _capability_minor(path: Path) -> int | None:
    """Source: the NVIDIA kernel driver's capability files, "DeviceFileMinor: 12" and two lines on its mode."""
    try:
        match = _CAPABILITY_MINOR.search(path.read_text(errors="replace"))
    except OSError:
        return None
    return int(match.group(1)) if match else None


def _node(dev_root: Path, name: str) -> DeviceNode:
    return DeviceNode(path=f"/dev/{name}", host_path=os.path.join(dev_root, name))
