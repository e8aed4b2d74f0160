"""A node moves between NRI and none, once for good and once in the middle of a burst; its pods keep what they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from grpclib.exceptions import GRPCError

from vgpu_testkit import node_ways
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.daemons import Stack
from vgpu_testkit.manifests import GIB, Consumer, Manifest, PodManifest, Share
from vgpu_testkit.node_ways import Way
from vgpu_testkit.pods import Pod
from vgpu_testkit.vgpu_node import LIBRARY_SPEC, Slice, VgpuNode, leftovers, until

_BROUGHT_UP_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A pod with one container, on a claim of its own."""

    number: int
    claim: Manifest
    pod: Pod
    container: str
    failures: tuple[str, ...] = ()


@pytest.fixture(scope="module")
def services(services: Stack, containerd_process: Containerd) -> Stack:
    return node_ways.set_up(services, containerd_process, node_ways.WITH_NRI)


@pytest.fixture(autouse=True)
async def moved_back(node: VgpuNode) -> AsyncIterator[None]:
    """Whatever becomes of a test, the next one finds a node with NRI."""
    gates = dict(node.stack.dra.environment)
    yield
    if node.stack.dra.environment != gates:
        node.stack.dra.environment = gates
        node.stack.dra.kill()  # `node` starts what does not run


@pytest.mark.parametrize("nri_plugin", ["goes on", "is gone"])
async def test_pods_keep_their_limits_while_the_node_moves_and_moves_back(node: VgpuNode, nri_plugin: str) -> None:
    kept, removed, restarted = [await _bring_up(node, number) for number in range(3)]
    of_kept, of_removed = await _view(node, kept), await _view(node, removed)
    away = node
    if nri_plugin == "is gone":
        node.stack.nri.kill()
        away = replace(node, stack=replace(node.stack, has_nri=False))

    await _move(away, node_ways.BESIDE_NRI)
    eager = await _bring_up(away, 3)

    lazy = {one.claim.uid: "lazy" for one in (kept, removed, restarted)}
    assert await _modes(node) == lazy | {eager.claim.uid: "eager"}
    assert (await _view(node, kept), await _view(node, removed)) == (of_kept, of_removed)
    for one in (kept, removed, restarted, eager):
        assert (await node.load_library(one.container)).exit_code == 0
    await _remove(node, removed)
    if nri_plugin == "goes on":
        await _restart(node, restarted)
    else:
        with pytest.raises(GRPCError, match="created-without-nri"):
            await _restart(node, restarted)
    of_eager = await _view(node, eager)

    await _move(node, node_ways.WITH_NRI)
    again = await _bring_up(node, 4)

    assert await _modes(node) == {
        kept.claim.uid: "lazy",
        restarted.claim.uid: "lazy",
        eager.claim.uid: "eager",
        again.claim.uid: "lazy",
    }
    assert (await _view(node, kept), await _view(node, eager)) == (of_kept, of_eager)
    for one in (kept, eager, again):
        assert (await node.load_library(one.container)).exit_code == 0
        await _restart(node, one)
    await _restart(node, restarted, attempt=2)
    assert await _faults(node) == []
    for one in (kept, restarted, eager, again):
        await _remove(node, one)
    assert leftovers(node.stack) == []


async def test_each_pod_of_a_burst_through_which_nri_is_lost_has_its_limits_in_one_mode(node: VgpuNode) -> None:
    """Four pods with NRI, four right after its end, four once dra-plugin misses it, four while it comes back."""
    async with asyncio.TaskGroup() as burst:
        tasks = [burst.create_task(_bring_up(node, number)) for number in range(4)]
        await asyncio.wait(tasks)
        node.stack.nri.kill()
        tasks += [burst.create_task(_bring_up(node, number)) for number in range(4, 8)]
        await until(lambda: _misses_nri(node), "dra-plugin misses nri-plugin")
        tasks += [burst.create_task(_bring_up(node, number)) for number in range(8, 12)]
        await until(lambda: _eager_claims(node), "a claim is prepared without NRI")
        node.stack.nri.start()
        tasks += [burst.create_task(_bring_up(node, number)) for number in range(12, 16)]

    pods = [task.result() for task in tasks]
    modes = await _modes(node)
    assert [modes[one.claim.uid] for one in pods[:4]] == ["lazy"] * 4
    assert "eager" in {modes[one.claim.uid] for one in pods[8:12]}
    for number, one in enumerate(pods):
        assert await node.slices(one.container) == _slices(number)
        assert (await node.load_library(one.container)).exit_code == 0
        (partition,) = node.partitions(one.claim)
        assert partition.startswith("cg-") is (modes[one.claim.uid] == "eager")
        assert [failure for failure in one.failures if not _is_explained(failure)] == []
    of_records = [node.record(one.claim)["mode"] for one in pods]
    assert await _eager_claims(node) == of_records.count("eager")
    assert {reason for one in pods if (reason := node.record(one.claim).get("eager", {}).get("reason"))} == {"nri_lost"}
    await node.restart(node.stack.nri)
    assert await _faults(node) == []
    held = [entry["container_id"] for entry in await node.stack.dra.debug("partitions") if entry["state"] == "created"]
    assert sorted(held) == sorted(one.container for one in pods)


