"""When a part of the path is not there: a vGPU container does not run unlimited, and other containers do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit.fake_partitions import FakePartitions, serving
from vgpu_testkit.manifests import GIB, Share
from vgpu_testkit.pods import ContainerSpec, ContainerState, Mount, Pod
from vgpu_testkit.vgpu_node import Slice, VgpuNode, freeze, thaw, until

_HALF = {5: Slice(memory_bytes=8 * GIB, cores_percent=50)}
_RAN = ("/bin/sh", "-c", "touch /marker/ran; sleep 1000000")


async def _create_with_nri_killed(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> str:
    node.stack.nri.kill()
    return await node.cri.create_container(pod, spec)


async def _create_with_nri_hung(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> str:
    """The runtime waits two seconds, then closes the connection and makes the container without an answer."""
    freeze(node.stack.nri)
    return await node.cri.create_container(pod, spec)


async def _create_with_nri_killed_in_the_request(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> str:
    """nri-plugin ends while it waits for dra-plugin, in whose place somebody listens who never answers."""
    node.stack.dra.kill()
    silent = FakePartitions()
    silent.hung["EnsurePartition"] = asyncio.Event()
    async with serving(silent, node.stack.node.run_dir / "partitions/claims.sock"):
        await silent.wait_for("Synchronize")  # nri-plugin has found it
        creating = asyncio.create_task(node.cri.create_container(pod, spec))
        await silent.wait_for("EnsurePartition")
        node.stack.nri.kill()
        return await creating


async def _create_with_nri_never_started(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> str:
    """The runtime has never seen a plugin in its life."""
    node.stack.nri.kill()
    await asyncio.to_thread(node.containerd.restart)
    await until(lambda: _answers(node), "the runtime answers again")
    return await node.cri.create_container(pod, spec)


async def _create_with_all_killed(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> str:
    for daemon in node.stack.daemons:
        daemon.kill()
    return await node.cri.create_container(pod, spec)


Absence = Callable[[VgpuNode, Pod, ContainerSpec], Awaitable[str]]
_ABSENCES: dict[str, Absence] = {
    "killed": _create_with_nri_killed,
    "hung": _create_with_nri_hung,
    "killed in the request": _create_with_nri_killed_in_the_request,
    "never started": _create_with_nri_never_started,
    "every service killed": _create_with_all_killed,
}


@pytest.mark.parametrize("absence", _ABSENCES)
async def test_container_made_without_nri_never_runs_and_its_retry_does(node: VgpuNode, tmp_path: Path, absence: str) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    mounts = (Mount("/marker", tmp_path),)

    container = await _ABSENCES[absence](node, pod, node.spec(claim, command=_RAN, mounts=mounts))
    with pytest.raises(GRPCError) as refusal:
        await node.cri.start(container)

    assert f"claims/{claim.uid}/created-without-nri" in str(refusal.value.message)
    status = await node.cri.status(container)
    assert (status.state, status.reason, status.exit_code) == (ContainerState.EXITED, "StartError", 128)
    assert "created-without-nri" in status.message  # what kubelet shows of it
    assert not (tmp_path / "ran").exists()
    await _bring_back(node)
    retry = await node.cri.run_container(pod, node.spec(claim, attempt=1, command=_RAN, mounts=mounts))
    assert await node.slices(retry) == _HALF
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("absence", ["killed", "hung"])
async def test_container_made_with_nri_and_started_without_has_its_limits(node: VgpuNode, absence: str) -> None:
    """Its start is recorded when nri-plugin is back, so that it can register."""
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.create_container(pod, node.spec(claim))
    if absence == "killed":
        node.stack.nri.kill()
    else:
        freeze(node.stack.nri)

    await node.cri.start(container)

    assert await node.slices(container) == _HALF
    await _bring_back(node)
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


async def test_container_made_without_nri_and_started_with_it_is_refused(node: VgpuNode, tmp_path: Path) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    node.stack.nri.kill()
    container = await node.cri.create_container(pod, node.spec(claim, command=_RAN, mounts=(Mount("/marker", tmp_path),)))
    await _bring_back(node)

    with pytest.raises(GRPCError, match="created-without-nri"):
        await node.cri.start(container)

    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("absence", ["killed", "hung"])
async def test_vgpu_container_is_refused_in_time_while_dra_plugin_is_away(node: VgpuNode, tmp_path: Path, absence: str) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    spec = node.spec(claim, command=_RAN, mounts=(Mount("/marker", tmp_path),))
    _take_away(node, absence)

    for _ in range(2):
        with pytest.raises(GRPCError) as refusal:
            await node.cri.create_container(pod, spec)
        # The runtime's own wait would have made the container; this is nri-plugin's answer.
        assert refusal.value.status is Status.UNAVAILABLE
        assert f"EnsurePartition of claim {claim.uid} for container research/pod/main: dra-plugin " in str(refusal.value.message)

    assert [entry for entry in await node.cri.list() if entry.pod_id == pod.id] == []
    await _bring_back(node)
    container = await node.cri.run_container(pod, spec)
    assert await node.slices(container) == _HALF


@pytest.mark.parametrize("absence", ["killed", "hung"])
async def test_foreign_containers_are_made_without_a_call_while_dra_plugin_is_away(node: VgpuNode, absence: str) -> None:
    pod = await node.run_pod()
    _take_away(node, absence)
    before = await _hooks(node)

    for number in range(50):
        await node.cri.create_container(pod, ContainerSpec(name=f"foreign-{number}"))

    after = await _hooks(node)
    assert {hook: after[hook] - before.get(hook, 0) for hook in after if after[hook] != before.get(hook, 0)} == {
        ("create", "not_ours"): 50
    }
    created = [call for call in await node.stack.nri.debug("calls") if call["hook"] == "create"][:50]
    # A call to dra-plugin would have waited for one second, or been told at once that it is away and so refused.
    assert max(call["duration_ms"] for call in created) < 500


async def test_foreign_containers_start_and_stop_while_dra_plugin_is_hung(node: VgpuNode) -> None:
    pod = await node.run_pod()
    freeze(node.stack.dra)

    container = await node.cri.run_container(pod)
    await node.cri.stop(container)
    await node.cri.remove(container)

    assert await node.cri.list() == ()


async def test_registration_waits_for_dra_plugin_and_its_caller_is_where_the_kernel_says(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, node.spec(claim))
    freeze(node.stack.dra)

    registering = asyncio.create_task(node.register(container, pod_uid=pod.spec.uid))
    await until(lambda: _held_calls(node), "the registration is held")

    (call,) = await _held_calls(node)
    peer = Path("/proc", str(call["peer_pid"]))
    assert _first_word(peer) == "/etc/vgpu-manager/registry/device-client"
    assert pod.cgroup_of(container) in _cgroups(peer)
    assert str(call["peer_pid"]) in _processes_of(pod.cgroup_of(container))
    assert call["container_id"] == container
    assert not registering.done()
    thaw(node.stack.dra)
    assert (await registering).exit_code == 0
    assert call["peer_pid"] in node.recorded_pids(claim, pod)


async def test_registration_outlasts_a_restart_of_dra_plugin(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, node.spec(claim))
    node.stack.dra.kill()

    registering = asyncio.create_task(node.register(container, pod_uid=pod.spec.uid))
    await until(lambda: _held_calls(node), "the registration is held")
    node.stack.dra.start()

    assert (await registering).exit_code == 0


def _take_away(node: VgpuNode, absence: str) -> None:
    if absence == "killed":
        node.stack.dra.kill()
    else:
        freeze(node.stack.dra)


async def _bring_back(node: VgpuNode) -> None:
    for daemon in node.stack.daemons:
        thaw(daemon)
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()
    await node.settle()


async def _answers(node: VgpuNode) -> bool:
    try:
        await node.cri.version()
    except GRPCError:
        return False
    return True


async def _hooks(node: VgpuNode) -> dict[tuple[str, str], int]:
    """How many calls of the runtime have been answered, by hook and outcome."""
    counted = {}
    for sample, value in (await node.stack.nri.metrics()).items():
        if sample.startswith("vgpu_nri_hook_seconds_count{"):
            hook, outcome = (part.split('"')[1] for part in sample.partition("{")[2].split(","))
            counted[hook, outcome] = int(value)
    return counted


async def _held_calls(node: VgpuNode) -> list[dict[str, object]]:
    held: list[dict[str, object]] = await node.stack.registry.debug("held")
    return [call for call in held if call["container_id"] is not None]


def _first_word(process: Path) -> str:
    return (process / "cmdline").read_bytes().split(b"\0")[0].decode()


def _cgroups(process: Path) -> set[str]:
    return {line.split(":", 2)[2] for line in (process / "cgroup").read_text().splitlines()}


def _processes_of(cgroup: str) -> list[str]:
    return next(Path("/sys/fs/cgroup").glob(f"*{cgroup}/cgroup.procs")).read_text().split()
