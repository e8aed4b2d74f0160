"""A fake GPU node in a directory: driver root, device nodes, manager directory, kubelet, CDI and run directories.

Owns the layout of that directory and the state file of the NVML mock. Knows nothing of the services that run on it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"

LIBRARY_VERSION = "v1.0.0"

GPU_IS_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""

# The character device of /dev/null: a device node that every process may open, so that "holds a GPU open" can be had anywhere.
NULL_DEVICE = os.makedev(1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Where the parts of a fake node are, and what a test does to its driver while services run."""

    root: Path
    driver_root: Path
    dev_root: Path
    """The directory that holds `nvidia0`, not its parent."""
    manager_dir: Path
    kubelet_dir: Path
    """The parent of `plugins` and `plugins_registry`."""
    cdi_dir: Path
    run_dir: Path
    nvml_library: Path
    nvml_state: Path

    def update_nvml(self, mutate: Callable[[dict[str, Any]], None]) -> None:
        """Changes the state of the NVML mock by `mutate`; every NVML call from then on sees it, in running processes too."""
        state = json.loads(self.nvml_state.read_text())
        mutate(state)
        _publish(self.nvml_state, state)

    def inject_event(self, gpu_uuid: str, event_type: int, data: int) -> None:
        """Makes NVML report an event (type 8 is an XID error, `data` its number) once to each event set that asked for it."""

        def add(state: dict[str, Any]) -> None:
            # Ids go up even after `heal` forgot the earlier events: a set takes only what is above the last id it took.
            last = max((event["id"] for event in state["events"]), default=0)
            number = max(last + 1, time.monotonic_ns() // 1000)
            state["events"].append({"id": number, "gpu": gpu_uuid, "type": event_type, "data": data})

        self.update_nvml(add)

    def lose_gpu(self, gpu_uuid: str) -> None:
        """Makes every NVML call about this GPU answer that it is lost."""
        self.update_nvml(lambda state: state["faults"].append({"function": "*", "gpu": gpu_uuid, "error": GPU_IS_LOST}))

    def fail(self, function: str, error: int) -> None:
        """Makes an NVML function, by its C name with version suffix, answer an error code."""
        self.update_nvml(lambda state: state["faults"].append({"function": function, "error": error}))

    def hang(self, function: str) -> None:
        """Makes an NVML function, by its C name with version suffix or "*", block until `heal`."""
        self.update_nvml(lambda state: state["faults"].append({"function": function, "hang": True}))

    def heal(self) -> None:
        """Ends every fault and forgets the events, so that a process started later does not hear of them."""
        self.update_nvml(lambda state: state.update(faults=[], events=[]))


def build_node(root: Path, *, fixture: str = "h100x8", native: Path) -> Node:
    """A node with the GPUs of a fixture (`h100x8`, `a100x4`, `t4x1`) under `root`; `native` is what tests/native builds.

    Device nodes are openable character devices where the process may make some, else empty files.
    """
    state = json.loads((FIXTURES / f"{fixture}.json").read_text())
    driver_root = root / "driver"
    libraries = driver_root / "usr/lib/x86_64-linux-gnu"
    node = Node(
        root=root,
        driver_root=driver_root,
        dev_root=root / "dev",
        manager_dir=root / "etc/vgpu-manager",
        kubelet_dir=root / "var/lib/kubelet",
        cdi_dir=root / "var/run/cdi",
        run_dir=root / "run/vgpu-manager",
        nvml_library=libraries / "libnvidia-ml.so.1",
        nvml_state=libraries / "libnvidia-ml.mock.json",
    )
    for directory in (libraries, node.dev_root, node.manager_dir, node.cdi_dir, node.run_dir):
        directory.mkdir(parents=True)
    for name in ("plugins", "plugins_registry"):
        (node.kubelet_dir / name).mkdir(parents=True)
    _install_driver(libraries, native, state["driver_version"])
    _publish(node.nvml_state, state)
    _make_device_nodes(node.dev_root, [gpu["minor"] for gpu in state["gpus"]])
    _install_library_set(node.manager_dir, native)
    return node


def _publish(path: Path, state: dict[str, Any]) -> None:
    """Replaces the state file in one step, with an mtime no earlier version had: that is how the mock tells them apart."""
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(state, indent=1))
    now_ns = time.time_ns()
    os.utime(temporary, ns=(now_ns, now_ns))
    temporary.rename(path)


def _install_driver(libraries: Path, native: Path, version: str) -> None:
    for name in ("libnvidia-ml.so", "libcuda.so", "libnvidia-ptxjitcompiler.so"):
        shutil.copy(native / f"{name}.1", libraries / f"{name}.{version}")
        (libraries / f"{name}.1").symlink_to(f"{name}.{version}")


def _make_device_nodes(dev_root: Path, minors: list[int]) -> None:
    names = [f"nvidia{minor}" for minor in minors]
    for name in (*names, "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        path = dev_root / name
        try:
            os.mknod(path, stat.S_IFCHR, NULL_DEVICE)
        except PermissionError:
            path.touch()
        path.chmod(0o666)


def _install_library_set(manager_dir: Path, native: Path) -> None:
    registry = manager_dir / "registry"
    registry.mkdir()
    registry.chmod(0o711)
    library = manager_dir / f"libvgpu-control.so.{LIBRARY_VERSION}"
    shutil.copyfile(native / library.name, library)
    library.chmod(0o755)
    preload = manager_dir / "ld.so.preload"
    shutil.copyfile(native / preload.name, preload)
    preload.chmod(0o644)
    client = registry / "device-client"
    shutil.copyfile(native / client.name, client)
    client.chmod(0o755)
