"""kubelet is told how each device is: what it would show in a pod's status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from vgpu_testkit import polling
from vgpu_testkit.dra_bench import DRIVER, DraBench, half_a_gpu, make_kubelet
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_values import KubeletRefusal

XID = 8
GPU2 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000002"
HALF = half_a_gpu(device="vgpu-5")


@pytest.fixture(params=["1.36", "1.37"])
async def kubelet(idle_bench: DraBench, request: pytest.FixtureRequest) -> AsyncIterator[Kubelet]:
    """A kubelet that dra-plugin has told of its devices, in each version of the service. All are well."""
    idle_bench.dra.environment |= {"VGPU_GPU_POLL": "0.05", "VGPU_NODE_NAME": "node-a"}
    async with make_kubelet(idle_bench.node, release=request.param) as kubelet:
        idle_bench.kubelet = kubelet
        await idle_bench.start()
        await until_said(kubelet, "vgpu-2", "HEALTHY")
        yield kubelet
        idle_bench.dra.kill()


async def until_said(kubelet: Kubelet, device: str, word: str) -> None:
    await kubelet.until(lambda: kubelet.health(DRIVER).get(("node-a", device)) == word, timeout_s=30)


def message(kubelet: Kubelet, device: str) -> str:
    return kubelet.health_reports(DRIVER)["node-a", device].message


async def test_every_device_of_a_gpu_shares_its_health(kubelet: Kubelet, idle_bench: DraBench) -> None:
    idle_bench.node.inject_event(GPU2, XID, 79)

    await until_said(kubelet, "vgpu-2", "UNHEALTHY")

    health = kubelet.health(DRIVER)
    assert {device for (_, device), word in health.items() if word == "UNHEALTHY"} == {"vgpu-2", "gpu-2"}
    assert message(kubelet, "vgpu-2") == "XID 79 was reported"
    idle_bench.node.heal()
    await until_said(kubelet, "vgpu-2", "HEALTHY")
    assert message(kubelet, "vgpu-2") == ""
    assert kubelet.health_attempts(DRIVER) == 1


async def test_what_an_application_causes_is_told_and_no_illness(kubelet: Kubelet, idle_bench: DraBench) -> None:
    idle_bench.node.inject_event(GPU2, XID, 31)

    await kubelet.until(lambda: message(kubelet, "vgpu-2") != "")

    assert message(kubelet, "vgpu-2") == "XID 31 was reported, which does not count"
    assert kubelet.health(DRIVER)["node-a", "vgpu-2"] == "HEALTHY"


async def test_hung_nvml_makes_every_device_unknown_and_its_end_well_again(kubelet: Kubelet, idle_bench: DraBench) -> None:
    idle_bench.node.hang("*")

    await until_said(kubelet, "vgpu-2", "UNKNOWN")

    assert message(kubelet, "vgpu-2") == "NVML does not answer"
    HALF.write(idle_bench.claims)
    assert len(await idle_bench.prepare(HALF)) == 1
    idle_bench.node.heal()
    await until_said(kubelet, "vgpu-2", "HEALTHY")


async def test_stop_waits_for_no_stream(kubelet: Kubelet, idle_bench: DraBench) -> None:
    loop = asyncio.get_running_loop()
    stopping = loop.run_in_executor(None, idle_bench.dra.stop)

    async with asyncio.timeout(5):  # the drain alone would last 10 s
        assert await stopping == 0


async def test_many_streams_leave_room_for_prepare(kubelet: Kubelet, idle_bench: DraBench) -> None:
    streams = [idle_bench.watch_health() for _ in range(17)]
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        reading = [group.create_task(anext(stream)) for stream in streams[:15]]
    assert all(len(task.result()) == 16 for task in reading)

    with pytest.raises(KubeletRefusal, match="16 health streams are open already"):
        await anext(streams[15])
    HALF.write(idle_bench.claims)
    assert len(await idle_bench.prepare(HALF)) == 1

    for stream in streams:
        await stream.aclose()

    async def is_free_again() -> bool:
        stream = idle_bench.watch_health()
        try:
            return bool(await anext(stream))
        except KubeletRefusal:
            return False
        finally:
            await stream.aclose()

    await polling.until(is_free_again)
