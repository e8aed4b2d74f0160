"""A fake GPU node in a directory: driver root, device nodes, manager directory, kubelet, CDI and run directories.

Owns the layout of that directory and the state file of the NVML mock. Knows nothing of the services that run on it.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpu_testkit import node_mig

FIXTURES = Path(__file__).parent / "fixtures"

LIBRARY_VERSION = "v1.0.0"

GPU_IS_LOST = 15
"""NVML_ERROR_GPU_IS_LOST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Where the parts of a fake node are, and what a test does to its driver while services run."""

    root: Path
    driver_root: Path
    dev_root: Path
    """The directory that holds `nvidia0`, not its parent."""
    proc_root: Path
    """What the driver shows below /proc; nothing else is there."""
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

    def partition_gpu(self, gpu_uuid: str, *placements: tuple[int, int]) -> list[str]:
        """Puts a GPU into MIG mode with a device at each (board's profile id, first memory slice); their UUIDs, in that order.

        The mock refuses what the hardware does: an unknown profile, a slice that is taken. No placement: a GPU that nobody has
        partitioned yet. The files of the driver's capabilities follow.
        """
        devices = [node_mig.device(gpu_uuid, profile_id=profile, start=start) for profile, start in placements]

        def split(state: dict[str, Any]) -> None:
            gpu = next(g for g in state["gpus"] if g["uuid"] == gpu_uuid)
            gpu.update(mig_mode=1, mig_devices=devices)
            node_mig.make_capabilities(self.proc_root, self.dev_root, minor=gpu["minor"], devices=devices)

        self.update_nvml(split)
        return [device["uuid"] for device in devices]

    def unite_gpu(self, gpu_uuid: str) -> None:
        """Takes a GPU out of MIG mode."""

        def join(state: dict[str, Any]) -> None:
            gpu = next(g for g in state["gpus"] if g["uuid"] == gpu_uuid)
            gpu.update(mig_mode=0, mig_devices=[])
            node_mig.make_capabilities(self.proc_root, self.dev_root, minor=gpu["minor"], devices=[])

        self.update_nvml(join)

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

    def unload_driver(self) -> None:
        """Takes the driver away: its library finds none, and the GPUs' device nodes are gone. `load_driver` brings one back."""
        self.nvml_state.rename(self.nvml_state.with_suffix(".unloaded"))
        for node in self.dev_root.glob("nvidia*"):
            if not node.is_dir():  # the capabilities of MIG devices are not the GPU's
                node.unlink()

    def load_driver(self, version: str, *, native: Path) -> None:
        """Installs and loads a driver of this version, in place of the one that was unloaded. Its files have other names."""
        libraries = self.nvml_library.parent
        for file in libraries.glob("lib*"):
            if file != self.nvml_state.with_suffix(".unloaded"):
                file.unlink()
        _install_driver(libraries, native, version)
        state = json.loads(self.nvml_state.with_suffix(".unloaded").read_text())
        state.update(driver_version=version, faults=[], events=[])
        _publish(self.nvml_state, state)
        _make_device_nodes(self.dev_root, [gpu["minor"] for gpu in state["gpus"]])

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
        proc_root=root / "proc",
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
    node_mig.make_driver_capabilities(node.proc_root, node.dev_root)
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
    for name in (*(f"nvidia{minor}" for minor in minors), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
        node_mig.make_device_node(dev_root / name)


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
