"""A GPU that NVML has lost: its claims are refused by its name, all others go on, also over a start of dra-plugin."""

from __future__ import annotations

import json

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit import polling
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import KubeletRefusal

WELL = half_a_gpu("well", device="vgpu-5", uid="11111111-0f8a-4f57-9d0e-6a6d1b2c7e10")
LOST = half_a_gpu("lost", device="vgpu-2", uid="22222222-0f8a-4f57-9d0e-6a6d1b2c7e10")


async def until_lost(bench: DraBench, uuid: str) -> None:
    async def is_lost() -> bool:
        return uuid in (await bench.dra.debug("state"))["lost_gpus"]

    await polling.until(is_lost)


@pytest.fixture
async def lost_uuid(bench: DraBench) -> str:
    """Both claims are prepared; then the GPU of LOST is lost and dra-plugin is started anew."""
    for manifest in (WELL, LOST):
        manifest.write(bench.claims)
    await bench.start()
    await bench.prepare(WELL, LOST)
    uuid: str = json.loads(bench.node.nvml_state.read_text())["gpus"][2]["uuid"]
    bench.node.lose_gpu(uuid)
    bench.dra.kill()
    await bench.start()
    return uuid


@pytest.mark.usefixtures("lost_uuid")
async def test_claims_of_the_other_gpus_are_prepared_and_their_containers_start(bench: DraBench) -> None:
    await bench.prepare(WELL)

    answer = await bench.ensure(WELL, Container())

    assert answer.partition == Container().partition
    assert (await bench.dra.debug("state"))["unreadable_gpus"] == ["GPU at NVML index 2: GPU is lost"]
    assert (await bench.dra.metrics())["vgpu_dra_unreadable_gpus"] == 1


async def test_claim_of_the_lost_gpu_is_refused_by_its_name(bench: DraBench, lost_uuid: str) -> None:
    with pytest.raises(GRPCError, match=f"GPU {lost_uuid} of request gpu is not on this node any more"):
        await bench.ensure(LOST, Container())

    with pytest.raises(KubeletRefusal, match="device vgpu-2 is not on this node, which has vgpu-0, vgpu-1, vgpu-3"):
        await bench.prepare(LOST)


async def test_what_is_prepared_on_a_gpu_outlives_its_loss_and_nothing_new_begins_there(bench: DraBench) -> None:
    bench.dra.environment["VGPU_GPU_POLL"] = "0.05"
    later = half_a_gpu("later", device="vgpu-2", uid="33333333-0f8a-4f57-9d0e-6a6d1b2c7e10")
    for manifest in (LOST, later):
        manifest.write(bench.claims)
    await bench.start()
    devices = await bench.prepare(LOST)
    held = await bench.ensure(LOST, Container())
    uuid: str = json.loads(bench.node.nvml_state.read_text())["gpus"][2]["uuid"]
    bench.node.lose_gpu(uuid)
    await until_lost(bench, uuid)

    with pytest.raises(KubeletRefusal, match=f"GPU {uuid} of request gpu is lost: NVML cannot reach it now"):
        await bench.prepare(later)
    with pytest.raises(GRPCError, match=f"GPU {uuid} of request gpu is lost: NVML cannot reach it now") as refusal:
        await bench.ensure(LOST, Container().again())
    assert refusal.value.status is Status.UNAVAILABLE
    assert await bench.prepare(LOST) == devices
    assert await bench.ensure(LOST, Container()) == held

    bench.node.heal()
    await until_lost_no_more(bench)
    assert len(await bench.prepare(later)) == 1


async def until_lost_no_more(bench: DraBench) -> None:
    async def is_back() -> bool:
        return not (await bench.dra.debug("state"))["lost_gpus"]

    await polling.until(is_back)
