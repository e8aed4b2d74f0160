"""What the tests of fraud are made of: a refusal in words, and the proof that it left nothing behind.

Knows the node only through `vgpu_node`.
"""

from __future__ import annotations

from typing import Any

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit.manifests import GIB, Manifest
from vgpu_testkit.pods import ContainerSpec, ContainerState, Device, Pod
from vgpu_testkit.vgpu_node import Slice, VgpuNode

HALF = {5: Slice(memory_bytes=8 * GIB, cores_percent=50)}
"""What the request `gpu` of the tests' claim gives."""


async def refused(node: VgpuNode, pod: Pod, spec: ContainerSpec, *, status: Status) -> str:
    """The words with which the runtime refuses to create it; nri-plugin keeps the same ones.

    Raises:
        AssertionError: it was created, or refused with another status.
    """
    found, message = await _creation_refusal(node, pod, spec)
    assert found is status, message
    calls = await node.stack.nri.debug("calls")
    told = next(call for call in calls if call["hook"] == "create" and call["outcome"] not in ("ok", "not_ours"))
    assert told["outcome"] == status.name.lower()
    assert told["reason"] in message
    return message


async def start_refused(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> str:
    """The words with which the runtime refuses to start it; it is removed, as kubelet would in time.

    Raises:
        AssertionError: it was started.
    """
    container = await node.cri.create_container(pod, spec)
    try:
        await node.cri.start(container)
    except GRPCError as refusal:
        assert (await node.cri.status(container)).state is ContainerState.EXITED
        await node.cri.remove(container)
        return str(refusal.message)
    raise AssertionError(f"container {container} was started")


async def assert_correct_container_works(node: VgpuNode, claim: Manifest, pod: Pod) -> None:
    """Nothing stands in the way of the request's rightful container, and nothing but its partition is there."""
    assert node.partitions(claim) == []
    container = await node.cri.run_container(pod, node.spec(claim, name="rightful"))
    assert await node.slices(container) == HALF
    assert node.partitions(claim) == [f"{pod.spec.uid}_rightful"]
    assert [entry["container_id"] for entry in await node.stack.dra.debug("partitions")] == [container]


async def _creation_refusal(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> tuple[Status, str]:
    try:
        container = await node.cri.create_container(pod, spec)
    except GRPCError as refusal:
        return refusal.status, str(refusal.message)
    raise AssertionError(f"container {container} was created")


def gpu(node: VgpuNode, minor: int) -> Device:
    """The node of a GPU as a pod may ask for it without a claim."""
    return Device(f"/dev/nvidia{minor}", str(node.stack.node.dev_root / f"nvidia{minor}"))


def with_gpu(node: VgpuNode, minor: int, **asked: Any) -> ContainerSpec:
    """A container without CDI devices that was given the GPU's node some other way."""
    return ContainerSpec(devices=(gpu(node, minor),), **asked)
