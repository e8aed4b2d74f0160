"""Our three processes replaced by the next generation, as a DaemonSet with maxSurge does, while pods come and go."""

from __future__ import annotations

import asyncio
import signal
import uuid

import pytest

from vgpu_testkit.cluster_api import Object
from vgpu_testkit.cluster_vgpu import VgpuCluster, wait_until
from vgpu_testkit.cluster_vgpu_burst import Burst
from vgpu_testkit.cluster_vgpu_pods import Namespace, claim_spec, pod, request
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice


@pytest.mark.timeout(500)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["terminated", "killed"])
def test_no_pod_is_stuck_and_no_slice_is_written_while_the_services_are_replaced(
    namespace: Namespace, end: signal.Signals
) -> None:
    vgpu = namespace.vgpu
    lasting = namespace.run(pod(namespace.template(claim_spec(request("gpu", memory="8Gi", cores="30")))))
    pids = namespace.recorded(lasting)
    of_slices = len(_writes_of_slices(vgpu))
    burst = Burst(namespace)
    burst.create(3)
    wait_until(lambda: len(vgpu.claims()) > 1, "the first claim of the burst is prepared")

    for _ in range(3):
        asyncio.run(vgpu.stack.roll(pod_uid=str(uuid.uuid4()), end=end))
        burst.create(3)
        burst.delete(1, grace_s=1)
    vgpu.settle()

    fates = burst.fates()
    assert [fate.story for fate in fates if fate.kind == "stuck"] == []
    assert burst.wrong_limits() == []
    # Neither a write of ours nor kubelet's, which wipes the slices of a driver that it has not seen for 30 s.
    assert _writes_of_slices(vgpu)[of_slices:] == []
    assert list(namespace.slices_now(lasting).values()) == [Slice(memory_bytes=8 * GIB, cores_percent=30)]
    assert set(namespace.recorded(lasting)) <= set(pids)
    assert len(list((vgpu.cluster.kubelet_root / "plugins/manager.nvidia.com").iterdir())) == 1
    assert len(list((vgpu.cluster.kubelet_root / "plugins_registry").iterdir())) == 1


def _writes_of_slices(vgpu: VgpuCluster) -> list[Object]:
    """Every change to a slice by anybody, as the audit log has it. A dry run, by which a new process asks, stores nothing."""
    events = (one for one in vgpu.cluster.audit_events() if "dryRun=All" not in one["requestURI"])
    return [one for one in events if one.get("objectRef", {}).get("resource") == "resourceslices"]
