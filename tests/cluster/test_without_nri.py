"""The track without NRI: on a node whose runtime has none vGPU pods have their limits all the same, and all else lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def test_vgpu_pod_runs_with_its_limits_which_were_made_at_prepare(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))

    name = namespace.run(pod(used))

    (share,) = namespace.slices(name).values()
    assert share == Slice(memory_bytes=8 * GIB, cores_percent=30)
    assert _assigned(namespace, name) == ("eager", "nri_absent")


def test_pod_without_a_claim_runs(namespace: Namespace) -> None:
    assert run_pod(namespace.vgpu.cluster, script_pod("echo no GPU is asked for")) == "no GPU is asked for\n"


def test_pod_with_a_whole_gpu_runs_and_sees_that_gpu(namespace: Namespace) -> None:
    used = namespace.template(claim_spec({"name": "gpu", "exactly": {"deviceClassName": "gpu-manager"}}))

    name = namespace.run(pod(used, Box(script=_RAN)))

    (result,) = namespace.claim_of(name)["status"]["allocation"]["devices"]["results"]
    nodes = namespace.inside(name, "ls", "/dev").split()
    assert [f"gpu-{node.removeprefix('nvidia')}" for node in nodes if node.removeprefix("nvidia").isdigit()] == [result["device"]]


def test_when_the_runtime_has_nri_again_pods_keep_what_they_have_and_the_next_is_assigned_by_it(namespace: Namespace) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))
    old = namespace.run(pod(used))

    with namespace.vgpu.cluster.runtime(nri=True):
        wait_until(lambda: _state(namespace.vgpu)["is_nri_alive"], "nri-plugin lives")
        new = namespace.run(pod(used))

        assert _assigned(namespace, new) == ("lazy", None)
        assert _assigned(namespace, old) == ("eager", "nri_absent")
        (kept,), (given,) = namespace.slices_now(old).values(), namespace.slices(new).values()
        assert kept == given == Slice(memory_bytes=8 * GIB, cores_percent=30)


def _state(vgpu: VgpuCluster) -> dict[str, Any]:
    state: dict[str, Any] = asyncio.run(vgpu.stack.dra.debug("state"))
    return state


def _assigned(namespace: Namespace, name: str) -> tuple[str, str | None]:
    """How the partitions of the pod's claim were assigned, and why not by NRI."""
    claims = asyncio.run(namespace.vgpu.stack.dra.debug("claims"))
    shown = claims[namespace.claim_of(name)["metadata"]["uid"]]
    return shown["mode"], shown.get("eager_reason")
