"""The cluster itself: its node runs pods, it allocates shares of devices, it survives its components' ends, it leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vgpu_proto import dra_v1
from vgpu_testkit import cluster_cgroups, image
from vgpu_testkit import kubelet_sample_plugin as sample
from vgpu_testkit.cluster import Cluster, is_ready
from vgpu_testkit.cluster_api import Api, ApiError, Object
from vgpu_testkit.cluster_programs import DEFAULT_RELEASE

_PODS = "/api/v1/namespaces/default/pods"
_RESOURCES = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCES}/namespaces/default/resourceclaims"
_DRIVER = sample.DRIVER
_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd")


def _pod(script: str, *, claim: str | None = None) -> Object:
    container: dict[str, Any] = {"name": "main", "image": image.BASE_IMAGE, "command": ["/bin/sh", "-c", script]}
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    if claim is not None:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p-{uuid.uuid4().hex[:8]}"}, "spec": spec}


def _run(cluster: Cluster, pod: Object) -> str:
    """Runs a pod to its end; what it wrote.

    Raises:
        AssertionError: it did not succeed; with the namespace's events.
    """
    api = cluster.api
    name = api.create(_PODS, pod)["metadata"]["name"]
    try:
        ended = api.wait_for(f"{_PODS}/{name}", lambda found: found["status"].get("phase") in ("Succeeded", "Failed"))
        assert ended["status"]["phase"] == "Succeeded", f"{api.log('default', name)}\n{ended['status']}"
        return api.log("default", name)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{chr(10).join(api.events('default'))}\n{cluster.log_tail('kubelet')}") from None
    finally:
        api.delete(f"{_PODS}/{name}", grace_s=0)


def test_node_is_ready_and_runs_the_release_asked_for(cluster: Cluster) -> None:
    node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")

    assert is_ready(node)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == cluster.version
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")


def test_pod_runs_to_its_end_and_its_log_is_read(cluster: Cluster) -> None:
    assert _run(cluster, _pod("echo the words of the pod")) == "the words of the pod\n"


def test_pod_has_a_network_of_its_own_and_reaches_the_api_server_as_any_pod_does(cluster: Cluster) -> None:
    script = 'nc -w 5 "$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT" </dev/null && ip -o -4 address show dev eth0'

    assert "inet 10.88." in _run(cluster, _pod(script))


def test_node_reads_no_secret_that_is_not_its_pods(cluster: Cluster) -> None:
    port = int(cluster.server.rpartition(":")[2])
    pki = cluster.root / "pki"
    as_node = Api(port, authority=f"{pki}/ca.crt", certificate=f"{pki}/kubelet.crt", key=f"{pki}/kubelet.key")

    assert is_ready(as_node.get(f"/api/v1/nodes/{cluster.node_name}"))
    with pytest.raises(ApiError, match="forbidden"):
        as_node.get("/api/v1/namespaces/kube-system/secrets")


def test_audit_log_names_who_changed_what(cluster: Cluster) -> None:
    pod = _pod("true")

    _run(cluster, pod)

    writers = {
        (event["verb"], event["user"]["username"])
        for event in cluster.audit_events()
        if event["objectRef"].get("name") == pod["metadata"]["name"]
    }
    assert {
        ("create", "kubernetes-admin"),
        ("create", "system:kube-scheduler"),
        ("patch", f"system:node:{cluster.node_name}"),
    } <= writers


@pytest.mark.parametrize("component", _COMPONENTS)
def test_pods_run_again_after_a_component_was_killed_and_started(cluster: Cluster, component: str) -> None:
    cluster.kill(component)
    assert cluster.pid(component) is None

    cluster.restart(component)

    cluster.wait_node_ready()
    assert _run(cluster, _pod("echo again")) == "again\n"


# --- devices ---


@pytest.fixture
def device_class(cluster: Cluster) -> Iterator[str]:
    """A class of all devices of the sample driver."""
    selector = {"cel": {"expression": f'device.driver == "{_DRIVER}"'}}
    cluster.api.create(f"{_RESOURCES}/deviceclasses", {"metadata": {"name": "share"}, "spec": {"selectors": [selector]}})
    yield "share"
    cluster.api.delete(f"{_RESOURCES}/deviceclasses/share")


def _capacity(whole: str, step: str) -> Object:
    return {"value": whole, "requestPolicy": {"default": whole, "validRange": {"min": step, "step": step}}}


def _slice(node_name: str) -> Object:
    device = {
        "name": "gpu-0",
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "vgpu"}},
        "capacity": {"memory": _capacity("80Gi", "1Mi"), "cores": _capacity("100", "1")},
    }
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": _DRIVER, "nodeName": node_name, "pool": pool, "devices": [device]}
    return {"metadata": {"name": f"{node_name}-gpus"}, "spec": spec}


def _claim(name: str, device_class: str, **capacity: str) -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, "capacity": {"requests": capacity}}}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}


class _Driver:
    """What a driver does at Prepare: reads what the claim was given, and makes a CDI device that says so."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api
        self._cdi_dir = cluster.cdi_dir
        self._node_name = cluster.node_name

    async def prepare(self, request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse:
        answer = dra_v1.NodePrepareResourcesResponse()
        for claim in request.claims:
            found = await asyncio.to_thread(self._api.get, f"{_CLAIMS}/{claim.name}")
            (result,) = found["status"]["allocation"]["devices"]["results"]
            edits = {"env": [f"GIVEN_{name.upper()}={value}" for name, value in result["consumedCapacity"].items()]}
            spec = {"cdiVersion": "0.5.0", "kind": f"{_DRIVER}/claim", "devices": [{"name": claim.uid, "containerEdits": edits}]}
            (self._cdi_dir / f"{claim.uid}.json").write_text(json.dumps(spec))
            device = dra_v1.Device(
                request_names=["gpu"],
                pool_name=self._node_name,
                device_name=result["device"],
                cdi_device_ids=[f"{_DRIVER}/claim={claim.uid}"],
                share_id=result["shareID"],
            )
            answer.claims[claim.uid] = dra_v1.NodePrepareResourceResponse(devices=[device])
        return answer


async def test_claims_share_a_device_and_a_pod_gets_what_its_claim_was_given(cluster: Cluster, device_class: str) -> None:
    api = cluster.api
    endpoint = cluster.kubelet_root / "plugins" / _DRIVER / "dra.sock"
    registration = sample.Registration(sample.plugin_info(endpoint, "v1.DRAPlugin"))
    registry = cluster.kubelet_root / "plugins_registry" / f"{_DRIVER}-reg.sock"
    service = sample.ServiceV1(_Driver(cluster).prepare)
    async with sample.served(endpoint, service), sample.served(registry, registration):
        async with asyncio.timeout(20):
            while not registration.statuses:
                await asyncio.sleep(0.05)
        assert registration.statuses == [(True, "")]
        await asyncio.to_thread(api.create, f"{_RESOURCES}/resourceslices", _slice(cluster.node_name))
        said = {}
        for name, memory, cores in (("small", "8Gi", "30"), ("large", "40Gi", "50")):
            await asyncio.to_thread(api.create, _CLAIMS, _claim(name, device_class, memory=memory, cores=cores))
            pod = _pod("env | grep ^GIVEN_ | sort", claim=name)
            said[name] = await asyncio.to_thread(_run, cluster, pod)
        # The pod's end does not free a claim that is not its own making; its removal by kubelet's Unprepare does.
        await asyncio.to_thread(_delete_claims, api, "small", "large")
    await asyncio.to_thread(api.delete, f"{_RESOURCES}/resourceslices/{cluster.node_name}-gpus")

    assert said == {
        "small": "GIVEN_CORES=30\nGIVEN_MEMORY=8Gi\n",
        "large": "GIVEN_CORES=50\nGIVEN_MEMORY=40Gi\n",
    }


_FIELDS: dict[str, Object] = {
    "counters": {
        "metadata": {"name": "counters"},
        "spec": {
            "driver": _DRIVER,
            "nodeName": "elsewhere",
            "pool": {"name": "elsewhere", "generation": 1, "resourceSliceCount": 2},
            "sharedCounters": [{"name": "gpu-0", "counters": {"slices": {"value": "8"}}}],
        },
    },
    "devices": {
        "metadata": {"name": "devices"},
        "spec": {
            "driver": _DRIVER,
            "nodeName": "elsewhere",
            "pool": {"name": "elsewhere", "generation": 1, "resourceSliceCount": 2},
            "devices": [
                {
                    "name": "gpu-0",
                    "allowMultipleAllocations": True,
                    "capacity": {"memory": _capacity("80Gi", "1Mi")},
                    "consumesCounters": [{"counterSet": "gpu-0", "counters": {"slices": {"value": "8"}}}],
                    "taints": [{"key": f"{_DRIVER}/xid", "value": "79", "effect": "NoSchedule"}],
                }
            ],
        },
    },
    "extended resource": {"metadata": {"name": "whole"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}},
}


@pytest.mark.parametrize("what", _FIELDS)
def test_api_server_keeps_every_field_of_shares_partitions_taints_and_extended_resources(cluster: Cluster, what: str) -> None:
    sent = _FIELDS[what]
    collection = "deviceclasses" if what == "extended resource" else "resourceslices"

    kept = cluster.api.create(f"{_RESOURCES}/{collection}?dryRun=All", sent)

    assert _lost(sent["spec"], kept["spec"]) == []


def test_api_server_takes_a_device_taint_rule(cluster: Cluster) -> None:
    version = "v1beta2" if cluster.version.startswith("v1.36.") else "v1"
    spec = {"deviceSelector": {"driver": _DRIVER}, "taint": {"key": f"{_DRIVER}/drain", "effect": "NoExecute"}}

    kept = cluster.api.create(
        f"/apis/resource.k8s.io/{version}/devicetaintrules?dryRun=All", {"metadata": {"name": "drain"}, "spec": spec}
    )

    assert _lost(spec, kept["spec"]) == []


def _lost(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Where something that was sent is not in what was kept."""
    if isinstance(sent, dict):
        return [
            lost
            for key, value in sent.items()
            for lost in (_lost(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"])
        ]
    if isinstance(sent, list):
        if len(sent) != len(kept):
            return [path]
        return [lost for index, value in enumerate(sent) for lost in _lost(value, kept[index], f"{path}[{index}]")]
    return [] if sent == kept else [f"{path}: {sent!r} became {kept!r}"]


def _delete_claims(api: Api, *names: str) -> None:
    for name in names:
        api.delete(f"{_CLAIMS}/{name}")


# --- the end ---


def test_stopped_cluster_leaves_nothing(second_cluster: Cluster) -> None:
    interfaces = _interfaces()
    second_cluster.start()
    cgroup = f"vgpu-cluster-{second_cluster.root.name}"
    second_cluster.api.create(_PODS, _pod("sleep 1000"))
    second_cluster.api.wait_for(_PODS, lambda pods: pods["items"][0]["status"].get("phase") == "Running")
    assert cluster_cgroups.exists(cgroup)
    assert _processes_of(second_cluster.root)

    second_cluster.stop()

    assert _processes_of(second_cluster.root) == []
    assert not cluster_cgroups.exists(cgroup)
    assert _interfaces() == interfaces
    assert _mounts_of(second_cluster.root) == []


def test_stopped_cluster_goes_on_where_it_was_when_it_is_started_again(second_cluster: Cluster) -> None:
    second_cluster.start()
    second_cluster.api.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    second_cluster.stop()

    second_cluster.start()

    assert second_cluster.api.get("/api/v1/namespaces/default/configmaps/kept")["data"] == {"a": "b"}
    assert _run(second_cluster, _pod("echo again")) == "again\n"


def test_cluster_ends_when_the_process_that_started_it_is_killed(containerd_program: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(image.__file__).parents[1])}
    command = [sys.executable, "-m", "vgpu_testkit.cluster_run", os.environ.get("K8S") or DEFAULT_RELEASE]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        root = Path(starter.stdout.readline().split()[-1])
        assert _processes_of(root)
        starter.kill()

    deadline = time.monotonic() + 20
    while (left := _processes_of(root)) or cluster_cgroups.exists(f"vgpu-cluster-{root.name}"):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    shutil.rmtree(root)


def _interfaces() -> list[str]:
    lines = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(":")[1] for line in lines]


def _mounts_of(root: Path) -> list[str]:
    """The mounts on, in or from the folder."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line]


def _processes_of(root: Path) -> list[str]:
    """The command lines that name the folder."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(root) in line:
                found.append(line)
    return found
