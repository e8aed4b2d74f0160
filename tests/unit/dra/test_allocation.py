"""What of a ResourceClaim is ours, and each refusal with its words."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from vgpu_dra.allocation import AllocatedResult, Allocation, parse_allocation, reserved_pods
from vgpu_state.claims import ComputePolicy
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


def annotated(annotations: dict[str, Any]) -> Allocation:
    return parse_allocation(claim(RESULT, annotations=annotations), expected_uid=CLAIM_UID)


@pytest.mark.parametrize(
    ("annotations", "policy"),
    [
        ({}, ComputePolicy.FIXED),
        ({"nvidia.com/vgpu-compute-policy": "balance"}, ComputePolicy.BALANCE),
        ({"manager.nvidia.com/vgpu-compute-policy": "none"}, ComputePolicy.NONE),
        ({"example.com/vgpu-compute-policy": "fixed"}, ComputePolicy.FIXED),
        ({"vgpu-compute-policy": "none", "example.com/other-vgpu-compute-policy": "none"}, ComputePolicy.FIXED),
        ({"a.com/vgpu-compute-policy": "none", "b.com/vgpu-compute-policy": "balance"}, ComputePolicy.BALANCE),
    ],
)
def test_compute_policy_is_the_annotations(annotations: dict[str, Any], policy: ComputePolicy) -> None:
    allocation = annotated(annotations)

    assert (allocation.policy, allocation.remarks) == (policy, ())


@pytest.mark.parametrize("value", ["Balance", "", 5])
def test_unknown_compute_policy_is_fixed_and_remarked(value: Any) -> None:
    allocation = annotated({"a.com/vgpu-compute-policy": value, "b.com/vgpu-compute-policy": "none"})

    assert allocation.policy is ComputePolicy.FIXED
    assert allocation.remarks == (
        f"annotation a.com/vgpu-compute-policy is '{value}'; expected one of fixed, balance, none: taken as fixed",
    )


def test_only_the_first_unknown_compute_policies_are_remarked() -> None:
    """Each is an Event and a line in the log, and a claim has room for thousands of annotations."""
    allocation = annotated({f"{i}.com/vgpu-compute-policy": "some" for i in range(1000, 3000)})

    assert [remark.split()[1] for remark in allocation.remarks] == [f"{i}.com/vgpu-compute-policy" for i in range(1000, 1004)]


def test_claim_with_a_deletion_time_is_being_deleted() -> None:
    deleted = parse_allocation(claim(RESULT, deletionTimestamp="2026-11-30T02:00:00Z"), expected_uid=CLAIM_UID)

    assert deleted.is_being_deleted
    assert not annotated({}).is_being_deleted


def configured(*entries: Any) -> dict[str, Any]:
    doc = claim(RESULT)
    doc["status"]["allocation"]["devices"]["config"] = list(entries)
    return doc


def test_configuration_of_ours_comes_with_the_allocation() -> None:
    ours = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    entry = {"source": "FromClaim", "opaque": {"driver": "manager.nvidia.com", "parameters": ours}}
    other = {"source": "FromClaim", "opaque": {"driver": "gpu.example.com", "parameters": None}}

    (config,) = parse_allocation(configured(other, entry), expected_uid=CLAIM_UID).configs

    assert (config.kind, config.where) == ("GpuConfig", "status.allocation.devices.config[1]")


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
            configured({"source": "FromClaim", "opaque": {"driver": "manager.nvidia.com", "parameters": {"kind": "GpuConfig"}}}),
            MalformedInput,
            f"{WHO} status.allocation.devices.config[0].opaque.parameters.apiVersion is missing; expected "
            "resource.nvidia.com/v1beta1",
        ),
        (
            configured(5),
            MalformedInput,
            f"ResourceClaim {CLAIM_UID}: field config holds something that is no object",
        ),
        (
            claim(RESULT, annotations=[]),
            MalformedInput,
            f"ResourceClaim {CLAIM_UID}: field annotations is of type list; expected an object",
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


def reserved(*consumers: Any) -> dict[str, Any]:
    return {**claim(RESULT), "status": {"reservedFor": list(consumers)}}


def test_claim_is_reserved_for_all_pods_that_its_status_lists() -> None:
    uids = [f"{i:08x}-54f1-4c86-9b57-2f1d2b8f4c11" for i in range(256)]
    pods = [{"resource": "pods", "name": f"pod-{i}", "uid": pod_uid} for i, pod_uid in enumerate(uids)]
    others = [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": uids[0]},
        {"apiGroup": "example.com", "resource": "pods", "name": "else", "uid": "11111111-2222-4333-8444-555555555555"},
    ]

    found = reserved_pods(reserved(*others, *pods))

    assert [(str(p), p.uid) for p in found] == [(f"research/pod-{i}", pod_uid) for i, pod_uid in enumerate(uids)]


@pytest.mark.parametrize(
    ("doc", "words"),
    [
        ({"metadata": {}}, "ResourceClaim: field namespace is missing"),
        (reserved(1), "ResourceClaim: field reservedFor holds something that is no object"),
        (
            reserved({"resource": "nodes"}, {"resource": "pods", "name": "a", "uid": "x"}),
            "ResourceClaim status.reservedFor[1]: pod uid is 'x'; expected a lower-case UUID (static pods have none)",
        ),
        (
            reserved({"resource": "pods", "uid": "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11"}),
            "ResourceClaim status.reservedFor[0]: field name is missing",
        ),
    ],
)
def test_malformed_consumers_are_refused_naming_the_field(doc: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedInput) as refusal:
        reserved_pods(doc)

    assert str(refusal.value) == words
