"""What the ledger counts of its bindings, and where it finds records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.ledger import Ledger
from vgpu_state.claims import HolderState
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_testkit.dra_values import BINDING, CLAIM, CLAIM_UID, NEXT_RUNTIME_ID, PARTITION, RECORD, TRAINER, gpu_uuid

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


_UIDS = [ClaimUid(f"00000000-0000-4000-8000-{number:012d}") for number in range(4)]
_GPUS = st.lists(st.integers(0, 3), max_size=3)


@given(steps=st.lists(st.tuples(st.sampled_from(_UIDS), st.none() | _GPUS), max_size=12), asked=_GPUS)
def test_records_on_gpus_are_those_that_a_look_at_all_records_finds(
    steps: Sequence[tuple[ClaimUid, list[int] | None]], asked: list[int]
) -> None:
    """Claims come, get other GPUs and go, in any order."""
    ledger = Ledger()

    for uid, gpus in steps:
        if gpus is None:
            ledger.drop_claim(uid, now_s=1.0)
        else:
            results = tuple(replace(TRAINER, gpu_uuid=gpu_uuid(gpu)) for gpu in gpus)
            ledger.note_record(replace(RECORD, claim=replace(CLAIM, uid=uid), results=results))

    wanted = {gpu_uuid(gpu) for gpu in asked}
    found = ledger.records_on(wanted)
    assert len({record.claim.uid for record in found}) == len(found)
    assert {record.claim.uid: record for record in found} == {
        uid: record for uid, record in ledger.records.items() if wanted & {result.gpu_uuid for result in record.results}
    }
