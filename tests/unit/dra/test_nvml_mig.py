"""Which MIG devices are read of a GPU, and which are left out with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.effects import nvml_mig
from vgpu_testkit.node import GPU_IS_LOST, Node, build_node
from vgpu_testkit.nvml_scenario import hear_once

GPU0 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000000"
NOT_SUPPORTED, NO_PERMISSION, UNKNOWN = 3, 4, 999
MIB = 1 << 20

READ = """
    import dataclasses, pathlib
    from vgpu_dra.effects.nvml import NvmlReader
    from vgpu_dra.effects.nvml_library import NvmlLibrary
    node = pathlib.Path(sys.argv[1]).parents[4]
    found = NvmlReader(NvmlLibrary(node / "driver"), sys_root=node / "sys").look().inventory
    first = found.gpus[0]
    tell([first.is_mig, [dataclasses.asdict(mig) for mig in first.mig_devices], found.unreadable, len(found.gpus)])
"""


@pytest.fixture
def node(tmp_path: Path, native: Path) -> Node:
    return build_node(tmp_path / "node", native=native)


def names(devices: list[dict[str, Any]]) -> list[str]:
    return [f"{one['profile_id']}-{one['start']}-{one['size']}" for one in devices]


def test_mig_devices_are_read_with_what_they_have_by_the_place_of_their_memory(node: Node) -> None:
    uuids = node.partition_gpu(GPU0, (9, 4), (20, 0), (15, 2))

    is_mig, devices, unreadable, _ = hear_once(node, READ)

    assert (is_mig, unreadable) == (True, [])
    assert [(one["uuid"], one["profile"]) for one in devices] == [
        (uuids[1], "1g.10gb+me"),
        (uuids[2], "1g.20gb"),
        (uuids[0], "3g.40gb"),
    ]
    assert devices[2] == {
        "uuid": uuids[0],
        "gpu_instance": 2,
        "compute_instance": 0,
        "profile": "3g.40gb",
        "profile_id": 9,
        "start": 4,
        "size": 4,
        "memory_bytes": 40448 * MIB,
        "multiprocessors": 60,
        "copy_engines": 3,
        "decoders": 3,
        "encoders": 0,
        "jpeg_engines": 3,
        "ofa_engines": 0,
    }


def test_a_gpu_in_mig_mode_that_nobody_partitioned_has_no_device(node: Node) -> None:
    node.partition_gpu(GPU0)

    assert hear_once(node, READ) == [True, [], [], 8]


def test_a_gpu_without_mig_is_not_in_mig_mode(node: Node) -> None:
    node.fail("nvmlDeviceGetMigMode", NOT_SUPPORTED)

    assert hear_once(node, READ)[:3] == [False, [], []]


def test_a_device_that_cannot_be_read_is_left_out_and_says_why(node: Node) -> None:
    first, _ = node.partition_gpu(GPU0, (19, 0), (19, 1))
    fault = {"function": "nvmlDeviceGetAttributes_v2", "gpu": first, "error": NO_PERMISSION}
    node.update_nvml(lambda state: state["faults"].append(fault))

    _, devices, unreadable, gpus = hear_once(node, READ)

    assert names(devices) == ["19-1-1"]
    assert unreadable == ["GPU at NVML index 0: MIG device 0: Insufficient Permissions"]
    assert gpus == 8


def test_a_device_with_a_uuid_of_another_form_is_left_out(node: Node) -> None:
    node.partition_gpu(GPU0, (19, 0), (19, 1))
    node.update_nvml(lambda state: state["gpus"][0]["mig_devices"][0].update(uuid="MIG-GPU-x/7/0"))

    _, devices, unreadable, _ = hear_once(node, READ)

    assert names(devices) == ["19-1-1"]
    assert unreadable[0].startswith("GPU at NVML index 0: MIG device 0: MIG UUID is 'MIG-GPU-x/7/0'; expected ")


def test_a_gpu_instance_with_two_compute_instances_is_left_out(node: Node) -> None:
    node.partition_gpu(GPU0, (9, 0), (19, 4))

    def split(state: dict[str, Any]) -> None:
        devices = state["gpus"][0]["mig_devices"]
        devices[0].update(compute_slices=1, multiprocessors=20)
        devices.append({**devices[0], "uuid": "MIG-5e5a3bb1-7d0c-4d58-9c1a-00000000000b", "compute_instance": 1})

    node.update_nvml(split)

    _, devices, unreadable, _ = hear_once(node, READ)

    assert names(devices) == ["19-4-1"]
    assert unreadable == [
        "GPU at NVML index 0: MIG devices of GPU instance 1: it has 2 compute instances; a GPU instance with one is offered"
    ]


def test_a_compute_instance_smaller_than_its_gpu_instance_says_so_in_its_profile(node: Node) -> None:
    node.partition_gpu(GPU0, (9, 0))
    node.update_nvml(lambda state: state["gpus"][0]["mig_devices"][0].update(compute_slices=1, multiprocessors=20))

    _, (device,), _, _ = hear_once(node, READ)

    assert (device["profile"], device["multiprocessors"]) == ("1c.3g.40gb", 20)


def test_a_gpu_lost_while_its_devices_are_read_is_left_out_as_a_whole(node: Node) -> None:
    node.partition_gpu(GPU0, (19, 0))
    node.fail("nvmlGpuInstanceGetInfo", GPU_IS_LOST)

    *_, unreadable, gpus = hear_once(node, READ)

    assert (unreadable, gpus) == (["GPU at NVML index 0: GPU is lost"], 7)


def test_a_gpu_that_says_nothing_of_its_profiles_is_left_out(node: Node) -> None:
    node.partition_gpu(GPU0, (19, 0))
    node.fail("nvmlDeviceGetGpuInstanceProfileInfo", UNKNOWN)

    *_, unreadable, gpus = hear_once(node, READ)

    assert (unreadable, gpus) == (["GPU at NVML index 0: Unknown Error"], 7)


# Slices, MiB of the profile, MiB of the board, NVML's number of the profile; the names are those that nvidia-smi shows.
PROFILES = [
    (1, 9984, 81559, 0, "1g.10gb"),
    (1, 9984, 81559, 7, "1g.10gb+me"),
    (1, 20096, 81559, 9, "1g.20gb"),
    (3, 40448, 81559, 2, "3g.40gb"),
    (7, 81152, 81559, 4, "7g.80gb"),
    (1, 4864, 40960, 0, "1g.5gb"),
    (7, 40192, 40960, 4, "7g.40gb"),
    (1, 16384, 143771, 0, "1g.18gb"),
    (1, 33024, 143771, 9, "1g.35gb"),
    (3, 71168, 143771, 2, "3g.71gb"),
    (7, 143104, 143771, 4, "7g.141gb"),
    (1, 5836, 24576, 0, "1g.6gb"),
    (4, 23344, 24576, 3, "4g.24gb"),
    (1, 24187, 97887, 10, "1g.24gb+gfx"),
    (1, 24187, 97887, 13, "1g.24gb-me"),
    (2, 48374, 97887, 16, "2g.48gb+me.all"),
]


@pytest.mark.parametrize(("slices", "memory_mib", "board_mib", "kind", "expected"), PROFILES)
def test_a_profile_has_the_name_of_nvidias_tools(slices: int, memory_mib: int, board_mib: int, kind: int, expected: str) -> None:
    name = nvml_mig.profile_name(
        compute_slices=slices, slices=slices, memory_mib=memory_mib, gpu_memory_bytes=board_mib * MIB, kind=kind
    )

    assert name == expected


@given(memory_mib=st.integers(1, 200_000), board_mib=st.integers(1, 200_000))
def test_a_profiles_name_is_one_for_any_numbers(memory_mib: int, board_mib: int) -> None:
    name = nvml_mig.profile_name(compute_slices=1, slices=7, memory_mib=memory_mib, gpu_memory_bytes=board_mib * MIB, kind=None)

    assert name.startswith("1c.7g.")
    assert name.endswith("gb")
