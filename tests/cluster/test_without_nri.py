"""The track without NRI: on a node whose runtime has none no vGPU pod runs unlimited, and all else lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_pods import run_pod, script_pod
from vgpu_testkit.cluster_vgpu import VgpuCluster, installed, wait_until
from vgpu_testkit.cluster_vgpu_pods import Box, Namespace, claim_spec, pod, request
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_RAN = "echo the program ran && sleep 100000"


@pytest.fixture(scope="module")
def vgpu(running_cluster: Cluster, native: Path) -> Iterator[VgpuCluster]:
    """The services, started on a node whose runtime has no NRI."""
    with installed(running_cluster, native) as running, running_cluster.runtime(nri=False):
        for daemon in running.stack.daemons:
            daemon.kill()
            daemon.start()
        for daemon in (running.stack.dra, running.stack.registry):
            asyncio.run(daemon.ready())
        yield running


def test_services_are_ready_but_nri_plugin_which_says_why(vgpu: VgpuCluster) -> None:
    wait_until(lambda: asyncio.run(vgpu.stack.nri.answer("/readyz"))[0] == 503, "nri-plugin is not ready")

    _, reason = asyncio.run(vgpu.stack.nri.answer("/readyz"))
    assert f"the runtime cannot be reached: NRI socket {vgpu.cluster.containerd.nri_socket}: " in reason
    assert "is NRI enabled in the runtime?" in reason
    assert [asyncio.run(one.answer("/readyz"))[0] for one in (vgpu.stack.dra, vgpu.stack.registry)] == [200, 200]
    assert len([device for device in vgpu.devices() if device["name"].startswith("vgpu-")]) == 8


def test_vgpu_pod_fails_before_its_program_and_its_event_says_that_nri_was_not_there(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))

    name = namespace.create(pod(used, Box(script=_RAN)))

    namespace.wait_event(name, "/created-without-nri")
    claim_uid = namespace.claim_of(name)["metadata"]["uid"]
    wait_until(lambda: namespace.pod(name)["status"]["phase"] == "Failed", "the pod has failed")
    states, *events, log = namespace.story(name)
    assert any(f"claims/{claim_uid}/created-without-nri" in event for event in events)
    assert '"reason": "StartError"' in states
    assert "the program ran" not in log


def test_pod_without_a_claim_runs(namespace: Namespace) -> None:
    assert run_pod(namespace.vgpu.cluster, script_pod("echo no GPU is asked for")) == "no GPU is asked for\n"


def test_pod_with_a_whole_gpu_runs_and_sees_that_gpu(namespace: Namespace) -> None:
    used = namespace.template(claim_spec({"name": "gpu", "exactly": {"deviceClassName": "gpu-manager"}}))

    name = namespace.run(pod(used, Box(script=_RAN)))

    (result,) = namespace.claim_of(name)["status"]["allocation"]["devices"]["results"]
    nodes = namespace.inside(name, "ls", "/dev").split()
    assert [f"gpu-{node.removeprefix('nvidia')}" for node in nodes if node.removeprefix("nvidia").isdigit()] == [result["device"]]


def test_vgpu_pod_that_is_restarted_runs_when_the_runtime_has_nri_again(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))
    name = namespace.create(pod(used, restart="Always"))
    namespace.wait_event(name, "/created-without-nri")

    with namespace.vgpu.cluster.runtime(nri=True):
        namespace.wait_running(name)

    (share,) = namespace.slices(name).values()
    assert share == Slice(memory_bytes=8 * GIB, cores_percent=30)
