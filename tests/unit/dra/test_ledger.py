"""What the ledger counts of its bindings."""

from __future__ import annotations

from dataclasses import replace

from vgpu_dra.ledger import Ledger
from vgpu_state.claims import HolderState
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_testkit.dra_values import BINDING, CLAIM_UID, NEXT_RUNTIME_ID, PARTITION

OTHER_CLAIM = ClaimUid("aaaaaaaa-2222-4333-8444-555555555555")
OTHER = PartitionName("11111111-2222-4333-8444-555555555555_train")


def test_grant_that_two_containers_hold_is_a_conflict_until_one_has_stopped() -> None:
    ledger = Ledger()
    ledger.bind(CLAIM_UID, PARTITION, BINDING, now_s=1.0)
    ledger.bind(OTHER_CLAIM, OTHER, BINDING, now_s=1.0)  # the same key of another claim is another grant
    assert ledger.conflicts() == 0

    second = replace(BINDING, runtime_id=NEXT_RUNTIME_ID)
    ledger.bind(CLAIM_UID, OTHER, second, now_s=1.0)
    assert ledger.conflicts() == 1

    ledger.bind(CLAIM_UID, OTHER, replace(second, state=HolderState.STOPPED), now_s=2.0)
    assert ledger.conflicts() == 0
