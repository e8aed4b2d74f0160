"""One real cluster for the tests below this folder, of the Kubernetes release that K8S names, and our services on it.

A test of the services takes `namespace`: it makes claims and pods there, and what it leaves is taken away. A module that needs
the services otherwise (other options, another NVML scenario, a runtime without NRI) has a fixture `vgpu` of its own, of scope
module, around `cluster_vgpu.installed`; `namespace` then uses that. A test of Kubernetes alone takes `cluster`. All of them
share one cluster, one after the other: whatever a test kills or changes outside the default namespace, it puts right.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpu_testkit.cluster import Cluster
from vgpu_testkit.cluster_programs import DEFAULT_RELEASE
from vgpu_testkit.cluster_vgpu import VgpuCluster, installed
from vgpu_testkit.cluster_vgpu_pods import Namespace, opened
from vgpu_testkit.containerd import find_containerds

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies below this folder: it needs root, `make containerd` and `make cluster`."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def containerd_program() -> Path:
    """containerd 2.x."""
    program = find_containerds().get("2")
    if program is None:
        pytest.fail("containerd 2 is not installed: run make containerd")
    if os.geteuid() != 0:
        pytest.fail("kubelet and containerd run as root only: run the tests marked cluster as root")
    return program


def make_cluster(containerd_program: Path) -> Iterator[Cluster]:
    """A cluster that was not started, in a folder of its own; both are gone at the end."""
    # Not pytest's own folder: a socket's path has room for 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="vk"))
    cluster = Cluster(root, containerd=containerd_program, release=os.environ.get("K8S") or DEFAULT_RELEASE)
    try:
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def running_cluster(containerd_program: Path) -> Iterator[Cluster]:
    """A cluster that lives as long as the run; tests use `cluster`, which has every component running."""
    for cluster in make_cluster(containerd_program):
        cluster.start()
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """A cluster of one node that is Ready, whatever the test before killed."""
    for name in running_cluster.components:
        if running_cluster.pid(name) is None:
            running_cluster.restart(name)
    running_cluster.wait_node_ready()
    return running_cluster


@pytest.fixture
def second_cluster(containerd_program: Path) -> Iterator[Cluster]:
    """One more, not started."""
    yield from make_cluster(containerd_program)


@pytest.fixture(scope="module")
def vgpu(running_cluster: Cluster, native: Path) -> Iterator[VgpuCluster]:
    """The services on the cluster's node."""
    with installed(running_cluster, native) as running:
        yield running


@pytest.fixture
def namespace(vgpu: VgpuCluster, cluster: Cluster) -> Iterator[Namespace]:
    """A namespace without pods and claims, on a node whose cluster is well."""
    with opened(vgpu) as found:
        yield found
