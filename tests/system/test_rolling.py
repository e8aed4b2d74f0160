"""A node's services replaced by those of the next pod, again and again, while they are used."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from vgpu_testkit import trees
from vgpu_testkit.dra_bench import DRIVER, Container, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import CallFailed, KubeletRefusal
from vgpu_testkit.light_node import LightNode
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.pods import ContainerSpec, Pod, PodSpec

_T = TypeVar("_T")
_ROLLS = 20
_LASTING = half_a_gpu()
_CONTAINER = Container()
_PASSING = tuple(
    half_a_gpu(f"passing-{gpu}", device=f"vgpu-{gpu}", uid=f"{gpu:08d}-8f0a-4f57-9d0e-6a6d1b2c7e10") for gpu in range(4)
)
# What kubelet says while nobody is registered, or connected. It asks again then, and where a connection ended under a call.
_NOBODY = (f"DRA driver {DRIVER} is not registered", f"DRA driver {DRIVER} has no connected plugin instance")


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("control")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
async def test_no_claim_is_lost_and_no_call_fails_for_good_while_pods_succeed_each_other(
    bench: DraBench, end: signal.Signals
) -> None:
    for manifest in (_LASTING, *_PASSING):
        manifest.write(bench.claims)
    bench.dra.environment["VGPU_POD_UID"] = _pod_uid(0)
    await bench.start()
    await bench.prepare(_LASTING)
    await bench.ensure(_LASTING, _CONTAINER)
    lasting = trees.stamps(bench.claim_dir(_LASTING), bench.cdi_file(_LASTING))
    before = bench.picture()
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        loads = [group.create_task(_come_and_go(bench, manifest, over)) for manifest in _PASSING]
        try:
            for turn in range(1, _ROLLS + 1):
                await _roll(bench, _pod_uid(turn), end)
        finally:
            over.set()

    assert min(load.result() for load in loads) > 0
    await bench.until_trash_is_empty()
    assert bench.picture() == before
    assert trees.stamps(bench.claim_dir(_LASTING), bench.cdi_file(_LASTING)) == lasting
    await bench.ensure(_LASTING, _CONTAINER)
    assert [len(list(bench.node.kubelet_dir.glob(folder))) for folder in ("plugins/*/*", "plugins_registry/*")] == [1, 1]
    assert [path.name for path in bench.node.run_dir.glob("debug/*")] == ["dra.sock"]


async def test_a_running_container_registers_all_the_time_while_the_three_succeed_each_other(native: Path) -> None:
    async with LightNode(native) as node:
        _LASTING.write(node.claims)
        (device,) = await node.prepare(_LASTING)
        pod = Pod(id="a1" * 32, spec=PodSpec())
        running = await node.runtime.create(pod, ContainerSpec(cdi_devices=tuple(device.cdi_device_ids)))
        await node.runtime.start(running)
        node.runtime.run_process(running, os.getpid())
        config = Path(running.source_of("/etc/vgpu-manager/config"))
        limits = (config / "vgpu.config").read_bytes()
        over, registered = asyncio.Event(), 0
        async with asyncio.TaskGroup() as group:
            registering = group.create_task(_register_until(over, node, pod))
            for number in range(1, 6):
                await node.roll(pod_uid=_pod_uid(number))
            over.set()
            registered = await registering

        assert registered > 5
        assert (config / "vgpu.config").read_bytes() == limits
        assert (config / "pids.config").read_text() == "".join(f"{pid}\n" for pid in sorted(running.pids))
        (held,) = await node.dra.debug("partitions")
        assert held["container_id"] == running.id
        # And the next one of the pod takes over, as on a node that was never updated.
        await node.runtime.end(running)
        following = await node.runtime.create(pod, replace(running.spec, attempt=1))
        await node.runtime.start(following)


async def _register_until(over: asyncio.Event, node: LightNode, pod: Pod) -> int:
    """Registers this process, one call after the other, none of which may fail; how many."""
    count = 0
    while not over.is_set():
        await node.register(pod_uid=pod.spec.uid, container="main")
        count += 1
    return count


async def _roll(bench: DraBench, pod_uid: str, end: signal.Signals) -> None:
    kubelet = bench.kubelet
    assert kubelet is not None
    serving = kubelet.connected_endpoints(DRIVER)
    predecessor = bench.dra.succeed(VGPU_POD_UID=pod_uid)
    try:
        await bench.dra.stands_by()
        assert kubelet.connected_endpoints(DRIVER) == serving
    finally:
        await asyncio.to_thread(predecessor.end, end)
    await bench.serving()
    assert kubelet.connected_endpoints(DRIVER) == (str(bench.node.kubelet_dir / f"plugins/{DRIVER}/dra-{pod_uid}.sock"),)


async def _come_and_go(bench: DraBench, manifest: Manifest, over: asyncio.Event) -> int:
    """Prepares and unprepares a claim by turns; how often it did."""
    first = await _persistently(lambda: bench.prepare(manifest))
    turns = 0
    while not over.is_set():
        await _persistently(lambda: bench.unprepare(manifest))
        devices = await _persistently(lambda: bench.prepare(manifest))
        assert [device.device_name for device in devices] == [device.device_name for device in first]
        turns += 1
    await _persistently(lambda: bench.unprepare(manifest))
    return turns


async def _persistently(ask: Callable[[], Awaitable[_T]]) -> _T:
    """What kubelet gets when it asks again as often as it has to.

    Raises:
        KubeletRefusal: the refusal is none that passes by itself.
    """
    while True:
        try:
            return await ask()
        except CallFailed:
            await asyncio.sleep(0.02)
        except KubeletRefusal as refusal:
            if refusal.reason not in _NOBODY:
                raise
            await asyncio.sleep(0.02)


def _pod_uid(number: int) -> str:
    return f"{number:08d}-54f1-4c86-9b57-2f1d2b8f4c11"
