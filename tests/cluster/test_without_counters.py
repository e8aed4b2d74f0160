"""A cluster whose API server drops shared counters: each GPU is offered in one form, and a restart writes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_testkit import api_slice_rules, vgpu_node
from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_programs import DEFAULT_RELEASE
from vgpu_testkit.cluster_vgpu import SLICES, VgpuCluster, installed, wait_until


@pytest.fixture
def vgpu(containerd_program: Path, native: Path) -> Iterator[VgpuCluster]:
    """The services on a cluster of its own."""
    # Not pytest's own folder: a socket's path has room for 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="vk"))
    release = os.environ.get("K8S") or DEFAULT_RELEASE
    gates = {"DRAPartitionableDevices": False}
    cluster = Cluster(root, containerd=containerd_program, release=release, node_name="plain-node", feature_gates=gates)
    try:
        cluster.start()
        cluster.wait_node_ready()
        with installed(cluster, native) as running:
            yield running
    finally:
        cluster.stop()
        shutil.rmtree(root)


@pytest.mark.timeout(300)
def test_each_gpu_is_offered_in_one_form_and_a_restart_writes_nothing(vgpu: VgpuCluster) -> None:
    slices = [s for s in vgpu.cluster.api.get(SLICES)["items"] if s["spec"]["driver"] == vgpu_node.DRIVER]
    assert api_slice_rules.pool_faults(slices) == []
    assert sorted(d["name"] for s in slices for d in s["spec"]["devices"]) == [f"vgpu-{i}" for i in range(8)]
    assert all("sharedCounters" not in s["spec"] for s in slices)

    vgpu.stack.dra.kill()
    vgpu.stack.dra.start()
    asyncio.run(vgpu.stack.dra.ready(timeout_s=60))
    wait_until(lambda: asyncio.run(vgpu.stack.dra.metrics()).get("vgpu_dra_published_devices") == 8, "the slices were looked at")

    metrics = asyncio.run(vgpu.stack.dra.metrics())
    assert sum(value for name, value in metrics.items() if name.startswith("vgpu_dra_slice_writes_total")) == 0
    assert metrics.get('vgpu_dra_slice_failures_total{reason="dropped"}', 0) == 0
