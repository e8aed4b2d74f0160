"""The track without NRI: on a node whose runtime has none, pods have their vGPUs by partitions that are made at Prepare."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_pods import run_pod, script_pod
from vgpu_testkit.cluster_vgpu import VgpuCluster, installed, wait_until
from vgpu_testkit.cluster_vgpu_pods import CLAIMS, SLEEP, Box, Namespace, claim_spec, pod, request
from vgpu_testkit.cluster_vgpu_shapes import LIMITS, WHOLE, limits, modes, running_shapes, seen
from vgpu_testkit.vgpu_node import freeze, thaw

_ONE = claim_spec(request("gpu", memory="1Gi", cores="10"))
_CLIENT, _CGROUP = 236, (101, 102)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a node comes to be without NRI; what dra-plugin is told of that."""

    reason: str
    registers: bool = True
    gates: dict[str, bool] = field(default_factory=dict)


_WAYS = {
    # The first: dra-plugin lives on, and so knows that there was an NRI.
    "lost": Way(reason="nri_lost"),
    "absent, cgroup mode": Way(reason="nri_absent", registers=False, gates={"DevicePluginClientMode": False}),
    "disabled": Way(reason="nri_disabled", gates={"NRISupport": False}),
    "disabled, cgroup mode": Way(
        reason="nri_disabled", registers=False, gates={"NRISupport": False, "DevicePluginClientMode": False}
    ),
}


@pytest.fixture(scope="module")
def node(running_cluster: Cluster, native: Path) -> Iterator[VgpuCluster]:
    """The services on a node whose runtime has lost NRI."""
    with installed(running_cluster, native) as running, running_cluster.runtime(nri=False):
        running.wait_nri_away()
        yield running


@pytest.fixture(scope="module", params=_WAYS.values(), ids=_WAYS)
def way(request: pytest.FixtureRequest, node: VgpuCluster) -> Iterator[Way]:
    """One after the other, each for all the tests that want it."""
    found: Way = request.param
    with node.gated(**found.gates) if found.gates else nullcontext():
        yield found


@pytest.fixture(scope="module")
def vgpu(node: VgpuCluster, way: Way) -> VgpuCluster:
    del way
    return node


@pytest.mark.timeout(300)
def test_pods_of_every_shape_run_with_their_limits(namespace: Namespace, way: Way) -> None:
    vgpu = namespace.vgpu
    with running_shapes(namespace, registers=way.registers) as names:
        shown = seen(namespace, names, registers=way.registers)

        assert {where: limits(one) for where, one in shown.items()} == LIMITS
        if way.registers:
            assert {one["compatibility_mode"] for one in shown.values()} == {_CLIENT}
            assert [where for where, one in shown.items() if not one["register_uuid"]] == []
            # The shell and device-client.
            assert [where for where, one in shown.items() if len(one["pids"]) < 2] == []
        else:
            assert {one["compatibility_mode"] for one in shown.values()} <= set(_CGROUP)
            assert "comm" in namespace.inside(names["one request"], "ls", "/etc/vgpu-manager/.host_proc/1").split()
        for shape in WHOLE:
            nodes = namespace.inside(names[shape], "ls", "/dev").split()
            assert len([one for one in nodes if one.removeprefix("nvidia").isdigit()]) == 1
        assert modes(namespace, names) == {shape: "lazy" if shape in WHOLE else way.reason for shape in names}
        assert vgpu.eager_claims() == {way.reason: len(names) - len(WHOLE)}


def test_what_needs_nri_is_refused_and_the_pod_is_told_why(namespace: Namespace) -> None:
    vgpu = namespace.vgpu
    shared, own = namespace.claim(_ONE), namespace.template(_ONE)
    # Both reserve the claim before it is prepared: later ones kubelet does not ask for again.
    freeze(vgpu.stack.dra)
    try:
        first, second = (namespace.create(pod(shared, Box(script=SLEEP))) for _ in range(2))
        path = f"{CLAIMS}/{shared['resourceClaimName']}"
        vgpu.cluster.api.wait_for(path, lambda claim: len(claim["status"].get("reservedFor", [])) == 2)
    finally:
        thaw(vgpu.stack.dra)
    at_once = namespace.create(pod(own, Box(name="train", script=SLEEP), Box(name="serve", script=SLEEP)))
    two_claims = pod(own, Box(script=SLEEP))
    two_claims["spec"]["resourceClaims"].append({"name": "more", **namespace.template(_ONE)})
    two_claims["spec"]["containers"][0]["resources"]["claims"].append({"name": "more"})
    two = namespace.create(two_claims)

    pods = " and ".join(sorted(f"default/{name}" for name in (first, second)))
    for name in (first, second):
        namespace.wait_event(name, f"pods {pods} use vGPU requests of it; without NRI its partitions are made at Prepare")
    namespace.wait_event(at_once, f"containers serve and train of pod default/{at_once} can run at once and share request gpu")
    namespace.wait_event(two, f"cannot be prepared without NRI: container main of pod default/{two} uses claim default/{two}-")
    assert [one["status"]["phase"] for one in namespace.pods().values()] == ["Pending"] * 4


def test_services_that_need_no_nri_are_ready_and_nri_plugin_says_why_it_is_not(namespace: Namespace) -> None:
    vgpu = namespace.vgpu
    wait_until(lambda: asyncio.run(vgpu.stack.nri.answer("/readyz"))[0] == 503, "nri-plugin is not ready")

    _, reason = asyncio.run(vgpu.stack.nri.answer("/readyz"))
    assert f"the runtime cannot be reached: NRI socket {vgpu.cluster.containerd.nri_socket}: " in reason
    assert "is NRI enabled in the runtime?" in reason
    assert [asyncio.run(one.answer("/readyz"))[0] for one in (vgpu.stack.dra, vgpu.stack.registry)] == [200, 200]
    assert Counter(device["name"].partition("-")[0] for device in vgpu.devices()) == {"vgpu": 8, "gpu": 8}
    assert run_pod(vgpu.cluster, script_pod("echo no GPU is asked for")) == "no GPU is asked for\n"
