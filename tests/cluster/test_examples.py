"""The manifests of examples/kubernetes, applied to a cluster as they are: each pod runs and has what its manifest says."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_testkit import image
from vgpu_testkit.cluster_vgpu import VgpuCluster, wait_until
from vgpu_testkit.cluster_vgpu_pods import Namespace
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_EXAMPLES = Path(__file__).parents[2] / "examples/kubernetes"
_GPU7 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000007"
# What the examples name, of which there is none here without a registry.
_IMAGE = "docker.io/library/ubuntu:24.04"

# By file and pod, each container's slices, one per GPU.
_GIVEN: dict[str, dict[str, dict[str, list[Slice]]]] = {
    "one-slice.yaml": {"notebook": {"main": [Slice(memory_bytes=8 * GIB, cores_percent=30)]}},
    "two-gpus.yaml": {"trainer": {"main": [Slice(memory_bytes=4 * GIB, cores_percent=50)] * 2}},
    "two-containers.yaml": {
        "worker": {
            "train": [Slice(memory_bytes=40 * GIB, cores_percent=60)],
            "serve": [Slice(memory_bytes=4 * GIB, cores_percent=20)],
        }
    },
    "shared-claim.yaml": {
        "model": {"main": [Slice(memory_bytes=16 * GIB, cores_percent=40)]},
        "cache": {"main": [Slice(memory_bytes=2 * GIB, cores_percent=10)]},
    },
}


# By file, the pod and the attributes of the one device that it has, whole.
_WHOLE = {
    "whole-gpu.yaml": ("whole", {"type": {"string": "gpu"}}),
    "mig-device.yaml": ("mig-1g", {"type": {"string": "mig"}, "profile": {"string": "1g.10gb"}}),
}


@pytest.fixture(scope="module")
def example_image(vgpu: VgpuCluster, native: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The image that the examples name, of busybox and `read-limits`."""
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    image.write_image(archive, name=_IMAGE, files={"/bin/read-limits": native / "read-limits"})
    vgpu.cluster.containerd.import_image(archive)


def test_every_example_is_tried() -> None:
    assert sorted(path.name for path in _EXAMPLES.iterdir()) == sorted([*_GIVEN, *_WHOLE])


@pytest.mark.usefixtures("example_image")
@pytest.mark.parametrize("file", _GIVEN)
def test_pods_of_an_example_run_with_the_slices_that_it_asks_for(namespace: Namespace, file: str) -> None:
    namespace.apply(_EXAMPLES / file)

    namespace.wait_running(*_GIVEN[file])
    seen = {
        pod: {container: list(namespace.slices_now(pod, container).values()) for container in containers}
        for pod, containers in _GIVEN[file].items()
    }
    assert seen == _GIVEN[file]


@pytest.mark.usefixtures("example_image")
@pytest.mark.parametrize("file", _WHOLE)
def test_pods_of_an_example_are_given_the_one_device_that_it_asks_for(namespace: Namespace, file: str) -> None:
    vgpu = namespace.vgpu
    name, attributes = _WHOLE[file]
    vgpu.stack.node.partition_gpu(_GPU7, (19, 0))
    try:
        wait_until(lambda: "gpu-7-mig-19-0-1" in [d["name"] for d in vgpu.devices()], "the MIG device is published")

        namespace.apply(_EXAMPLES / file)

        wait_until(lambda: _is_scheduled(namespace, name), f"{name} has a node")
        (result,) = namespace.claim_of(name)["status"]["allocation"]["devices"]["results"]
        (device,) = [one for one in vgpu.devices() if one["name"] == result["device"]]
        assert device["attributes"].items() >= attributes.items()
    finally:
        namespace.delete(name)
        vgpu.stack.node.unite_gpu(_GPU7)


def _is_scheduled(namespace: Namespace, name: str) -> bool:
    return "nodeName" in namespace.pod(name)["spec"]
