"""With NRI and without it, in client mode and by cgroups: what a container has and what is known of it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from vgpu_testkit import node_ways
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.daemons import Stack
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import GIB, Consumer, Manifest, PodManifest, Share
from vgpu_testkit.node_ways import Way
from vgpu_testkit.pods import ContainerState
from vgpu_testkit.vgpu_node import LIBRARY_SPEC, Slice, VgpuNode, leftovers, until

_HALF = {5: Slice(memory_bytes=8 * GIB, cores_percent=50)}


@pytest.fixture(scope="module", params=node_ways.ALL, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture(scope="module")
def services(services: Stack, containerd_process: Containerd, way: Way) -> Stack:
    return node_ways.set_up(services, containerd_process, way)


async def test_container_has_its_limits_and_is_known_by_its_processes(node: VgpuNode, way: Way) -> None:
    pod = PodManifest()
    claim = await node.prepare(Share(request="gpu", device="vgpu-5", cores="30", memory="10Gi"), pods=(pod,))
    sandbox = await node.run(pod)
    container = await node.cri.run_container(sandbox, node.spec(claim, **LIBRARY_SPEC))
    before = await _registrations(node)

    loaded = await node.load_library(container)

    assert (loaded.exit_code, loaded.stderr) == (0, _says("research/pod main", f"slot 5 {_uuid(5)} memory {10 * GIB} cores 30;"))
    shown = (await node.stack.dra.debug("claims"))[claim.uid]
    assert (shown["mode"], shown.get("eager_reason")) == (("eager", "nri_disabled") if way.is_eager else ("lazy", None))
    seen = await node.limits(container)
    assert (seen["pod_uid"], seen["pod_name"], seen["pod_namespace"]) == (pod.uid, "pod", "research")
    assert (seen["container_name"], seen["register_uuid"]) == ("main", _register_uuid(node, claim))
    assert bool(seen["register_uuid"]) is way.is_registered_by_uuid
    assert seen["compatibility_mode"] == (236 if way.is_client_mode else _cgroup_mode())
    assert node.partitions(claim) == [_partition_name(node, claim, pod)]
    host_proc = await node.cri.exec(container, "/bin/cat", f"/etc/vgpu-manager/.host_proc/{await _pid(node, container)}/comm")
    assert (host_proc.exit_code, host_proc.stdout) == ((1, "") if way.is_client_mode else (0, "sleep\n"))
    assert await _registrations(node) == ([*before, "ok"] if way.is_client_mode else before)
    if not way.is_client_mode and not way.has_nri:
        assert (_bound(node, claim), seen["pids"]) == (None, [])  # nobody told of it, and the library asks the host's /proc
        return
    lasting = _processes_of(sandbox.cgroup_of(container))
    assert _bound(node, claim) == (container, "main", "created")
    assert set(lasting) <= set(seen["pids"])


async def test_requests_of_one_container_are_one_partition_with_every_limit(node: VgpuNode, way: Way) -> None:
    pod = PodManifest()
    claim = await node.prepare(
        Share(request="first", device="vgpu-4", cores="30", memory="8Gi"),
        Share(request="second", device="vgpu-4", cores="20", memory="4Gi"),
        Share(request="third", device="vgpu-2", cores="10", memory="2Gi"),
        pods=(pod,),
    )
    sandbox = await node.run(pod)

    container = await node.cri.run_container(sandbox, node.spec(claim, **LIBRARY_SPEC))

    assert await node.slices(container) == {
        2: Slice(memory_bytes=2 * GIB, cores_percent=10),
        4: Slice(memory_bytes=12 * GIB, cores_percent=50),
    }
    assert node.partitions(claim) == [_partition_name(node, claim, pod)]
    mounted = await node.mount_points(container)
    assert [place for place, count in Counter(mounted).items() if count > 1] == []
    ours = {"/etc/ld.so.preload", "/etc/vgpu-manager", "/tmp/.vgpu_lock", "/tmp/.vmem_node", "/tmp/.sm_node"}
    below = {f"/etc/vgpu-manager/{name}" for name in ("config", "registry", "driver/libvgpu-control.so")}
    host_proc = set() if way.is_client_mode else {"/etc/vgpu-manager/.host_proc"}
    assert {place for place in mounted if place.startswith(("/etc/ld.so", "/etc/vgpu", "/tmp"))} == ours | below | host_proc
    loaded = await node.load_library(container)
    slots = f"slot 2 {_uuid(2)} memory {2 * GIB} cores 10; slot 4 {_uuid(4)} memory {12 * GIB} cores 50;"
    assert (loaded.exit_code, loaded.stderr) == (0, _says("research/pod main", slots))


async def test_init_container_of_two_requests_then_app_of_one(node: VgpuNode, way: Way) -> None:
    """Without NRI they take turns in one partition over both requests, whichever of them each was given."""
    pod = PodManifest(
        containers=(Consumer(name="init", kind="init"), Consumer(name="app", uses={"slice": ("second",)})),
    )
    claim = await node.prepare(
        Share(request="first", device="vgpu-5"), Share(request="second", device="vgpu-6", memory="4Gi"), pods=(pod,)
    )
    first, second = _HALF, {6: Slice(memory_bytes=4 * GIB, cores_percent=50)}
    sandbox = await node.run(pod)
    init = await node.cri.run_container(sandbox, node.spec(claim, name="init", **LIBRARY_SPEC))
    assert await node.slices(init) == first | second
    assert (await node.load_library(init)).exit_code == 0
    await node.cri.stop(init)  # kubelet keeps the dead container and does not remove it

    app = await node.cri.run_container(sandbox, node.spec(claim, "second", name="app", **LIBRARY_SPEC))

    assert await node.slices(app) == (first | second if way.is_eager else second)
    assert await node.cri.sh(app, "ls /dev/nvidia[0-9]*") == "/dev/nvidia6\n"
    assert (await node.load_library(app)).exit_code == 0
    if way.is_eager:
        assert node.partitions(claim) == [_partition_name(node, claim, pod)]
    else:
        assert node.partitions(claim) == sorted([f"{pod.uid}_init", f"{pod.uid}_app"])
    held = [entry["container_id"] for entry in await node.stack.dra.debug("partitions") if entry["state"] == "created"]
    assert held == ([app] if way.has_nri or way.is_client_mode else [])
    if held:
        assert set((await node.limits(app))["pids"]) >= set(_processes_of(sandbox.cgroup_of(app)))


async def test_container_that_ended_is_restarted_in_place(node: VgpuNode, way: Way) -> None:
    pod = PodManifest()
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), pods=(pod,))
    sandbox = await node.run(pod)
    first = await node.cri.run_container(sandbox, node.spec(claim, attempt=0, **LIBRARY_SPEC))
    assert (await node.load_library(first)).exit_code == 0
    await node.cri.sh(first, "echo old > /tmp/.vmem_node/ledger")
    os.kill(await _pid(node, first), 9)
    await _ended(node, first)

    second = await node.cri.run_container(sandbox, node.spec(claim, attempt=1, **LIBRARY_SPEC))

    assert await node.slices(second) == _HALF
    assert await node.cri.sh(second, "ls -A /tmp/.vmem_node") == ""
    assert (await node.load_library(second)).exit_code == 0
    await node.cri.remove(first)
    assert (await node.load_library(second)).exit_code == 0
    assert _bound(node, claim) == ((second, "main", "created") if way.has_nri or way.is_client_mode else None)


async def test_unprepare_waits_for_the_pod_and_leaves_nothing(node: VgpuNode, way: Way) -> None:
    pod = PodManifest()
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), pods=(pod,))
    sandbox = await node.run(pod)
    container = await node.cri.run_container(sandbox, node.spec(claim))

    with pytest.raises(KubeletRefusal) as refusal:
        await node.unprepare(claim)

    who = "container main" if way.has_nri else "a container"
    assert f"claim {claim.uid}: {who} of pod research/pod still runs" in refusal.value.reason
    assert await node.slices(container) == _HALF
    await node.cri.stop_pod(sandbox)
    await node.unprepare(claim)
    assert leftovers(node.stack) == []


def _says(who: str, slots: str) -> str:
    return f"vgpu-control: would enforce on {who}: {slots}\n"


def _uuid(index: int) -> str:
    return f"GPU-5e5a3bb1-7d0c-4d58-9c1a-{index:012d}"


def _cgroup_mode() -> int:
    """The library's number for a node with cgroups as this machine has them."""
    return 102 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 101


