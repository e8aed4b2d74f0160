"""What Prepare decides: which devices, which shares, and that a repetition changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.device_config import DeviceConfig, parse_configs
from vgpu_dra.inventory import Inventory
from vgpu_dra.policy import prepare
from vgpu_dra.policy.prepare import NodeNow
from vgpu_dra.rules import Ratios
from vgpu_state.claims import ClaimRecord, ClaimState, ComputePolicy, Consumed, PreparedGpu
from vgpu_state.errors import MalformedInput, PreconditionFailed
from vgpu_state.ids import DeviceName, MigUuid, Nonce, PoolName, RequestName, ShareId
from vgpu_testkit.dra_values import (
    BOOT_ID,
    CLAIM,
    INVENTORY,
    MIG_INVENTORY,
    RECORD,
    SERVER,
    SLICE,
    TRAINER,
    WHOLE,
    gpu_uuid,
    h100,
)

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

GPU = AllocatedResult(
    request=WHOLE.request,
    pool=WHOLE.pool,
    device=WHOLE.device,
    share_id=WHOLE.share_id,
    cores_percent=None,
    memory_bytes=None,
)
MIG_DEVICE = replace(GPU, request=SLICE.request, device=SLICE.device)


RATIOS = Ratios()


def minting() -> Callable[[], Nonce]:
    numbers = count(1)
    return lambda: Nonce(f"{next(numbers):032x}")


def plan(
    *results: AllocatedResult,
    existing: ClaimRecord | None = None,
    inventory: Inventory = INVENTORY,
    ratios: Ratios = RATIOS,
    **of_claim: Any,
) -> ClaimRecord:
    return prepare.plan_prepare(
        Allocation(claim=CLAIM, results=results, **of_claim),
        existing=existing,
        node=NodeNow(inventory=inventory, ratios=ratios, boot_id=BOOT_ID),
        mint=minting(),
    )


def test_new_claim_starts_with_a_nonce_per_result() -> None:
    record = plan(FIRST, SECOND)

    assert (record.claim, record.boot_id, record.state, record.mode) == (CLAIM, BOOT_ID, ClaimState.STARTED, "lazy")
    assert [r.grant.nonce for r in record.vgpus] == ["0" * 31 + "1", "0" * 31 + "2"]
    assert [replace(r, grant=e.grant) for r, e in zip(record.vgpus, (TRAINER, SERVER), strict=True)] == [TRAINER, SERVER]
    assert [r.grant.key for r in record.vgpus] == ["4e2893ec0fa33030", "a8de55c43130f206"]


def test_a_node_without_shares_gives_no_new_ones_and_keeps_those_that_it_gave() -> None:
    node = NodeNow(inventory=INVENTORY, ratios=RATIOS, boot_id=BOOT_ID, has_shares=False)
    allocation = Allocation(claim=CLAIM, results=(FIRST, SECOND))

    with pytest.raises(PreconditionFailed) as refusal:
        prepare.plan_prepare(allocation, existing=None, node=node, mint=minting())

    assert str(refusal.value) == (
        f"claim {CLAIM} request {FIRST.request}: {FIRST.device} is a share of a GPU, and this node gives none: "
        "its feature gate VGPUSupport is off"
    )
    assert prepare.plan_prepare(allocation, existing=RECORD, node=node, mint=minting()) == RECORD


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
    (result,) = plan(replace(FIRST, cores_percent=None, memory_bytes=None)).vgpus

    assert result.consumed == Consumed(cores_percent=100, memory_bytes=85520809984)


def test_device_is_known_by_minor_and_slot_by_uuid() -> None:
    inventory = replace(INVENTORY, gpus=(h100(0, minor=5), h100(1, minor=4)))

    (result,) = plan(FIRST, inventory=inventory).results

    assert (result.device, result.gpu_uuid) == ("vgpu-5", gpu_uuid(0))


def test_two_shares_of_one_device_are_two_results() -> None:
    other = replace(FIRST, share_id=ShareId("11111111-2222-4333-8444-555555555555"))

    assert len({r.grant.key for r in plan(FIRST, other).vgpus}) == 2


def test_whole_gpu_and_mig_device_are_prepared_without_a_grant() -> None:
    record = plan(GPU, MIG_DEVICE, replace(GPU, request=RequestName("probe"), has_admin_access=True), inventory=MIG_INVENTORY)

    assert record.results[:2] == (WHOLE, SLICE)
    assert isinstance(admin := record.results[2], PreparedGpu)
    assert admin.has_admin_access
    assert record.vgpus == ()


def test_claim_of_every_kind_stays_as_it_is_when_repeated() -> None:
    existing = plan(FIRST, GPU, MIG_DEVICE, inventory=MIG_INVENTORY)

    assert plan(FIRST, GPU, MIG_DEVICE, existing=existing, inventory=MIG_INVENTORY) is existing


def test_prepared_claim_whose_mig_device_was_made_anew_is_refused() -> None:
    """Under the same name stands another device: what the claim's containers have is gone."""
    existing = replace(RECORD, results=(replace(SLICE, mig_uuid=MigUuid(f"MIG-{CLAIM.uid}")),))

    with pytest.raises(PreconditionFailed, match="it must be unprepared first"):
        plan(MIG_DEVICE, existing=existing, inventory=MIG_INVENTORY)


