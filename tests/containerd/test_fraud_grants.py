"""A grant counts by what kubelet gave its container: copied, made-up and malformed ones are refused, with the reason."""

from __future__ import annotations

import pytest
from grpclib.const import Status

from vgpu_testkit.manifests import Manifest, Share
from vgpu_testkit.pods import ContainerSpec
from vgpu_testkit.refusals import HALF, assert_correct_container_works, refused, start_refused, with_gpu
from vgpu_testkit.vgpu_node import VgpuNode

_KEY = "VGPU_GRANT_0123456789abcdef"


async def test_copied_grant_without_its_gpu_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod, thief = await node.run_pod(), await node.run_pod("thief")
    holder = await node.cri.run_container(pod, node.spec(claim))
    stolen = await _grants_inside(node, holder)

    reason = await refused(node, thief, ContainerSpec(env=stolen), status=Status.PERMISSION_DENIED)

    assert "container main of pod research/thief shows a grant of request gpu and was not given its device /dev/nvidia5" in reason
    assert node.partitions(claim) == [f"{pod.spec.uid}_main"]
    assert await node.slices(holder) == HALF


async def test_copied_grant_of_a_held_request_is_refused_even_with_the_gpus_node(node: VgpuNode, claim: Manifest) -> None:
    pod, thief = await node.run_pod(), await node.run_pod("thief")
    holder = await node.cri.run_container(pod, node.spec(claim))
    stolen = await _grants_inside(node, holder)

    reason = await refused(node, thief, with_gpu(node, 5, env=stolen), status=Status.FAILED_PRECONDITION)

    assert "wants request gpu of claim research/slice" in reason
    assert "which container main of pod research/pod holds" in reason
    assert node.partitions(claim) == [f"{pod.spec.uid}_main"]
    assert await node.slices(holder) == HALF


async def test_copied_grant_used_after_its_holder_does_not_start_without_our_mounts(node: VgpuNode, claim: Manifest) -> None:
    pod, thief = await node.run_pod(), await node.run_pod("thief")
    holder = await node.cri.run_container(pod, node.spec(claim))
    stolen = await _grants_inside(node, holder)
    await node.cri.stop(holder)

    reason = await start_refused(node, thief, with_gpu(node, 5, env=stolen))

    assert "container main of pod research/thief: /etc/vgpu-manager does not show what we mounted there" in reason
    again = await node.cri.run_container(pod, node.spec(claim, attempt=1))
    assert await node.slices(again) == HALF


async def test_made_up_nonce_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    ((key, value),) = node.grant_env(claim, "gpu").items()
    forged = {key: value[:-32] + "0123456789abcdef" * 2}

    reason = await refused(node, pod, with_gpu(node, 5, env=forged), status=Status.PERMISSION_DENIED)

    assert f"of claim research/slice ({claim.uid}) is unknown; it was not given by Prepare" in reason
    await assert_correct_container_works(node, claim, pod)


async def test_grant_under_another_key_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    (value,) = node.grant_env(claim, "gpu").values()

    reason = await refused(node, pod, with_gpu(node, 5, env={_KEY: value}), status=Status.PERMISSION_DENIED)

    assert "grant 0123456789abcdef of claim" in reason
    assert "is unknown; it was not given by Prepare" in reason
    await assert_correct_container_works(node, claim, pod)


async def test_grant_with_another_requests_name_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    ((key, value),) = node.grant_env(claim, "gpu").items()

    reason = await refused(
        node, pod, with_gpu(node, 5, env={key: value.replace("/gpu/", "/cpu/")}), status=Status.PERMISSION_DENIED
    )

    assert "is unknown; it was not given by Prepare" in reason
    await assert_correct_container_works(node, claim, pod)


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
async def test_malformed_grant_isrefused(node: VgpuNode, claim: Manifest, key: str, value: str, words: str) -> None:
    pod = await node.run_pod()

    reason = await refused(node, pod, with_gpu(node, 5, env={key: value}), status=Status.INVALID_ARGUMENT)

    assert words.replace("\\\\", "\\") in reason
    await assert_correct_container_works(node, claim, pod)


async def test_grant_of_an_unprepared_claim_isrefused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    gone = await node.prepare(Share(request="gpu", device="vgpu-5"), name="gone")
    stale = node.grant_env(gone, "gpu")
    await node.unprepare(gone)

    reason = await refused(node, pod, with_gpu(node, 5, env=stale), status=Status.PERMISSION_DENIED)

    assert f"shows a grant of claim {gone.uid}, which is not prepared on this node" in reason
    await assert_correct_container_works(node, claim, pod)


async def test_grant_of_another_claim_without_its_device_is_refused(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    other = await node.prepare(Share(request="gpu", device="vgpu-6"), name="other")
    copied = node.spec(claim, env=node.grant_env(other, "gpu"))

    reason = await refused(node, pod, copied, status=Status.PERMISSION_DENIED)

    assert "container main of pod research/pod shows a grant of request gpu and was not given its device /dev/nvidia6" in reason
    assert node.partitions(other) == []
    await assert_correct_container_works(node, claim, pod)


async def test_second_live_container_on_one_request_is_refused_with_both_names(node: VgpuNode, claim: Manifest) -> None:
    pod, second = await node.run_pod("first"), await node.run_pod("second")
    holder = await node.cri.run_container(pod, node.spec(claim, name="one"))

    reason = await refused(node, second, node.spec(claim, name="two"), status=Status.FAILED_PRECONDITION)

    assert (
        f"container two of pod research/second wants request gpu of claim research/slice ({claim.uid}), "
        "which container one of pod research/first holds; one live container may hold a vGPU request"
    ) in reason
    assert node.partitions(claim) == [f"{pod.spec.uid}_one"]
    assert await node.slices(holder) == HALF
    await node.cri.stop(holder)
    assert await node.slices(await node.cri.run_container(second, node.spec(claim, name="two", attempt=1))) == HALF


async def test_container_that_was_made_and_not_yet_started_holds_its_request(node: VgpuNode, claim: Manifest) -> None:
    pod = await node.run_pod()
    waiting = await node.cri.create_container(pod, node.spec(claim, name="one"))

    reason = await refused(node, pod, node.spec(claim, name="two"), status=Status.FAILED_PRECONDITION)

    assert "which container one of pod research/pod holds" in reason
    await node.cri.start(waiting)
    assert await node.slices(waiting) == HALF


async def _grants_inside(node: VgpuNode, container: str) -> dict[str, str]:
    """What somebody who can exec into a container can copy."""
    env = await node.cri.sh(container, "env | grep ^VGPU_GRANT_")
    return dict(line.split("=", 1) for line in env.splitlines())
