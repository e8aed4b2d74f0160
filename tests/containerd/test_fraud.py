"""Nothing a container says is believed: what is refused at its creation or its start, with the reason in the runtime's answer.

After each refusal the node is as it was, and a correct container still gets its slice.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_testkit import image
from vgpu_testkit.manifests import GIB, Manifest, Share
from vgpu_testkit.pods import ContainerSpec, ContainerState, Device, Mount, Pod, PodSpec
from vgpu_testkit.vgpu_node import NAMESPACE, Slice, VgpuNode, until

_HALF = {5: Slice(memory_bytes=8 * GIB, cores_percent=50)}
_CONFIG = "/etc/vgpu-manager/config"
_KEY = "VGPU_GRANT_0123456789abcdef"
_PRELOAD = "/etc/ld.so.preload"


@pytest.fixture
async def claim(node: VgpuNode) -> AsyncIterator[Manifest]:
    """A claim of half of GPU 5; after the test its request is free or given back, and no log has a nonce."""
    prepared = await node.prepare(Share(request="gpu", device="vgpu-5"))
    nonces = [value.rpartition("/")[2] for value in node.grant_env(prepared, "gpu").values()]
    yield prepared
    logs = "".join(daemon.log.read_text() for daemon in node.stack.daemons)
    assert [nonce for nonce in nonces if nonce in logs] == []


# --- grants ---


async def test_copied_grant_without_its_gpu_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod, thief = await node.run_pod(), await node.run_pod("thief")
    holder = await node.cri.run_container(pod, node.spec(claim))
    stolen = await _grants_inside(node, holder)

    reason = await _refused(node, thief, ContainerSpec(env=stolen), status=Status.PERMISSION_DENIED)

    assert "container main of pod research/thief shows a grant of request gpu and was not given its device /dev/nvidia5" in reason
    assert node.partitions(claim) == [f"{pod.spec.uid}_main"]
    assert await node.slices(holder) == _HALF


async def test_copied_grant_of_a_held_request_is_refused_even_with_the_gpus_node(node: VgpuNode, claim: Manifest) -> None:
    pod, thief = await node.run_pod(), await node.run_pod("thief")
    holder = await node.cri.run_container(pod, node.spec(claim))
    stolen = await _grants_inside(node, holder)

    reason = await _refused(node, thief, _with_gpu(node, 5, env=stolen), status=Status.FAILED_PRECONDITION)

    assert "wants request gpu of claim research/slice" in reason
    assert "which container main of pod research/pod holds" in reason
    assert node.partitions(claim) == [f"{pod.spec.uid}_main"]
    assert await node.slices(holder) == _HALF


async def test_copied_grant_used_after_its_holder_does_not_start_without_our_mounts(node: VgpuNode, claim: Manifest) -> None:
    pod, thief = await node.run_pod(), await node.run_pod("thief")
    holder = await node.cri.run_container(pod, node.spec(claim))
    stolen = await _grants_inside(node, holder)
    await node.cri.stop(holder)

    reason = await _start_refused(node, thief, _with_gpu(node, 5, env=stolen))

    assert "container main of pod research/thief: /etc/vgpu-manager does not show what we mounted there" in reason
    again = await node.cri.run_container(pod, node.spec(claim, attempt=1))
    assert await node.slices(again) == _HALF


async def test_made_up_nonce_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    ((key, value),) = node.grant_env(claim, "gpu").items()
    forged = {key: value[:-32] + "0123456789abcdef" * 2}

    reason = await _refused(node, pod, _with_gpu(node, 5, env=forged), status=Status.PERMISSION_DENIED)

    assert f"of claim research/slice ({claim.uid}) is unknown; it was not given by Prepare" in reason
    await _correct_container_works(node, claim, pod)


async def test_grant_under_another_key_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    (value,) = node.grant_env(claim, "gpu").values()

    reason = await _refused(node, pod, _with_gpu(node, 5, env={_KEY: value}), status=Status.PERMISSION_DENIED)

    assert "grant 0123456789abcdef of claim" in reason
    assert "is unknown; it was not given by Prepare" in reason
    await _correct_container_works(node, claim, pod)


async def test_grant_with_another_requests_name_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    ((key, value),) = node.grant_env(claim, "gpu").items()

    reason = await _refused(
        node, pod, _with_gpu(node, 5, env={key: value.replace("/gpu/", "/cpu/")}), status=Status.PERMISSION_DENIED
    )

    assert "is unknown; it was not given by Prepare" in reason
    await _correct_container_works(node, claim, pod)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("VGPU_GRANT_", "", "grant key is ''; expected 16 lower-case hex digits"),
        ("VGPU_GRANT_0123456789ABCDEF", "x", "grant key is '0123456789ABCDEF'; expected 16 lower-case hex digits"),
        ("VGPU_GRANT_../../../../etc", "x", "grant key is '../../../../etc'; expected 16 lower-case hex digits"),
        (_KEY, "", "claim uid is ''; expected a lower-case UUID"),
        (_KEY, "../../etc/gpu/00", "claim uid is '..'; expected a lower-case UUID"),
        (
            _KEY,
            "7c1de5a0-0b6f-4f0e-9f49-52b3b7a4a101/../../" + "0" * 32,
            "request name is '../..'; expected a DNS label",
        ),
        (
            _KEY,
            "7c1de5a0-0b6f-4f0e-9f49-52b3b7a4a101/gpu\n/" + "0" * 32,
            r"request name is 'gpu\\n'; expected a DNS label",
        ),
        (
            _KEY,
            "7c1de5a0-0b6f-4f0e-9f49-52b3b7a4a101/" + "g" * 400 + "/" + "0" * 32,
            "request name is '" + "g" * 80 + "…'; expected a DNS label",
        ),
        (
            _KEY,
            "7c1de5a0-0b6f-4f0e-9f49-52b3b7a4a101/gpu/0011",
            "grant nonce of 4 characters; expected 32 lower-case hex digits",
        ),
    ],
)
async def test_malformed_grant_is_refused(node: VgpuNode, claim: Manifest, key: str, value: str, words: str) -> None:
    pod = await node.run_pod()

    reason = await _refused(node, pod, _with_gpu(node, 5, env={key: value}), status=Status.INVALID_ARGUMENT)

    assert words.replace("\\\\", "\\") in reason
    await _correct_container_works(node, claim, pod)


async def test_grant_of_an_unprepared_claim_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    gone = await node.prepare(Share(request="gpu", device="vgpu-5"), name="gone")
    stale = node.grant_env(gone, "gpu")
    await node.unprepare(gone)

    reason = await _refused(node, pod, _with_gpu(node, 5, env=stale), status=Status.PERMISSION_DENIED)

    assert f"shows a grant of claim {gone.uid}, which is not prepared on this node" in reason
    await _correct_container_works(node, claim, pod)


async def test_grants_of_two_claims_are_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    other = await node.prepare(Share(request="gpu", device="vgpu-6"), name="other")
    both = (*node.spec(claim).cdi_devices, *node.spec(other).cdi_devices)

    reason = await _refused(node, pod, node.spec(claim, cdi_devices=both), status=Status.FAILED_PRECONDITION)

    assert f"container main of pod research/pod shows grants of 2 claims ({', '.join(sorted([claim.uid, other.uid]))})" in reason
    assert node.partitions(other) == []
    await _correct_container_works(node, claim, pod)


async def test_second_live_container_on_one_request_is_refused_with_both_names(node: VgpuNode, claim: Manifest) -> None:
    pod, second = await node.run_pod("first"), await node.run_pod("second")
    holder = await node.cri.run_container(pod, node.spec(claim, name="one"))

    reason = await _refused(node, second, node.spec(claim, name="two"), status=Status.FAILED_PRECONDITION)

    assert (
        f"container two of pod research/second wants request gpu of claim research/slice ({claim.uid}), "
        "which container one of pod research/first holds; one live container may hold a vGPU request"
    ) in reason
    assert node.partitions(claim) == [f"{pod.spec.uid}_one"]
    assert await node.slices(holder) == _HALF
    await node.cri.stop(holder)
    assert await node.slices(await node.cri.run_container(second, node.spec(claim, name="two", attempt=1))) == _HALF


async def test_container_that_was_made_and_not_yet_started_holds_its_request(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    waiting = await node.cri.create_container(pod, node.spec(claim, name="one"))

    reason = await _refused(node, pod, node.spec(claim, name="two"), status=Status.FAILED_PRECONDITION)

    assert "which container one of pod research/pod holds" in reason
    await node.cri.start(waiting)
    assert await node.slices(waiting) == _HALF


# --- devices and privileges ---


async def test_another_gpus_node_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()

    reason = await _refused(node, pod, node.spec(claim, devices=(_gpu(node, 3),)), status=Status.FAILED_PRECONDITION)

    assert "container main of pod research/pod also sees /dev/nvidia3, for which it has no grant" in reason
    await _correct_container_works(node, claim, pod)


async def test_another_gpus_node_is_found_under_any_name(node: VgpuNode, claim: Manifest, tmp_path: Path) -> None:
    os.mknod(tmp_path / "harmless", stat.S_IFCHR | 0o666, os.makedev(195, 3))
    pod = await node.run_pod()
    devices = (Device("/dev/harmless", str(tmp_path / "harmless")),)

    reason = await _refused(node, pod, node.spec(claim, devices=devices), status=Status.FAILED_PRECONDITION)

    assert "also sees /dev/nvidia3, for which it has no grant" in reason
    await _correct_container_works(node, claim, pod)


async def test_privileged_container_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(privileged=True)

    reason = await _refused(node, pod, node.spec(claim, privileged=True), status=Status.FAILED_PRECONDITION)

    assert "container main of pod research/pod is privileged" in reason
    assert "make it unprivileged or set --allow-privileged=true" in reason
    await _correct_container_works(node, claim, pod)


async def test_runtime_handler_that_is_not_listed_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(runtime_handler="sandboxed")

    reason = await _refused(node, pod, node.spec(claim), status=Status.FAILED_PRECONDITION)

    assert "runs under runtime handler 'sandboxed'" in reason
    assert "allowed are '', 'nvidia*' (--runtime-handlers)" in reason
    await _correct_container_works(node, claim, await node.run_pod("plain"))


async def test_runtime_handler_nvidia_is_allowed(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(runtime_handler="nvidia")

    container = await node.cri.run_container(pod, node.spec(claim))

    assert await node.slices(container) == _HALF


# --- names ---


async def test_pod_uid_that_is_no_uuid_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod(uid="0123456789abcdef0123456789abcdef")

    reason = await _refused(node, pod, node.spec(claim), status=Status.INVALID_ARGUMENT)

    assert "pod uid is '0123456789abcdef0123456789abcdef'; expected a lower-case UUID (static pods have none)" in reason
    await _correct_container_works(node, claim, await node.run_pod("plain"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a/b", "'a/b'"),
        ("../../escape", "'../../escape'"),
        ("..", "'..'"),
        ("new\nline", r"'new\nline'"),
        ("Upper", "'Upper'"),
        ("dot.ted", "'dot.ted'"),
        ("under_score", "'under_score'"),
        ("n" * 64, "'" + "n" * 64 + "'"),
    ],
)
async def test_container_name_that_is_no_label_is_refused(node: VgpuNode, claim: Manifest, name: str, shown: str) -> None:
    pod = await node.run_pod()

    reason = await _refused(node, pod, node.spec(claim, name=name), status=Status.INVALID_ARGUMENT)

    assert f"container name is {shown}; expected a DNS label of at most 63 characters" in reason
    await _correct_container_works(node, claim, pod)


@pytest.mark.parametrize("name", ["a/b", "new\nline"])
async def test_pod_name_that_could_mislead_is_refused(node: VgpuNode, claim: Manifest, name: str) -> None:
    pod = await node.run_pod()
    sandbox = await node.cri.run_pod(PodSpec(name=name, namespace=NAMESPACE))

    reason = await _refused(node, sandbox, node.spec(claim), status=Status.INVALID_ARGUMENT)

    assert "pod name is " in reason
    assert "printable characters without a slash" in reason
    await _correct_container_works(node, claim, pod)


# --- mounts ---


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
async def test_users_mount_at_below_or_above_ours_is_refused(node: VgpuNode, claim: Manifest, tmp_path: Path, place: str) -> None:
    pod = await node.run_pod()

    reason = await _refused(node, pod, node.spec(claim, mounts=(Mount(place, tmp_path),)), status=Status.FAILED_PRECONDITION)

    assert re.search(r"has a mount at '[^']+', which would hide or replace ours at /(etc|tmp)/", reason)
    assert "choose another mountPath" in reason
    await _correct_container_works(node, claim, pod)


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

    assert await node.slices(container) == _HALF
    assert "forged" not in await node.cri.sh(container, f"ls {place}")
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


@pytest.mark.parametrize("place", ["/etc/vgpu-manager.d", "/etc/ld.so.preload.d", "/tmp/mine", "/etc/app", "/tmp"])
async def test_users_mount_beside_ours_is_allowed(node: VgpuNode, claim: Manifest, tmp_path: Path, place: str) -> None:
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim, mounts=(Mount(place, tmp_path),)))

    assert await node.slices(container) == _HALF
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


async def test_read_only_volume_on_tmp_is_refused(node: VgpuNode, claim: Manifest, tmp_path: Path) -> None:
    pod = await node.run_pod()
    spec = node.spec(claim, mounts=(Mount("/tmp", tmp_path, readonly=True),))

    reason = await _refused(node, pod, spec, status=Status.FAILED_PRECONDITION)

    assert "mounts a read-only volume at /tmp, where the enforcement library keeps its scratch; make it writable" in reason
    await _correct_container_works(node, claim, pod)


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

    reason = await _refused(node, pod, spec, status=Status.FAILED_PRECONDITION)

    assert "no container may see the node's vGPU, CDI or kubelet plug-in files" in reason
    await _correct_container_works(node, claim, pod)


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

    reason = await _start_refused(node, pod, spec)

    assert re.search(r"/(etc|tmp)\S* does not show what we mounted there|something else is mounted at /(etc|tmp)", reason)
    assert list(marker.iterdir()) == []
    await _correct_container_works(node, claim, pod)


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

    reason = await _start_refused(node, pod, node.spec(claim, image=name))

    assert re.search(rf"{place}\S* does not show what we mounted there", reason)
    await _correct_container_works(node, claim, pod)


async def test_link_in_the_image_that_ours_cover_is_harmless(
    node: VgpuNode, claim: Manifest, tmp_path: Path, native: Path
) -> None:
    name = "localhost/vgpu/covered:1"
    files: dict[str, bytes | Path] = {"/elsewhere/vgpu.config": b"forged", "/bin/read-limits": native / "read-limits"}
    image.write_image(tmp_path / "image.tar", name=name, files=files, links={_CONFIG: "/elsewhere"})
    node.containerd.import_image(tmp_path / "image.tar")
    pod = await node.run_pod()

    container = await node.cri.run_container(pod, node.spec(claim, image=name))

    assert await node.slices(container) == _HALF


@pytest.mark.parametrize("target", ["/etc", _CONFIG, "/etc/vgpu-manager"])
async def test_link_left_in_a_shared_tmp_does_not_lead_our_scratch_elsewhere(
    node: VgpuNode, claim: Manifest, tmp_path: Path, target: str
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    (shared / ".sm_node").symlink_to(target)
    pod = await node.run_pod()

    reason = await _start_refused(node, pod, node.spec(claim, mounts=(Mount("/tmp", shared),)))

    assert re.search(r"does not show what we mounted there|something else is mounted at /etc", reason)
    await _correct_container_works(node, claim, pod)


# --- registration ---


async def test_registration_for_another_pod_is_refused(node: VgpuNode, claim: Manifest) -> None:
    victims_claim = await node.prepare(Share(request="gpu", device="vgpu-6"), name="victims")
    pod, victim = await node.run_pod(), await node.run_pod("victim")
    liar = await node.cri.run_container(pod, node.spec(claim))
    await node.cri.run_container(victim, node.spec(victims_claim))
    before = node.recorded_pids(victims_claim, victim)

    refused = await node.register(liar, pod_uid=victim.spec.uid)

    assert refused.exit_code == 1
    assert f"the call says pod {victim.spec.uid}, but process " in refused.stderr
    assert f" is in pod {pod.spec.uid}" in refused.stderr
    assert node.recorded_pids(victims_claim, victim) == before


async def test_registration_for_another_container_of_the_pod_is_refused(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="one", device="vgpu-5"), Share(request="two", device="vgpu-5"))
    pod = await node.run_pod()
    liar = await node.cri.run_container(pod, node.spec(claim, "one", name="liar"))
    await node.cri.run_container(pod, node.spec(claim, "two", name="victim"))
    before = node.recorded_pids(claim, pod, "victim")

    refused = await node.register(liar, pod_uid=pod.spec.uid, container="victim")

    assert refused.exit_code == 1
    assert "the call says container victim, but process " in refused.stderr
    assert " is in container liar" in refused.stderr
    assert node.recorded_pids(claim, pod, "victim") == before


async def test_registration_from_a_container_without_a_partition_is_not_answered(node: VgpuNode, claim: Manifest) -> None:
    """Only a container without a vGPU may mount the socket's directory; it brings the client itself."""
    registry = node.stack.node.manager_dir / "registry"
    pod = await node.run_pod()
    spec = ContainerSpec(mounts=(Mount("/etc/vgpu-manager/registry", registry, readonly=True),))
    stranger = await node.cri.run_container(pod, spec)

    asking = asyncio.create_task(node.register(stranger, pod_uid=pod.spec.uid))
    reason = f"no partition is bound to container {stranger}"
    await until(lambda: _is_held(node, reason), "the registration is held")
    await node.cri.stop(stranger)

    assert (await asking).exit_code != 0
    await _correct_container_works(node, claim, pod)


