"""dra-plugin as a process with feature gates off: what it no longer does, and what goes on."""

from __future__ import annotations

import pytest

from vgpu_testkit.dra_bench import DRIVER, DraBench, half_a_gpu
from vgpu_testkit.kubelet_values import KubeletRefusal
from vgpu_testkit.manifests import Manifest, whole

GPU2 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000002"
XID = 8
OLD = half_a_gpu(device="vgpu-5")
NEW = half_a_gpu("new", device="vgpu-6", uid="3f0c1f6e-8f0a-4f57-9d0e-000000000006")
WHOLE = Manifest(name="whole", uid="3f0c1f6e-8f0a-4f57-9d0e-000000000002", shares=(whole("gpu", "gpu-2"),))


async def test_gates_are_shown_to_people_and_to_a_monitoring(idle_bench: DraBench) -> None:
    idle_bench.dra.environment["VGPU_FEATURE_GATES"] = "NRISupport=false"

    await idle_bench.start()

    shown = await idle_bench.dra.debug("feature_gates")
    assert (len(shown), shown["VGPUSupport"], shown["NRISupport"], shown["MPSSupport"]) == (15, True, False, False)
    metrics = await idle_bench.dra.metrics()
    assert {gate: metrics[f'vgpu_dra_feature_gate{{gate="{gate}"}}'] for gate in shown} == {
        gate: float(is_on) for gate, is_on in shown.items()
    }


async def test_without_shares_prepared_claims_go_on_and_new_ones_are_refused(bench: DraBench) -> None:
    for manifest in (OLD, NEW, WHOLE):
        manifest.write(bench.claims)
    await bench.start()
    before = await bench.prepare(OLD)
    bench.dra.stop()
    bench.dra.environment["VGPU_FEATURE_GATES"] = "VGPUSupport=false,NRISupport=false,DevicePluginClientMode=false"
    await bench.start()

    with pytest.raises(KubeletRefusal) as refusal:
        await bench.prepare(NEW)

    assert "request gpu: vgpu-6 is a share of a GPU, and this node gives none: its feature gate VGPUSupport is off" in str(
        refusal.value
    )
    assert await bench.prepare(OLD) == before
    assert [device.device_name for device in await bench.prepare(WHOLE)] == ["gpu-2"]
    await bench.unprepare(OLD)
    assert not bench.claim_dir(OLD).exists()


async def test_without_health_checks_nothing_taints_a_gpu_and_kubelet_is_told_that_its_health_is_unknown(bench: DraBench) -> None:
    bench.dra.environment |= {"VGPU_GPU_POLL": "0.05", "VGPU_NODE_NAME": "node-a"}
    await bench.start()
    bench.node.inject_event(GPU2, XID, 79)
    kubelet = bench.kubelet
    assert kubelet is not None
    await kubelet.until(lambda: kubelet.health(DRIVER).get(("node-a", "vgpu-2")) == "UNHEALTHY", timeout_s=30)
    stored = (bench.node.manager_dir / "health.json").read_bytes()
    bench.dra.stop()
    bench.dra.environment["VGPU_FEATURE_GATES"] = "NVMLDeviceHealthCheck=false"

    await bench.start()

    await kubelet.until(lambda: kubelet.health(DRIVER).get(("node-a", "vgpu-2")) == "UNKNOWN", timeout_s=30)
    assert set(kubelet.health(DRIVER).values()) == {"UNKNOWN"}
    assert kubelet.health_reports(DRIVER)["node-a", "vgpu-2"].message == (
        "health is not checked: the feature gate NVMLDeviceHealthCheck is off"
    )
    assert (await bench.dra.debug("health"))["gpus"] == {}
    metrics = await bench.dra.metrics()
    assert 'vgpu_dra_health_events_total{kind="xid_critical"}' not in metrics
    assert (bench.node.manager_dir / "health.json").read_bytes() == stored