def _register_uuid(node: VgpuNode, claim: Manifest) -> str:
    """That of the claim's only partition, as the record has it; none where partitions come with their containers."""
    record = node.record(claim)
    if record["mode"] == "lazy":
        return ""
    (partition,) = record["eager"]["partitions"]
    return str(partition["register_uuid"])


def _partition_name(node: VgpuNode, claim: Manifest, pod: PodManifest) -> str:
    record = node.record(claim)
    if record["mode"] == "lazy":
        return f"{pod.uid}_main"
    (partition,) = record["eager"]["partitions"]
    assert partition["name"].startswith("cg-")
    return str(partition["name"])


def _bound(node: VgpuNode, claim: Manifest) -> tuple[str, str, str] | None:
    """Who holds the claim's only partition, by what lies on disk: its runtime id, its name and its state."""
    binding = node.binding(claim)
    return (binding["runtime_id"], binding["container"], binding["state"]) if binding else None


def _processes_of(cgroup: str) -> list[int]:
    place = next(Path("/sys/fs/cgroup").glob(f"*{cgroup}/cgroup.procs"))
    return sorted(int(pid) for pid in place.read_text().split())


async def _pid(node: VgpuNode, container: str) -> int:
    return (await node.cri.status(container)).pid


async def _registrations(node: VgpuNode) -> list[Any]:
    """The verdicts so far, the first one first."""
    return [entry["verdict"] for entry in await node.stack.registry.debug("registrations")]


async def _ended(node: VgpuNode, container: str) -> None:
    async def is_so() -> bool:
        return (await node.cri.status(container)).state is ContainerState.EXITED

    await until(is_so, "the runtime has seen the container end")
