"""One live container per request: who is live, and when a dead holder makes way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vgpu_dra.assignments import Assigned, Replayed
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state.claims import HolderState
from vgpu_state.errors import (
    NotReady,
    PreconditionFailed,
)
from vgpu_state.ids import PartitionName, RuntimeId
from vgpu_testkit.deep_cgroups import DeepCgroups
from vgpu_testkit.dra_tree import DraTree
from vgpu_testkit.dra_values import (
    CLAIM_UID,
    PARTITION,
    POD,
    RUNTIME_ID,
    SESSION,
)

OTHER = PartitionName("11111111-2222-4333-8444-555555555555_train")


def test_second_live_container_is_refused(node: DraTree, facts: ContainerFacts, other: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    with pytest.raises(PreconditionFailed, match="which container train of pod research/two-workers-0 holds"):
        node.partitions.ensure(other, session=SESSION)


def test_init_then_app_on_one_request(node: DraTree, facts: ContainerFacts, other: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.partitions.stop(RUNTIME_ID)

    assert node.partitions.ensure(other, session=SESSION).partition == OTHER


def test_holder_whose_stop_was_lost_is_evicted_after_synchronize(
    node: DraTree, facts: ContainerFacts, other: ContainerFacts, start: Callable[[Assigned, RuntimeId], None]
) -> None:
    start(node.partitions.ensure(facts, session=SESSION), RUNTIME_ID)
    node.partitions.record_start(RUNTIME_ID, 41)
    node.end_container(RUNTIME_ID, POD)

    with pytest.raises(NotReady, match="the runtime has not yet said which containers live"):
        node.partitions.ensure(other, session=SESSION)
    node.synchronization.synchronize(SESSION, [])
    node.partitions.ensure(other, session=SESSION)

    evicted = node.reader.binding(CLAIM_UID, PARTITION)
    assert evicted is not None
    assert evicted.state is HolderState.STOPPED


def test_no_holder_is_evicted_on_the_word_of_an_earlier_session(
    node: DraTree, facts: ContainerFacts, other: ContainerFacts
) -> None:
    node.synchronization.synchronize(SESSION, [])
    node.partitions.ensure(facts, session=SESSION)
    node.now_s += 121

    with pytest.raises(NotReady, match="the runtime has not yet said which containers live"):
        node.partitions.ensure(other, session=SESSION + 1)
    node.synchronization.synchronize(SESSION + 1, [Replayed(runtime_id=RUNTIME_ID, facts=facts)])
    assert node.partitions.ensure(other, session=SESSION + 1).is_new


def test_holder_that_never_started_counts_for_two_minutes(node: DraTree, facts: ContainerFacts, other: ContainerFacts) -> None:
    node.synchronization.synchronize(SESSION, [])
    node.partitions.ensure(facts, session=SESSION)

    node.now_s += 119
    with pytest.raises(PreconditionFailed):
        node.partitions.ensure(other, session=SESSION)
    node.now_s += 2
    assert node.partitions.ensure(other, session=SESSION).is_new


def test_holder_whose_start_is_not_recorded_lives_by_its_cgroup(
    node: DraTree, facts: ContainerFacts, other: ContainerFacts
) -> None:
    node.synchronization.synchronize(SESSION, [])
    node.partitions.ensure(facts, session=SESSION)
    node.run_container(RUNTIME_ID, POD, [41])
    node.now_s += 500

    with pytest.raises(PreconditionFailed, match="which container train of pod research/two-workers-0 holds"):
        node.partitions.ensure(other, session=SESSION)


def test_holder_whose_processes_are_too_deep_to_be_seen_is_not_evicted(
    node: DraTree,
    facts: ContainerFacts,
    other: ContainerFacts,
    start: Callable[[Assigned, RuntimeId], None],
    deep: DeepCgroups,
) -> None:
    start(node.partitions.ensure(facts, session=SESSION), RUNTIME_ID)
    node.partitions.record_start(RUNTIME_ID, 41)
    node.synchronization.synchronize(SESSION, [])
    own = node.cgroups / node.binding().cgroup.lstrip("/")
    (own / "cgroup.procs").write_text("")
    deep.below(own, 10_000)

    with pytest.raises(PreconditionFailed, match="which container train of pod research/two-workers-0 holds"):
        node.partitions.ensure(other, session=SESSION)
