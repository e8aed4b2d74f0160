"""What Prepare decides: which devices, which shares, and that a repetition changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.inventory import Inventory
from vgpu_dra.policy import prepare
from vgpu_state.claims import AssignmentMode, ClaimRecord, ClaimState, Consumed
from vgpu_state.errors import MalformedInput, PreconditionFailed
from vgpu_state.ids import DeviceName, Nonce, PoolName, RequestName, ShareId
from vgpu_testkit.dra_values import BOOT_ID, CLAIM, INVENTORY, RECORD, SERVER, TRAINER, gpu_uuid, h100

WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"

FIRST = AllocatedResult(
    request=TRAINER.request,
    pool=TRAINER.pool,
    device=TRAINER.device,
    share_id=TRAINER.share_id,
    cores_percent=50,
    memory_bytes=42949672960,
)
SECOND = AllocatedResult(
    request=SERVER.request,
    pool=SERVER.pool,
    device=SERVER.device,
    share_id=SERVER.share_id,
    cores_percent=20,
    memory_bytes=8589934592,
)


def minting() -> Callable[[], Nonce]:
    numbers = count(1)
    return lambda: Nonce(f"{next(numbers):032x}")


def plan(*results: AllocatedResult, existing: ClaimRecord | None = None, inventory: Inventory = INVENTORY) -> ClaimRecord:
    return prepare.plan_prepare(
        Allocation(claim=CLAIM, results=results), existing=existing, inventory=inventory, boot_id=BOOT_ID, mint=minting()
    )


def test_new_claim_starts_with_a_nonce_per_result() -> None:
    record = plan(FIRST, SECOND)

    assert (record.claim, record.boot_id, record.state, record.mode) == (
        CLAIM,
        BOOT_ID,
        ClaimState.STARTED,
        AssignmentMode.LAZY,
    )
    assert [r.grant.nonce for r in record.results] == ["0" * 31 + "1", "0" * 31 + "2"]
    assert [replace(r, grant=e.grant) for r, e in zip(record.results, (TRAINER, SERVER), strict=True)] == [TRAINER, SERVER]
    assert [r.grant.key for r in record.results] == ["4e2893ec0fa33030", "a8de55c43130f206"]


def test_completed_claim_is_prepared_and_else_the_same() -> None:
    started = replace(RECORD, state=ClaimState.STARTED)

    assert prepare.completed(started) == RECORD
    assert prepare.completed(RECORD) is RECORD


def test_prepared_claim_stays_as_it_is_when_repeated() -> None:
    assert plan(FIRST, SECOND, existing=RECORD) is RECORD


def test_interrupted_claim_goes_on_under_the_same_grants() -> None:
    started = replace(RECORD, state=ClaimState.STARTED)

    assert plan(FIRST, SECOND, existing=started) is started


def test_interrupted_claim_with_other_devices_starts_anew() -> None:
    started = replace(RECORD, state=ClaimState.STARTED)

    assert [r.device for r in plan(SECOND, existing=started).results] == ["vgpu-1"]


def test_prepared_claim_with_another_allocation_is_refused() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        plan(FIRST, replace(SECOND, device=DeviceName("vgpu-2")), existing=RECORD)

    assert str(refusal.value) == (
        f"{WHO} is prepared with trainer=vgpu-5, server=vgpu-1, its allocation now says trainer=vgpu-5, server=vgpu-2: it must "
        "be unprepared first"
    )


@pytest.mark.parametrize(
    "changed", [replace(SECOND, cores_percent=21), replace(SECOND, memory_bytes=1), replace(SECOND, pool=PoolName("node-b"))]
)
def test_prepared_claim_with_other_shares_is_refused(changed: AllocatedResult) -> None:
    with pytest.raises(PreconditionFailed, match="it must be unprepared first"):
        plan(FIRST, changed, existing=RECORD)


def test_capacity_that_is_omitted_is_the_whole_device() -> None:
    (result,) = plan(replace(FIRST, cores_percent=None, memory_bytes=None)).results

    assert result.consumed == Consumed(cores_percent=100, memory_bytes=85520809984)


def test_device_is_known_by_minor_and_slot_by_uuid() -> None:
    inventory = replace(INVENTORY, gpus=(h100(0, minor=5), h100(1, minor=4)))

    (result,) = plan(FIRST, inventory=inventory).results

    assert (result.device, result.gpu_uuid) == ("vgpu-5", gpu_uuid(0))


def test_two_shares_of_one_device_are_two_results() -> None:
    other = replace(FIRST, share_id=ShareId("11111111-2222-4333-8444-555555555555"))

    assert len({r.grant.key for r in plan(FIRST, other).results}) == 2


@pytest.mark.parametrize(
    ("result", "inventory", "kind", "words"),
    [
        (
            replace(FIRST, device=DeviceName("vgpu-9")),
            replace(INVENTORY, gpus=INVENTORY.gpus[:2]),
            PreconditionFailed,
            f"{WHO} request trainer: device vgpu-9 is not on this node, which has vgpu-0, vgpu-1",
        ),
        (
            FIRST,
            replace(INVENTORY, gpus=()),
            PreconditionFailed,
            f"{WHO} request trainer: device vgpu-5 is not on this node, which has none",
        ),
        (
            replace(FIRST, device=DeviceName("gpu-5")),
            replace(INVENTORY, gpus=()),
            PreconditionFailed,
            f"{WHO} request trainer: device gpu-5 is not on this node, which has none",
        ),
        (
            replace(FIRST, device=DeviceName("vgpu-16")),
            replace(INVENTORY, gpus=(h100(16),)),
            PreconditionFailed,
            f"{WHO} request trainer: GPU index 16 has no slot in the limits file (0 to 15)",
        ),
        (
            replace(FIRST, cores_percent=101),
            INVENTORY,
            MalformedInput,
            f"{WHO} request trainer: cores is 101; a GPU has 0 to 100 percent",
        ),
        (
            replace(FIRST, memory_bytes=0),
            INVENTORY,
            MalformedInput,
            f"{WHO} request trainer: memory is 0 bytes; vgpu-5 has 1 to 85520809984",
        ),
        (
            replace(FIRST, memory_bytes=85520809985),
            INVENTORY,
            MalformedInput,
            f"{WHO} request trainer: memory is 85520809985 bytes; vgpu-5 has 1 to 85520809984",
        ),
    ],
)
def test_share_that_the_node_cannot_give_is_refused(
    result: AllocatedResult, inventory: Inventory, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as refusal:
        plan(result, inventory=inventory)

    assert str(refusal.value) == words


def test_result_that_is_there_twice_is_refused() -> None:
    with pytest.raises(MalformedInput) as refusal:
        plan(FIRST, FIRST)

    assert str(refusal.value) == f"{WHO} has the same request, device and shareID twice in its allocation"


def test_alternative_of_a_request_has_its_own_name_in_the_cdi_file() -> None:
    (result,) = plan(replace(FIRST, request=RequestName("trainer/large"))).results

    assert result.cdi_device == ("3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10-trainer_large-vgpu-5-8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e2c01")
