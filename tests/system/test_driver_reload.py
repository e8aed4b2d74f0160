"""The driver is taken away and another version comes while dra-plugin serves; NVML hangs and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_state import vgpu_config
from vgpu_testkit import polling
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import KubeletRefusal

HELD = half_a_gpu("held", device="vgpu-2", uid="11111111-0f8a-4f57-9d0e-6a6d1b2c7e10")
LATER = half_a_gpu("later", device="vgpu-5", uid="22222222-0f8a-4f57-9d0e-6a6d1b2c7e10")
EVERY_GPU = [f"GPU-5e5a3bb1-7d0c-4d58-9c1a-{i:012}" for i in range(8)]
LOST = "manager.nvidia.com/gpu-lost=:NoSchedule"


@pytest.fixture
async def bench(bench: DraBench) -> DraBench:
    """HELD is prepared and its container runs; the GPUs are looked at all the time."""
    bench.dra.environment["VGPU_GPU_POLL"] = "0.05"
    for manifest in (HELD, LATER):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(HELD)
    await bench.ensure(HELD, Container())
    bench.run(Container())
    return bench


async def tainted(bench: DraBench) -> dict[str, list[str]]:
    gpus = (await bench.dra.debug("health"))["gpus"]
    return {uuid: gpu["taints"] for uuid, gpu in gpus.items() if gpu["taints"]}


async def until_all_lost(bench: DraBench) -> None:
    async def holds() -> bool:
        return await tainted(bench) == {uuid: [LOST] for uuid in EVERY_GPU}

    await polling.until(holds)


async def until_well(bench: DraBench) -> None:
    async def holds() -> bool:
        return await tainted(bench) == {}

    await polling.until(holds)


async def until_library_is(bench: DraBench, version: str) -> None:
    """Returns when HELD's CDI file mounts the libraries of this driver version."""

    async def holds() -> bool:
        return f"libcuda.so.{version}" in bench.cdi_file(HELD).read_text()

    await polling.until(holds)


async def test_another_driver_is_taken_up_without_a_restart(bench: DraBench, native: Path) -> None:
    pid, record = bench.dra.pid, (bench.claim_dir(HELD) / "claim.json").read_bytes()
    limits = bench.claim_dir(HELD) / Container().partition / "config/vgpu.config"
    before = limits.read_bytes()

    bench.node.unload_driver()
    await until_all_lost(bench)
    with pytest.raises(KubeletRefusal, match=f"GPU {EVERY_GPU[2]} has no device node under"):
        await bench.prepare(HELD)
    with pytest.raises(GRPCError) as refusal:
        await bench.ensure(HELD, Container().again())
    assert refusal.value.status is Status.UNAVAILABLE

    bench.node.load_driver("570.10.01", native=native)
    await until_well(bench)
    await until_library_is(bench, "570.10.01")

    assert len(await bench.prepare(LATER)) == 1
    assert ((bench.claim_dir(HELD) / "claim.json").read_bytes(), limits.read_bytes()) == (record, before)
    await bench.ensure(HELD, Container().again())
    assert vgpu_config.decode_limits(limits.read_bytes()).driver_version == "570.10.01"
    bench.node.inject_event(EVERY_GPU[2], 8, 79)
    await until_tainted(bench, EVERY_GPU[2])
    assert bench.dra.pid == pid


async def test_the_same_driver_comes_back(bench: DraBench, native: Path) -> None:
    bench.node.unload_driver()
    await until_all_lost(bench)

    bench.node.load_driver("550.90.07", native=native)

    await until_well(bench)
    bench.node.inject_event(EVERY_GPU[2], 8, 79)
    await until_tainted(bench, EVERY_GPU[2])


@pytest.mark.parametrize("error", [1, 9, 18, 999])
async def test_every_answer_of_a_driver_that_went_away_is_understood(bench: DraBench, error: int) -> None:
    bench.node.fail("*", error)
    await until_all_lost(bench)

    bench.node.heal()

    await until_well(bench)


async def until_tainted(bench: DraBench, uuid: str) -> None:
    async def holds() -> bool:
        return await tainted(bench) == {uuid: ["manager.nvidia.com/xid=79:NoSchedule"]}

    await polling.until(holds)


async def test_a_wait_that_hangs_in_the_old_session_keeps_nobody_from_the_new_one(bench: DraBench) -> None:
    bench.node.hang("nvmlEventSetWait_v2")
    bench.node.fail("*", 18)
    await until_all_lost(bench)

    def end_the_error(state: dict[str, Any]) -> None:
        state["faults"] = [fault for fault in state["faults"] if "hang" in fault]

    bench.node.update_nvml(end_the_error)

    async def is_reached() -> bool:
        return not any(LOST in taints for taints in (await tainted(bench)).values())

    await polling.until(is_reached)
    assert any(entry["event"] == "NVML session left behind" for entry in bench.dra.entries())
    bench.node.heal()
    bench.node.inject_event(EVERY_GPU[2], 8, 79)
    await until_tainted(bench, EVERY_GPU[2])
