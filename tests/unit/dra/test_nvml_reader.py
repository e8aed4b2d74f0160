"""What is read of a GPU: from NVML, and from the kernel where NVML means something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_dra.effects import pci
from vgpu_testkit.node import Node, build_node
from vgpu_testkit.nvml_scenario import Program, hear_once

READ = """
    import dataclasses, pathlib
    from vgpu_dra.effects.nvml import NvmlReader
    from vgpu_dra.effects.nvml_library import NvmlLibrary
    node = pathlib.Path(sys.argv[1]).parents[4]
    gpu = NvmlReader(NvmlLibrary(node / "driver"), sys_root=node / "sys").look().inventory.gpus[0]
    tell([gpu.name, dataclasses.asdict(gpu.traits)])
"""
READ_ALL = """
    import pathlib
    from vgpu_dra.effects.nvml import NvmlReader
    from vgpu_dra.effects.nvml_library import NvmlLibrary
    node = pathlib.Path(sys.argv[1]).parents[4]
    found = NvmlReader(NvmlLibrary(node / "driver"), sys_root=node / "sys").look().inventory
    tell([[gpu.index for gpu in found.gpus], found.unreadable])
"""
NOT_SUPPORTED, GPU_IS_LOST = 3, 15


@pytest.fixture
def node(tmp_path: Path, native: Path) -> Node:
    return build_node(tmp_path / "node", native=native)


def make_sysfs(root: Path, *, numa: str) -> None:
    device = root / "devices/pci0000:15/0000:15:01.0/0000:1b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(numa)
    (root / "bus/pci/devices").mkdir(parents=True)
    (root / "bus/pci/devices/0000:1b:00.0").symlink_to("../../../devices/pci0000:15/0000:15:01.0/0000:1b:00.0")


def test_traits_are_those_of_the_driver_and_the_kernel(node: Node) -> None:
    make_sysfs(node.root / "sys", numa="1\n")

    assert hear_once(node, READ) == [
        "NVIDIA H100 80GB HBM3",
        {
            "brand": "Nvidia",
            "architecture": "Hopper",
            "compute_capability": [9, 0],
            "pci_bus_id": "0000:1b:00.0",
            "pcie_root": "pci0000:15",
            "numa_node": 1,
        },
    ]


def test_a_trait_is_missing_where_nobody_says_it(node: Node) -> None:
    for function in ("nvmlDeviceGetBrand", "nvmlDeviceGetArchitecture", "nvmlDeviceGetCudaComputeCapability"):
        node.fail(function, NOT_SUPPORTED)

    assert hear_once(node, READ) == [
        "NVIDIA H100 80GB HBM3",
        {
            "brand": None,
            "architecture": None,
            "compute_capability": None,
            "pci_bus_id": "0000:1b:00.0",
            "pcie_root": None,
            "numa_node": None,
        },
    ]


def test_a_lost_gpu_is_not_one_without_traits(node: Node) -> None:
    node.fail("nvmlDeviceGetBrand", GPU_IS_LOST)

    program = Program(node, READ)

    assert "NotReady: NVML answered: GPU at NVML index 0: GPU is lost; GPU at NVML index 1" in program.complaint()


def test_a_lost_gpu_leaves_the_others_at_their_own_indexes(node: Node) -> None:
    node.lose_gpu("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001")
    node.update_nvml(lambda state: state["gpus"][4].update(uuid="no uuid"))

    indexes, unreadable = hear_once(node, READ_ALL)

    assert indexes == [0, 2, 3, 5, 6, 7]
    assert unreadable[0] == "GPU at NVML index 1: GPU is lost"
    assert unreadable[1].startswith("GPU at NVML index 4: ")
    assert len(unreadable) == 2


@pytest.mark.parametrize(
    ("nvml", "kernel"),
    [
        ("00000000:1B:00.0", "0000:1b:00.0"),
        ("0000FFFF:C3:1F.7", "ffff:c3:1f.7"),
        ("00010000:1B:00.0", None),
        ("0000:1B:00.0", None),
        ("", None),
    ],
)
def test_a_bus_address_is_spelt_as_the_kernel_does(nvml: str, kernel: str | None) -> None:
    assert pci.bus_id(nvml) == kernel


def test_a_slot_without_numa_node_has_none(tmp_path: Path) -> None:
    make_sysfs(tmp_path, numa="-1\n")

    assert pci.numa_node("0000:1b:00.0", sys_root=tmp_path) is None
