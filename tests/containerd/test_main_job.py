"""The main job on real containerd: what a claim asks for is what a program in its container reads, root or not."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from vgpu_testkit.manifests import GIB, Share
from vgpu_testkit.pods import Mount
from vgpu_testkit.vgpu_node import LIBRARY_SPEC, Slice, VgpuNode, until

_USERS: dict[str, dict[str, Any]] = {
    "root": {},
    "uid 1000": {"run_as_user": 1000, "run_as_group": 1000},
    "read-only root file system": {"readonly_rootfs": True},
    "uid 1000 and read-only root file system": {"run_as_user": 1000, "readonly_rootfs": True},
}


@pytest.mark.parametrize("user", _USERS)
async def test_container_reads_the_limits_that_were_asked_for_and_registers(node: VgpuNode, user: str) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5", cores="30", memory="10Gi"))
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim, **_USERS[user]))

    seen = await node.limits(container)
    assert seen["devices"] == [
        {
            "index": 5,
            "uuid": "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005",
            "total_memory": 10 * GIB,
            "real_memory": 10 * GIB,
            "hard_core": 30,
            "soft_core": 30,
            "core_limit": 1,
            "hard_limit": 1,
            "memory_limit": 1,
            "memory_oversold": 0,
        }
    ]
    assert (seen["pod_uid"], seen["pod_name"], seen["pod_namespace"]) == (pod.spec.uid, "pod", "research")
    assert (seen["container_name"], seen["register_uuid"], seen["compatibility_mode"]) == ("main", "", 236)
    registered = await node.register(container, pod_uid=pod.spec.uid)
    assert (registered.exit_code, registered.stderr) == (0, "")


async def test_containers_of_one_pod_read_their_own_request_of_a_claim(node: VgpuNode) -> None:
    claim = await node.prepare(
        Share(request="train", device="vgpu-6", cores="60", memory="40Gi"),
        Share(request="serve", device="vgpu-3", cores="20", memory="4Gi"),
    )
    pod = await node.run_pod()

    train = await node.cri.run_container(pod, node.spec(claim, "train", name="train"))
    serve = await node.cri.run_container(pod, node.spec(claim, "serve", name="serve"))

    assert await node.slices(train) == {6: Slice(memory_bytes=40 * GIB, cores_percent=60)}
    assert await node.slices(serve) == {3: Slice(memory_bytes=4 * GIB, cores_percent=20)}
    assert await node.cri.sh(train, "ls /dev/nvidia[0-9]*") == "/dev/nvidia6\n"
    assert await node.cri.sh(serve, "ls /dev/nvidia[0-9]*") == "/dev/nvidia3\n"


async def test_container_of_two_gpus_has_a_slot_for_each(node: VgpuNode) -> None:
    claim = await node.prepare(
        Share(request="big", device="vgpu-7", cores="50", memory="20Gi"),
        Share(request="small", device="vgpu-2", cores="10", memory="2Gi"),
    )
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim))

    assert await node.slices(container) == {
        2: Slice(memory_bytes=2 * GIB, cores_percent=10),
        7: Slice(memory_bytes=20 * GIB, cores_percent=50),
    }
    assert await node.cri.sh(container, "ls /dev/nvidia[0-9]*") == "/dev/nvidia2\n/dev/nvidia7\n"


async def test_two_requests_on_one_gpu_add_up_in_one_container(node: VgpuNode) -> None:
    claim = await node.prepare(
        Share(request="first", device="vgpu-4", cores="30", memory="8Gi"),
        Share(request="second", device="vgpu-4", cores="20", memory="4Gi"),
    )
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim))

    assert await node.slices(container) == {4: Slice(memory_bytes=12 * GIB, cores_percent=50)}


async def test_two_pods_share_a_claim_by_its_requests(node: VgpuNode) -> None:
    claim = await node.prepare(
        Share(request="one", device="vgpu-1", memory="1Gi"), Share(request="two", device="vgpu-1", memory="2Gi")
    )
    first, second = await node.run_pod("first"), await node.run_pod("second")

    one = await node.cri.run_container(first, node.spec(claim, "one"))
    two = await node.cri.run_container(second, node.spec(claim, "two"))

    assert await node.slices(one) == {1: Slice(memory_bytes=1 * GIB, cores_percent=50)}
    assert await node.slices(two) == {1: Slice(memory_bytes=2 * GIB, cores_percent=50)}


async def test_pid_list_is_exactly_the_containers_processes(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"), Share(request="other", device="vgpu-5"))
    pod = await node.run_pod()
    spec = node.spec(claim, "gpu", command=("/bin/sh", "-c", "sleep 1000000 & sleep 1000000 & wait"))
    container = await node.cri.run_container(pod, spec)
    neighbour = await node.cri.run_container(pod, node.spec(claim, "other", name="other"))
    first = (await node.cri.status(container)).pid
    assert node.recorded_pids(claim, pod)[0] == first  # the list is never empty once a container runs

    await node.register(container, pod_uid=pod.spec.uid)
    await node.register(neighbour, pod_uid=pod.spec.uid, container="other")

    lasting = _processes_of(pod.cgroup_of(container))
    assert len(lasting) == 3
    assert set(lasting) < set(node.recorded_pids(claim, pod))  # device-client was one of them when it registered
    # The registry looks again every ten seconds, and finds that device-client has gone.
    await until(lambda: node.recorded_pids(claim, pod) == lasting, "the PID list holds the lasting processes only")
    assert (await node.limits(container))["pids"] == lasting
    assert node.recorded_pids(claim, pod, "other") == _processes_of(pod.cgroup_of(neighbour))


async def test_container_has_its_names_in_its_env_whatever_the_user_set(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod("notebook")
    forged = {
        "MANAGER_CLIENT_REGISTER_UUID": "forged",
        "VGPU_POD_UID": "forged",
        "VGPU_CONTAINER_NAME": "forged",
        "LD_PRELOAD": "/mine.so",
    }

    container = await node.cri.run_container(pod, node.spec(claim, env={**forged, "LD_PRELOAD": "/mine.so"}))

    env = (await node.cri.sh(container, "cat /proc/1/environ")).split("\0")
    assert f"VGPU_POD_UID={pod.spec.uid}" in env
    assert "VGPU_POD_NAME=notebook" in env
    assert "VGPU_POD_NAMESPACE=research" in env
    assert "VGPU_CONTAINER_NAME=main" in env
    assert "MANAGER_CLIENT_REGISTER_UUID=" in env
    assert "LD_PRELOAD=/mine.so" in env  # /etc/ld.so.preload is enough, and leaves the user's own
    assert [entry for entry in env if "forged" in entry] == []


@pytest.mark.parametrize("volume_on_tmp", [False, True])
async def test_scratch_is_a_small_tmpfs_of_the_containers_own(node: VgpuNode, tmp_path: Path, volume_on_tmp: bool) -> None:
    os.chmod(tmp_path, 0o1777)
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    mounts = (Mount("/tmp", tmp_path),) if volume_on_tmp else ()

    container = await node.cri.run_container(pod, node.spec(claim, mounts=mounts, run_as_user=1000))

    table = {line.split()[1]: line.split() for line in (await node.cri.sh(container, "cat /proc/mounts")).splitlines()}
    for place in ("/tmp/.vgpu_lock", "/tmp/.vmem_node", "/tmp/.sm_node"):
        _, _, kind, options, *_ = table[place]
        assert kind == "tmpfs"
        assert {"rw", "nosuid", "nodev", "noexec", "size=2048k", "nr_inodes=64", "mode=777"} <= set(options.split(","))
        assert await node.cri.sh(container, f"echo mine > {place}/note; cat {place}/note") == "mine\n"
    assert [files for _, _, files in os.walk(tmp_path) if files] == []  # nothing of it on the host's disk


async def test_scratch_is_fresh_at_every_start(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    first = await node.cri.run_container(pod, node.spec(claim, attempt=0))
    await node.cri.sh(first, "echo old > /tmp/.vmem_node/ledger")
    await node.cri.stop(first)

    second = await node.cri.run_container(pod, node.spec(claim, attempt=1))

    assert await node.cri.sh(second, "ls -A /tmp/.vmem_node") == ""


async def test_program_of_the_images_loader_is_held_to_the_limits(node: VgpuNode) -> None:
    """The library is preloaded into a dynamically linked program, registers it and says what it would enforce."""
    claim = await node.prepare(Share(request="gpu", device="vgpu-5", cores="30", memory="10Gi"))
    pod = await node.run_pod()
    container = await node.cri.run_container(pod, node.spec(claim, **LIBRARY_SPEC))

    seen = await node.load_library(container)

    expected = (
        "vgpu-control: would enforce on research/pod main: "
        f"slot 5 GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005 memory {10 * GIB} cores 30;\n"
    )
    assert (seen.exit_code, seen.stderr) == (0, expected)
    verdicts = [entry["verdict"] for entry in await node.stack.registry.debug("registrations")]
    assert verdicts[-1:] == ["ok"]


async def test_limits_inside_are_the_bytes_on_the_host(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim, run_as_user=1000))

    inside = await node.cri.sh(container, "sha256sum < /etc/vgpu-manager/config/vgpu.config")
    host = node.partition(claim, pod) / "config/vgpu.config"
    assert inside.split()[0] == hashlib.sha256(host.read_bytes()).hexdigest()
    assert (oct(host.stat().st_mode & 0o7777), host.stat().st_uid) == ("0o644", 0)


def _processes_of(cgroup: str) -> list[int]:
    """Ascending, by the first hierarchy that has the cgroup."""
    place = next(Path("/sys/fs/cgroup").glob(f"*{cgroup}/cgroup.procs"))
    return sorted(int(pid) for pid in place.read_text().split())