def test_policy_of_a_claim_is_in_its_record_and_stays_there() -> None:
    """What a container has must not change under it with an annotation."""
    record = plan(FIRST, policy=ComputePolicy.BALANCE)

    assert record.policy is ComputePolicy.BALANCE
    assert plan(FIRST, existing=record, policy=ComputePolicy.NONE) is record


def test_claim_that_is_being_deleted_is_prepared_for_nobody_new() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        plan(FIRST, SECOND, is_being_deleted=True)

    assert str(refusal.value) == f"{WHO} is being deleted: it is not prepared for further pods"


def test_prepared_claim_that_is_being_deleted_is_there_for_its_pods() -> None:
    assert plan(FIRST, SECOND, existing=RECORD, is_being_deleted=True) is RECORD


def configs(parameters: dict[str, Any], *requests: str) -> tuple[DeviceConfig, ...]:
    whole = {"apiVersion": "resource.nvidia.com/v1beta1", **parameters}
    opaque = {"driver": "manager.nvidia.com", "parameters": whole}
    return parse_configs([{"source": "FromClaim", "requests": list(requests), "opaque": opaque}])


CONFIG = "status.allocation.devices.config[0]"
TIME_SLICING = {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (
            configs(TIME_SLICING),
            PreconditionFailed,
            f"{WHO} {CONFIG}.opaque.parameters.sharing.strategy is TimeSlicing, which needs the feature gate "
            "TimeSlicingSettings; it is off",
        ),
        (
            configs({"kind": "MigDeviceConfig"}, "solver"),
            MalformedInput,
            f"{WHO} {CONFIG}: a MigDeviceConfig cannot be that of request solver, whose device is of type gpu",
        ),
    ],
)
def test_configuration_that_cannot_be_followed_is_refused(
    given: tuple[DeviceConfig, ...], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as refusal:
        plan(GPU, configs=given)

    assert str(refusal.value) == words


def test_configuration_that_asks_for_nothing_changes_nothing() -> None:
    assert plan(GPU, configs=configs({"kind": "GpuConfig"})) == plan(GPU)


def test_configuration_of_other_devices_is_nothing_to_a_claim() -> None:
    assert plan(GPU, configs=configs({"kind": "MigDeviceConfig", "sharing": {"strategy": "MPS"}})) == plan(GPU)


def test_admin_access_with_a_configuration_is_refused() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        plan(replace(GPU, has_admin_access=True), configs=configs({"kind": "GpuConfig"}))

    assert str(refusal.value) == (f"{WHO} {CONFIG} is for request solver, which has adminAccess: who looks on configures nothing")


def test_admin_looks_at_a_gpu_in_mig_mode_too() -> None:
    (result,) = plan(replace(GPU, device=DeviceName("gpu-3"), has_admin_access=True), inventory=MIG_INVENTORY).results

    assert result.gpu_uuid == gpu_uuid(3)


@pytest.mark.parametrize("stated", [FIRST, replace(FIRST, cores_percent=None, memory_bytes=None)])
def test_prepared_claim_stays_as_it_is_when_less_is_given_away_since(stated: AllocatedResult) -> None:
    """Its pods run; a node that comes back with another ratio asks for them again."""
    before = plan(stated, ratios=Ratios(cores_percent=100, memory_percent=200))

    assert plan(stated, existing=before, ratios=Ratios(cores_percent=40, memory_percent=40)) is before


def test_prepared_share_on_a_gpu_that_is_in_mig_mode_since_is_refused() -> None:
    existing = plan(replace(FIRST, device=DeviceName("vgpu-3")))

    with pytest.raises(PreconditionFailed, match="is in MIG mode, where nothing runs on it but its MIG devices"):
        plan(replace(FIRST, device=DeviceName("vgpu-3")), existing=existing, inventory=MIG_INVENTORY)


def test_oversubscribed_share_may_have_more_memory_than_the_gpu_and_no_more_compute() -> None:
    ratios = Ratios(cores_percent=200, memory_percent=150)

    (result,) = plan(replace(FIRST, cores_percent=None, memory_bytes=None), ratios=ratios).vgpus
    with pytest.raises(MalformedInput) as refusal:
        plan(replace(FIRST, cores_percent=101), ratios=ratios)

    assert result.consumed == Consumed(cores_percent=100, memory_bytes=128280690688)  # 122338 whole MiB of 122338.5
    assert str(refusal.value) == f"{WHO} request trainer: cores is 101; a share of vgpu-5 has 0 to 100 percent"


def test_share_of_a_gpu_that_is_not_given_away_whole_ends_at_the_ratio() -> None:
    ratios = Ratios(cores_percent=80, memory_percent=50)

    (result,) = plan(replace(FIRST, cores_percent=None, memory_bytes=None), ratios=ratios).vgpus
    with pytest.raises(MalformedInput, match=r"cores is 81; a share of vgpu-5 has 0 to 80 percent"):
        plan(replace(FIRST, cores_percent=81), ratios=ratios)

    assert result.consumed == Consumed(cores_percent=80, memory_bytes=42759880704)


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
            replace(MIG_DEVICE, device=DeviceName("gpu-3-mig-19-0-1")),
            replace(MIG_INVENTORY, gpus=MIG_INVENTORY.gpus[2:4]),
            PreconditionFailed,
            f"{WHO} request tester: device gpu-3-mig-19-0-1 is not on this node, which has gpu-2, gpu-3, gpu-3-mig-19-2-1",
        ),
        (
            replace(FIRST, device=DeviceName("vgpu-3")),
            MIG_INVENTORY,
            PreconditionFailed,
            f"{WHO} request trainer: GPU {gpu_uuid(3)} is in MIG mode, where nothing runs on it but its MIG devices",
        ),
        (
            replace(GPU, device=DeviceName("gpu-3")),
            MIG_INVENTORY,
            PreconditionFailed,
            f"{WHO} request solver: GPU {gpu_uuid(3)} is in MIG mode, where nothing runs on it but its MIG devices",
        ),
        (
            replace(FIRST, has_admin_access=True),
            INVENTORY,
            PreconditionFailed,
            f"{WHO} request trainer: vgpu-5 is asked for with adminAccess, which only whole GPUs offer",
        ),
        (
            replace(MIG_DEVICE, has_admin_access=True),
            MIG_INVENTORY,
            PreconditionFailed,
            f"{WHO} request tester: gpu-3-mig-19-2-1 is asked for with adminAccess, which only whole GPUs offer",
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
            f"{WHO} request trainer: cores is 101; a share of vgpu-5 has 0 to 100 percent",
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
