"""What Synchronize finds when it compares the runtime's containers with the bindings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vgpu_dra.assignments import Assigned, Replayed
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state.ids import RuntimeId
from vgpu_testkit.dra_tree import DraTree
from vgpu_testkit.dra_values import (
    CLAIM_UID,
    INVENTORY,
    OTHER_ID,
    PARTITION,
    POD,
    RUNTIME_ID,
    SESSION,
    h100,
)


def test_synchronize_tells_the_containers_that_run_without_a_binding(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    found = node.synchronization.synchronize(
        SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=facts), Replayed(runtime_id=OTHER_ID, facts=None)]
    )

    assert (found.unbound, found.drifted, found.released) == ((OTHER_ID,), (), ())


def test_synchronize_tells_a_limits_file_that_differs_and_does_not_repair_it(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    limits = Path(node.agent.limits(CLAIM_UID, PARTITION))
    limits.write_bytes(b"\0" * 8192)

    found = node.synchronization.synchronize(SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=facts)])

    assert found.drifted == (RUNTIME_ID,)
    assert limits.read_bytes() == b"\0" * 8192


def test_malformed_grants_mark_their_container_as_drifted(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    found = node.synchronization.synchronize(SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=None)])

    assert found.drifted == (RUNTIME_ID,)


def test_gpu_that_moved_to_another_index_is_drift(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.inventory = replace(INVENTORY, gpus=(replace(h100(5), index=0), h100(1)))

    found = node.synchronization.synchronize(SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=facts)])

    assert found.drifted == (RUNTIME_ID,)


def test_binding_of_an_earlier_session_whose_container_is_gone_is_released(
    node: DraTree, facts: ContainerFacts, start: Callable[[Assigned, RuntimeId], None]
) -> None:
    start(node.partitions.ensure(facts, session=SESSION), RUNTIME_ID)
    node.partitions.record_start(RUNTIME_ID, 41)
    node.end_container(RUNTIME_ID, POD)

    assert node.synchronization.synchronize(SESSION + 1, []).released == (RUNTIME_ID,)
    assert node.reader.partitions(CLAIM_UID) == []


def test_binding_is_not_released_while_it_may_live(
    node: DraTree, facts: ContainerFacts, start: Callable[[Assigned, RuntimeId], None]
) -> None:
    start(node.partitions.ensure(facts, session=SESSION), RUNTIME_ID)
    node.partitions.record_start(RUNTIME_ID, 41)

    assert node.synchronization.synchronize(SESSION + 1, []).released == ()  # its cgroup has processes
    node.end_container(RUNTIME_ID, POD)
    replayed = [Replayed(runtime_id=RUNTIME_ID, facts=facts)]
    assert node.synchronization.synchronize(SESSION + 1, replayed).released == ()  # the runtime has it
    assert node.synchronization.synchronize(SESSION, []).released == ()  # it is of this session


def test_synchronized_session_is_the_last_one(node: DraTree) -> None:
    assert node.partitions.synchronized_session == 0

    node.synchronization.synchronize(SESSION, [])

    assert node.partitions.synchronized_session == SESSION
