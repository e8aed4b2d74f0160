"""Devices, privileges and names that a vGPU container must not have, and what it must not say when it registers."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from grpclib.const import Status

from vgpu_testkit.manifests import Manifest, Share
from vgpu_testkit.pods import ContainerSpec, Device, Mount, PodSpec
from vgpu_testkit.refusals import HALF, assert_correct_container_works, gpu, refused
from vgpu_testkit.vgpu_node import NAMESPACE, VgpuNode, until


async def test_another_gpus_node_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()

    reason = await refused(node, pod, node.spec(claim, devices=(gpu(node, 3),)), status=Status.FAILED_PRECONDITION)

    assert "container main of pod research/pod also sees /dev/nvidia3, for which it has no grant" in reason
    await assert_correct_container_works(node, claim, pod)


async def test_another_gpus_node_is_found_under_any_name(node: VgpuNode, claim: Manifest, tmp_path: Path) -> None:
    os.mknod(tmp_path / "harmless", stat.S_IFCHR | 0o666, os.makedev(195, 3))
    pod = await node.run_pod()
    devices = (Device("/dev/harmless", str(tmp_path / "harmless")),)

    reason = await refused(node, pod, node.spec(claim, devices=devices), status=Status.FAILED_PRECONDITION)

    assert "also sees /dev/nvidia3, for which it has no grant" in reason
    await assert_correct_container_works(node, claim, pod)


async def test_privileged_container_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(privileged=True)

    reason = await refused(node, pod, node.spec(claim, privileged=True), status=Status.FAILED_PRECONDITION)

    assert "container main of pod research/pod is privileged" in reason
    assert "make it unprivileged or set --allow-privileged=true" in reason
    await assert_correct_container_works(node, claim, pod)


async def test_runtime_handler_that_is_not_listed_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(runtime_handler="sandboxed")

    reason = await refused(node, pod, node.spec(claim), status=Status.FAILED_PRECONDITION)

    assert "runs under runtime handler 'sandboxed'" in reason
    assert "allowed are '', 'nvidia*' (--runtime-handlers)" in reason
    await assert_correct_container_works(node, claim, await node.run_pod("plain"))


async def test_runtime_handler_nvidia_is_allowed(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(runtime_handler="nvidia")

    container = await node.cri.run_container(pod, node.spec(claim))

    assert await node.slices(container) == HALF


async def test_pod_uid_that_is_no_uuid_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(uid="0123456789abcdef0123456789abcdef")

    reason = await refused(node, pod, node.spec(claim), status=Status.INVALID_ARGUMENT)

    assert "pod uid is '0123456789abcdef0123456789abcdef'; expected a lower-case UUID (static pods have none)" in reason
    await assert_correct_container_works(node, claim, await node.run_pod("plain"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a/b", "'a/b'"),
        ("../../escape", "'../../escape'"),
        ("..", "'..'"),
        ("new\nline", r"'new\nline'"),
        ("Upper", "'Upper'"),
        ("dot.ted", "'dot.ted'"),
        ("under_score", "'under_score'"),
        ("n" * 64, "'" + "n" * 64 + "'"),
    ],
)
async def test_container_name_that_is_no_label_isrefused(node: VgpuNode, claim: Manifest, name: str, shown: str) -> None:
    pod = await node.run_pod()

    reason = await refused(node, pod, node.spec(claim, name=name), status=Status.INVALID_ARGUMENT)

    assert f"container name is {shown}; expected a DNS label of at most 63 characters" in reason
    await assert_correct_container_works(node, claim, pod)


@pytest.mark.parametrize("name", ["a/b", "new\nline"])
async def test_pod_name_that_could_mislead_isrefused(node: VgpuNode, claim: Manifest, name: str) -> None:
    pod = await node.run_pod()
    sandbox = await node.cri.run_pod(PodSpec(name=name, namespace=NAMESPACE))

    reason = await refused(node, sandbox, node.spec(claim), status=Status.INVALID_ARGUMENT)

    assert "pod name is " in reason
    assert "printable characters without a slash" in reason
    await assert_correct_container_works(node, claim, pod)


async def test_registration_for_another_pod_isrefused(node: VgpuNode, claim: Manifest) -> None:
    victims_claim = await node.prepare(Share(request="gpu", device="vgpu-6"), name="victims")
    pod, victim = await node.run_pod(), await node.run_pod("victim")
    liar = await node.cri.run_container(pod, node.spec(claim))
    await node.cri.run_container(victim, node.spec(victims_claim))
    before = node.recorded_pids(victims_claim, victim)

    refused = await node.register(liar, pod_uid=victim.spec.uid)

    assert refused.exit_code == 1
    assert f"the call says pod {victim.spec.uid}, but process " in refused.stderr
    assert f" is in pod {pod.spec.uid}" in refused.stderr
    assert node.recorded_pids(victims_claim, victim) == before


async def test_registration_for_another_container_of_the_pod_isrefused(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="one", device="vgpu-5"), Share(request="two", device="vgpu-5"))
    pod = await node.run_pod()
    liar = await node.cri.run_container(pod, node.spec(claim, "one", name="liar"))
    await node.cri.run_container(pod, node.spec(claim, "two", name="victim"))
    before = node.recorded_pids(claim, pod, "victim")

    refused = await node.register(liar, pod_uid=pod.spec.uid, container="victim")

    assert refused.exit_code == 1
    assert "the call says container victim, but process " in refused.stderr
    assert " is in container liar" in refused.stderr
    assert node.recorded_pids(claim, pod, "victim") == before


async def test_registration_from_a_container_without_a_partition_is_not_answered(node: VgpuNode, claim: Manifest) -> None:
    """Only a container without a vGPU may mount the socket's directory; it brings the client itself."""
    registry = node.stack.node.manager_dir / "registry"
    pod = await node.run_pod()
    spec = ContainerSpec(mounts=(Mount("/etc/vgpu-manager/registry", registry, readonly=True),))
    stranger = await node.cri.run_container(pod, spec)

    asking = asyncio.create_task(node.register(stranger, pod_uid=pod.spec.uid))
    reason = f"no partition is bound to container {stranger}"
    await until(lambda: _is_held(node, reason), "the registration is held")
    await node.cri.stop(stranger)

    assert (await asking).exit_code != 0
    await assert_correct_container_works(node, claim, pod)


async def _is_held(node: VgpuNode, reason: str) -> bool:
    return any(call["reason"] == reason for call in await node.stack.registry.debug("held"))
