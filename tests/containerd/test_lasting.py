"""What lasts: one container through a hundred restarts, what Synchronize says of it, and what Unprepare waits for."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError

from vgpu_testkit.cri import Cri
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import GIB, Manifest, Share
from vgpu_testkit.pods import ContainerState, Pod
from vgpu_testkit.vgpu_node import Slice, VgpuNode, leftovers, until

_HALF = {5: Slice(memory_bytes=8 * GIB, cores_percent=50)}


@pytest.mark.timeout(600)
async def test_container_lives_through_a_hundred_restarts_of_everything(node: VgpuNode) -> None:
    """33 kills of each service and 3 restarts of containerd; several are away at once, in every order."""
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, node.spec(claim))
    before, pid = await _view(node, claim, pod, container), (await node.cri.status(container)).pid
    turns = cycle(node.stack.daemons)
    restarts = 0

    for round_number in range(33):
        # Three a round, beginning with another service each time; the first is back before the last is gone.
        for daemon in islice(turns, 4 if round_number % 3 == 0 else 3):
            daemon.kill()
            daemon.start()
            restarts += 1
        if round_number % 11 == 5:
            await asyncio.to_thread(node.containerd.restart)
            restarts += 1
        await node.settle()
        assert await _view(node, claim, pod, container) == before

    assert restarts >= 100
    status = await node.cri.status(container)
    assert (status.state, status.pid) == (ContainerState.RUNNING, pid)
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0
    assert await _faults(node) == {"unbound": 0, "drifted": 0}
    retry = await node.cri.run_container(pod, node.spec(claim, attempt=1))
    assert await node.slices(retry) == _HALF


async def test_containers_are_found_again_by_a_new_nri_plugin(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="one", device="vgpu-5"), Share(request="two", device="vgpu-5"))
    pod = await node.run_pod()
    one = await node.cri.run_container(pod, node.spec(claim, "one", name="one"))
    two = await node.cri.create_container(pod, node.spec(claim, "two", name="two"))  # not started yet

    await node.restart(node.stack.nri)

    assert await _faults(node) == {"unbound": 0, "drifted": 0}
    assert (await node.stack.nri.metrics())['vgpu_nri_synchronize_containers{kind="rebuilt"}'] == 2
    assert {entry["container_id"] for entry in await node.stack.nri.debug("partitions")} == {one, two}


async def test_altered_limits_are_counted_and_left_alone(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), Share(request="other", device="vgpu-6"))
    pod = await node.run_pod()
    altered = await node.cri.run_container(pod, node.spec(claim, "gpu", name="altered"))
    await node.cri.run_container(pod, node.spec(claim, "other", name="other"))
    limits = node.partition(claim, pod, "altered") / "config/vgpu.config"
    forged = bytearray(limits.read_bytes())
    forged[0] ^= 1
    limits.write_bytes(forged)

    await node.restart(node.stack.nri)

    assert await _faults(node) == {"unbound": 0, "drifted": 1}
    assert limits.read_bytes() == forged
    synchronized = [call for call in await node.stack.dra.debug("calls") if call["operation"] == "synchronize"][-1]
    assert (synchronized["drifted"], synchronized["unbound"]) == ([altered], [])


async def test_container_whose_binding_is_lost_is_counted(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, node.spec(claim))
    node.stack.dra.kill()
    (node.partition(claim, pod) / "binding.json").unlink()

    await node.restart(node.stack.dra, node.stack.nri)

    assert await _faults(node) == {"unbound": 1, "drifted": 0}
    assert (await node.cri.status(container)).state is ContainerState.RUNNING


async def test_containerd_that_was_restarted_finds_the_plugin_again(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="one", device="vgpu-5"), Share(request="two", device="vgpu-5"))
    pod = await node.run_pod()
    one = await node.cri.run_container(pod, node.spec(claim, "one", name="one"))

    await asyncio.to_thread(node.containerd.kill)
    await asyncio.to_thread(node.containerd.start)
    await node.settle()

    async with Cri(node.containerd.socket) as again:
        two = await again.run_container(pod, node.spec(claim, "two", name="two"))
        assert (await again.exec(two, "/bin/read-limits")).exit_code == 0
        assert (await again.exec(one, "/bin/read-limits")).exit_code == 0


async def test_unprepare_waits_for_the_claims_containers_and_leaves_nothing(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="one", device="vgpu-5"), Share(request="two", device="vgpu-5"))
    pod = await node.run_pod()
    one = await node.cri.run_container(pod, node.spec(claim, "one", name="one"))
    two = await node.cri.run_container(pod, node.spec(claim, "two", name="two"))
    await node.cri.stop(one)
    files = sorted(path for path in node.partition(claim, pod, "two").rglob("*") if path.is_file())

    with pytest.raises(KubeletRefusal) as refusal:
        await node.unprepare(claim)

    assert f"claim {claim.uid}: container two of pod research/pod still runs" in refusal.value.reason
    assert [path for path in files if not path.exists()] == []
    assert len(await node.slices(two)) == 1
    await node.cri.stop(two)
    await node.unprepare(claim)
    assert leftovers(node.stack) == []
    await until(lambda: _is_empty(node.stack.node.manager_dir / "claims/.trash"), "the trash is emptied")


async def test_unprepared_claims_containers_cannot_come_back(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    spec = node.spec(claim)
    await node.cri.stop(await node.cri.run_container(pod, spec))
    await node.unprepare(claim)

    with pytest.raises(GRPCError, match="unresolvable CDI devices"):
        await node.cri.create_container(pod, replace(spec, attempt=1))


async def test_container_that_was_made_before_unprepare_does_not_start(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.create_container(pod, node.spec(claim))
    await node.unprepare(claim)

    with pytest.raises(GRPCError, match="no such file or directory"):
        await node.cri.start(container)

    assert leftovers(node.stack) == []


async def test_everything_of_a_pod_is_gone_with_it(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="one", device="vgpu-5"), Share(request="two", device="vgpu-6"))
    pod = await node.run_pod()
    for name in ("one", "two"):
        container = await node.cri.run_container(pod, node.spec(claim, name, name=name))
        await node.register(container, pod_uid=pod.spec.uid, container=name)

    await node.cri.remove_pod(pod)

    assert node.partitions(claim) == []
    assert await node.stack.dra.debug("partitions") == []
    assert await node.stack.nri.debug("partitions") == []
    await node.unprepare(claim)
    assert leftovers(node.stack) == []


async def _view(node: VgpuNode, claim: Manifest, pod: Pod, container: str) -> tuple[object, ...]:
    """What must not change: inodes and bytes on the host, and what a program inside finds there."""
    config = node.partition(claim, pod) / "config"
    async with Cri(node.containerd.socket) as cri:
        inside = await cri.sh(container, "ls -id /etc/vgpu-manager/config /etc/vgpu-manager/config/vgpu.config; read-limits")
    limits = config / "vgpu.config"
    return config.stat().st_ino, limits.stat().st_ino, limits.read_bytes(), inside


async def _faults(node: VgpuNode) -> dict[str, int]:
    """What this nri-plugin's Synchronize found wrong, since it started."""
    metrics = await node.stack.nri.metrics()
    name = 'vgpu_nri_synchronize_faults_total{{kind="{}"}}'
    return {kind: int(metrics.get(name.format(kind), 0)) for kind in ("unbound", "drifted")}


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())
