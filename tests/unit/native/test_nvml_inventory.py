"""What the NVML mock says of a node's GPUs, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vgpu_testkit.node import Node, build_node
from vgpu_testkit.nvml_scenario import Program

Start = Callable[[Node, str], Program]

GPU0 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000000"


INVENTORY = """
    n.nvmlInit()
    gpus = []
    for index in range(n.nvmlDeviceGetCount()):
        h = n.nvmlDeviceGetHandleByIndex(index)
        v1, v2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
        assert (v1.total, v1.free) == (v2.total, v2.free)
        assert n.nvmlDeviceGetIndex(h) == index
        gpus.append([n.nvmlDeviceGetUUID(h), n.nvmlDeviceGetName(h), n.nvmlDeviceGetMinorNumber(h), v2.total >> 20,
                     n.nvmlDeviceGetPciInfo(h).busId, n.nvmlDeviceGetCudaComputeCapability(h), n.nvmlDeviceGetArchitecture(h)])
    tell([n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetNVMLVersion(), n.nvmlSystemGetCudaDriverVersion_v2()])
    tell(gpus)
"""


def test_inventory_is_eight_h100_when_the_fixture_is_h100x8(start: Start, node: Node) -> None:
    program = start(node, INVENTORY)

    assert program.hear() == ["550.90.07", "12.550.90.07", 12040]
    gpus = program.hear()
    assert gpus[0] == [GPU0, "NVIDIA H100 80GB HBM3", 0, 81559, "00000000:1B:00.0", [9, 0], 9]
    assert gpus[7] == [
        *("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000007", "NVIDIA H100 80GB HBM3"),
        *(7, 81559, "00000000:DF:00.0", [9, 0], 9),
    ]
    assert len(gpus) == 8


def test_minors_differ_from_indexes_when_the_fixture_is_a100x4(start: Start, tmp_path: Path, native: Path) -> None:
    program = start(build_node(tmp_path / "node", fixture="a100x4", native=native), INVENTORY)

    program.hear()
    gpus = program.hear()
    assert [gpu[2] for gpu in gpus] == [2, 3, 0, 1]
    assert gpus[3] == [
        *("GPU-a1f0c2d4-03b7-4e96-8d25-000000000003", "NVIDIA A100-SXM4-40GB"),
        *(1, 40960, "00000000:4E:00.0", [8, 0], 7),
    ]


def test_inventory_is_one_t4_without_mig_when_the_fixture_is_t4x1(start: Start, tmp_path: Path, native: Path) -> None:
    program = start(
        build_node(tmp_path / "node", fixture="t4x1", native=native),
        INVENTORY + "    tell(code(n.nvmlDeviceGetMigMode, h))\n    tell(code(n.nvmlDeviceGetNumaNodeId, h))\n",
    )

    program.hear()
    assert program.hear() == [["GPU-74e1b6a0-52f9-4c3b-b0de-000000000000", "Tesla T4", 0, 15360, "00000000:3B:00.0", [7, 5], 6]]
    assert [program.hear(), program.hear()] == [3, 3]


def test_readings_are_those_of_the_state_file(start: Start, node: Node) -> None:
    def load(state: dict[str, Any]) -> None:
        state["gpus"][1].update(
            used_mib=1024, reserved_mib=512, gpu_percent=75, memory_percent=20, ecc_corrected=3, ecc_uncorrected=1, mig_mode=1
        )
        state["gpus"][1]["processes"] = [{"pid": 4711, "used_mib": 1000}, {"pid": 4712, "used_mib": 24}]

    node.update_nvml(load)
    program = start(
        node,
        """
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(1)
        v1, v2 = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
        tell([v1.used >> 20, v1.free >> 20, v2.used >> 20, v2.reserved >> 20, v2.free >> 20])
        rates = n.nvmlDeviceGetUtilizationRates(h)
        tell([rates.gpu, rates.memory])
        tell([[p.pid, p.usedGpuMemory >> 20, p.gpuInstanceId] for p in n.nvmlDeviceGetComputeRunningProcesses(h)])
        tell([n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0)),
              n.nvmlDeviceGetGraphicsRunningProcesses(h)])
        tell([n.nvmlDeviceGetTotalEccErrors(h, 0, 0), n.nvmlDeviceGetTotalEccErrors(h, 1, 1), n.nvmlDeviceGetEccMode(h)])
        tell([n.nvmlDeviceGetMigMode(h), n.nvmlDeviceGetMaxMigDeviceCount(h), n.nvmlDeviceGetBrand(h),
              n.nvmlDeviceGetNumaNodeId(h)])
        """,
    )

    assert program.hear() == [1536, 80023, 1024, 512, 80023]
    assert program.hear() == [75, 20]
    assert program.hear() == [[4711, 1000, 4294967295], [4712, 24, 4294967295]]
    assert program.hear() == [[], []]
    assert program.hear() == [3, 1, [1, 1]]
    assert program.hear() == [[1, 1], 7, 14, 0]


def test_handles_are_found_by_uuid_and_bus_id_or_not_at_all(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        by_bus = n.nvmlDeviceGetHandleByPciBusId
        tell([n.nvmlDeviceGetMinorNumber(n.nvmlDeviceGetHandleByUUID("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000006")),
              n.nvmlDeviceGetMinorNumber(by_bus("0000:9d:00.0")), n.nvmlDeviceGetMinorNumber(by_bus("00000000:9D:00.0"))])
        tell([code(n.nvmlDeviceGetHandleByUUID, "GPU-5E5A3BB1-7D0C-4D58-9C1A-000000000006"), code(by_bus, "0000:01:00.0"),
              code(by_bus, "bus 1"), code(n.nvmlDeviceGetHandleByIndex, 8), code(n.nvmlDeviceGetHandleByUUID, None)])
        """,
    )

    assert program.hear() == [6, 4, 4]
    assert program.hear() == [6, 6, 2, 2, 2]


