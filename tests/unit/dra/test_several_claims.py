"""A container with shares of two claims, through NRI: one partition, in the lowest claim; the other refers to it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_dra import startup
from vgpu_dra.allocation import Allocation
from vgpu_dra.assignments import Assigned, Replayed
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_dra.ledger import Ledger
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state import vgpu_config
from vgpu_state.claims import Binding, ClaimRecord, ClaimRef, ComputePolicy, HolderState
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.errors import PermissionRefused, PreconditionFailed, StorageFailed, Superseded
from vgpu_state.ids import ClaimUid, PartitionName, RuntimeId
from vgpu_testkit.dra_assigned import EAGER, assigned, consumer, shown
from vgpu_testkit.dra_tree import ALLOCATION, DraTree, allocated
from vgpu_testkit.dra_values import BOOT_ID, CLAIM_UID, GIB, NEXT_RUNTIME_ID, PARTITION, POD, RUNTIME_ID, SESSION, TRAINER

HIGHER = ClaimRef(namespace="research", name="more", uid=ClaimUid("9a0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"))
# More of the trainer's GPU.
MORE = Allocation(
    claim=HIGHER,
    results=(replace(allocated(TRAINER), cores_percent=30, memory_bytes=8 * GIB),),
    policy=ComputePolicy.BALANCE,
)
OTHER_ID = RuntimeId("c" * 64)


@pytest.fixture
def records(node: DraTree) -> tuple[ClaimRecord, ClaimRecord]:
    node.synchronization.synchronize(SESSION, [])
    return node.claims.prepare(ALLOCATION, asked_at_s=1000.0), node.claims.prepare(MORE, asked_at_s=1000.0)


@pytest.fixture
def facts(records: tuple[ClaimRecord, ClaimRecord]) -> ContainerFacts:
    """The container `train` with the trainer's share and the other claim's."""
    return both(records)


def both(records: tuple[ClaimRecord, ClaimRecord], runtime_id: RuntimeId = RUNTIME_ID, *, name: str = "train") -> ContainerFacts:
    given = shown(*records, name=name, runtime_id=runtime_id, requests=("trainer",))
    return replace(given, devices=tuple(dict.fromkeys(given.devices)))


def ensure(node: DraTree, facts: ContainerFacts) -> Assigned:
    return node.partitions.ensure(facts, session=SESSION)


def run(node: DraTree, facts: ContainerFacts) -> Assigned:
    answer = ensure(node, facts)
    node.run_container(facts.runtime_id, POD, [41], mounts=node.container_mounts(answer.mounts))
    node.partitions.record_start(facts.runtime_id, 41)
    return answer


def bindings(node: DraTree) -> dict[ClaimUid, Binding | None]:
    """By claim, from the disk."""
    return {uid: node.reader.binding(uid, name) for uid in node.reader.claim_uids() for name in node.reader.partitions(uid)}


def test_limits_are_merged_in_the_partition_of_the_lowest_claim(node: DraTree, facts: ContainerFacts) -> None:
    answer = ensure(node, facts)

    assert (answer.claim_uid, answer.partition) == (CLAIM_UID, PARTITION)
    limits = vgpu_config.decode_limits(Path(node.agent.limits(CLAIM_UID, PARTITION)).read_bytes())
    # Fixed before balance: the strictest policy of the claims on this GPU.
    assert {i: (s.memory_bytes, s.cores_percent, s.ceiling_percent) for i, s in limits.slots.items()} == {5: (48 * GIB, 80, 80)}
    assert sorted(p.name for p in Path(node.agent.partition(HIGHER.uid, PARTITION)).iterdir()) == ["binding.json"]


def test_both_claims_say_who_holds_them_and_one_where(node: DraTree, facts: ContainerFacts) -> None:
    run(node, facts)

    home, reference = bindings(node).values()
    assert home is not None
    assert reference is not None
    assert (home.home, reference.home) == (None, CLAIM_UID)
    assert {home.runtime_id, reference.runtime_id} == {RUNTIME_ID}
    assert home.is_started
    assert reference.cgroup == home.cgroup


def test_one_binding_and_one_container_of_both_claims_is_not_a_conflict(node: DraTree, facts: ContainerFacts) -> None:
    run(node, facts)

    assert node.ledger.conflicts() == 0


def test_repeated_ensure_writes_nothing(node: DraTree, facts: ContainerFacts) -> None:
    first = ensure(node, facts)
    before = node.snapshot()

    assert ensure(node, facts) == replace(first, is_new=False)
    assert node.snapshot() == before


@pytest.mark.parametrize("index", [0, 1])
def test_request_of_either_claim_is_taken(node: DraTree, records: tuple[ClaimRecord, ClaimRecord], index: int) -> None:
    run(node, both(records))
    one = shown(records[index], name="other", runtime_id=OTHER_ID, requests=("trainer",))

    with pytest.raises(PreconditionFailed, match="which container train of pod research/two-workers-0 holds"):
        ensure(node, one)


@pytest.mark.parametrize("index", [0, 1])
def test_container_of_both_is_refused_where_one_request_is_taken(
    node: DraTree, records: tuple[ClaimRecord, ClaimRecord], index: int
) -> None:
    ensure(node, shown(records[index], name="other", runtime_id=OTHER_ID, requests=("trainer",)))
    before = node.files()

    with pytest.raises(PreconditionFailed, match="which container other of pod research/two-workers-0 holds"):
        ensure(node, both(records))
    assert node.files() == before


def test_stop_frees_both_and_removal_leaves_nothing(
    node: DraTree, records: tuple[ClaimRecord, ClaimRecord], facts: ContainerFacts
) -> None:
    run(node, facts)

    node.partitions.stop(RUNTIME_ID)
    assert {b.state for b in bindings(node).values() if b} == {HolderState.STOPPED}
    assert ensure(node, shown(records[1], name="other", runtime_id=OTHER_ID, requests=("trainer",))).is_new
    node.partitions.remove(RUNTIME_ID)

    assert [b and b.runtime_id for b in bindings(node).values()] == [OTHER_ID]
    assert node.ledger.find(RUNTIME_ID) is None


def test_restart_in_place_takes_over_in_both(
    node: DraTree, records: tuple[ClaimRecord, ClaimRecord], facts: ContainerFacts
) -> None:
    run(node, facts)

    ensure(node, both(records, NEXT_RUNTIME_ID))

    assert {b.runtime_id for b in bindings(node).values() if b} == {NEXT_RUNTIME_ID}
    with pytest.raises(Superseded):
        ensure(node, facts)


def test_successor_of_the_process_finds_the_same(node: DraTree, facts: ContainerFacts) -> None:
    run(node, facts)
    ledger = Ledger()

    startup.recover(node.tree, node.reader, ledger, boot_id=BOOT_ID, clock=lambda: node.now_s)

    held = ledger.find(RUNTIME_ID)
    assert held is not None
    assert (held.uid, held.name, held.further) == (CLAIM_UID, PARTITION, (HIGHER.uid,))


def test_reference_that_a_crash_left_without_a_home_goes_with_its_container(node: DraTree, facts: ContainerFacts) -> None:
    run(node, facts)
    node.tree.discard_partition(CLAIM_UID, PARTITION)
    ledger = node.ledger = Ledger()
    startup.recover(node.tree, node.reader, ledger, boot_id=BOOT_ID, clock=lambda: node.now_s)
    assert [uid for uid, _, _ in ledger.all_bindings()] == [HIGHER.uid]

    node.partitions_on(node.tree).remove(RUNTIME_ID)

    assert ledger.all_bindings() == []
    assert bindings(node) == {}


def test_limits_that_fit_both_claims_are_no_drift(node: DraTree, facts: ContainerFacts) -> None:
    run(node, facts)

    found = node.synchronization.synchronize(SESSION + 1, [Replayed(runtime_id=RUNTIME_ID, facts=facts, pid=41)])

    assert (found.unbound, found.drifted, found.released) == ((), (), ())


def test_container_that_is_gone_is_released_in_both_once(node: DraTree, facts: ContainerFacts) -> None:
    run(node, facts)
    node.end_container(RUNTIME_ID, POD)

    assert node.synchronization.synchronize(SESSION + 1, []).released == (RUNTIME_ID,)
    assert bindings(node) == {}


def test_unprepare_of_either_waits_for_the_container(node: DraTree, facts: ContainerFacts) -> None:
    run(node, facts)
    node.end_container(RUNTIME_ID, POD)

    node.claims.unprepare(CLAIM_UID)
    node.claims.unprepare(HIGHER.uid)

    assert node.files() == []
    assert node.ledger.all_bindings() == []


def test_forged_grant_of_one_claim_gives_nothing_of_the_other(
    node: DraTree, records: tuple[ClaimRecord, ClaimRecord], facts: ContainerFacts
) -> None:
    mine, forged = facts.grants
    before = node.files()

    with pytest.raises(PermissionRefused, match="is unknown; it was not given by Prepare"):
        ensure(node, replace(facts, grants=(mine, replace(forged, nonce=mine.nonce))))
    assert node.files() == before
    assert ensure(node, shown(records[0], name="train", runtime_id=RUNTIME_ID, requests=("trainer",))).is_new


def test_claims_prepared_in_different_ways_are_refused_together(node: DraTree) -> None:
    one = node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    other = node.claims.prepare(MORE, asked_at_s=1000.0, assignment=assigned(EAGER, consumer("train", "trainer")))

    with pytest.raises(PreconditionFailed) as refusal:
        ensure(node, both((one, other)))

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0 has shares of claims that were prepared in different ways, with NRI and "
        f"without: {one.claim} (lazy), {other.claim} (eager); delete the pod, so that they are prepared anew"
    )


def test_claims_whose_processes_are_told_apart_differently_are_refused_together(node: DraTree) -> None:
    one = node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    node.node.rules = replace(node.node.rules, compatibility=CompatibilityMode.CGROUP_V2)
    other = node.claims.prepare(MORE, asked_at_s=1000.0)

    with pytest.raises(PreconditionFailed) as refusal:
        ensure(node, both((one, other)))

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0 has shares of claims whose processes the library tells apart in different "
        "ways, since the feature gate DevicePluginClientMode or the node's cgroups changed between their Prepares: "
        f"{one.claim} (mode 236), {other.claim} (mode 102); delete the pods of the older one, so that it is prepared anew"
    )


def test_start_of_which_only_the_reference_was_written_is_recorded_later(node: DraTree, facts: ContainerFacts) -> None:
    class FullDisk(ClaimsTree):
        def write_pids(self, uid: ClaimUid, name: PartitionName, pids: bytes) -> bool:
            raise StorageFailed(action="write", path=str(node.agent.pids(uid, name)), error=OSError(errno.ENOSPC, "full"))

    answer = ensure(node, facts)
    node.run_container(RUNTIME_ID, POD, [41], mounts=node.container_mounts(answer.mounts))
    with pytest.raises(StorageFailed):
        node.partitions_on(FullDisk(node.agent, node.cdi_dir)).record_start(RUNTIME_ID, 41)

    found = node.synchronization.synchronize(SESSION + 1, [Replayed(runtime_id=RUNTIME_ID, facts=facts, pid=41)])

    assert (found.unbound, found.drifted, found.released) == ((), (), ())
    assert [b is not None and b.is_started for b in bindings(node).values()] == [True, True]


def test_disk_that_fills_up_half_way_leaves_neither_partition(
    node: DraTree, facts: ContainerFacts, full_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    before = node.files()

    with full_disk(4096), pytest.raises(StorageFailed, match=r"cannot write .*/config/vgpu\.config: EFBIG"):
        ensure(node, facts)

    assert node.files() == before
    assert node.ledger.all_bindings() == []
    assert ensure(node, facts).is_new


def test_two_containers_with_the_same_claims_in_any_order_do_not_wait_for_each_other(
    node: DraTree, records: tuple[ClaimRecord, ClaimRecord]
) -> None:
    """Claims are held in one order. Two threads, many rounds: one of both gets the requests each time."""

    def attempt(facts: ContainerFacts) -> bool:
        try:
            return ensure(node, facts).is_new
        except PreconditionFailed:
            return False

    with ThreadPoolExecutor(2) as pool:
        for number in range(50):
            ids = [RuntimeId(f"{2 * number + i:064x}") for i in (0, 1)]
            one, other = both(records, ids[0], name="one"), both((records[1], records[0]), ids[1], name="two")
            assert sorted(pool.map(attempt, [one, other], timeout=20)) == [False, True]
            for runtime_id in ids:
                node.partitions.remove(runtime_id)
