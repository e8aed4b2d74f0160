"""Other ways than one exact share to ask: a list of wishes, of which the first that can be is given, and admin access."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu import VgpuCluster
from vgpu_testkit.cluster_vgpu_pods import Box, Namespace, claim_spec, pod
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_LABEL = "resource.kubernetes.io/admin-access"
_DEFAULT = "/api/v1/namespaces/default"
_SLEEP = "exec sleep 100000"


@pytest.fixture
def admin_namespace(vgpu: VgpuCluster) -> Iterator[None]:
    """Claims of the default namespace may ask for admin access."""
    vgpu.cluster.api.patch(_DEFAULT, {"metadata": {"labels": {_LABEL: "true"}}})
    yield
    vgpu.cluster.api.patch(_DEFAULT, {"metadata": {"labels": {_LABEL: None}}})


@pytest.mark.parametrize("uses", ["gpu", ""], ids=["by the request's name", "by the whole claim"])
def test_second_wish_is_given_where_the_first_cannot_be(namespace: Namespace, uses: str) -> None:
    used = namespace.template(claim_spec({"name": "gpu", "firstAvailable": [_wish("huge", "500Gi"), _wish("small", "8Gi")]}))

    name = namespace.run(pod(used, Box(uses=(uses,) if uses else ())))

    (result,) = namespace.claim_of(name)["status"]["allocation"]["devices"]["results"]
    assert result["request"] == "gpu/small"
    assert list(namespace.slices(name).values()) == [Slice(memory_bytes=8 * GIB, cores_percent=30)]


@pytest.mark.usefixtures("admin_namespace")
def test_admin_takes_no_gpu_away(namespace: Namespace) -> None:
    """The admin comes first: the scheduler counts shared counters for admin access too, so a GPU in use is not given to it."""
    admin = namespace.run(pod(namespace.template(claim_spec(_whole(count=1, admin=True))), Box(script=_SLEEP)))

    tenant = namespace.run(pod(namespace.template(claim_spec(_whole(count=8))), Box(script=_SLEEP)))

    assert len(_gpus(namespace, admin)) == 1
    assert _gpus(namespace, tenant) == [f"nvidia{number}" for number in range(8)]


def _wish(name: str, memory: str) -> Object:
    return {"name": name, "deviceClassName": "vgpu-manager", "capacity": {"requests": {"cores": "30", "memory": memory}}}


def _whole(*, count: int, admin: bool = False) -> Object:
    exactly: Object = {"deviceClassName": "gpu-manager", "allocationMode": "ExactCount", "count": count}
    return {"name": "gpus", "exactly": exactly | ({"adminAccess": True} if admin else {})}


def _gpus(namespace: Namespace, name: str) -> list[str]:
    """The device nodes of GPUs in the pod's container."""
    found = namespace.inside(name, "ls", "/dev").split()
    return sorted(node for node in found if node.removeprefix("nvidia").isdigit())
