"""The cluster itself: its node runs pods, it survives its components' ends, it leaves nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vgpu_testkit import cluster_cgroups, image
from vgpu_testkit.cluster import Cluster, is_ready
from vgpu_testkit.cluster_api import Api, ApiError
from vgpu_testkit.cluster_pods import PODS, run_pod, script_pod
from vgpu_testkit.cluster_programs import DEFAULT_RELEASE

_COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd")


def test_node_is_ready_and_runs_the_release_asked_for(cluster: Cluster) -> None:
    node = cluster.api.get(f"/api/v1/nodes/{cluster.node_name}")

    assert is_ready(node)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == cluster.version
    assert node["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("containerd://2.")


def test_pod_runs_to_its_end_and_its_log_is_read(cluster: Cluster) -> None:
    assert run_pod(cluster, script_pod("echo the words of the pod")) == "the words of the pod\n"


def test_pod_has_a_network_of_its_own_and_reaches_the_api_server_as_any_pod_does(cluster: Cluster) -> None:
    script = 'nc -w 5 "$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT" </dev/null && ip -o -4 address show dev eth0'

    assert "inet 10.88." in run_pod(cluster, script_pod(script))


def test_node_reads_no_secret_that_is_not_its_pods(cluster: Cluster) -> None:
    port = int(cluster.server.rpartition(":")[2])
    pki = cluster.root / "pki"
    as_node = Api(port, authority=f"{pki}/ca.crt", certificate=f"{pki}/kubelet.crt", key=f"{pki}/kubelet.key")

    assert is_ready(as_node.get(f"/api/v1/nodes/{cluster.node_name}"))
    with pytest.raises(ApiError, match="forbidden"):
        as_node.get("/api/v1/namespaces/kube-system/secrets")


def test_audit_log_names_who_changed_what(cluster: Cluster) -> None:
    pod = script_pod("true")

    run_pod(cluster, pod)

    writers = {
        (event["verb"], event["user"]["username"])
        for event in cluster.audit_events()
        if event["objectRef"].get("name") == pod["metadata"]["name"]
    }
    assert {
        ("create", "kubernetes-admin"),
        ("create", "system:kube-scheduler"),
        ("patch", f"system:node:{cluster.node_name}"),
    } <= writers


@pytest.mark.parametrize("component", _COMPONENTS)
def test_pods_run_again_after_a_component_was_killed_and_started(cluster: Cluster, component: str) -> None:
    cluster.kill(component)
    assert cluster.pid(component) is None

    cluster.restart(component)

    cluster.wait_node_ready()
    assert run_pod(cluster, script_pod("echo again")) == "again\n"


# --- the end ---


def test_stopped_cluster_leaves_nothing(second_cluster: Cluster) -> None:
    interfaces = _interfaces()
    second_cluster.start()
    cgroup = f"vgpu-cluster-{second_cluster.root.name}"
    second_cluster.api.create(PODS, script_pod("sleep 1000"))
    second_cluster.api.wait_for(PODS, lambda pods: pods["items"][0]["status"].get("phase") == "Running")
    assert cluster_cgroups.exists(cgroup)
    assert _processes_of(second_cluster.root)

    second_cluster.stop()

    assert _processes_of(second_cluster.root) == []
    assert not cluster_cgroups.exists(cgroup)
    assert _interfaces() == interfaces
    assert _mounts_of(second_cluster.root) == []


def test_stopped_cluster_goes_on_where_it_was_when_it_is_started_again(second_cluster: Cluster) -> None:
    second_cluster.start()
    second_cluster.api.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "kept"}, "data": {"a": "b"}})
    second_cluster.stop()

    second_cluster.start()

    assert second_cluster.api.get("/api/v1/namespaces/default/configmaps/kept")["data"] == {"a": "b"}
    assert run_pod(second_cluster, script_pod("echo again")) == "again\n"


def test_cluster_ends_when_the_process_that_started_it_is_killed(containerd_program: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(image.__file__).parents[1])}
    command = [sys.executable, "-m", "vgpu_testkit.cluster_run", os.environ.get("K8S") or DEFAULT_RELEASE]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        root = Path(starter.stdout.readline().split()[-1])
        assert _processes_of(root)
        starter.kill()

    deadline = time.monotonic() + 20
    while (left := _processes_of(root)) or cluster_cgroups.exists(f"vgpu-cluster-{root.name}"):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    shutil.rmtree(root)


def _interfaces() -> list[str]:
    lines = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout.splitlines()
    return [line.split(":")[1] for line in lines]


def _mounts_of(root: Path) -> list[str]:
    """The mounts on, in or from the folder."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(root) in line]


def _processes_of(root: Path) -> list[str]:
    """The command lines that name the folder."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(root) in line:
                found.append(line)
    return found
