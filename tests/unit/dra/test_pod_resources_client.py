"""What kubelet's podresources socket answers, and what becomes of it when it does not."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from grpclib.const import Status

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_dra.pod_resources_client import SOCKET, PodResourcesClient
from vgpu_dra.policy.listing import ListedDevice, Listing, Silence, Word
from vgpu_testkit.dra_values import POD
from vgpu_testkit.kubelet_claims import ClaimCache
from vgpu_testkit.kubelet_pod_resources import KubeletPod, PodResources
from vgpu_testkit.kubelet_values import Claim, Device

TWO = Claim(namespace="research", name="two-workers", uid="3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10")
_PATIENCE_S = 1.0
POD_KNOWN = KubeletPod(
    namespace="research",
    name="two-workers-0",
    containers={"train": ("two-workers",), "plain": ()},
    init={"fetch": ("two-workers",)},
    sidecars={"watch": ("two-workers",)},
)


def device(name: str, share_id: str | None) -> Device:
    return Device(
        request_names=("gpu",), pool_name="node-a", device_name=name, cdi_device_ids=(f"a.b/c={name}",), share_id=share_id
    )


def listed(name: str, share_id: str | None, *, driver: str = "manager.nvidia.com") -> ListedDevice:
    return ListedDevice(
        claim_namespace="research",
        claim_name="two-workers",
        driver=driver,
        pool="node-a",
        device=name,
        share_id=share_id,
    )


class Clock:
    """Seconds, by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_kubelet(folder: Path, release: str = "1.37", *, clock: Callable[[], float] = time.monotonic) -> PodResources:
    claims = ClaimCache()
    claims.note([TWO])
    claims.record_prepared("manager.nvidia.com", {TWO.uid: (device("vgpu-5", "s-5"), device("gpu-1", None))})
    claims.record_prepared("net.example.com", {TWO.uid: (device("nic-0", None),)})
    kubelet = PodResources(folder, claims, release=release, clock=clock)
    kubelet.note(POD_KNOWN)
    return kubelet


@pytest.fixture
async def kubelet(short_dir: Path, clock: Clock) -> AsyncIterator[PodResources]:
    kubelet = make_kubelet(short_dir, clock=clock)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def client(short_dir: Path, clock: Clock) -> AsyncIterator[PodResourcesClient]:
    async with PeerSocket(str(short_dir / SOCKET), peer="kubelet", clock=clock) as peer:
        # Long, so that no busy machine ends a call that is answered; those that are not hang for ever.
        yield PodResourcesClient(peer, clock=clock, answer_s=_PATIENCE_S)


async def word(client: PodResourcesClient) -> Word:
    told = await client.get(POD)
    assert isinstance(told, Silence)
    return told.word


async def test_listing_has_every_container_that_kubelet_lists_with_its_devices(
    client: PodResourcesClient, kubelet: PodResources
) -> None:
    told = await client.get(POD)

    given = frozenset({listed("vgpu-5", "s-5"), listed("gpu-1", None), listed("nic-0", None, driver="net.example.com")})
    assert told == Listing(containers={"watch": given, "train": given, "plain": frozenset()})


async def test_kubelet_before_1_35_tells_no_share(short_dir: Path, client: PodResourcesClient) -> None:
    kubelet = make_kubelet(short_dir, "1.34")
    await kubelet.start()

    told = await client.get(POD)

    assert isinstance(told, Listing)
    assert listed("vgpu-5", None) in told.containers["train"]
    await kubelet.stop()


async def test_kubelet_before_1_34_is_an_error_with_its_words(short_dir: Path, client: PodResourcesClient) -> None:
    kubelet = make_kubelet(short_dir, "1.33")
    await kubelet.start()

    assert await client.get(POD) == Silence(word=Word.ERROR, detail="PodResources API Get method disabled")
    await kubelet.stop()


async def test_pod_that_kubelet_does_not_know_is_told_apart(short_dir: Path, client: PodResourcesClient) -> None:
    kubelet = PodResources(short_dir, ClaimCache(), release="1.37")
    await kubelet.start()

    assert await word(client) is Word.POD_UNKNOWN
    await kubelet.stop()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.UNIMPLEMENTED, Word.UNIMPLEMENTED),
        (Status.RESOURCE_EXHAUSTED, Word.BUSY),
        (Status.DEADLINE_EXCEEDED, Word.TIMEOUT),
        (Status.INTERNAL, Word.ERROR),
        (Status.PERMISSION_DENIED, Word.ERROR),
        (Status.UNAVAILABLE, Word.ERROR),
    ],
)
async def test_each_refusal_of_kubelet_is_told_apart(
    client: PodResourcesClient, kubelet: PodResources, status: Status, expected: Word
) -> None:
    kubelet.fails_with = status

    assert await word(client) is expected


async def test_more_calls_than_kubelet_answers_are_busy_and_it_is_asked_again(
    client: PodResourcesClient, kubelet: PodResources
) -> None:
    burst = [await client.get(POD) for _ in range(12)]

    assert [t.word for t in burst if isinstance(t, Silence)] == [Word.BUSY, Word.BUSY]
    assert kubelet.calls == 12


async def test_no_socket_is_away(client: PodResourcesClient) -> None:
    assert await word(client) is Word.AWAY


async def test_kubelet_that_restarts_is_asked_at_its_new_socket(
    client: PodResourcesClient, kubelet: PodResources, clock: Clock
) -> None:
    assert isinstance(await client.get(POD), Listing)
    await kubelet.stop()
    assert await word(client) is Word.AWAY
    await kubelet.start()
    clock.now_s += 1.1

    assert isinstance(await client.get(POD), Listing)


async def test_hung_kubelet_is_not_asked_again_for_ten_seconds(
    client: PodResourcesClient, kubelet: PodResources, clock: Clock
) -> None:
    kubelet.is_hung = True

    first = await word(client)
    paused = [await word(client) for _ in range(50)]
    clock.now_s += 9.9
    still = await word(client)
    clock.now_s += 0.2
    again = await word(client)

    assert (first, set(paused), still, again) == (Word.TIMEOUT, {Word.PAUSED}, Word.PAUSED, Word.TIMEOUT)
    assert kubelet.calls == 2


async def test_kubelet_that_is_well_again_is_asked_each_time(
    client: PodResourcesClient, kubelet: PodResources, clock: Clock
) -> None:
    kubelet.is_hung = True
    assert await word(client) is Word.TIMEOUT
    kubelet.is_hung = False
    clock.now_s += 10.0

    told = [await client.get(POD) for _ in range(3)]

    assert [type(t) for t in told] == [Listing, Listing, Listing]
