"""An administrator drains a GPU by a DeviceTaintRule: the control plane does it, and we neither help nor stand in its way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_pods import PODS
from vgpu_testkit.cluster_vgpu import wait_until
from vgpu_testkit.cluster_vgpu_pods import Namespace, claim_spec, pod, request
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_EXAMPLE = Path(__file__).parents[2] / "examples/drain-gpu.yaml"


class Rules:
    """The example's rules, for a GPU of the test's node."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api
        self._node_name = cluster.node_name
        version = "v1beta2" if cluster.version.startswith("v1.36.") else "v1"
        self._collection = f"/apis/resource.k8s.io/{version}/devicetaintrules"
        self._rules: list[dict[str, Any]] = list(yaml.safe_load_all(_EXAMPLE.read_text()))

    def create(self, minor: str, *, effect: str) -> None:
        for rule in self._rules:
            selector = rule["spec"]["deviceSelector"]
            selector |= {"pool": self._node_name, "device": selector["device"].replace("gpu-3", f"gpu-{minor}")}
            rule["spec"]["taint"]["effect"] = effect
            self._api.create(self._collection, {"metadata": rule["metadata"], "spec": rule["spec"]})

    def delete(self) -> None:
        for rule in self._rules:
            self._api.delete(f"{self._collection}/{rule['metadata']['name']}")


@pytest.fixture
def rules(cluster: Cluster) -> Iterator[Rules]:
    """Not created yet; gone at the end."""
    made = Rules(cluster)
    yield made
    made.delete()


def test_drained_gpu_loses_its_pods_gets_no_new_ones_and_comes_back(namespace: Namespace, rules: Rules) -> None:
    vgpu, used = namespace.vgpu, namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))
    evicted = namespace.run(pod(used))
    device = _device(namespace, evicted)
    writes, devices = len(vgpu.writes()), vgpu.devices()

    rules.create(device.removeprefix("vgpu-"), effect="NoExecute")
    wait_until(lambda: not vgpu.cluster.api.exists(f"{PODS}/{evicted}"), "the pod of the drained GPU is evicted")
    wait_until(lambda: not vgpu.leftovers(), "its claim is unprepared, and nothing of it is left on the node")
    bystander = namespace.run(pod(used))
    waiting = namespace.create(_pod_on(namespace, device))
    wait_until(lambda: _is_unschedulable(namespace.pod(waiting)), "a pod that can go nowhere else waits")
    assert _device(namespace, bystander) != device

    rules.delete()
    namespace.wait_running(waiting)

    assert _device(namespace, waiting) == device
    assert list(namespace.slices(waiting).values()) == [Slice(memory_bytes=4 * GIB, cores_percent=10)]
    assert namespace.pod(bystander)["status"]["phase"] == "Running"
    # The rules are the administrator's: they are in no slice, and there was nothing for us to say.
    assert vgpu.devices() == devices
    assert len(vgpu.writes()) == writes


def test_cordoned_gpu_keeps_its_pods_and_gets_no_new_ones(namespace: Namespace, rules: Rules) -> None:
    used = namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))
    staying = namespace.run(pod(used))
    device = _device(namespace, staying)

    rules.create(device.removeprefix("vgpu-"), effect="NoSchedule")
    waiting = namespace.create(_pod_on(namespace, device))
    wait_until(lambda: _is_unschedulable(namespace.pod(waiting)), "a pod that can go nowhere else waits")
    assert namespace.pod(staying)["status"]["phase"] == "Running"
    rules.delete()

    namespace.wait_running(waiting)


def _device(namespace: Namespace, name: str) -> str:
    (result,) = namespace.claim_of(name)["status"]["allocation"]["devices"]["results"]
    device: str = result["device"]
    return device


def _pod_on(namespace: Namespace, device: str) -> Object:
    """A pod that asks for a share of that device and no other."""
    (found,) = [one for one in namespace.vgpu.devices() if one["name"] == device]
    asked = request("gpu", memory="4Gi", cores="10")
    uuid = found["attributes"]["uuid"]["string"]
    expression = f"device.attributes['manager.nvidia.com'].uuid == '{uuid}'"
    asked["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    return pod(namespace.template(claim_spec(asked)))


def _is_unschedulable(found: Object) -> bool:
    conditions = found["status"].get("conditions") or []
    return any(one["type"] == "PodScheduled" and one.get("reason") == "Unschedulable" for one in conditions)
