"""The stand-in kubelet remembers claims as long as kubelet does and hands their CDI ids to containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_proto import dra_v1
from vgpu_testkit import kubelet_sample_plugin as sample
from vgpu_testkit.kubelet_sample_plugin import CLAIM_A, CLAIM_B, DRIVER, UID_A, UID_B
from vgpu_testkit.kubelet_values import Accepted, Claim, KubeletRefusal


def always(entry: dra_v1.NodePrepareResourceResponse) -> sample.PrepareResponder:
    """Answers every asked claim with `entry`."""

    async def answer(request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse:
        return dra_v1.NodePrepareResourcesResponse(claims={claim.uid: entry for claim in request.claims})

    return answer


async def test_prepared_claim_is_not_asked_again(kubelet_dir: Path) -> None:
    service = sample.ServiceV1()
    async with sample.registered(kubelet_dir, service) as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])
        devices = await kubelet.prepare(DRIVER, [CLAIM_A, CLAIM_B])

        assert service.prepared == [(UID_A,), (UID_B,)]
        assert sorted(devices) == [UID_A, UID_B]


async def test_failed_claim_is_asked_again(kubelet_dir: Path) -> None:
    service = sample.ServiceV1(always(dra_v1.NodePrepareResourceResponse(error="no")))
    async with sample.registered(kubelet_dir, service) as kubelet:
        for _ in range(2):
            with pytest.raises(KubeletRefusal):
                await kubelet.prepare(DRIVER, [CLAIM_A])

        assert service.prepared == [(UID_A,), (UID_A,)]


async def test_lost_sandbox_prepares_again(kubelet_dir: Path) -> None:
    service = sample.ServiceV1()
    async with sample.registered(kubelet_dir, service) as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])
        await kubelet.prepare(DRIVER, [CLAIM_A], sandbox_lost=True)

        assert service.prepared == [(UID_A,), (UID_A,)]


async def test_restart_registers_and_prepares_again_but_keeps_devices(kubelet_dir: Path) -> None:
    service = sample.ServiceV1()
    async with sample.registered(kubelet_dir, service) as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])
        await kubelet.restart()
        await kubelet.registered(DRIVER)

        assert kubelet.container_cdi_ids(UID_A, None) == [f"gpu.example.com/claim={UID_A}-gpu"]
        await kubelet.prepare(DRIVER, [CLAIM_A])
        assert service.prepared == [(UID_A,), (UID_A,)]
        assert [type(verdict) for verdict in kubelet.registrations] == [Accepted, Accepted]


async def test_claim_of_the_same_name_is_refused_while_the_old_one_is_prepared(kubelet_dir: Path) -> None:
    successor = Claim(namespace="team", name="claim-a", uid=UID_B)
    service = sample.ServiceV1()
    async with sample.registered(kubelet_dir, service) as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])
        with pytest.raises(KubeletRefusal, match="old ResourceClaim with same name claim-a"):
            await kubelet.prepare(DRIVER, [successor])
        await kubelet.unprepare(DRIVER, [CLAIM_A])
        await kubelet.prepare(DRIVER, [successor])

        assert service.prepared == [(UID_A,), (UID_B,)]


async def test_unprepared_claim_is_forgotten(kubelet_dir: Path) -> None:
    service = sample.ServiceV1()
    async with sample.registered(kubelet_dir, service) as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])
        await kubelet.unprepare(DRIVER, [CLAIM_A])

        assert service.unprepared == [(UID_A,)]
        with pytest.raises(KubeletRefusal, match="it is not prepared"):
            kubelet.container_cdi_ids(UID_A, None)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        (None, ["x.com/c=left", "x.com/c=right", "x.com/c=any"]),
        (["left"], ["x.com/c=left", "x.com/c=any"]),
        (["right", "left"], ["x.com/c=right", "x.com/c=any", "x.com/c=left", "x.com/c=any"]),
        (["other"], ["x.com/c=any"]),
        ([], []),
    ],
)
async def test_container_gets_the_cdi_ids_of_its_requests(
    kubelet_dir: Path, requests: list[str] | None, expected: list[str]
) -> None:
    def device(name: str, *requests: str) -> dra_v1.Device:
        return dra_v1.Device(request_names=list(requests), pool_name="p", device_name=name, cdi_device_ids=[f"x.com/c={name}"])

    devices = [device("left", "left"), device("right", "right"), device("any")]
    service = sample.ServiceV1(always(dra_v1.NodePrepareResourceResponse(devices=devices)))
    async with sample.registered(kubelet_dir, service) as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])

        assert kubelet.container_cdi_ids(UID_A, requests) == expected
