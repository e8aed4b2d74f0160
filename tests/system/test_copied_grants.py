"""A grant that was copied to another pod on the same GPU: what kubelet says settles it, where kubelet says anything."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_proto import partitions
from vgpu_testkit.dra_bench import Container, DraBench, half_a_gpu
from vgpu_testkit.dra_calls import STOPPED
from vgpu_testkit.kubelet_pod_resources import KubeletPod

HELD = half_a_gpu("held")
THEFT = half_a_gpu("theft", uid="4a1d2f7e-8f0a-4f57-9d0e-6a6d1b2c7e10")
HOLDER = Container(name="train")
THIEF = Container(name="main", pod_uid="11111111-54f1-4c86-9b57-2f1d2b8f4c11")
COUNTED = "vgpu_dra_kubelet_confirmations_total"


async def start(bench: DraBench) -> None:
    """Both claims are prepared on one GPU; the first one's container has stopped."""
    HELD.write(bench.claims)
    THEFT.write(bench.claims)
    await bench.start()
    await bench.prepare(HELD, THEFT)
    await bench.ensure(HELD, HOLDER)
    await bench.calls.release(HOLDER.runtime_id, STOPPED)


def tell(bench: DraBench, *, thief: KubeletPod) -> None:
    """kubelet knows the holder's pod, and the thief's, which has a claim of its own."""
    assert bench.kubelet is not None
    bench.kubelet.pod_resources.note(KubeletPod(namespace="research", name="two-workers-0", containers={"train": ("held",)}))
    bench.kubelet.pod_resources.note(thief)


def stolen(bench: DraBench) -> partitions.Container:
    """The thief: given the GPU by its own claim, it shows the holder's grant only."""
    shown = bench.shown(HELD, THIEF)
    shown.pod.name = "thief"
    return shown


async def outcome(bench: DraBench, name: str) -> float:
    return (await bench.dra.metrics()).get(f'{COUNTED}{{outcome="{name}"}}', 0)


async def test_copied_grant_is_refused_on_kubelets_word_and_its_holder_is_not(bench: DraBench) -> None:
    await start(bench)
    tell(bench, thief=KubeletPod(namespace="research", name="thief", containers={"main": ("theft",)}))

    with pytest.raises(GRPCError) as refusal:
        await bench.calls.ensure(stolen(bench))

    assert refusal.value.status is Status.PERMISSION_DENIED
    assert "container main of pod research/thief shows a grant of request gpu of claim research/held" in str(refusal.value)
    assert "kubelet does not list device node-a/vgpu-5" in str(refusal.value)
    assert (await bench.ensure(HELD, HOLDER.again())).partition == HOLDER.partition
    assert (await outcome(bench, "refused"), await outcome(bench, "confirmed")) == (1, 1)


async def test_container_without_any_claim_is_refused_on_kubelets_word(bench: DraBench) -> None:
    await start(bench)
    tell(bench, thief=KubeletPod(namespace="research", name="thief", containers={"main": ()}))

    with pytest.raises(GRPCError, match="the grant is another container's"):
        await bench.calls.ensure(stolen(bench))


async def test_copied_grant_counts_where_no_kubelet_says_otherwise(bench: DraBench) -> None:
    await start(bench)
    assert bench.kubelet is not None
    await bench.kubelet.pod_resources.stop()

    answer = await bench.calls.ensure(stolen(bench))

    assert answer.partition == THIEF.partition
    assert await outcome(bench, "away") == 1


async def test_init_container_is_not_in_kubelets_list_and_its_grant_decides(bench: DraBench) -> None:
    await start(bench)
    pod = KubeletPod(namespace="research", name="two-workers-0", containers={"later": ("held",)}, init={"train": ("held",)})
    tell(bench, thief=pod)

    answer = await bench.ensure(HELD, HOLDER.again())

    assert answer.partition == HOLDER.partition
    assert await outcome(bench, "unlisted") == 1


async def test_kubelet_is_asked_once_for_each_container(bench: DraBench) -> None:
    await start(bench)
    assert bench.kubelet is not None
    tell(bench, thief=KubeletPod(namespace="research", name="thief", containers={"main": ("theft",)}))
    asked_before = bench.kubelet.pod_resources.calls

    for _ in range(5):
        await bench.ensure(HELD, HOLDER.again())

    assert bench.kubelet.pod_resources.calls == asked_before + 1
    bench.dra.kill()
    await bench.start()
    await bench.ensure(HELD, HOLDER.again())
    assert bench.kubelet.pod_resources.calls == asked_before + 1


async def test_hung_kubelet_keeps_no_container_and_is_asked_once(bench: DraBench) -> None:
    await start(bench)
    assert bench.kubelet is not None
    bench.kubelet.pod_resources.is_hung = True
    asked_before = bench.kubelet.pod_resources.calls
    container = HOLDER

    for _ in range(20):
        container = container.again()
        await bench.ensure(HELD, container)

    assert bench.kubelet.pod_resources.calls == asked_before + 1
    assert (await outcome(bench, "timeout"), await outcome(bench, "paused")) == (1, 19)
