"""What a fake node has where."""

from __future__ import annotations

import json
from pathlib import Path

from vgpu_testkit.node import Node, build_node


def _names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_node_has_a_device_node_for_each_minor_that_can_be_opened(tmp_path: Path, native: Path) -> None:
    node = build_node(tmp_path / "node", fixture="a100x4", native=native)

    assert _names(node.dev_root) == [
        *("nvidia-caps", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"),
    ]
    for device in node.dev_root.rglob("*"):
        assert device.is_dir() or device.read_bytes() == b""


def test_node_has_the_driver_libraries_under_the_name_of_their_version(node: Node) -> None:
    libraries = node.driver_root / "usr/lib/x86_64-linux-gnu"

    assert _names(libraries) == [
        *("libcuda.so.1", "libcuda.so.550.90.07", "libnvidia-ml.mock.json", "libnvidia-ml.so.1"),
        *("libnvidia-ml.so.550.90.07", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.550.90.07"),
    ]
    assert (libraries / "libcuda.so.1").resolve().read_bytes()[:4] == b"\x7fELF"


def test_node_has_the_library_set_of_the_host(node: Node) -> None:
    assert _names(node.manager_dir) == ["ld.so.preload", "libvgpu-control.so.v1.0.0", "registry"]
    assert (node.manager_dir / "ld.so.preload").read_text() == "/etc/vgpu-manager/driver/libvgpu-control.so\n"
    assert (node.manager_dir / "registry").stat().st_mode & 0o7777 == 0o711
    assert (node.manager_dir / "registry/device-client").stat().st_mode & 0o7777 == 0o755


def test_healing_forgets_faults_and_events(node: Node) -> None:
    healthy = json.loads(node.nvml_state.read_text())
    node.lose_gpu("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001")
    node.hang("*")
    node.inject_event("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001", 8, 79)

    node.heal()

    assert json.loads(node.nvml_state.read_text()) == healthy


def test_node_has_the_capabilities_of_the_mig_devices_that_exist(node: Node) -> None:
    capabilities = node.proc_root / "driver/nvidia/capabilities"
    node.partition_gpu("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001", (9, 0), (19, 4))

    assert (capabilities / "mig/monitor").read_text().startswith("DeviceFileMinor: 2\n")
    assert (
        capabilities / "gpu1/mig/gi1/access"
    ).read_text() == "DeviceFileMinor: 147\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    assert (capabilities / "gpu1/mig/gi11/ci0/access").read_text().startswith("DeviceFileMinor: 238\n")
    assert _names(node.dev_root / "nvidia-caps") == [
        *("nvidia-cap1", "nvidia-cap147", "nvidia-cap148", "nvidia-cap2", "nvidia-cap237", "nvidia-cap238"),
    ]

    node.unite_gpu("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001")
    assert _names(node.dev_root / "nvidia-caps") == ["nvidia-cap1", "nvidia-cap2"]
    assert not (capabilities / "gpu1/mig/gi1").exists()
