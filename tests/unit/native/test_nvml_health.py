"""What the NVML mock says of a GPU's health, and which driver its library serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vgpu_testkit.node import Node
from vgpu_testkit.nvml_scenario import Program

Start = Callable[[Node, str], Program]

READ = """
    n.nvmlInit()
    h = n.nvmlDeviceGetHandleByIndex(0)
    def read():
        (action,) = n.nvmlDeviceGetFieldValues(h, [n.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
        rows = code(n.nvmlDeviceGetRemappedRows, h) or n.nvmlDeviceGetRemappedRows(h)
        pages = code(n.nvmlDeviceGetRetiredPagesPendingStatus, h) or n.nvmlDeviceGetRetiredPagesPendingStatus(h)
        return [action.nvmlReturn, action.value.uiVal, rows, pages]
    while True:
        tell(read())
        wait()
"""
NOT_SUPPORTED, DRIVER_NOT_LOADED, VERSION_MISMATCH = 3, 9, 18


def test_a_gpu_says_of_its_health_what_the_file_says(start: Start, node: Node) -> None:
    program = start(node, READ)
    assert program.hear() == [NOT_SUPPORTED, 0, NOT_SUPPORTED, NOT_SUPPORTED]

    node.update_nvml(lambda state: state["gpus"][0].update(recovery_action=2, remaps_pending=1, retirements_pending=0))
    program.go_on()

    assert program.hear() == [0, 2, [0, 0, 1, 0], 0]


def test_an_event_of_a_mig_instance_names_it(start: Start, node: Node) -> None:
    event = {"id": 1, "gpu": "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001", "type": 8, "data": 94}
    node.update_nvml(lambda state: state["events"].append({**event, "gpu_instance": 3, "compute_instance": 0}))
    program = start(
        node,
        """
        n.nvmlInit()
        events = n.nvmlEventSetCreate()
        n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(1), n.nvmlEventTypeXidCriticalError, events)
        e = n.nvmlEventSetWait(events, 10000)
        tell([n.nvmlDeviceGetIndex(e.device), e.eventData, e.gpuInstanceId, e.computeInstanceId])
        """,
    )

    assert program.hear() == [1, 94, 3, 0]


def test_a_library_serves_the_driver_it_came_with_only(start: Start, node: Node, native: Path) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        for _ in range(3):
            tell(code(n.nvmlDeviceGetCount))
            wait()
        """,
    )
    assert program.hear() == 0

    node.unload_driver()
    program.go_on()
    assert program.hear() == DRIVER_NOT_LOADED
    node.load_driver("570.10.01", native=native)
    program.go_on()

    assert program.hear() == VERSION_MISMATCH
