"""What holds of a container's partition in whichever way its claim is prepared: one suite for both assigners."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpu_dra.assignments import Assigned, Replayed
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state import vgpu_config
from vgpu_state.claims import ClaimRecord, ContainerKind
from vgpu_state.errors import PreconditionFailed, Superseded
from vgpu_state.ids import RuntimeId
from vgpu_testkit.dra_assigned import LAZY, WAYS, assigned, consumer, shown
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import CLAIM_UID, NEXT_RUNTIME_ID, POD, RUNTIME_ID, SESSION

OTHER_ID = RuntimeId("c" * 64)
TRAIN = consumer("train", "trainer")
BOTH = consumer("all", None)
WARM = consumer("warm", "trainer", kind=ContainerKind.INIT)

pytestmark = pytest.mark.parametrize("way", WAYS)


@pytest.fixture
def record(node: DraTree, way: str, request: pytest.FixtureRequest) -> ClaimRecord:
    """The example claim, prepared in one way for a pod of these containers."""
    node.synchronization.synchronize(SESSION, [])
    consumers = getattr(request, "param", (TRAIN,))
    return node.claims.prepare(ALLOCATION, asked_at_s=1000.0, assignment=assigned(way, *consumers))


@pytest.fixture
def train(record: ClaimRecord) -> ContainerFacts:
    return shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))


def ensure(node: DraTree, facts: ContainerFacts) -> Assigned:
    return node.partitions.ensure(facts, session=SESSION)


def started(node: DraTree, facts: ContainerFacts, pids: list[int]) -> Assigned:
    """The container's partition; it runs with the mounts that CDI and the assignment give."""
    answer = ensure(node, facts)
    mounts = {m.destination: m for m in (*facts.mounts, *answer.mounts)}
    node.run_container(facts.runtime_id, facts.pod, pids, mounts=mounts.values())
    node.partitions.record_start(facts.runtime_id, pids[0])
    return answer


def seen_limits(facts: ContainerFacts, answer: Assigned, node: DraTree) -> vgpu_config.Limits:
    """What the container finds at the limits file's place."""
    mounts = {m.destination: m.source for m in (*facts.mounts, *answer.mounts)}
    return vgpu_config.decode_limits(
        (Path(node.node.agent_path(mounts["/etc/vgpu-manager/config"])) / "vgpu.config").read_bytes()
    )


def test_container_finds_its_limits(node: DraTree, train: ContainerFacts) -> None:
    limits = seen_limits(train, ensure(node, train), node)

    assert {i: (s.memory_bytes, s.cores_percent) for i, s in limits.slots.items()} == {5: (42949672960, 50)}
    assert (limits.pod_name, limits.container_name) == ("two-workers-0", "train")


def test_every_destination_of_ours_is_mounted_once_and_the_library_is_told_who_it_is(
    node: DraTree, train: ContainerFacts
) -> None:
    answer = ensure(node, train)

    given = {m.destination for m in train.mounts} | {m.destination for m in answer.mounts}
    assert {"/etc/vgpu-manager/config", "/tmp/.vgpu_lock", "/tmp/.vmem_node", "/tmp/.sm_node"} <= given
    assert len({m.destination for m in answer.mounts}) == len(answer.mounts)


@pytest.mark.parametrize("record", [(BOTH,)], indirect=True)
def test_container_with_several_requests_has_one_partition_with_every_limit(node: DraTree, record: ClaimRecord) -> None:
    """The collision: without care both devices mount a config of their own at one path, and one limit is lost."""
    facts = shown(record, name="all", runtime_id=RUNTIME_ID)

    answer = started(node, facts, [41])

    assert sorted(seen_limits(facts, answer, node).slots) == [1, 5]
    assert node.reader.partitions(CLAIM_UID) == [answer.partition]
    configs = [m for m in (*facts.mounts, *answer.mounts) if m.destination == "/etc/vgpu-manager/config"]
    assert configs[-1].source.endswith(f"{answer.partition}/config")