async def _bring_up(node: VgpuNode, number: int) -> _Running:
    """As kubelet does it: what could not start is made anew, until it runs."""
    name = f"pod-{number}"
    manifest = PodManifest(name=name, containers=(Consumer(uses={name: ()}),))
    share = Share(request="gpu", device=f"vgpu-{number % 8}", cores=str(number + 1), memory=f"{number + 1}Gi")
    claim = await node.prepare(share, name=name, pods=(manifest,))
    pod = await node.run(manifest)
    failures: list[str] = []
    async with asyncio.timeout(_BROUGHT_UP_S):
        for attempt in count():
            try:
                container = await node.cri.run_container(pod, node.spec(claim, attempt=attempt, **LIBRARY_SPEC))
                break
            except GRPCError as refusal:
                failures.append(str(refusal.message))
                await asyncio.sleep(0.2)  # kubelet's pause is longer
    return _Running(number=number, claim=claim, pod=pod, container=container, failures=tuple(failures))


def _is_explained(failure: str) -> bool:
    """Whether it says that NRI, or what it was to tell of, was not there."""
    return "created-without-nri" in failure or "EnsurePartition of claim" in failure


async def _move(node: VgpuNode, way: Way) -> None:
    """dra-plugin is restarted with that way's gates; every service that should run does."""
    node_ways.set_gates(node.stack.dra, way)
    if node.stack.has_nri and node.stack.nri.process is not None and node.stack.nri.process.poll() is not None:
        node.stack.nri.start()
    await node.restart(node.stack.dra)


async def _restart(node: VgpuNode, one: _Running, *, attempt: int = 1) -> None:
    """The next attempt of its container has the limits of the first, and registers."""
    await node.cri.stop(one.container)
    following = await node.cri.run_container(one.pod, node.spec(one.claim, attempt=attempt, **LIBRARY_SPEC))
    assert await node.slices(following) == _slices(one.number)
    assert (await node.load_library(following)).exit_code == 0


def _slices(number: int) -> dict[int, Slice]:
    """What the pod of that number may use; no two have the same."""
    return {number % 8: Slice(memory_bytes=(number + 1) * GIB, cores_percent=number + 1)}


async def _remove(node: VgpuNode, one: _Running) -> None:
    """The pod and its claim, of which nothing is left."""
    await node.cri.remove_pod(one.pod)
    await node.unprepare(one.claim)
    assert [name for name in leftovers(node.stack) if one.claim.uid in name] == []


async def _view(node: VgpuNode, one: _Running) -> tuple[object, ...]:
    """What must not change: the limits file on the host, and what a program inside finds there."""
    on_disk = _on_disk(node.sole_partition(one.claim) / "config/vgpu.config")
    inside = await node.cri.sh(one.container, "cd /etc/vgpu-manager/config; ls -i vgpu.config; sha256sum < vgpu.config")
    return (*on_disk, inside)


def _on_disk(file: Path) -> tuple[object, ...]:
    status = file.stat()
    return status.st_ino, status.st_mtime_ns, file.read_bytes()


async def _modes(node: VgpuNode) -> dict[str, str]:
    return {uid: claim["mode"] for uid, claim in (await node.stack.dra.debug("claims")).items()}


async def _misses_nri(node: VgpuNode) -> bool:
    return not (await node.stack.dra.debug("state"))["is_nri_alive"]


async def _eager_claims(node: VgpuNode) -> int:
    metrics = await node.stack.dra.metrics()
    return int(sum(value for name, value in metrics.items() if name.startswith("vgpu_dra_eager_claims{")))


async def _faults(node: VgpuNode) -> list[str]:
    """What nri-plugin's Synchronize found wrong, since it started."""
    metrics = await node.stack.nri.metrics()
    return [name for name, value in metrics.items() if name.startswith("vgpu_nri_synchronize_faults_total{") and value]
