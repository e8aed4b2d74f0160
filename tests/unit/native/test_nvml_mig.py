"""What the NVML mock says of MIG devices, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vgpu_testkit.node import Node, build_node
from vgpu_testkit.nvml_scenario import Program

Start = Callable[[Node, str], Program]

GPU0 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000000"

# The GPU, the MIG devices that it counts, and what nvmlDeviceGetMigDeviceHandleByIndex answers beyond them.
DEVICES = """
    n.nvmlInit()
    gpu = n.nvmlDeviceGetHandleByIndex(0)
    devices = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            devices.append(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        except n.NVMLError as error:
            assert error.value == n.NVML_ERROR_NOT_FOUND
"""


def place(state: dict[str, Any], *devices: dict[str, Any]) -> None:
    state["gpus"][0].update(mig_mode=1, mig_devices=list(devices))


def test_a_mig_device_says_its_place_its_engines_and_its_gpu(start: Start, node: Node) -> None:
    uuids = node.partition_gpu(GPU0, (9, 4), (19, 0))
    program = start(
        node,
        DEVICES
        + """
    for mig in devices:
        info = n.nvmlGpuInstanceGetInfo(n.nvmlDeviceGetGpuInstanceById(gpu, n.nvmlDeviceGetGpuInstanceId(mig)))
        has = n.nvmlDeviceGetAttributes_v2(mig)
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig)) == n.nvmlDeviceGetUUID(gpu)
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(mig))) == n.nvmlDeviceGetUUID(mig)
        tell([n.nvmlDeviceGetUUID(mig), n.nvmlDeviceIsMigDeviceHandle(mig).value, info.id, n.nvmlDeviceGetComputeInstanceId(mig)])
        tell([info.profileId, info.placement.start, info.placement.size, n.nvmlDeviceGetUUID(info.device)])
        tell([has.multiprocessorCount, has.sharedCopyEngineCount, has.sharedDecoderCount, has.sharedEncoderCount,
              has.sharedJpegCount, has.sharedOfaCount, has.gpuInstanceSliceCount, has.computeInstanceSliceCount,
              has.memorySizeMB])
    tell([n.nvmlDeviceGetMigMode(gpu), n.nvmlDeviceIsMigDeviceHandle(gpu).value])
    """,
    )

    assert program.hear() == [uuids[0], 1, 2, 0]
    assert program.hear() == [9, 4, 4, GPU0]
    assert program.hear() == [60, 3, 3, 0, 3, 0, 3, 3, 40448]
    assert program.hear() == [uuids[1], 1, 7, 0]
    assert program.hear() == [19, 0, 1, GPU0]
    assert program.hear() == [16, 1, 1, 0, 1, 0, 1, 1, 9984]
    assert program.hear() == [[1, 1], 0]


def test_profiles_are_those_of_the_board(start: Start, tmp_path: Path, native: Path) -> None:
    program = start(
        build_node(tmp_path / "node", fixture="a100x4", native=native),
        """
        n.nvmlInit()
        gpu = n.nvmlDeviceGetHandleByIndex(0)
        profiles = {}
        for number in range(n.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu, number, version=1)
            except n.NVMLError as error:
                assert error.value == n.NVML_ERROR_NOT_SUPPORTED
            else:
                profiles[number] = [info.id, info.sliceCount, info.instanceCount, info.multiprocessorCount, info.memorySizeMB]
        tell(profiles)
        tell([code(n.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 18, 1), code(n.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 0, 2)])
        """,
    )

    assert program.hear() == {
        "0": [19, 1, 7, 14, 4864],
        "1": [14, 2, 3, 28, 9856],
        "2": [9, 3, 2, 42, 19968],
        "3": [5, 4, 1, 56, 19968],
        "4": [0, 7, 1, 98, 40192],
        "7": [20, 1, 1, 14, 4864],
        "9": [15, 1, 4, 14, 9856],
    }
    assert program.hear() == [2, 13]


def test_a_handle_is_refused_by_calls_about_the_other_kind(start: Start, node: Node) -> None:
    node.partition_gpu(GPU0, (19, 0))
    program = start(
        node,
        DEVICES
        + """
    (mig,) = devices
    tell([code(n.nvmlDeviceGetGpuInstanceId, gpu), code(n.nvmlDeviceGetComputeInstanceId, gpu),
          code(n.nvmlDeviceGetAttributes_v2, gpu), code(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, gpu)])
    tell([code(n.nvmlDeviceGetMinorNumber, mig), code(n.nvmlDeviceGetMigMode, mig), code(n.nvmlDeviceGetTemperature, mig, 0)])
    instance = n.nvmlDeviceGetGpuInstanceById(gpu, 7)
    tell([code(n.nvmlDeviceGetGpuInstanceById, gpu, 8),
          n.nvmlLib.nvmlDeviceGetMinorNumber(instance, ctypes.byref(ctypes.c_uint())),
          n.nvmlLib.nvmlGpuInstanceGetInfo(gpu, ctypes.byref(n.c_nvmlGpuInstanceInfo_t()))])
    """,
    )

    assert program.hear() == [2, 2, 2, 2]
    assert program.hear() == [3, 3, 3]
    assert program.hear() == [6, 2, 2]


def test_handles_of_a_mig_device_that_was_removed_mean_nothing(start: Start, node: Node) -> None:
    node.partition_gpu(GPU0, (19, 0))
    program = start(
        node,
        DEVICES
        + """
    (mig,) = devices
    instance = n.nvmlDeviceGetGpuInstanceById(gpu, 7)
    tell("held")
    wait()
    tell([code(n.nvmlDeviceGetUUID, mig), code(n.nvmlGpuInstanceGetInfo, instance), n.nvmlDeviceGetMigMode(gpu)])
    """,
    )
    program.hear()

    node.unite_gpu(GPU0)

    program.go_on()
    assert program.hear() == [2, 2, [0, 0]]


def test_a_fault_of_a_gpu_meets_its_mig_devices_and_one_of_a_mig_device_meets_only_that(start: Start, node: Node) -> None:
    first, _ = node.partition_gpu(GPU0, (19, 0), (19, 1))
    program = start(
        node, DEVICES + "    wait()\n" + "    tell([code(n.nvmlDeviceGetAttributes_v2, mig) for mig in devices])\n" * 2
    )

    fault = {"function": "nvmlDeviceGetAttributes_v2", "gpu": first, "error": 4}
    node.update_nvml(lambda state: state["faults"].append(fault))
    program.go_on()

    assert program.hear() == [4, 0]
    program.end()
    program = start(
        node, DEVICES + "    tell('held')\n    wait()\n    tell([code(n.nvmlDeviceGetUUID, mig) for mig in devices])\n"
    )
    program.hear()
    node.lose_gpu(GPU0)
    program.go_on()
    assert program.hear() == [15, 15]


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ([{"uuid": "MIG-a", "profile_id": 21, "start": 0, "gpu_instance": 7}], "MIG-a: a profile that the board does not have"),
        (
            [
                {"uuid": "MIG-a", "profile_id": 9, "start": 0, "gpu_instance": 1},
                {"uuid": "MIG-b", "profile_id": 19, "start": 3, "gpu_instance": 10},
            ],
            "MIG-b: its place is taken",
        ),
        (
            [
                {"uuid": "MIG-a", "profile_id": 9, "start": 0, "gpu_instance": 1},
                {"uuid": "MIG-b", "profile_id": 9, "start": 0, "gpu_instance": 1},
            ],
            "MIG-b: its place is taken",
        ),
    ],
)
def test_a_file_with_devices_that_cannot_be_is_refused(start: Start, node: Node, devices: list[dict[str, Any]], why: str) -> None:
    node.update_nvml(lambda state: place(state, *devices))

    program = start(node, "tell(code(n.nvmlInit))")

    assert program.hear() == 9
    assert why in program.complaint()


def test_devices_without_mig_mode_are_refused(start: Start, node: Node) -> None:
    node.partition_gpu(GPU0, (19, 0))
    node.update_nvml(lambda state: state["gpus"][0].update(mig_mode=0))

    program = start(node, "tell(code(n.nvmlInit))")

    assert program.hear() == 9
    assert f"{GPU0}: MIG devices without MIG mode" in program.complaint()
