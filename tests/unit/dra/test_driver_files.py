"""What of the driver is found on a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_dra.cdi import DeviceNode
from vgpu_dra.effects.driver_files import NodePaths, find_node_files, find_nvml
from vgpu_dra.inventory import Device, Inventory
from vgpu_state.claims import DeviceKind
from vgpu_state.container_abi import Mount
from vgpu_state.ids import DeviceName
from vgpu_testkit.dra_values import INVENTORY, MIG, MIG_INVENTORY, gpu_uuid, h100

VERSION = "550.90.07"


def install(driver_root: Path, *paths: str) -> None:
    for path in paths:
        (driver_root / path).parent.mkdir(parents=True, exist_ok=True)
        (driver_root / path).touch()


def paths(tmp_path: Path) -> NodePaths:
    return NodePaths(
        driver_root=tmp_path / "driver",
        host_driver_root=Path("/run/nvidia/driver"),
        dev_root=tmp_path / "dev",
        proc_root=tmp_path / "proc",
    )


def find(tmp_path: Path, inventory: Inventory = INVENTORY) -> tuple[list[str], list[Mount]]:
    files = find_node_files(inventory, paths(tmp_path))
    nodes = [n.path for n in (*files.control_nodes, *files.node_by_gpu.values())]
    return nodes, list(files.libraries)


@pytest.mark.parametrize("directory", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"])
def test_nvml_is_found_where_distributions_put_it(tmp_path: Path, directory: str) -> None:
    assert find_nvml(tmp_path) is None

    install(tmp_path, f"{directory}/libnvidia-ml.so.1")

    assert find_nvml(tmp_path) == tmp_path / directory / "libnvidia-ml.so.1"


def test_libraries_are_mounted_under_each_name_they_are_opened_by(tmp_path: Path) -> None:
    install(tmp_path / "driver", f"usr/lib64/libcuda.so.{VERSION}", "usr/lib64/libcuda.so.999", "usr/bin/nvidia-smi")

    _, mounts = find(tmp_path)

    source = f"/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}"
    assert mounts == [
        Mount(destination=f"/usr/local/nvidia/lib64/libcuda.so.{VERSION}", source=source),
        Mount(destination="/usr/local/nvidia/lib64/libcuda.so.1", source=source),
        Mount(destination="/usr/local/nvidia/lib64/libcuda.so", source=source),
        Mount(destination="/usr/bin/nvidia-smi", source="/run/nvidia/driver/usr/bin/nvidia-smi"),
    ]


def test_program_without_libraries_is_not_mounted(tmp_path: Path) -> None:
    install(tmp_path / "driver", "usr/bin/nvidia-smi")

    assert find(tmp_path) == ([], [])


def test_nodes_are_those_that_exist(tmp_path: Path) -> None:
    install(tmp_path / "dev", "nvidia1", "nvidia9", "nvidiactl", "nvidia-uvm")

    nodes, _ = find(tmp_path)

    assert nodes == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"]


def test_node_of_a_gpu_is_that_of_its_minor(tmp_path: Path) -> None:
    install(tmp_path / "dev", "nvidia3")
    inventory = Inventory(gpus=(h100(0, minor=3),), driver_version=VERSION, cuda_version=(12, 4))

    files = find_node_files(inventory, paths(tmp_path))

    assert files.node_by_gpu == {gpu_uuid(0): DeviceNode(path="/dev/nvidia3", host_path=f"{tmp_path}/dev/nvidia3")}


def allow_instance(proc_root: Path, path: str, content: str) -> None:
    file = proc_root / "driver/nvidia/capabilities/gpu3/mig" / path / "access"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


def capability(minor: str) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


def test_mig_device_is_opened_by_the_nodes_that_the_kernel_driver_names(tmp_path: Path) -> None:
    install(tmp_path / "dev", "nvidia3", "nvidia-caps/nvidia-cap82", "nvidia-caps/nvidia-cap417")
    allow_instance(tmp_path / "proc", "gi9", capability("417"))
    allow_instance(tmp_path / "proc", "gi9/ci0", capability("82"))

    files = find_node_files(MIG_INVENTORY, paths(tmp_path))

    assert files.caps_by_mig == {
        MIG.uuid: tuple(
            DeviceNode(path=f"/dev/nvidia-caps/nvidia-cap{n}", host_path=f"{tmp_path}/dev/nvidia-caps/nvidia-cap{n}")
            for n in (417, 82)
        )
    }


@pytest.mark.parametrize(
    ("gpu_instance", "compute_instance"),
    [
        (capability("417"), None),
        (None, capability("82")),
        (capability("417"), capability("83")),
        (capability("417"), capability("-1")),
        (capability("417"), ""),
        (capability("417"), capability("../../null")),
    ],
)
def test_mig_device_without_both_of_its_nodes_is_left_out(
    tmp_path: Path, gpu_instance: str | None, compute_instance: str | None
) -> None:
    install(tmp_path / "dev", "nvidia3", "nvidia-caps/nvidia-cap82", "nvidia-caps/nvidia-cap417")
    for path, content in (("gi9", gpu_instance), ("gi9/ci0", compute_instance)):
        if content is not None:
            allow_instance(tmp_path / "proc", path, content)

    assert find_node_files(MIG_INVENTORY, paths(tmp_path)).caps_by_mig == {}


def test_devices_are_named_by_minor_and_gpus_known_by_uuid() -> None:
    inventory = Inventory(gpus=(h100(0, minor=3), h100(1, minor=0)), driver_version=VERSION, cuda_version=(12, 4))

    assert [g.vgpu_device for g in inventory.gpus] == ["vgpu-3", "vgpu-0"]
    devices = inventory.devices()
    assert devices[DeviceName("vgpu-0")] == Device(kind=DeviceKind.VGPU, gpu=inventory.gpus[1])
    assert sorted(devices) == ["gpu-0", "gpu-3", "vgpu-0", "vgpu-3"]
    assert inventory.by_uuid(gpu_uuid(1)) == inventory.gpus[1]
    assert inventory.by_uuid(gpu_uuid(7)) is None
