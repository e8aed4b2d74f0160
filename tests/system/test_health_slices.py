"""The health of the GPUs as the scheduler sees it: taints in the ResourceSlices, over restarts and outages of the API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_bench import DraBench

XID = 8
GPU2 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000002"
GPU7 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000007"
XID_79 = {"key": "manager.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}


@pytest.fixture
def server(idle_bench: DraBench, server: ApiServer) -> ApiServer:
    """The API server that dra-plugin, not started yet, will find. It looks at its GPUs when it starts and no more."""
    idle_bench.dra.environment["VGPU_GPU_POLL"] = "600"
    return server


async def start(bench: DraBench, server: ApiServer) -> None:
    """Returns when everything is published and is being watched."""
    bench.dra.start()
    await bench.until_phase("serving")
    await server.until(lambda: server.watches == 1, timeout_s=30)


async def stop(bench: DraBench, server: ApiServer) -> None:
    bench.dra.kill()
    await server.until(lambda: server.watches == 0)


def taints(server: ApiServer) -> dict[str, list[dict[str, Any]]]:
    """By device, those without any left out. When they were added is the API server's."""
    devices = [device for one in server.slices for device in one["spec"].get("devices", [])]
    return {
        device["name"]: [{k: v for k, v in taint.items() if k != "timeAdded"} for taint in device["taints"]]
        for device in devices
        if device.get("taints")
    }


async def until_taints(server: ApiServer, expected: dict[str, list[dict[str, Any]]]) -> None:
    try:
        await server.until(lambda: taints(server) == expected, timeout_s=30)
    except TimeoutError:
        assert taints(server) == expected


async def test_an_xid_taints_every_device_of_its_gpu_in_one_write(idle_bench: DraBench, server: ApiServer) -> None:
    idle_bench.node.partition_gpu(GPU7, (9, 0), (19, 4))
    await start(idle_bench, server)
    before = server.writes

    idle_bench.node.inject_event(GPU7, XID, 79)

    await until_taints(server, {"gpu-7-mig-9-0-4": [XID_79], "gpu-7-mig-19-4-1": [XID_79]})
    idle_bench.node.inject_event(GPU2, XID, 31)
    informing = {"key": "manager.nvidia.com/xid", "value": "31", "effect": "None"}
    await until_taints(
        server,
        {
            "vgpu-2": [informing],
            "gpu-2": [informing],
            "gpu-7-mig-9-0-4": [XID_79],
            "gpu-7-mig-19-4-1": [XID_79],
        },
    )
    assert server.writes == before + 2


async def test_a_restart_leaves_the_taint_and_writes_nothing_and_clean_looks_end_it(
    idle_bench: DraBench, server: ApiServer
) -> None:
    await start(idle_bench, server)
    idle_bench.node.inject_event(GPU2, XID, 79)
    await until_taints(server, {"vgpu-2": [XID_79], "gpu-2": [XID_79]})
    idle_bench.node.heal()
    writes = server.writes

    await stop(idle_bench, server)
    await start(idle_bench, server)
    assert taints(server) == {"vgpu-2": [XID_79], "gpu-2": [XID_79]}
    assert server.writes == writes

    await stop(idle_bench, server)
    idle_bench.dra.environment["VGPU_GPU_POLL"] = "0.05"
    await start(idle_bench, server)
    await until_taints(server, {})
    assert server.writes == writes + 1


async def test_slices_that_were_lost_come_back_with_the_taint(idle_bench: DraBench, server: ApiServer) -> None:
    await start(idle_bench, server)
    idle_bench.node.inject_event(GPU2, XID, 79)
    await until_taints(server, {"vgpu-2": [XID_79], "gpu-2": [XID_79]})

    server.wipe()

    await server.until(lambda: len(server.slices) == 9)
    await until_taints(server, {"vgpu-2": [XID_79], "gpu-2": [XID_79]})


@pytest.mark.parametrize("status", [500, 0])
async def test_a_taint_that_could_not_be_written_is_written_later(idle_bench: DraBench, server: ApiServer, status: int) -> None:
    await start(idle_bench, server)
    server.fail_next("update", status, times=2)

    idle_bench.node.inject_event(GPU2, XID, 79)

    await until_taints(server, {"vgpu-2": [XID_79], "gpu-2": [XID_79]})
    assert (await idle_bench.dra.metrics())['vgpu_dra_slice_failures_total{reason="away"}'] >= 1


async def test_a_lost_gpu_stays_in_the_slices(idle_bench: DraBench, server: ApiServer) -> None:
    idle_bench.dra.environment["VGPU_GPU_POLL"] = "0.05"
    await start(idle_bench, server)
    state = json.loads(idle_bench.node.nvml_state.read_text())

    idle_bench.node.update_nvml(lambda now: now["gpus"].pop())

    lost = {"key": "manager.nvidia.com/gpu-lost", "effect": "NoSchedule"}
    await until_taints(server, {"vgpu-7": [lost], "gpu-7": [lost]})
    assert len(server.slices) == 9
    idle_bench.node.update_nvml(lambda now: now.update(gpus=state["gpus"]))
    await until_taints(server, {})
