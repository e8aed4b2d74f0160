"""Containers with a whole GPU or a MIG device, on a node where neither nri-plugin nor the enforcement library is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from vgpu_testkit.dra_bench import DraBench
from vgpu_testkit.manifests import Manifest, Share, whole
from vgpu_testkit.pods import ContainerSpec
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_process import Isolation
from vgpu_testkit.runtime_refusals import RuntimeRefused

GPU_3 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000003"
INSTANCE = 3 + (3 * 15 + 9) * 9  # the fake driver's minor of GPU instance 9 on GPU 3; its compute instance follows
CLAIM = Manifest(
    name="mixed", shares=(Share(request="share", device="vgpu-5"), whole("all", "gpu-2"), whole("part", "gpu-3-mig-19-2-1"))
)


@pytest.fixture
async def runtime(bench: DraBench, short_dir: Path) -> AsyncIterator[StandInRuntime]:
    """A runtime that no NRI plug-in is connected to; the claim is prepared."""
    bench.node.partition_gpu(GPU_3, (19, 2))
    CLAIM.write(bench.claims)
    await bench.start()
    await bench.prepare(CLAIM)
    made = StandInRuntime(short_dir / "rt", cdi_dir=bench.node.cdi_dir, nri_socket=short_dir / "nri/nri.sock")
    async with made:
        if made.isolation is not Isolation.NAMESPACES:
            pytest.skip("this machine allows this user no user namespace: containers see every device node of the host")
        yield made


def spec(bench: DraBench, *requests: str) -> ContainerSpec:
    assert bench.kubelet is not None
    return ContainerSpec(cdi_devices=tuple(bench.kubelet.container_cdi_ids(CLAIM.uid, requests)))


async def nvidia_files(runtime: StandInRuntime, container: str) -> list[str]:
    shown = await runtime.sh(container, "ls -d /dev/nvidia* /dev/nvidia-caps/* 2>/dev/null; true")
    return sorted(line for line in shown.split() if line != "/dev/nvidia-caps")


async def test_container_of_a_whole_gpu_has_its_node_the_libraries_and_no_limits(
    bench: DraBench, runtime: StandInRuntime
) -> None:
    container = await runtime.run_container(await runtime.run_pod(), spec(bench, "all"))

    assert await nvidia_files(runtime, container) == [
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia2",
        "/dev/nvidiactl",
    ]
    assert "libcuda.so.1" in await runtime.sh(container, "ls /usr/local/nvidia/lib64")
    env = (await runtime.sh(container, "env")).splitlines()
    assert "NVIDIA_VISIBLE_DEVICES=void" in env
    assert not [entry for entry in env if entry.startswith(("VGPU_", "MANAGER_", "LD_PRELOAD"))]
    assert "absent" in await runtime.sh(container, "ls -d /etc/vgpu-manager /etc/ld.so.preload || echo absent")


async def test_container_of_a_mig_device_has_the_nodes_of_its_instances_and_no_others(
    bench: DraBench, runtime: StandInRuntime
) -> None:
    container = await runtime.run_container(await runtime.run_pod(), spec(bench, "part"))

    assert await nvidia_files(runtime, container) == [
        f"/dev/nvidia-caps/nvidia-cap{INSTANCE}",
        f"/dev/nvidia-caps/nvidia-cap{INSTANCE + 1}",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia3",
        "/dev/nvidiactl",
    ]
    assert "absent" in await runtime.sh(container, "ls -d /etc/vgpu-manager || echo absent")


@pytest.mark.parametrize("requests", [("share",), ("share", "all")])
async def test_container_of_a_share_does_not_start_there(
    bench: DraBench, runtime: StandInRuntime, requests: tuple[str, ...]
) -> None:
    """The poison mount of the same claim does what it is for."""
    pod = await runtime.run_pod()

    with pytest.raises(RuntimeRefused, match="created-without-nri"):
        await runtime.run_container(pod, spec(bench, *requests))