def test_calls_are_refused_when_they_are_made_wrongly(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        lib, small, just = n.nvmlLib, ctypes.create_string_buffer(40), ctypes.create_string_buffer(41)
        tell([lib.nvmlDeviceGetUUID(h, small, 40), lib.nvmlDeviceGetUUID(h, just, 41), lib.nvmlDeviceGetUUID(h, None, 96)])
        tell(just.value.decode())
        tell([code(n.nvmlDeviceGetMemoryInfo, h, 0x02000020), code(n.nvmlDeviceGetMemoryInfo, h, 0x01000028)])
        tell([lib.nvmlDeviceGetMinorNumber(h, None), lib.nvmlDeviceGetCount_v2(None), code(n.nvmlDeviceGetIndex, None),
              code(n.nvmlDeviceGetTemperature, h, 1), code(n.nvmlDeviceGetTotalEccErrors, h, 2, 0)])
        tell([code(n.nvmlDeviceGetVbiosVersion, h), n.nvmlErrorString(15), n.nvmlErrorString(998)])
        """,
    )

    assert program.hear() == [7, 0, 2]
    assert program.hear() == GPU0
    assert program.hear() == [25, 25]
    assert program.hear() == [2, 2, 2, 2, 2]
    assert program.hear() == [13, "GPU is lost", "Unknown Error"]


def test_calls_are_refused_when_the_library_is_not_initialised(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        before = [code(n.nvmlDeviceGetCount), code(n.nvmlShutdown), code(n.nvmlSystemGetDriverVersion)]
        n.nvmlInit(); n.nvmlInit(); n.nvmlShutdown()
        between = code(n.nvmlDeviceGetCount)
        n.nvmlShutdown()
        tell([before, between, code(n.nvmlDeviceGetCount), code(n.nvmlEventSetCreate)])
        """,
    )

    assert program.hear() == [[1, 1, 1], 0, 1, 1]


def test_a_handle_stays_good_when_the_library_is_initialised_again(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(3)
        n.nvmlShutdown(); n.nvmlInit()
        tell(n.nvmlDeviceGetMinorNumber(h))
        """,
    )

    assert program.hear() == 3
