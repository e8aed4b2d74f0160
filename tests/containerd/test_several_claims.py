"""A container with shares of several claims: one partition for all of them, in one of the claims."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from grpclib.exceptions import GRPCError

from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import GIB, Manifest, Share
from vgpu_testkit.pods import ContainerSpec, Pod
from vgpu_testkit.vgpu_node import LIBRARY_SPEC, Slice, VgpuNode, leftovers

_MERGED = {
    4: Slice(memory_bytes=12 * GIB, cores_percent=50),
    6: Slice(memory_bytes=2 * GIB, cores_percent=10),
}


async def test_container_of_two_claims_has_the_sum_of_both(node: VgpuNode) -> None:
    first, second = await _claims(node)
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, _spec(node, first, second))

    assert await node.slices(container) == _MERGED
    assert (await node.load_library(container)).exit_code == 0
    home, other = sorted((first, second), key=lambda claim: claim.uid)
    assert sorted(path.name for path in node.partition(home, pod).iterdir()) == ["binding.json", "config"]
    assert sorted(path.name for path in node.partition(other, pod).iterdir()) == ["binding.json"]
    assert _binding(node, other, pod)["home"] == home.uid
    assert {_binding(node, claim, pod)["runtime_id"] for claim in (home, other)} == {container}
    assert [place for place, count in Counter(await node.mount_points(container)).items() if count > 1] == []


async def test_claims_of_one_container_follow_it_through_its_life(node: VgpuNode) -> None:
    first, second = await _claims(node)
    pod = await node.run_pod()
    attempt_0 = await node.cri.run_container(pod, _spec(node, first, second))
    with pytest.raises(GRPCError, match="one live container may hold a vGPU request"):
        await node.cri.create_container(pod, node.spec(second, name="intruder"))
    with pytest.raises(KubeletRefusal, match="container main of pod research/pod still runs"):
        await node.unprepare(second)
    await node.cri.stop(attempt_0)

    attempt_1 = await node.cri.run_container(pod, _spec(node, first, second, attempt=1))
    await node.cri.remove(attempt_0)
    await node.restart(node.stack.nri, node.stack.dra)

    assert await node.slices(attempt_1) == _MERGED
    assert (await node.load_library(attempt_1)).exit_code == 0
    metrics = await node.stack.nri.metrics()
    assert [name for name, count in metrics.items() if name.startswith("vgpu_nri_synchronize_faults_total") and count] == []
    await node.cri.remove_pod(pod)
    assert (node.partitions(first), node.partitions(second)) == ([], [])
    await node.unprepare(first)
    await node.unprepare(second)
    assert leftovers(node.stack) == []


async def _claims(node: VgpuNode) -> tuple[Manifest, Manifest]:
    """Both have a share of GPU 4, one has another of GPU 6."""
    first = await node.prepare(Share(request="gpu", device="vgpu-4", cores="30", memory="8Gi"), name="first")
    second = await node.prepare(
        Share(request="gpu", device="vgpu-4", cores="20", memory="4Gi"),
        Share(request="more", device="vgpu-6", cores="10", memory="2Gi"),
        name="second",
    )
    return first, second


def _spec(node: VgpuNode, first: Manifest, second: Manifest, **asked: Any) -> ContainerSpec:
    devices = (*node.spec(first).cdi_devices, *node.spec(second).cdi_devices)
    return node.spec(first, **{**LIBRARY_SPEC, **asked, "cdi_devices": devices})


def _binding(node: VgpuNode, claim: Manifest, pod: Pod) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.partition(claim, pod) / "binding.json").read_text())
    return found
