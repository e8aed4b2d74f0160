"""Without NRI, in client mode: whom registration refuses, since nobody looked at the container, and what nobody can change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from vgpu_testkit import node_ways
from vgpu_testkit.containerd import Containerd
from vgpu_testkit.daemons import Stack
from vgpu_testkit.manifests import GIB, Consumer, Manifest, PodManifest, Share
from vgpu_testkit.pods import ContainerState, Mount
from vgpu_testkit.vgpu_node import LIBRARY_SPEC, Slice, VgpuNode, until

_STOPPED = "vgpu-control: /etc/vgpu-manager/registry/device-client: registration failed: stops the process"
_HALF = {5: Slice(memory_bytes=8 * GIB, cores_percent=50)}


@pytest.fixture(scope="module")
def services(services: Stack, containerd_process: Containerd) -> Stack:
    return node_ways.set_up(services, containerd_process, node_ways.WITHOUT_NRI)


async def test_second_live_container_of_a_partition_is_refused_when_it_registers(node: VgpuNode) -> None:
    pod = PodManifest(containers=(Consumer(name="init", kind="init"), Consumer(name="app")))
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), pods=(pod,))
    sandbox = await node.run(pod)
    first = await node.cri.run_container(sandbox, node.spec(claim, name="init", **LIBRARY_SPEC))
    assert (await node.load_library(first)).exit_code == 0
    second = await node.cri.run_container(sandbox, node.spec(claim, name="app", **LIBRARY_SPEC))

    refused = await node.load_library(second)

    assert (refused.exit_code, refused.stderr.splitlines()[-1]) == (1, _STOPPED)
    holder = f"a container ({first[:12]}) of pod research/pod holds; one live container may hold a vGPU request"
    assert holder in await _last_refusal(node)
    assert (await node.cri.status(first)).state is ContainerState.RUNNING
    assert (await node.load_library(first)).exit_code == 0
    assert await node.slices(first) == _HALF
    assert (node.binding(claim) or {})["runtime_id"] == first
    await node.cri.stop(first)
    assert (await node.load_library(second)).exit_code == 0


async def test_uuid_that_was_copied_into_another_pod_registers_nobody(node: VgpuNode) -> None:
    owner = PodManifest(name="owner", containers=(Consumer(uses={"theirs": ()}),))
    thief = PodManifest(name="thief", containers=(Consumer(uses={"mine": ()}),))
    theirs = await node.prepare(Share(request="gpu", device="vgpu-5"), name="theirs", pods=(owner,))
    mine = await node.prepare(Share(request="gpu", device="vgpu-6"), name="mine", pods=(thief,))
    container = await node.cri.run_container(await node.run(thief), node.spec(mine, **LIBRARY_SPEC))
    copied = node.record(theirs)["eager"]["partitions"][0]["register_uuid"]

    refused = await node.register(container, container="", register_uuid=copied)
    forged = await node.register(container, pod_uid=owner.uid, container="", register_uuid=copied)

    assert [result.exit_code for result in (refused, forged)] == [1, 1]
    assert node.binding(theirs) is None
    assert "is another's" in await _last_refusal(node, back=1)
    assert f"the call says pod {owner.uid}, but process" in await _last_refusal(node)
    assert (await node.load_library(container)).exit_code == 0  # by its own
    rightful = await node.cri.run_container(await node.run(owner), node.spec(theirs, **LIBRARY_SPEC))
    assert (await node.load_library(rightful)).exit_code == 0
    logs = "".join(daemon.log.read_text() for daemon in node.stack.daemons)
    assert copied not in logs


async def test_uuid_of_another_container_of_the_pod_registers_only_that_one(node: VgpuNode) -> None:
    pod = PodManifest(
        containers=(Consumer(name="train", uses={"slice": ("big",)}), Consumer(name="serve", uses={"slice": ("small",)}))
    )
    claim = await node.prepare(Share(request="big", device="vgpu-5"), Share(request="small", device="vgpu-5"), pods=(pod,))
    uuids = {p["requests"][0]: p["register_uuid"] for p in node.record(claim)["eager"]["partitions"]}
    sandbox = await node.run(pod)
    train = await node.cri.run_container(sandbox, node.spec(claim, "big", name="train", **LIBRARY_SPEC))
    serve = await node.cri.run_container(sandbox, node.spec(claim, "small", name="serve", **LIBRARY_SPEC))

    refused = await node.register(serve, pod_uid=pod.uid, container="", register_uuid=uuids["big"])

    assert refused.exit_code == 1
    assert "/etc/vgpu-manager/config" in await _last_refusal(node)
    assert await node.stack.dra.debug("partitions") == []
    assert [(await node.load_library(one)).exit_code for one in (train, serve)] == [0, 0]
    assert {one["container_id"] for one in await node.stack.dra.debug("partitions")} == {train, serve}


async def test_container_cannot_change_its_limits_and_has_scratch_of_its_own(node: VgpuNode) -> None:
    claim, container = await _running(node)

    for attempt in (
        "echo x > /etc/vgpu-manager/config/vgpu.config",
        "rm -f /etc/vgpu-manager/config/vgpu.config",
        "touch /etc/vgpu-manager/config/pids.config",
        "mkdir /etc/vgpu-manager/own",
        "mv /etc/vgpu-manager/watcher /etc/vgpu-manager/config2",
        "echo > /etc/ld.so.preload",
    ):
        tried = await node.cri.exec(container, "/bin/sh", "-c", attempt)
        assert (tried.exit_code != 0, "Read-only file system" in tried.stderr) == (True, True), attempt
    busy = await node.cri.exec(container, "/bin/mv", "/etc/vgpu-manager", "/etc/moved")
    assert "busy" in busy.stderr
    assert await node.slices(container) == _HALF
    table = {line.split()[1]: line.split() for line in (await node.cri.sh(container, "cat /proc/mounts")).splitlines()}
    for place in ("/tmp/.vgpu_lock", "/tmp/.vmem_node", "/tmp/.sm_node"):
        _, _, kind, options, *_ = table[place]
        assert kind == "tmpfs"
        assert {"rw", "nosuid", "nodev", "noexec", "size=2048k", "nr_inodes=64", "mode=777"} <= set(options.split(","))
    assert not (node.sole_partition(claim) / "config/pids.config").exists()


@pytest.mark.parametrize("place", ["/etc/vgpu-manager/config", "/etc/vgpu-manager", "/tmp/.vmem_node"])
async def test_volume_at_our_destination_does_not_come_before_our_mount(node: VgpuNode, tmp_path: Path, place: str) -> None:
    for folder in ("config", "registry", "driver", ".host_proc", "watcher"):
        (tmp_path / folder).mkdir()
    _, container = await _running(node, mounts=(Mount(place, tmp_path),))

    loaded = await node.load_library(container)

    assert loaded.exit_code == 0
    assert await node.slices(container) == _HALF
    assert await node.cri.sh(container, "ls /tmp/.vmem_node") == ""


@pytest.mark.parametrize("place", ["/etc/vgpu-manager/config/vgpu.config", "/etc/vgpu-manager/registry/device-client"])
async def test_volume_below_our_destination_ends_the_process_that_registers(
    node: VgpuNode, tmp_path: Path, native: Path, place: str
) -> None:
    forged = tmp_path / "forged"
    pod = PodManifest()
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), pods=(pod,))
    source = node.sole_partition(claim) / "config/vgpu.config" if place.endswith("vgpu.config") else native / "device-client"
    forged.write_bytes(source.read_bytes())
    forged.chmod(0o755)
    spec = node.spec(claim, mounts=(Mount(place, forged),), **LIBRARY_SPEC)
    container = await node.cri.run_container(await node.run(pod), spec)

    refused = await node.load_library(container)

    assert (refused.exit_code, refused.stderr.splitlines()[-1]) == (1, _STOPPED)
    assert place in await _last_refusal(node)
    assert node.binding(claim) is None


async def test_container_has_its_names_in_its_env_whatever_the_user_set(node: VgpuNode) -> None:
    names = ("MANAGER_CLIENT_REGISTER_UUID", "VGPU_POD_UID", "VGPU_POD_NAME", "VGPU_POD_NAMESPACE", "VGPU_CONTAINER_NAME")
    pod = PodManifest(name="notebook")
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), pods=(pod,))
    spec = node.spec(claim, env=dict.fromkeys(names, "forged"))

    container = await node.cri.run_container(await node.run(pod), spec)

    env = (await node.cri.sh(container, "cat /proc/1/environ")).split("\0")
    assert sorted(entry for entry in env if entry.startswith(names)) == [
        f"MANAGER_CLIENT_REGISTER_UUID={node.record(claim)['eager']['partitions'][0]['register_uuid']}",
        "VGPU_CONTAINER_NAME=main",
        "VGPU_POD_NAME=notebook",
        "VGPU_POD_NAMESPACE=research",
        f"VGPU_POD_UID={pod.uid}",
    ]


async def test_user_without_rights_on_a_read_only_root_registers(node: VgpuNode) -> None:
    _, container = await _running(node, run_as_user=1000, run_as_group=1000, readonly_rootfs=True)

    assert (await node.load_library(container)).exit_code == 0
    assert await node.cri.sh(container, "echo mine > /tmp/.vmem_node/note; cat /tmp/.vmem_node/note") == "mine\n"


async def test_first_registration_outlasts_a_restart_of_dra_plugin(node: VgpuNode) -> None:
    claim, container = await _running(node)
    node.stack.dra.kill()

    registering = asyncio.create_task(node.load_library(container))
    await until(lambda: _holds_a_call(node), "the registration is held")
    node.stack.dra.start()

    assert (await registering).exit_code == 0
    assert (node.binding(claim) or {})["runtime_id"] == container


async def test_registered_container_stays_known_while_every_service_is_restarted(node: VgpuNode) -> None:
    claim, container = await _running(node)
    assert (await node.load_library(container)).exit_code == 0
    binding = node.binding(claim)

    await node.restart(*node.stack.daemons)

    assert (await node.load_library(container)).exit_code == 0
    assert node.binding(claim) == binding
    assert await node.slices(container) == _HALF


async def _running(node: VgpuNode, **asked: Any) -> tuple[Manifest, str]:
    """A claim of half of GPU 5, and the container of the pod that it is reserved for."""
    pod = PodManifest()
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), pods=(pod,))
    return claim, await node.cri.run_container(await node.run(pod), node.spec(claim, **LIBRARY_SPEC, **asked))


async def _holds_a_call(node: VgpuNode) -> bool:
    return bool(await node.stack.registry.debug("held"))


async def _last_refusal(node: VgpuNode, *, back: int = 0) -> str:
    """Why registry refused the last call, or one before it."""
    refused = [entry for entry in await node.stack.registry.debug("registrations") if entry["verdict"] != "ok"]
    return str(refused[-1 - back]["reason"])
