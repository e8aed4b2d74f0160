"""Volumes that would hide, replace or reach what binds a container: refused at its creation, or at its start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from grpclib.const import Status

from vgpu_testkit import image
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.pods import Mount
from vgpu_testkit.refusals import HALF, assert_correct_container_works, refused, start_refused
from vgpu_testkit.vgpu_node import VgpuNode

_CONFIG = "/etc/vgpu-manager/config"
_PRELOAD = "/etc/ld.so.preload"


@pytest.mark.parametrize(
    "place",
    [
        f"{_CONFIG}/",
        f"{_CONFIG}/vgpu.config",
        f"{_CONFIG}/pids.config",
        "/etc/vgpu-manager/",
        "//etc//./vgpu-manager/driver/..",
        "/etc/vgpu-manager/registry/",
        "/etc/vgpu-manager/registry/device-client",
        "/etc/vgpu-manager/driver",
        "/etc//vgpu-manager/driver/libvgpu-control.so",
        "/etc/vgpu-manager/elsewhere",
        "/etc/../etc/ld.so.preload",
        "/etc",
        "/etc/",
        "/tmp/.sm_node",
        "/tmp/.vmem_node/",
        "/tmp/.vgpu_lock/sub",
    ],
)
async def test_users_mount_at_below_or_above_ours_isrefused(node: VgpuNode, claim: Manifest, tmp_path: Path, place: str) -> None:
    pod = await node.run_pod()

    reason = await refused(node, pod, node.spec(claim, mounts=(Mount(place, tmp_path),)), status=Status.FAILED_PRECONDITION)

    assert re.search(r"has a mount at '[^']+', which would hide or replace ours at /(etc|tmp)/", reason)
    assert "choose another mountPath" in reason
    await assert_correct_container_works(node, claim, pod)


@pytest.mark.parametrize(
    "place",
    [
        _CONFIG,
        "/etc/vgpu-manager",
        "/etc/vgpu-manager/registry",
        "/etc/vgpu-manager/driver/libvgpu-control.so",
        "/etc/ld.so.preload",
    ],
)
async def test_users_mount_exactly_at_ours_is_replaced_by_ours(
    node: VgpuNode, claim: Manifest, tmp_path: Path, place: str
) -> None:
    """The runtime does so itself before it asks anybody, so that nothing can be refused; the scratch comes later and is."""
    (tmp_path / "forged").mkdir()
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim, mounts=(Mount(place, tmp_path),)))

    assert await node.slices(container) == HALF
    assert "forged" not in await node.cri.sh(container, f"ls {place}")
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


@pytest.mark.parametrize("place", ["/etc/vgpu-manager.d", "/etc/ld.so.preload.d", "/tmp/mine", "/etc/app", "/tmp"])
async def test_users_mount_beside_ours_is_allowed(node: VgpuNode, claim: Manifest, tmp_path: Path, place: str) -> None:
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim, mounts=(Mount(place, tmp_path),)))

    assert await node.slices(container) == HALF
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


async def test_read_only_volume_on_tmp_isrefused(node: VgpuNode, claim: Manifest, tmp_path: Path) -> None:
    pod = await node.run_pod()
    spec = node.spec(claim, mounts=(Mount("/tmp", tmp_path, readonly=True),))

    reason = await refused(node, pod, spec, status=Status.FAILED_PRECONDITION)

    assert "mounts a read-only volume at /tmp, where the enforcement library keeps its scratch; make it writable" in reason
    await assert_correct_container_works(node, claim, pod)


@pytest.mark.parametrize("what", ["at", "below", "above", "root", "by a link", "CDI", "plug-ins", "private sockets"])
async def test_volume_that_reaches_the_nodes_own_files_is_refused(
    node: VgpuNode, claim: Manifest, tmp_path: Path, what: str
) -> None:
    place = node.stack.node
    (tmp_path / "link").symlink_to(place.manager_dir)
    sources = {
        "at": place.manager_dir,
        "below": place.manager_dir / "claims",
        "above": place.manager_dir.parent,
        "root": Path("/"),
        "by a link": tmp_path / "link",
        "CDI": place.cdi_dir,
        "plug-ins": place.kubelet_dir / "plugins",
        "private sockets": place.run_dir,
    }
    pod = await node.run_pod()
    spec = node.spec(claim, mounts=(Mount("/mnt", sources[what], readonly=True),))

    reason = await refused(node, pod, spec, status=Status.FAILED_PRECONDITION)

    assert "no container may see the node's vGPU, CDI or kubelet plug-in files" in reason
    await assert_correct_container_works(node, claim, pod)


@pytest.mark.parametrize("target", [_CONFIG, "/etc/vgpu-manager", "/etc", "/etc/vgpu-manager/registry", "/tmp/.vmem_node"])
async def test_volume_through_a_link_of_the_image_does_not_start(
    node: VgpuNode, claim: Manifest, tmp_path: Path, target: str
) -> None:
    """The link lies deep, so that the volume lands after, and over, ours. Its destination does not show it."""
    name = f"localhost/vgpu/link{target.replace('/', '-').replace('.', '')}:1"
    links = {"/a/b/c/d/e/link": target}
    image.write_image(tmp_path / "image.tar", name=name, links=links)
    node.containerd.import_image(tmp_path / "image.tar")
    volume = tmp_path / "volume"
    for folder in ("config", "registry", "driver", ".sm_node", ".vmem_node", ".vgpu_lock"):
        (volume / folder).mkdir(parents=True)
    marker = tmp_path / "marker"
    marker.mkdir()
    pod = await node.run_pod()
    mounts = (Mount("/a/b/c/d/e/link", volume), Mount("/marker", marker))
    spec = node.spec(claim, image=name, mounts=mounts, command=("/bin/sh", "-c", "touch /marker/ran; sleep 1000000"))

    reason = await start_refused(node, pod, spec)

    assert re.search(r"/(etc|tmp)\S* does not show what we mounted there|something else is mounted at /(etc|tmp)", reason)
    assert list(marker.iterdir()) == []
    await assert_correct_container_works(node, claim, pod)


@pytest.mark.parametrize("place", ["/etc/vgpu-manager", _PRELOAD, "/tmp"])
async def test_image_that_has_a_link_in_our_place_does_not_start(
    node: VgpuNode, claim: Manifest, tmp_path: Path, place: str
) -> None:
    """The runtime mounts ours where the link leads, which the image can choose."""
    name = f"localhost/vgpu/elsewhere{place.replace('/', '-').replace('.', '')}:1"
    target = "/elsewhere/file" if place == _PRELOAD else "/elsewhere"
    image.write_image(tmp_path / "image.tar", name=name, files={"/elsewhere/file": b""}, links={place: target})
    node.containerd.import_image(tmp_path / "image.tar")
    pod = await node.run_pod()

    reason = await start_refused(node, pod, node.spec(claim, image=name))

    assert re.search(rf"{place}\S* does not show what we mounted there", reason)
    await assert_correct_container_works(node, claim, pod)


async def test_link_in_the_image_that_ours_cover_is_harmless(
    node: VgpuNode, claim: Manifest, tmp_path: Path, native: Path
) -> None:
    name = "localhost/vgpu/covered:1"
    files: dict[str, bytes | Path] = {"/elsewhere/vgpu.config": b"forged", "/bin/read-limits": native / "read-limits"}
    image.write_image(tmp_path / "image.tar", name=name, files=files, links={_CONFIG: "/elsewhere"})
    node.containerd.import_image(tmp_path / "image.tar")
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim, image=name))

    assert await node.slices(container) == HALF


@pytest.mark.parametrize("target", ["/etc", _CONFIG, "/etc/vgpu-manager"])
async def test_link_left_in_a_shared_tmp_does_not_lead_our_scratch_elsewhere(
    node: VgpuNode, claim: Manifest, tmp_path: Path, target: str
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    (shared / ".sm_node").symlink_to(target)
    pod = await node.run_pod()

    reason = await start_refused(node, pod, node.spec(claim, mounts=(Mount("/tmp", shared),)))

    assert re.search(r"does not show what we mounted there|something else is mounted at /etc", reason)
    await assert_correct_container_works(node, claim, pod)
