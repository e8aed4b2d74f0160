"""dra-plugin as a process and the health of its GPUs: what it hears, what it keeps over a restart, what heals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from vgpu_testkit import polling
from vgpu_testkit.dra_bench import DraBench

NO_PERMISSION, FUNCTION_NOT_FOUND, RESET_REQUIRED = 4, 13, 16
XID, DOUBLE_BIT_ECC, SINGLE_BIT_ECC = 8, 2, 1
GPU2 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000002"
GPU3 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000003"


@pytest.fixture
async def bench(idle_bench: DraBench) -> DraBench:
    """dra-plugin runs, without kubelet, and looks at its GPUs so seldom that a test sees only what it asks for."""
    idle_bench.dra.environment["VGPU_GPU_POLL"] = "600"
    await idle_bench.start()
    return idle_bench


def look_often(bench: DraBench) -> None:
    bench.dra.environment["VGPU_GPU_POLL"] = "0.05"


async def restart(bench: DraBench) -> None:
    bench.dra.kill()
    await bench.start()


async def gpu(bench: DraBench, uuid: str) -> dict[str, Any]:
    found: dict[str, Any] = (await bench.dra.debug("health"))["gpus"].get(uuid, {})
    return found


async def until_tainted(bench: DraBench, *taints: str, uuid: str = GPU2) -> None:
    """Returns when the GPU has exactly these taints."""

    async def holds() -> bool:
        return bool((await gpu(bench, uuid)).get("taints") == [f"manager.nvidia.com/{taint}" for taint in taints])

    await polling.until(holds)


async def test_an_xid_taints_its_gpu_and_no_other(bench: DraBench) -> None:
    bench.node.inject_event(GPU2, XID, 79)

    await until_tainted(bench, "xid=79:NoSchedule")

    assert (await gpu(bench, GPU3))["taints"] == []
    metrics = await bench.dra.metrics()
    assert metrics['vgpu_dra_tainted_gpus{key="manager.nvidia.com/xid"}'] == 1
    assert metrics['vgpu_dra_health_events_total{kind="xid_critical"}'] == 1


async def test_events_of_a_mig_device_are_its_gpus(bench: DraBench) -> None:
    def add(state: dict[str, Any]) -> None:
        state["events"].append({"id": 1, "gpu": GPU2, "type": XID, "data": 94, "gpu_instance": 1, "compute_instance": 0})

    bench.node.update_nvml(add)

    await until_tainted(bench, "xid=94:NoSchedule")


async def test_memory_errors_count_when_they_could_not_be_corrected(bench: DraBench) -> None:
    bench.node.inject_event(GPU3, SINGLE_BIT_ECC, 0)
    bench.node.inject_event(GPU2, DOUBLE_BIT_ECC, 0)

    await until_tainted(bench, "ecc=uncorrectable:NoSchedule")

    assert (await gpu(bench, GPU3))["taints"] == []
    assert (await bench.dra.metrics())['vgpu_dra_health_events_total{kind="ecc_corrected"}'] == 1


async def test_operators_choose_which_xids_count(bench: DraBench) -> None:
    bench.dra.environment |= {"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "31,x"}
    await restart(bench)
    bench.node.inject_event(GPU2, XID, 79)
    bench.node.inject_event(GPU3, XID, 31)

    await until_tainted(bench, "xid=31:NoSchedule", uuid=GPU3)

    assert (await gpu(bench, GPU2))["taints"] == []
    assert any(entry.get("variable") == "DP_ENABLE_HEALTHCHECKS" and entry["words"] == ["x"] for entry in bench.dra.entries())


async def test_a_taint_outlives_the_process_and_goes_when_the_gpu_is_clean(bench: DraBench) -> None:
    bench.node.inject_event(GPU2, XID, 79)
    await until_tainted(bench, "xid=79:NoSchedule")
    bench.node.heal()

    await restart(bench)
    assert (await gpu(bench, GPU2))["taints"] == ["manager.nvidia.com/xid=79:NoSchedule"]

    look_often(bench)
    await restart(bench)
    await until_tainted(bench)
    await restart(bench)
    await until_tainted(bench)


async def test_a_taint_stays_as_long_as_the_driver_asks_for_a_reset(bench: DraBench) -> None:
    bench.node.update_nvml(lambda state: state["gpus"][2].update(recovery_action=1))
    look_often(bench)
    await restart(bench)
    bench.node.inject_event(GPU2, XID, 79)

    await until_tainted(bench, "xid=79:NoSchedule", "recovery-action=gpu-reset:NoSchedule")

    looks = await _looks(bench)
    await polling.until(_more_than(bench, looks + 5))
    assert len((await gpu(bench, GPU2))["taints"]) == 2

    bench.node.heal()
    bench.node.update_nvml(lambda state: state["gpus"][2].update(recovery_action=0))
    await until_tainted(bench)


async def test_a_gpu_that_tells_no_events_is_said_to_be_unmonitored(bench: DraBench) -> None:
    bench.node.update_nvml(lambda state: state["gpus"][2].update(supported_events=4))
    await restart(bench)

    await until_tainted(bench, "unmonitored=:None")


async def test_a_broken_health_file_is_counted_and_begun_anew(bench: DraBench) -> None:
    bench.node.inject_event(GPU2, XID, 79)
    await until_tainted(bench, "xid=79:NoSchedule")
    bench.node.heal()
    file = bench.node.manager_dir / "health.json"
    assert json.loads(file.read_bytes())["gpus"][GPU2]["critical_xid"] == 79
    file.write_bytes(file.read_bytes()[:-10])

    await restart(bench)

    await until_tainted(bench)
    assert (await bench.dra.metrics())["vgpu_dra_health_file_failures_total"] == 1


async def test_a_lost_gpu_is_tainted_and_comes_back(bench: DraBench) -> None:
    look_often(bench)
    await restart(bench)
    bench.node.lose_gpu(GPU2)

    await until_tainted(bench, "gpu-lost=:NoSchedule")
    bench.node.inject_event(GPU3, XID, 79)
    await until_tainted(bench, "xid=79:NoSchedule", uuid=GPU3)

    bench.node.heal()
    await until_tainted(bench)
    bench.node.inject_event(GPU2, XID, 48)
    await until_tainted(bench, "xid=48:NoSchedule")


async def _looks(bench: DraBench) -> float:
    return (await bench.dra.metrics())["vgpu_dra_gpu_looks_total"]


def _more_than(bench: DraBench, looks: float) -> Callable[[], Any]:
    async def holds() -> bool:
        return await _looks(bench) > looks

    return holds


@pytest.mark.parametrize("error", [NO_PERMISSION, FUNCTION_NOT_FOUND])
async def test_a_gpu_that_says_nothing_of_its_health_is_not_lost(bench: DraBench, error: int) -> None:
    for function in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetTotalEccErrors"):
        bench.node.fail(function, error)
    look_often(bench)
    await restart(bench)
    await polling.until(_more_than(bench, 2))

    found = await gpu(bench, GPU2)
    # The count is the one that was read before: what was not said since is no news.
    assert (found["condition"], found["taints"], found["uncorrected_errors"]) == ("healthy", [], 0)


async def test_a_gpu_that_must_be_reset_is_lost(bench: DraBench) -> None:
    look_often(bench)
    await restart(bench)

    bench.node.update_nvml(
        lambda state: state["faults"].append({"function": "nvmlDeviceGetTotalEccErrors", "gpu": GPU2, "error": RESET_REQUIRED})
    )

    await until_tainted(bench, "gpu-lost=:NoSchedule")


async def test_hung_nvml_keeps_nothing_from_its_end(bench: DraBench) -> None:
    bench.node.hang("*")

    assert bench.dra.stop() == 0


async def test_gpus_whose_events_hang_are_said_to_be_unmonitored_until_they_go_on(bench: DraBench) -> None:
    look_often(bench)
    await restart(bench)
    bench.node.hang("nvmlEventSetWait_v2")

    await until_tainted(bench, "unmonitored=:None")

    bench.node.heal()
    await until_tainted(bench)
    bench.node.inject_event(GPU2, XID, 79)
    await until_tainted(bench, "xid=79:NoSchedule")
