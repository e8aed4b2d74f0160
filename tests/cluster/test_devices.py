"""Devices on a real cluster: no field of a slice is dropped, shares reach their pods, and what excludes what in the scheduler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_proto import dra_v1
from vgpu_testkit import api_slice_rules, vgpu_node
from vgpu_testkit import kubelet_sample_plugin as sample
from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_api import Api, Object
from vgpu_testkit.cluster_pods import run_pod, script_pod
from vgpu_testkit.cluster_vgpu import SLICES, VgpuCluster, wait_until
from vgpu_testkit.cluster_vgpu_pods import CLAIMS, Namespace, claim_spec, pod, request

_RESOURCES = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCES}/namespaces/default/resourceclaims"
_DRIVER = sample.DRIVER


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
            pod = script_pod("env | grep ^GIVEN_ | sort", claim=name)
            said[name] = await asyncio.to_thread(run_pod, cluster, pod)
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


_CLASSES = f"{_RESOURCES}/deviceclasses"
_DEPLOY = Path(__file__).parents[2] / "deploy/kustomize"
_GPU7 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000007"


def _whole(minor: int) -> Object:
    """A request for one GPU, whole."""
    return {"name": "gpu", "exactly": {"deviceClassName": "gpu-manager", "selectors": [_is(f"minor == {minor}")]}}


def _share(minor: int) -> Object:
    """A request for a share of one GPU."""
    share = request("gpu", memory="8Gi", cores="30")
    share["exactly"]["selectors"] = [_is(f"minor == {minor}")]
    return share


def _partition(profile: str) -> Object:
    return {"name": "mig", "exactly": {"deviceClassName": "mig-manager", "selectors": [_is(f"profile == '{profile}'")]}}


def _is(attribute: str) -> Object:
    return {"cel": {"expression": f"device.attributes['{vgpu_node.DRIVER}'].{attribute}"}}


def _devices_of(namespace: Namespace, name: str) -> list[str]:
    return [result["device"] for result in namespace.claim_of(name)["status"]["allocation"]["devices"]["results"]]


def _slices(vgpu: VgpuCluster) -> list[Object]:
    return [s for s in vgpu.cluster.api.get(SLICES)["items"] if s["spec"]["driver"] == vgpu_node.DRIVER]


def test_eight_gpus_are_nine_slices_that_the_api_server_took_unchanged(vgpu: VgpuCluster) -> None:
    found = sorted(_slices(vgpu), key=lambda s: str(s["metadata"]["name"]))

    assert api_slice_rules.pool_faults(found) == []
    assert [s["metadata"]["name"][:24] for s in found] == [f"{i:05x}-manager.nvidia.com" for i in range(9)]
    assert [[d["name"] for d in s["spec"].get("devices", [])] for s in found] == [
        [],
        *[[f"vgpu-{i}", f"gpu-{i}"] for i in range(8)],
    ]
    # The slices may be those of the services before these, which have not looked at them yet.
    wait_until(lambda: asyncio.run(vgpu.stack.dra.metrics())["vgpu_dra_published_devices"] == 16, "the slices were looked at")
    assert asyncio.run(vgpu.stack.dra.metrics()).get('vgpu_dra_slice_failures_total{reason="dropped"}', 0) == 0


def test_a_gpu_goes_to_shares_or_to_one_claim_whole_and_is_free_for_either_afterwards(namespace: Namespace) -> None:
    shares = [namespace.run(pod(namespace.template(claim_spec(_share(3))))) for _ in range(2)]

    whole = namespace.create(pod(namespace.template(claim_spec(_whole(3)))))
    namespace.wait_event(whole, "FailedScheduling")
    for name in shares:
        assert _devices_of(namespace, name) == ["vgpu-3"]
        namespace.delete(name)
    namespace.wait_running(whole)
    assert _devices_of(namespace, whole) == ["gpu-3"]

    share = namespace.create(pod(namespace.template(claim_spec(_share(3)))))
    namespace.wait_event(share, "FailedScheduling")
    namespace.delete(whole)
    namespace.wait_running(share)


def test_a_gpu_that_is_partitioned_is_given_away_by_its_mig_devices(namespace: Namespace) -> None:
    vgpu = namespace.vgpu
    node = vgpu.stack.node
    generations = {s["spec"]["pool"]["generation"] for s in _slices(vgpu)}
    node.partition_gpu(_GPU7, (9, 0), (19, 4))
    try:
        wait_until(lambda: "gpu-7-mig-19-4-1" in [d["name"] for d in vgpu.devices()], "the MIG devices are published")
        assert "vgpu-7" not in [d["name"] for d in vgpu.devices()]
        assert {s["spec"]["pool"]["generation"] for s in _slices(vgpu)} == generations

        name = namespace.create(pod(namespace.template(claim_spec(_partition("1g.10gb")))))
        wait_until(lambda: _is_allocated(namespace, name), "the MIG device is allocated")
        assert _devices_of(namespace, name) == ["gpu-7-mig-19-4-1"]
        other = namespace.create(pod(namespace.template(claim_spec(_partition("1g.10gb")))))
        namespace.wait_event(other, "FailedScheduling")
    finally:
        for name in namespace.pods():
            namespace.delete(name)
        node.unite_gpu(_GPU7)


def test_a_whole_gpu_is_an_extended_resource_where_its_class_says_so(namespace: Namespace) -> None:
    api = namespace.vgpu.cluster.api
    classes = yaml.safe_load_all((_DEPLOY / "base/deviceclasses.yaml").read_text())
    (whole,) = [one["spec"] for one in classes if one["metadata"]["name"] == "gpu-manager"]
    named = yaml.safe_load((_DEPLOY / "components/extended-resource/deviceclass.yaml").read_text())["spec"]
    api.create(_CLASSES, {"metadata": {"name": "named-gpu"}, "spec": whole | named})
    try:
        document = pod({})
        del document["spec"]["resourceClaims"]
        document["spec"]["containers"][0] |= {"command": ["sleep", "100000"], "resources": {"limits": {"nvidia.com/gpu": "1"}}}

        name = namespace.run(document)

        (claim,) = api.get(CLAIMS)["items"]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        number = result["device"].removeprefix("gpu-")
        nodes = namespace.inside(name, "ls", "/dev").split()
        assert [node for node in nodes if node.startswith("nvidia") and node[-1].isdigit()] == [f"nvidia{number}"]
    finally:
        api.delete(f"{_CLASSES}/named-gpu")


def _is_allocated(namespace: Namespace, name: str) -> bool:
    if not namespace.pod(name)["status"].get("resourceClaimStatuses"):
        return False
    return "allocation" in namespace.claim_of(name).get("status", {})


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
