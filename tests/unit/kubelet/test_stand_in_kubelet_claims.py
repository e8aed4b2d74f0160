"""The stand-in kubelet judges Prepare and Unprepare answers as kubelet does and remembers claims as long as it does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from vgpu_proto import dra_v1
from vgpu_testkit import kubelet_sample_plugin as sample
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_sample_plugin import CLAIM_A, CLAIM_B, DRIVER, UID_A, UID_B
from vgpu_testkit.kubelet_values import CallFailed, Device, KubeletRefusal, Timings


async def test_prepare_returns_the_devices_of_each_claim(kubelet_dir: Path) -> None:
    service = sample.ServiceV1()
    async with sample.registered(kubelet_dir, service) as kubelet:
        devices = await kubelet.prepare(DRIVER, [CLAIM_A, CLAIM_B])

        assert devices == {
            uid: [
                Device(
                    request_names=("gpu",),
                    pool_name="node-1",
                    device_name="gpu-0",
                    cdi_device_ids=(f"gpu.example.com/claim={uid}-gpu",),
                    share_id=None,
                )
            ]
            for uid in (UID_A, UID_B)
        }
        assert service.prepared == [(UID_A, UID_B)]


async def test_release_1_33_calls_v1beta1(kubelet_dir: Path) -> None:
    endpoint = kubelet_dir / "plugins" / "dra.sock"
    v1, v1beta1 = sample.ServiceV1(), sample.ServiceV1Beta1()
    registration = sample.Registration(sample.plugin_info(endpoint, "v1.DRAPlugin", "v1beta1.DRAPlugin"))
    async with (
        sample.served(endpoint, v1, v1beta1),
        sample.served(kubelet_dir / "plugins_registry" / "r.sock", registration),
        Kubelet(kubelet_dir, release="1.33") as kubelet,
    ):
        accepted = await kubelet.registered(DRIVER)
        devices = await kubelet.prepare(DRIVER, [CLAIM_A])

        assert accepted.service == "v1beta1.DRAPlugin"
        assert (v1.prepared, v1beta1.prepared) == ([], [(UID_A,)])
        assert devices[UID_A][0].device_name == "gpu-0"


async def test_share_id_of_v1_is_kept(kubelet_dir: Path) -> None:
    async def answer(request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse:
        shared = sample.device(UID_A)
        shared.share_id = UID_B
        return dra_v1.NodePrepareResourcesResponse(claims={UID_A: dra_v1.NodePrepareResourceResponse(devices=[shared])})

    async with sample.registered(kubelet_dir, sample.ServiceV1(answer)) as kubelet:
        devices = await kubelet.prepare(DRIVER, [CLAIM_A])

    assert devices[UID_A][0].share_id == "22222222-2222-4222-8222-222222222222"


def answering(**entries: dra_v1.NodePrepareResourceResponse) -> sample.PrepareResponder:
    """Answers with these entries, `a` and `b` standing for the two uids, whatever is asked."""
    uids = {"a": UID_A, "b": UID_B}

    async def answer(request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse:
        return dra_v1.NodePrepareResourcesResponse(claims={uids[key]: entry for key, entry in entries.items()})

    return answer


def entry_with(**changes: object) -> dra_v1.NodePrepareResourceResponse:
    device = sample.device(UID_A)
    for name, value in changes.items():
        setattr(device, name, value)
    return dra_v1.NodePrepareResourceResponse(devices=[device])


RIGHT = dra_v1.NodePrepareResourceResponse(devices=[sample.device(UID_A)])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(
            answering(a=RIGHT, b=RIGHT),
            f"NodePrepareResources returned result for unknown claim UID {UID_B}",
            id="a uid that was not asked",
        ),
        pytest.param(answering(), "NodePrepareResources skipped 1 ResourceClaims", id="a missing uid"),
        pytest.param(
            answering(a=dra_v1.NodePrepareResourceResponse(error="GPU is held")),
            "NodePrepareResources failed for ResourceClaim claim-a: GPU is held",
            id="an error",
        ),
        pytest.param(
            answering(a=dra_v1.NodePrepareResourceResponse(devices=[sample.device(UID_A)], error="half done")),
            "NodePrepareResources failed for ResourceClaim claim-a: half done",
            id="devices together with an error",
        ),
        pytest.param(
            answering(a=entry_with(pool_name="")),
            "device of ResourceClaim claim-a lacks a name: pool '', device 'gpu-0'",
            id="no pool name",
        ),
        pytest.param(
            answering(a=entry_with(device_name="")),
            "device of ResourceClaim claim-a lacks a name: pool 'node-1', device ''",
            id="no device name",
        ),
        pytest.param(
            answering(a=entry_with(request_names=["gpu/large"])),
            "device gpu-0 of ResourceClaim claim-a: 'gpu/large' is not a base request name",
            id="a subrequest name",
        ),
    ],
)
async def test_wrong_prepare_answer_is_refused(kubelet_dir: Path, answer: sample.PrepareResponder, reason: str) -> None:
    async with sample.registered(kubelet_dir, sample.ServiceV1(answer)) as kubelet:
        with pytest.raises(KubeletRefusal) as refusal:
            await kubelet.prepare(DRIVER, [CLAIM_A])

        assert refusal.value.reason == reason
        with pytest.raises(KubeletRefusal, match="it is not prepared"):
            kubelet.container_cdi_ids(UID_A, None)


@pytest.mark.parametrize(
    "cdi_id",
    [
        "gpu.example.com/claim",
        "claim=gpu-0",
        "gpu.example.com/a/b=gpu-0",
        "gpu.example.com/claim=a/b",
        "gpu.example.com/claim=a=b",
        "gpu.example.com/claim=",
        "gpu.example.com/claim=-a",
        "gpu.example.com/claim=a:",
        "1gpu.example.com/claim=a",
        "gpu.example.com/claim_=a",
        "gpu.example.com/claim=a\n",
        "",
    ],
)
async def test_malformed_cdi_id_is_refused(kubelet_dir: Path, cdi_id: str) -> None:
    service = sample.ServiceV1(answering(a=entry_with(cdi_device_ids=[cdi_id])))
    async with sample.registered(kubelet_dir, service) as kubelet:
        with pytest.raises(KubeletRefusal) as refusal:
            await kubelet.prepare(DRIVER, [CLAIM_A])

        assert refusal.value.reason == f"device gpu-0 of ResourceClaim claim-a: {cdi_id!r} is not a CDI device id"


async def test_first_error_of_a_batch_ends_it(kubelet_dir: Path) -> None:
    service = sample.ServiceV1(
        answering(
            a=dra_v1.NodePrepareResourceResponse(error="first"),
            b=dra_v1.NodePrepareResourceResponse(error="second"),
        )
    )
    async with sample.registered(kubelet_dir, service) as kubelet:
        with pytest.raises(KubeletRefusal, match="claim-a: first"):
            await kubelet.prepare(DRIVER, [CLAIM_A, CLAIM_B])


async def test_rpc_error_fails_the_whole_batch_and_keeps_its_status(kubelet_dir: Path) -> None:
    async def fail(request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse:
        raise GRPCError(Status.UNAVAILABLE, "not synchronized")

    async with sample.registered(kubelet_dir, sample.ServiceV1(fail)) as kubelet:
        with pytest.raises(CallFailed) as failure:
            await kubelet.prepare(DRIVER, [CLAIM_A, CLAIM_B])

        assert failure.value.reason == ("NodePrepareResources: rpc error: code = Unavailable desc = not synchronized")
        assert failure.value.status is Status.UNAVAILABLE


async def test_prepare_that_outlasts_the_deadline_fails(kubelet_dir: Path) -> None:
    async def hang(request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with sample.registered(kubelet_dir, sample.ServiceV1(hang), timings=Timings(call_s=0.3)) as kubelet:
        with pytest.raises(CallFailed, match="code = DeadlineExceeded"):
            await kubelet.prepare(DRIVER, [CLAIM_A])


async def test_answer_above_four_mebibytes_fails_as_in_grpc_go(kubelet_dir: Path) -> None:
    service = sample.ServiceV1(answering(a=entry_with(pool_name="p" * (4 << 20))))
    async with sample.registered(kubelet_dir, service) as kubelet:
        with pytest.raises(CallFailed, match="code = ResourceExhausted desc = grpc: received message larger than max"):
            await kubelet.prepare(DRIVER, [CLAIM_A])


def answering_unprepare(**errors: str) -> sample.UnprepareResponder:
    uids = {"a": UID_A, "b": UID_B}

    async def answer(request: dra_v1.NodeUnprepareResourcesRequest) -> dra_v1.NodeUnprepareResourcesResponse:
        return dra_v1.NodeUnprepareResourcesResponse(
            claims={uids[key]: dra_v1.NodeUnprepareResourceResponse(error=error) for key, error in errors.items()}
        )

    return answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            answering_unprepare(a="", b=""),
            f"NodeUnprepareResources returned result for unknown claim UID {UID_B}",
        ),
        (answering_unprepare(), "NodeUnprepareResources skipped 1 ResourceClaims"),
        (answering_unprepare(a="in use"), "NodeUnprepareResources failed for ResourceClaim claim-a: in use"),
    ],
)
async def test_wrong_unprepare_answer_is_refused_and_the_claim_stays(
    kubelet_dir: Path, answer: sample.UnprepareResponder, reason: str
) -> None:
    async with sample.registered(kubelet_dir, sample.ServiceV1(unprepare=answer)) as kubelet:
        await kubelet.prepare(DRIVER, [CLAIM_A])
        with pytest.raises(KubeletRefusal) as refusal:
            await kubelet.unprepare(DRIVER, [CLAIM_A])

        assert refusal.value.reason == reason
        assert kubelet.container_cdi_ids(UID_A, None) == [f"gpu.example.com/claim={UID_A}-gpu"]
