"""The manifests of examples/kubernetes, applied to a cluster as they are: each pod runs and has what its manifest says."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_testkit import image
from vgpu_testkit.cluster_vgpu import VgpuCluster
from vgpu_testkit.cluster_vgpu_pods import Namespace
from vgpu_testkit.manifests import GIB
from vgpu_testkit.vgpu_node import Slice

_EXAMPLES = Path(__file__).parents[2] / "examples/kubernetes"
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


@pytest.fixture(scope="module")
def example_image(vgpu: VgpuCluster, native: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The image that the examples name, of busybox and `read-limits`."""
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    image.write_image(archive, name=_IMAGE, files={"/bin/read-limits": native / "read-limits"})
    vgpu.cluster.containerd.import_image(archive)


def test_every_example_is_tried() -> None:
    assert sorted(path.name for path in _EXAMPLES.iterdir()) == sorted(_GIVEN)


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
