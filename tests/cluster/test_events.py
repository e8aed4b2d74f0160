"""A user who describes the object finds what was refused, as an Event that a real API server took."""

from __future__ import annotations

import pytest

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu import wait_until
from vgpu_testkit.cluster_vgpu_pods import Namespace, claim_spec, pod, request


@pytest.mark.timeout(300)
def test_refused_container_is_an_event_of_its_pod_whose_count_rises(namespace: Namespace) -> None:
    used = namespace.claim(claim_spec(request("gpu", memory="1Gi", cores="10")))
    first = namespace.run(pod(used))

    second = namespace.create(pod(used, restart="Always"))

    namespace.wait_event(second, "VgpuPartitionRefused: container main of pod default/")
    (event,) = _described(namespace, second)
    assert f"which container main of pod default/{first} holds" in event["message"]
    assert (event["type"], event["source"]) == (
        "Warning",
        {"component": "vgpu-dra-plugin", "host": namespace.vgpu.cluster.node_name},
    )
    assert (event["reportingComponent"], event["count"]) == ("vgpu-dra-plugin", 1)
    # kubelet tries again after ten, twenty, forty seconds: within two minutes there was more than one, and it is one Event.
    wait_until(lambda: _described(namespace, second)[0]["count"] > 1, "the count has risen", timeout_s=110)
    assert len(_described(namespace, second)) == 1


def _described(namespace: Namespace, name: str) -> list[Object]:
    """Our Events of a pod, found as kubectl describe finds them."""
    uid = namespace.pod(name)["metadata"]["uid"]
    selector = f"involvedObject.name={name},involvedObject.namespace=default,involvedObject.uid={uid}"
    found = namespace.vgpu.cluster.api.get(f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"]
    return [event for event in found if event["reportingComponent"] == "vgpu-dra-plugin"]
