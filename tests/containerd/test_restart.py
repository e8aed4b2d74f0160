"""Containers that follow each other on one request: restarted in place, init before app, a stop that nobody heard of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from grpclib.exceptions import GRPCError

from vgpu_testkit.manifests import GIB, Manifest, Share
from vgpu_testkit.pods import ContainerState, Pod
from vgpu_testkit.vgpu_node import Slice, VgpuNode, until

_HALF = {5: Slice(memory_bytes=8 * GIB, cores_percent=50)}


async def test_attempt_1_has_a_fresh_partition_that_removing_attempt_0_leaves_alone(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    first = await node.cri.run_container(pod, node.spec(claim, attempt=0))
    of_first = _inodes(node, claim, pod)
    with _held(of_first):
        await node.cri.stop(first)
        second = await node.cri.run_container(pod, node.spec(claim, attempt=1))
        of_second = _inodes(node, claim, pod)

    assert of_first.keys() == of_second.keys()  # the same paths
    assert [name for name in of_first if of_first[name] == of_second[name]] == []
    assert (await node.register(second, pod_uid=pod.spec.uid)).exit_code == 0
    before = _tree(node, claim)
    await node.cri.remove(first)
    assert _tree(node, claim) == before
    assert await node.slices(second) == _HALF
    assert (await node.register(second, pod_uid=pod.spec.uid)).exit_code == 0


async def test_attempt_1_takes_over_while_attempt_0_has_not_ended(node: VgpuNode) -> None:
    """A newer container of the same pod and name always does: kubelet makes it when the older one has to go."""
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    first = await node.cri.run_container(pod, node.spec(claim, attempt=0))

    second = await node.cri.run_container(pod, node.spec(claim, attempt=1))

    assert (await node.register(second, pod_uid=pod.spec.uid)).exit_code == 0
    assert await node.slices(first) == _HALF  # what it has mounted stays what it was
    pids = node.recorded_pids(claim, pod)
    await node.cri.remove(first)
    assert node.recorded_pids(claim, pod) == pids
    assert (await node.register(second, pod_uid=pod.spec.uid)).exit_code == 0


async def test_container_that_ends_by_itself_is_restarted_in_place(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    first = await node.cri.run_container(pod, node.spec(claim, attempt=0))
    os.kill((await node.cri.status(first)).pid, 9)
    await _ended(node, first)

    second = await node.cri.run_container(pod, node.spec(claim, attempt=1))

    assert await node.slices(second) == _HALF


async def test_init_container_then_app_on_one_request(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    init = await node.cri.run_container(pod, node.spec(claim, name="init"))
    assert await node.slices(init) == _HALF
    await node.cri.stop(init)  # kubelet keeps the dead container and does not remove it

    app = await node.cri.run_container(pod, node.spec(claim, name="app"))

    assert await node.slices(app) == _HALF
    assert (await node.register(app, pod_uid=pod.spec.uid, container="app")).exit_code == 0
    assert node.partitions(claim) == sorted([f"{pod.spec.uid}_init", f"{pod.spec.uid}_app"])
    await node.cri.remove(init)
    assert node.partitions(claim) == [f"{pod.spec.uid}_app"]


@pytest.mark.parametrize("how", ["stopped", "ended by itself"])
async def test_request_is_free_after_a_stop_that_nri_plugin_did_not_hear_of(node: VgpuNode, how: str) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    holder = await node.cri.run_container(pod, node.spec(claim, name="holder"))
    node.stack.nri.kill()
    if how == "stopped":
        await node.cri.stop(holder)
    else:
        os.kill((await node.cri.status(holder)).pid, 9)
        await _ended(node, holder)
    node.stack.nri.start()
    await node.settle()

    following = await node.cri.run_container(pod, node.spec(claim, name="next"))

    assert await node.slices(following) == _HALF
    assert (await node.register(following, pod_uid=pod.spec.uid, container="next")).exit_code == 0


async def test_stop_that_dra_plugin_did_not_hear_of_is_told_later(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    holder = await node.cri.run_container(pod, node.spec(claim, name="holder"))
    node.stack.dra.kill()
    await node.cri.stop(holder)
    await node.cri.remove(holder)
    node.stack.dra.start()
    await node.settle()

    following = await node.cri.run_container(pod, node.spec(claim, name="next"))

    assert await node.slices(following) == _HALF


async def test_container_that_was_made_and_never_started_can_be_made_again(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    first = await node.cri.create_container(pod, node.spec(claim, attempt=0))
    await node.cri.remove(first)
    assert node.partitions(claim) == []

    second = await node.cri.run_container(pod, node.spec(claim, attempt=1))

    assert await node.slices(second) == _HALF


async def test_container_made_before_nri_plugin_was_restarted_starts_after(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    container = await node.cri.create_container(pod, node.spec(claim))
    await node.restart(node.stack.nri, node.stack.dra, node.stack.registry)

    await node.cri.start(container)

    assert await node.slices(container) == _HALF
    assert (await node.register(container, pod_uid=pod.spec.uid)).exit_code == 0


async def test_command_that_cannot_run_does_not_stand_in_the_way_of_its_restart(node: VgpuNode) -> None:
    claim = await node.prepare(Share(request="gpu", device="vgpu-5"))
    pod = await node.run_pod()
    broken = await node.cri.create_container(pod, node.spec(claim, attempt=0, command=("/no/such/program",)))
    with pytest.raises(GRPCError, match="no such file or directory"):
        await node.cri.start(broken)

    following = await node.cri.run_container(pod, node.spec(claim, attempt=1))

    assert await node.slices(following) == _HALF


async def _ended(node: VgpuNode, container: str) -> None:
    async def is_so() -> bool:
        return (await node.cri.status(container)).state is ContainerState.EXITED

    await until(is_so, "the runtime has seen the container end")


@contextmanager
def _held(paths: Iterable[str]) -> Iterator[None]:
    """Keeps the files from being freed: a new file could get the number of one that is gone."""
    held = [os.open(path, os.O_PATH) for path in paths]
    try:
        yield
    finally:
        for fd in held:
            os.close(fd)


def _inodes(node: VgpuNode, claim: Manifest, pod: Pod) -> dict[str, int]:
    """By path below the claim: the partition, its config directory and the two files in it."""
    place = node.partition(claim, pod)
    paths = (place, place / "config", place / "config/vgpu.config", place / "config/pids.config")
    return {str(path): path.stat().st_ino for path in paths}


def _tree(node: VgpuNode, claim: Manifest) -> dict[str, tuple[int, int]]:
    """Inode and mtime of everything the claim has on disk."""
    folder = node.stack.node.manager_dir / "claims" / claim.uid
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in sorted(folder.rglob("*"))}