def test_repeated_ensure_answers_the_same_and_writes_nothing(node: DraTree, train: ContainerFacts) -> None:
    first = ensure(node, train)
    before = node.snapshot()

    again = ensure(node, train)

    assert (again.partition, again.mounts, again.env, again.is_new) == (first.partition, first.mounts, first.env, False)
    assert node.snapshot() == before


def test_second_live_container_is_refused_with_both_names(node: DraTree, record: ClaimRecord, train: ContainerFacts) -> None:
    started(node, train, [41])
    second = shown(record, name="other", runtime_id=OTHER_ID, requests=("trainer",))

    with pytest.raises(PreconditionFailed) as refusal:
        ensure(node, second)

    assert "container other of pod research/two-workers-0" in str(refusal.value)
    assert "train of pod research/two-workers-0" in str(refusal.value)


@pytest.mark.parametrize("record", [(WARM, TRAIN)], indirect=True)
def test_init_container_and_app_container_take_turns_on_one_request(
    node: DraTree, record: ClaimRecord, train: ContainerFacts
) -> None:
    warm = shown(record, name="warm", runtime_id=OTHER_ID, requests=("trainer",))
    started(node, warm, [40])

    with pytest.raises(PreconditionFailed, match="which container warm of pod research/two-workers-0 holds"):
        ensure(node, train)
    node.partitions.stop(OTHER_ID)
    answer = started(node, train, [41])

    assert sorted(seen_limits(train, answer, node).slots) == [5]
    node.partitions.remove(OTHER_ID)  # late, and of another container by now
    bindings = {n: b.runtime_id for uid, n, b in node.ledger.all_bindings()}
    assert bindings == {answer.partition: RUNTIME_ID}


def test_dead_holder_whose_stop_was_lost_gives_way(node: DraTree, record: ClaimRecord, train: ContainerFacts, way: str) -> None:
    started(node, train, [41])
    node.end_container(RUNTIME_ID, POD)
    name = "other" if way == LAZY else "train"

    answer = ensure(node, shown(record, name=name, runtime_id=NEXT_RUNTIME_ID, requests=("trainer",)))

    assert answer.is_new


def test_restart_in_place_takes_over_with_no_process_of_its_predecessor_listed(
    node: DraTree, record: ClaimRecord, train: ContainerFacts
) -> None:
    started(node, train, [41])

    answer = started(node, shown(record, name="train", runtime_id=NEXT_RUNTIME_ID, requests=("trainer",)), [51])

    pids = Path(node.agent.pids(CLAIM_UID, answer.partition)).read_bytes()
    assert pids == b"51\n"
    with pytest.raises(Superseded):
        ensure(node, train)


def test_removed_container_leaves_no_binding_and_no_process_list(node: DraTree, train: ContainerFacts) -> None:
    started(node, train, [41])

    node.partitions.stop(RUNTIME_ID)
    node.partitions.remove(RUNTIME_ID)

    assert node.ledger.all_bindings() == []
    assert not [p for p in node.files() if p.endswith(("binding.json", "pids.config"))]


def test_unprepared_claim_leaves_nothing(node: DraTree, train: ContainerFacts) -> None:
    started(node, train, [41])
    node.partitions.stop(RUNTIME_ID)
    node.partitions.remove(RUNTIME_ID)
    node.end_container(RUNTIME_ID, POD)

    node.claims.unprepare(CLAIM_UID)

    assert node.files() == []


def test_limits_that_somebody_changed_are_drift(node: DraTree, train: ContainerFacts) -> None:
    answer = started(node, train, [41])
    assert not node.synchronization.has_drifted(_replayed(train))

    Path(node.agent.limits(CLAIM_UID, answer.partition)).write_bytes(b"\0" * 8192)

    assert node.synchronization.has_drifted(_replayed(train))


def _replayed(facts: ContainerFacts) -> Replayed:
    return Replayed(runtime_id=facts.runtime_id, facts=facts)
