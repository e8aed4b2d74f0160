"""Who may hold a request: exclusive, by runtime id, and no dead holder goes before the runtime has spoken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vgpu_dra.cdi import Edits
from vgpu_dra.policy import partition
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.assigner import Granted, Placement
from vgpu_dra.policy.partition import Confirm, Holders, Make
from vgpu_state.claims import Binding, ClaimRecord, HolderState
from vgpu_state.errors import NotReady, PreconditionFailed, Superseded
from vgpu_state.ids import ContainerName, PartitionName, RuntimeId
from vgpu_testkit.dra_values import (
    BINDING,
    CLAIM_UID,
    FACTS,
    NEXT_RUNTIME_ID,
    OTHER_POD,
    PARTITION,
    RECORD,
    SERVER,
    SERVER_GRANT,
    SESSION,
    TRAINER,
    TRAINER_GRANT,
)

OTHER = PartitionName("11111111-2222-4333-8444-555555555555_other")
HOLDER = Binding(
    pod=OTHER_POD,
    container=ContainerName("other"),
    runtime_id=RuntimeId("b" * 64),
    session=SESSION,
    cgroup="",
    state=HolderState.CREATED,
    grants=(TRAINER.grant.key,),
)


PLACEMENT = Placement(claim_uid=CLAIM_UID, name=PARTITION, adjustment=Edits())


def holders(*held: Binding, live: frozenset[PartitionName] = frozenset(), record: ClaimRecord = RECORD) -> Holders:
    bindings = {PartitionName(f"{b.pod.uid}_{b.container}"): b for b in held}
    return Holders(granted=Granted(record=record, results=()), bindings=bindings, live=live)


def ensure(held: Holders, facts: ContainerFacts = FACTS, *, may_evict: bool = True) -> Confirm | Make:
    shown = {g.key for g in facts.grants}
    record = held.granted.record
    granted = Granted(record=record, results=tuple(r for r in record.vgpus if r.grant.key in shown))
    claims = [replace(held, granted=granted)]
    return partition.plan_ensure(facts, placement=PLACEMENT, claims=claims, session=SESSION, may_evict=may_evict)


def test_free_request_makes_a_partition_for_this_runtime_id() -> None:
    assert ensure(holders()) == Make(binding=BINDING, references={}, evicted=[])


def test_container_with_both_requests_holds_both() -> None:
    plan = ensure(holders(), replace(FACTS, grants=(TRAINER_GRANT, SERVER_GRANT)))

    assert plan.binding.grants == ("4e2893ec0fa33030", "a8de55c43130f206")


def test_same_runtime_id_confirms_what_is_there() -> None:
    started = replace(BINDING, cgroup="/kubepods/x", session=1)

    assert ensure(holders(started, live=frozenset({PARTITION})), may_evict=False) == Confirm(binding=started)


def test_newer_runtime_id_of_the_same_container_takes_over_while_the_old_one_lives() -> None:
    plan = ensure(holders(BINDING, live=frozenset({PARTITION})), replace(FACTS, runtime_id=NEXT_RUNTIME_ID), may_evict=False)

    assert plan == Make(binding=replace(BINDING, runtime_id=NEXT_RUNTIME_ID), references={}, evicted=[])


def test_stopped_runtime_id_is_superseded() -> None:
    with pytest.raises(Superseded) as refusal:
        ensure(holders(replace(BINDING, state=HolderState.STOPPED)))

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0 (9f3d6c0e4b6a) was stopped; a new container is needed"
    )


def test_request_of_a_live_container_is_refused_naming_both() -> None:
    with pytest.raises(PreconditionFailed) as refusal:
        ensure(holders(HOLDER, live=frozenset({OTHER})))

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0 wants request trainer of claim research/two-workers "
        "(3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10), which container other of pod research/two-workers-1 holds; one live container "
        "may hold a vGPU request"
    )


def test_one_shared_request_of_several_is_enough_to_refuse() -> None:
    both = replace(HOLDER, grants=(SERVER.grant.key, TRAINER.grant.key))

    with pytest.raises(PreconditionFailed, match="wants request server of claim"):
        ensure(holders(both, live=frozenset({OTHER})), replace(FACTS, grants=(SERVER_GRANT,)))


def test_holder_of_another_request_is_no_matter() -> None:
    other = replace(HOLDER, grants=(SERVER.grant.key,))

    assert ensure(holders(other, live=frozenset({OTHER}))) == Make(binding=BINDING, references={}, evicted=[])


def test_stopped_holder_has_freed_its_request() -> None:
    stopped = replace(HOLDER, state=HolderState.STOPPED)

    assert ensure(holders(stopped), may_evict=False) == Make(binding=BINDING, references={}, evicted=[])


def test_dead_holder_is_evicted_once_the_runtime_has_said_who_lives() -> None:
    plan = ensure(holders(HOLDER))

    assert plan == Make(binding=BINDING, references={}, evicted=[(CLAIM_UID, OTHER, replace(HOLDER, state=HolderState.STOPPED))])


def test_dead_holder_stays_until_the_runtime_has_said_who_lives() -> None:
    with pytest.raises(NotReady) as refusal:
        ensure(holders(HOLDER), may_evict=False)

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0: the runtime has not yet said which containers live; request trainer may "
        "still be held"
    )


def test_two_shares_of_one_request_are_one_holding() -> None:
    """Requests are exclusive, not devices: a count of two is one request with two results."""
    record = replace(RECORD, results=(TRAINER, replace(SERVER, request=TRAINER.request)))
    held = holders(HOLDER, live=frozenset({OTHER}), record=record)

    with pytest.raises(PreconditionFailed, match="wants request trainer"):
        ensure(held, replace(FACTS, grants=(replace(SERVER_GRANT, request=TRAINER.request),)))


@pytest.mark.parametrize(
    ("binding", "has_processes", "age_s", "is_live"),
    [
        (BINDING, False, 119.9, True),
        (BINDING, False, 120.0, False),
        (BINDING, True, 500.0, True),
        (replace(BINDING, cgroup="/kubepods/x"), True, 500.0, True),
        (replace(BINDING, cgroup="/kubepods/x"), False, 0.0, False),
        (replace(BINDING, state=HolderState.STOPPED), True, 0.0, False),
    ],
    ids=["never started", "never started, too old", "has processes", "started", "started, empty", "stopped"],
)
def test_holder_lives_by_its_processes_or_for_two_minutes_before_its_start(
    binding: Binding, has_processes: bool, age_s: float, is_live: bool
) -> None:
    assert partition.is_holder_live(binding, still_runs=lambda: has_processes, age_s=age_s) is is_live


@pytest.mark.parametrize(
    ("binding", "is_live"),
    [(replace(BINDING, cgroup="/kubepods/x", state=HolderState.STOPPED), False), (BINDING, True)],
    ids=["stopped", "just created"],
)
def test_kernel_is_not_asked_where_its_answer_changes_nothing(binding: Binding, is_live: bool) -> None:
    asked = []

    def still_runs() -> bool:
        asked.append(binding)
        return True

    assert partition.is_holder_live(binding, still_runs=still_runs, age_s=0.0) is is_live
    assert asked == []
