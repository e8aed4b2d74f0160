"""Pods of the tests on a real cluster: one container of the base image that runs a shell script to its end."""

from __future__ import annotations

import uuid
from typing import Any

from vgpu_testkit import image
from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_api import Object

PODS = "/api/v1/namespaces/default/pods"


def script_pod(script: str, *, claim: str | None = None) -> Object:
    """A pod with a name of its own; with a claim, its container gets all that the claim was given."""
    container: dict[str, Any] = {"name": "main", "image": image.BASE_IMAGE, "command": ["/bin/sh", "-c", script]}
    spec: dict[str, Any] = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    if claim is not None:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p-{uuid.uuid4().hex[:8]}"}, "spec": spec}


def run_pod(cluster: Cluster, pod: Object) -> str:
    """Runs a pod to its end; what it wrote.

    Raises:
        AssertionError: it did not succeed; with the namespace's events.
    """
    api = cluster.api
    name = api.create(PODS, pod)["metadata"]["name"]
    try:
        ended = api.wait_for(f"{PODS}/{name}", lambda found: found["status"].get("phase") in ("Succeeded", "Failed"))
        assert ended["status"]["phase"] == "Succeeded", f"{api.log('default', name)}\n{ended['status']}"
        return api.log("default", name)
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{chr(10).join(api.events('default'))}\n{cluster.log_tail('kubelet')}") from None
    finally:
        api.delete(f"{PODS}/{name}", grace_s=0)
