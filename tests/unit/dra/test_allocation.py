"""What of a ResourceClaim is ours, and each refusal with its words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vgpu_dra.allocation import AllocatedResult, parse_allocation
from vgpu_state.errors import MalformedInput, PreconditionFailed, VgpuError
from vgpu_state.ids import ClaimUid, DeviceName, PoolName, RequestName, ShareId
from vgpu_testkit.dra_values import CLAIM, CLAIM_UID

WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"
FIRST = f"{WHO} status.allocation.devices.results[0]"

RESULT: dict[str, Any] = {
    "request": "trainer",
    "driver": "manager.nvidia.com",
    "pool": "node-a",
    "device": "vgpu-5",
    "shareID": "8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01",
    "consumedCapacity": {"cores": "50", "memory": "40Gi"},
}


def claim(*results: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    given = {"namespace": "research", "name": "two-workers", "uid": str(CLAIM_UID), **metadata}
    return {
        "metadata": {k: v for k, v in given.items() if v is not None},
        "status": {"allocation": {"devices": {"results": copy.deepcopy(list(results))}}},
    }


def test_results_of_ours_are_taken_in_the_claims_order() -> None:
    other = {**RESULT, "driver": "gpu.example.com", "request": "else", "device": "UPPER"}
    second = {**RESULT, "request": "server/small", "device": "vgpu-1", "consumedCapacity": {"cores": 20}}
    del second["shareID"]

    allocation = parse_allocation(claim(RESULT, other, second), expected_uid=CLAIM_UID)

    assert allocation.claim == CLAIM
    assert allocation.results == (
        AllocatedResult(
            request=RequestName("trainer"),
            pool=PoolName("node-a"),
            device=DeviceName("vgpu-5"),
            share_id=ShareId("8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01"),
            cores_percent=50,
            memory_bytes=42949672960,
        ),
        AllocatedResult(
            request=RequestName("server/small"),
            pool=PoolName("node-a"),
            device=DeviceName("vgpu-1"),
            share_id=ShareId(""),
            cores_percent=20,
            memory_bytes=None,
        ),
    )


@pytest.mark.parametrize(("given", "expected"), [(True, True), (False, False), (None, False)])
def test_admin_access_is_the_results_own(given: bool | None, expected: bool) -> None:
    first, second = parse_allocation(claim({**RESULT, "adminAccess": given}, RESULT), expected_uid=CLAIM_UID).results

    assert (first.has_admin_access, second.has_admin_access) == (expected, False)


@pytest.mark.parametrize(
    ("doc", "kind", "words"),
    [
        (
            claim(RESULT, uid="11111111-2222-4333-8444-555555555555"),
            PreconditionFailed,
            "claim research/two-workers now has uid 11111111-2222-4333-8444-555555555555, kubelet asks for "
            "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10: it was replaced",
        ),
        ({**claim(RESULT), "status": None}, PreconditionFailed, f"{WHO} is not allocated (status.allocation is empty)"),
        ({**claim(RESULT), "status": {}}, PreconditionFailed, f"{WHO} is not allocated (status.allocation is empty)"),
        (claim(), PreconditionFailed, f"{WHO} has no allocation result of driver manager.nvidia.com"),
        (
            claim({**RESULT, "driver": "gpu.example.com"}),
            PreconditionFailed,
            f"{WHO} has no allocation result of driver manager.nvidia.com",
        ),
        (claim(*[RESULT] * 33), MalformedInput, f"{WHO} has 33 allocation results; at most 32 are allowed"),
        (
            claim({**RESULT, "adminAccess": "yes"}),
            MalformedInput,
            f"{FIRST}: field adminAccess is of type str; expected true or false",
        ),
        (claim(RESULT, namespace=None), MalformedInput, f"ResourceClaim {CLAIM_UID}: field namespace is missing"),
        (
            claim(RESULT, uid="x"),
            MalformedInput,
            "ResourceClaim research/two-workers: claim uid is 'x'; expected a lower-case UUID",
        ),
        ({}, MalformedInput, f"ResourceClaim {CLAIM_UID}: field metadata is missing"),
        (
            {**claim(RESULT), "status": {"allocation": {"devices": {"results": [1]}}}},
            MalformedInput,
            f"ResourceClaim {CLAIM_UID}: field results holds something that is no object",
        ),
        (
            claim({**RESULT, "device": "../5"}),
            MalformedInput,
            f"{FIRST}: device name is '../5'; expected a DNS label of at most 63 characters",
        ),
        (
            claim({**RESULT, "request": "a\nb"}),
            MalformedInput,
            rf"{FIRST}: request name is 'a\nb'; expected a DNS label, or two joined by a slash",
        ),
        (claim({**RESULT, "pool": 5}), MalformedInput, f"{FIRST}: field pool is of type int; expected a string"),
        (
            claim({**RESULT, "shareID": "x"}),
            MalformedInput,
            f"{FIRST}: shareID is 'x'; expected a lower-case UUID, or nothing",
        ),
        (
            claim({**RESULT, "consumedCapacity": {"memory": "much"}}),
            MalformedInput,
            f"{FIRST}: consumedCapacity.memory is 'much'; expected a quantity such as 8Gi or 30",
        ),
        (
            claim({**RESULT, "consumedCapacity": []}),
            MalformedInput,
            f"{FIRST}: field consumedCapacity is of type list; expected an object",
        ),
    ],
)
def test_claim_that_cannot_be_used_is_refused(doc: dict[str, Any], kind: type[VgpuError], words: str) -> None:
    with pytest.raises(kind) as refusal:
        parse_allocation(doc, expected_uid=ClaimUid(str(CLAIM_UID)))

    assert str(refusal.value) == words
