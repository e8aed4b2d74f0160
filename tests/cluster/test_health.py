"""A GPU falls ill and recovers on a real cluster: the scheduler avoids it, and kubelet shows it to who uses it."""

from __future__ import annotations

import pytest

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu import VgpuCluster, wait_until
from vgpu_testkit.cluster_vgpu_pods import Namespace, claim_spec, pod, request

_XID = 8
_GPU = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000002"
_DEVICES = {"vgpu-2", "gpu-2"}
# Three clean looks, and kubelet's own pace: it writes a pod's status every ten seconds at the latest.
_RECOVERY_S = 60.0


@pytest.fixture(scope="module")
def vgpu(vgpu: VgpuCluster) -> VgpuCluster:
    """The services, of which dra-plugin looks at the GPUs every second."""
    dra = vgpu.stack.dra
    dra.environment["VGPU_GPU_POLL"] = "1"
    dra.stop()
    dra.start()
    vgpu.settle()
    return vgpu


def _on_the_gpu(namespace: Namespace) -> Object:
    """A pod that takes a share of this GPU and of no other."""
    asked = request("gpu", memory="1Gi", cores="10")
    expression = f'device.attributes["manager.nvidia.com"].uuid == "{_GPU.lower()}"'
    asked["exactly"]["selectors"] = [{"cel": {"expression": expression}}]
    return pod(namespace.template(claim_spec(asked)))


def _health(namespace: Namespace, name: str) -> str:
    """What kubelet says in the pod's status of the one device of its container."""
    (status,) = namespace.pod(name)["status"]["containerStatuses"]
    health = [one["health"] for claim in status.get("allocatedResourcesStatus", []) for one in claim["resources"]]
    return health[0] if len(health) == 1 else str(health)


def _tainted(vgpu: VgpuCluster) -> set[str]:
    """The devices with a taint that keeps claims away."""
    return {d["name"] for d in vgpu.devices() if any(t["effect"] == "NoSchedule" for t in d.get("taints", []))}


def test_an_ill_gpu_is_avoided_shown_and_comes_back(namespace: Namespace) -> None:
    vgpu, node = namespace.vgpu, namespace.vgpu.stack.node
    user = namespace.run(_on_the_gpu(namespace))
    wait_until(lambda: _health(namespace, user) == "Healthy", "kubelet shows the device as healthy", timeout_s=_RECOVERY_S)

    node.inject_event(_GPU, _XID, 79)
    wait_until(lambda: _tainted(vgpu) == _DEVICES, "the devices of the GPU are tainted")
    wanting = namespace.create(_on_the_gpu(namespace))
    other = namespace.run(pod(namespace.template(claim_spec(request("gpu", memory="1Gi", cores="10")))))

    namespace.wait_event(wanting, "cannot allocate all claims")
    assert namespace.pod(wanting)["status"]["phase"] == "Pending"
    (result,) = namespace.claim_of(other)["status"]["allocation"]["devices"]["results"]
    assert result["device"] not in _DEVICES
    wait_until(lambda: _health(namespace, user) == "Unhealthy", "kubelet shows the device as ill", timeout_s=_RECOVERY_S)
    assert namespace.pod(user)["status"]["phase"] == "Running"

    node.heal()

    wait_until(lambda: _tainted(vgpu) == set(), "no device is tainted", timeout_s=_RECOVERY_S)
    namespace.wait_running(wanting)
    wait_until(lambda: _health(namespace, user) == "Healthy", "kubelet shows the device as healthy", timeout_s=_RECOVERY_S)
