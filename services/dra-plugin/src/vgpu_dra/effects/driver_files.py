"""What of the NVIDIA driver is on this node: libraries under the driver root, device nodes under the dev root.

No toolkit is needed: libraries are mounted by name, under each name they are looked up by, into one directory of their own.
Source: what nvidia-container-toolkit's pkg/nvcdi finds and mounts.
"""

from __future__ import annotations

from pathlib import Path

from vgpu_dra.cdi import LIBRARY_DIR, DeviceNode, NodeFiles
from vgpu_dra.inventory import Inventory
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


def find_nvml(driver_root: Path) -> Path | None:
    """The management library under the driver root, None when there is no driver."""
    for directory in _SEARCH:
        if (path := driver_root / directory / _NVML).exists():
            return path
    return None


def find_node_files(inventory: Inventory, *, driver_root: Path, host_driver_root: Path, dev_root: Path) -> NodeFiles:
    """Device nodes and libraries as they exist now. A GPU without a device node is left out."""
    return NodeFiles(
        control_nodes=tuple(_node(dev_root, name) for name in _CONTROL if (dev_root / name).exists()),
        node_by_gpu={
            gpu.uuid: _node(dev_root, f"nvidia{gpu.minor}")
            for gpu in inventory.gpus
            if (dev_root / f"nvidia{gpu.minor}").exists()
        },
        libraries=tuple(_libraries(inventory.driver_version, driver_root, host_driver_root)),
    )


def has_cuda(files: NodeFiles, version: str) -> bool:
    """Whether the CUDA library of this driver version is among the found ones."""
    return any(mount.destination == f"{LIBRARY_DIR}/libcuda.so.{version}" for mount in files.libraries)


def _libraries(version: str, driver_root: Path, host_root: Path) -> list[Mount]:
    mounts: list[Mount] = []
    for stem, names in _LIBRARIES.items():
        versioned = f"{stem}.{version}"
        for directory in _SEARCH:
            if (driver_root / directory / versioned).exists():
                source = str(host_root / directory / versioned)
                mounts += [Mount(destination=f"{LIBRARY_DIR}/{name}", source=source) for name in (versioned, *names)]
                break
    if mounts and (driver_root / _SMI).exists():
        mounts.append(Mount(destination=f"/{_SMI}", source=str(host_root / _SMI)))
    return mounts


def _node(dev_root: Path, name: str) -> DeviceNode:
    return DeviceNode(path=f"/dev/{name}", host_path=str(dev_root / name))