# --- what the tests above are made of ---


async def _refused(node: VgpuNode, pod: Pod, spec: ContainerSpec, *, status: Status) -> str:
    """The words with which the runtime refuses to create it; nri-plugin keeps the same ones."""
    with pytest.raises(GRPCError) as refusal:
        await node.cri.create_container(pod, spec)

    message = str(refusal.value.message)
    assert refusal.value.status is status, message
    calls = await node.stack.nri.debug("calls")
    told = next(call for call in calls if call["hook"] == "create" and call["outcome"] not in ("ok", "not_ours"))
    assert told["outcome"] == status.name.lower()
    assert told["reason"] in message
    return message


async def _start_refused(node: VgpuNode, pod: Pod, spec: ContainerSpec) -> str:
    """The words with which the runtime refuses to start it; it is removed, as kubelet would in time."""
    container = await node.cri.create_container(pod, spec)
    with pytest.raises(GRPCError) as refusal:
        await node.cri.start(container)

    assert (await node.cri.status(container)).state is ContainerState.EXITED
    await node.cri.remove(container)
    return str(refusal.value.message)


async def _correct_container_works(node: VgpuNode, claim: Manifest, pod: Pod) -> None:
    """Nothing stands in the way of the request's rightful container, and nothing but its partition is there."""
    assert node.partitions(claim) == []
    container = await node.cri.run_container(pod, node.spec(claim, name="rightful"))
    assert await node.slices(container) == _HALF
    assert node.partitions(claim) == [f"{pod.spec.uid}_rightful"]
    assert [entry["container_id"] for entry in await node.stack.dra.debug("partitions")] == [container]


async def _is_held(node: VgpuNode, reason: str) -> bool:
    return any(call["reason"] == reason for call in await node.stack.registry.debug("held"))


async def _grants_inside(node: VgpuNode, container: str) -> dict[str, str]:
    """What somebody who can exec into a container can copy."""
    env = await node.cri.sh(container, "env | grep ^VGPU_GRANT_")
    return dict(line.split("=", 1) for line in env.splitlines())


def _gpu(node: VgpuNode, minor: int) -> Device:
    return Device(f"/dev/nvidia{minor}", str(node.stack.node.dev_root / f"nvidia{minor}"))


def _with_gpu(node: VgpuNode, minor: int, **asked: Any) -> ContainerSpec:
    """A container without CDI devices that was given the GPU's node some other way."""
    return ContainerSpec(devices=(_gpu(node, minor),), **asked)
