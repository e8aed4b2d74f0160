"""What a dead predecessor's tree means."""

from __future__ import annotations

from dataclasses import replace

from vgpu_dra.policy.recovery import FoundClaim, RecoveryPlan, plan_recovery
from vgpu_state.claims import Binding, ClaimRecord, ClaimState
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_testkit.dra_values import BINDING, BOOT_ID, CLAIM_UID, PARTITION, RECORD

OTHER = PartitionName("11111111-2222-4333-8444-555555555555_train")
NEXT_BOOT = "99999999-3c57-4c0f-8a0b-0d6a3d1f7b21"


def recover(
    record: ClaimRecord | str | None, bindings: dict[PartitionName, Binding | str] | None = None, *, boot_id: str = BOOT_ID
) -> RecoveryPlan:
    return plan_recovery({CLAIM_UID: FoundClaim(record=record, bindings=bindings or {})}, boot_id=boot_id)


def test_prepared_claim_of_this_boot_is_kept_with_its_bindings() -> None:
    plan = recover(RECORD, {PARTITION: BINDING})

    assert plan.kept == {CLAIM_UID: RECORD}
    assert plan.bindings == {CLAIM_UID: {PARTITION: BINDING}}
    assert (plan.renewed, plan.quarantined, plan.undone, plan.discarded) == ({}, {}, (), ())


def test_claim_with_an_unusable_binding_is_quarantined_and_its_directories_stay() -> None:
    """A newer version may have written it, and a container may have the directory mounted."""
    plan = recover(RECORD, {PARTITION: BINDING, OTHER: "binding.json: schema 2 is newer than 1"})

    assert plan.quarantined == {CLAIM_UID: f"partition {OTHER}: binding.json: schema 2 is newer than 1"}
    assert (plan.kept, plan.discarded, plan.undone) == ({}, (), ())


def test_claim_of_another_boot_is_renewed_without_its_bindings() -> None:
    plan = recover(RECORD, {PARTITION: BINDING, OTHER: "binding.json: torn"}, boot_id=NEXT_BOOT)

    assert plan.renewed == {CLAIM_UID: replace(RECORD, boot_id=NEXT_BOOT)}
    assert plan.discarded == ((CLAIM_UID, PARTITION), (CLAIM_UID, OTHER))
    assert (plan.kept, plan.bindings, plan.quarantined) == ({}, {}, {})


def test_interrupted_prepare_is_undone() -> None:
    assert recover(replace(RECORD, state=ClaimState.STARTED)).undone == (CLAIM_UID,)


def test_directory_without_a_record_is_undone() -> None:
    assert recover(None).undone == (CLAIM_UID,)


def test_unusable_record_is_quarantined_and_its_directories_stay() -> None:
    plan = recover("claim record is corrupt: torn", {PARTITION: BINDING, OTHER: "it has no binding.json"})

    assert plan.quarantined == {CLAIM_UID: "claim record is corrupt: torn"}
    assert (plan.kept, plan.undone, plan.discarded) == ({}, (), ())


def test_record_of_another_claim_is_quarantined() -> None:
    uid = ClaimUid("11111111-2222-4333-8444-555555555555")

    plan = plan_recovery({uid: FoundClaim(record=RECORD, bindings={})}, boot_id=BOOT_ID)

    assert plan.quarantined == {uid: f"claim.json speaks of claim {CLAIM_UID}"}


def test_one_bad_claim_does_not_touch_the_others() -> None:
    uid = ClaimUid("11111111-2222-4333-8444-555555555555")

    plan = plan_recovery(
        {
            uid: FoundClaim(record="claim record is corrupt: torn", bindings={}),
            CLAIM_UID: FoundClaim(record=RECORD, bindings={PARTITION: BINDING}),
        },
        boot_id=BOOT_ID,
    )

    assert (list(plan.kept), list(plan.quarantined)) == ([CLAIM_UID], [uid])
