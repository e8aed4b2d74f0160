"""Partitions on a real tree, with /proc and cgroups as folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_dra.assignments import Assigned, Replayed
from vgpu_dra.claim_state import PreparedClaims
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state import vgpu_config
from vgpu_state.claims import ClaimRecord, HolderState, PodRef
from vgpu_state.errors import (
    MalformedInput,
    NotReady,
    PermissionRefused,
    PreconditionFailed,
    StorageFailed,
    Superseded,
)
from vgpu_state.ids import ContainerName, PartitionName, PodUid, RuntimeId
from vgpu_testkit import deep_cgroups
from vgpu_testkit.deep_cgroups import DeepCgroups
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import (
    CLAIM_UID,
    FACTS,
    INVENTORY,
    NEXT_RUNTIME_ID,
    PARTITION,
    POD,
    RUNTIME_ID,
    SERVER,
    SESSION,
    TRAINER,
    gpu_node,
    h100,
)

OTHER_POD = PodRef(uid=PodUid("11111111-2222-4333-8444-555555555555"), namespace="research", name="two-workers-1")
OTHER_ID = RuntimeId("c" * 64)
OTHER = PartitionName("11111111-2222-4333-8444-555555555555_train")
CONFIG = f"{CLAIM_UID}/{PARTITION}/config"


@pytest.fixture
def record(node: DraTree) -> ClaimRecord:
    """The example claim, prepared on the node."""
    claims: PreparedClaims = node.claims
    return claims.prepare(ALLOCATION, asked_at_s=1000.0)


@pytest.fixture
def facts(record: ClaimRecord) -> ContainerFacts:
    """The container `train` with the grant that Prepare gave."""
    return replace(FACTS, grants=(replace(FACTS.grants[0], nonce=record.vgpus[0].grant.nonce),))


@pytest.fixture
def other(facts: ContainerFacts) -> ContainerFacts:
    """A container of another pod that shows the same grant and has the same device."""
    return replace(facts, pod=OTHER_POD, runtime_id=OTHER_ID)


@pytest.fixture
def start(node: DraTree) -> Callable[[Assigned, RuntimeId], None]:
    """Runs the container as PIDs 41 and 42, with the mounts of an assignment."""

    def run(assigned: Assigned, runtime_id: RuntimeId) -> None:
        node.run_container(runtime_id, POD, [41, 42], mounts=node.container_mounts(assigned.mounts))

    return run


@pytest.fixture
def deep() -> Iterator[DeepCgroups]:
    with deep_cgroups.made() as deep:
        yield deep


def claims_path(node: DraTree, name: str) -> Path:
    return Path(node.agent.claims) / name


def test_ensure_makes_a_partition_with_the_containers_limits(node: DraTree, facts: ContainerFacts) -> None:
    assigned = node.partitions.ensure(facts, session=SESSION)

    assert (assigned.claim_uid, assigned.partition, assigned.is_new) == (CLAIM_UID, PARTITION, True)
    limits = vgpu_config.decode_limits(claims_path(node, f"{CONFIG}/vgpu.config").read_bytes())
    assert dict(limits.slots) == {
        5: vgpu_config.Slot(
            uuid="GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000005",
            memory_bytes=42949672960,
            real_memory_bytes=42949672960,
            cores_percent=50,
            ceiling_percent=50,
        )
    }
    assert (limits.pod_name, limits.container_name) == ("two-workers-0", "train")
    binding = node.binding()
    assert (binding.runtime_id, binding.session, binding.cgroup, binding.state) == (
        RUNTIME_ID,
        SESSION,
        "",
        HolderState.CREATED,
    )


def test_partition_has_the_modes_that_any_uid_of_the_container_can_read(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    partition = claims_path(node, f"{CLAIM_UID}/{PARTITION}")
    paths = (partition, partition / "binding.json", partition / "config", partition / "config/vgpu.config")
    assert [oct(p.stat().st_mode & 0o777) for p in paths] == ["0o711", "0o600", "0o755", "0o644"]


def test_repeated_ensure_answers_the_same_and_writes_nothing(node: DraTree, facts: ContainerFacts) -> None:
    first = node.partitions.ensure(facts, session=SESSION)
    before = node.snapshot()

    again = node.partitions.ensure(facts, session=SESSION + 1)

    assert again == replace(first, is_new=False)
    assert node.snapshot() == before


def test_restart_in_place_gets_a_fresh_directory_under_the_same_name(
    node: DraTree, facts: ContainerFacts, start: Callable[[Assigned, RuntimeId], None]
) -> None:
    first = node.partitions.ensure(facts, session=SESSION)
    start(first, RUNTIME_ID)
    node.partitions.record_start(RUNTIME_ID, 41)
    inode = claims_path(node, CONFIG).stat().st_ino

    second = node.partitions.ensure(replace(facts, runtime_id=NEXT_RUNTIME_ID), session=SESSION)

    assert (second.partition, second.mounts, second.is_new) == (first.partition, first.mounts, True)
    assert claims_path(node, CONFIG).stat().st_ino != inode
    assert [p.name for p in claims_path(node, CONFIG).iterdir()] == ["vgpu.config"]
    node.partitions.remove(RUNTIME_ID)
    assert node.binding().runtime_id == NEXT_RUNTIME_ID


def test_ensure_of_a_replaced_runtime_id_is_superseded(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.partitions.ensure(replace(facts, runtime_id=NEXT_RUNTIME_ID), session=SESSION)

    with pytest.raises(Superseded, match=r"\(9f3d6c0e4b6a\) was released; a new container is needed$"):
        node.partitions.ensure(facts, session=SESSION)
    assert node.binding().runtime_id == NEXT_RUNTIME_ID


def test_refused_container_leaves_no_partition(node: DraTree, facts: ContainerFacts) -> None:
    before = node.snapshot()

    with pytest.raises(PermissionRefused):
        node.partitions.ensure(replace(facts, devices=()), session=SESSION)
    with pytest.raises(PreconditionFailed):
        node.partitions.ensure(replace(facts, devices=(*facts.devices, gpu_node(0))), session=SESSION)

    assert node.snapshot() == before


@pytest.mark.usefixtures("record")
def test_grant_with_another_nonce_is_refused(node: DraTree) -> None:
    with pytest.raises(PermissionRefused, match="it was not given by Prepare"):
        node.partitions.ensure(FACTS, session=SESSION)


def test_disk_that_refuses_leaves_no_half_partition(
    node: DraTree, facts: ContainerFacts, full_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    before = node.files()

    with full_disk(4096), pytest.raises(StorageFailed, match=r"cannot write .*/config/vgpu\.config: EFBIG"):
        node.partitions.ensure(facts, session=SESSION)

    assert node.files() == before
    assert node.ledger.all_bindings() == []


# Exclusive


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


# Start


def test_start_records_cgroup_and_pids(
    node: DraTree, facts: ContainerFacts, start: Callable[[Assigned, RuntimeId], None]
) -> None:
    start(node.partitions.ensure(facts, session=SESSION), RUNTIME_ID)

    node.partitions.record_start(RUNTIME_ID, 41)

    assert node.binding().cgroup == f"/kubepods/burstable/pod{POD.uid}/{RUNTIME_ID}"
    assert claims_path(node, f"{CONFIG}/pids.config").read_bytes() == b"41\n42\n"


def test_repeated_start_writes_nothing(
    node: DraTree, facts: ContainerFacts, start: Callable[[Assigned, RuntimeId], None]
) -> None:
    start(node.partitions.ensure(facts, session=SESSION), RUNTIME_ID)
    node.partitions.record_start(RUNTIME_ID, 41)
    before = node.snapshot()

    node.partitions.record_start(RUNTIME_ID, 41)

    assert node.snapshot() == before


def test_start_of_a_container_without_a_partition_is_refused(node: DraTree) -> None:
    with pytest.raises(PermissionRefused) as refusal:
        node.partitions.record_start(RUNTIME_ID, 41)

    assert str(refusal.value) == (
        "container 9f3d6c0e4b6a has no partition: it was created while nri-plugin was away, or has been released"
    )


def test_start_of_a_stopped_container_is_superseded(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.partitions.stop(RUNTIME_ID)

    with pytest.raises(Superseded) as refusal:
        node.partitions.record_start(RUNTIME_ID, 41)

    assert str(refusal.value) == "container train of pod research/two-workers-0 was stopped; it cannot start again"


def test_process_outside_the_containers_cgroup_is_refused(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.run_container(OTHER_ID, POD, [43])

    for pid in (43, 99):
        with pytest.raises(PermissionRefused, match=rf"process {pid} is not in the container's cgroup but in "):
            node.partitions.record_start(RUNTIME_ID, pid)


def test_process_in_another_pods_cgroup_is_refused(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.run_container(RUNTIME_ID, OTHER_POD, [43])

    with pytest.raises(PermissionRefused) as refusal:
        node.partitions.record_start(RUNTIME_ID, 43)

    assert str(refusal.value) == (
        f"container train of pod research/two-workers-0: process 43 runs in pod {OTHER_POD.uid}, the binding says {POD.uid}"
    )


def test_start_with_another_mount_table_is_refused_and_records_nothing(node: DraTree, facts: ContainerFacts) -> None:
    assigned = node.partitions.ensure(facts, session=SESSION)
    mounts = [m for m in node.container_mounts(assigned.mounts) if m.destination != "/tmp/.vgpu_lock"]
    node.run_container(RUNTIME_ID, POD, [41], mounts=mounts)

    with pytest.raises(PreconditionFailed, match=re.escape("/tmp/.vgpu_lock does not show what we mounted there")):
        node.partitions.record_start(RUNTIME_ID, 41)
    assert node.binding().cgroup == ""
    assert not claims_path(node, f"{CONFIG}/pids.config").exists()


# PIDs


def test_recorded_pids_replace_the_list(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    assert node.partitions.record_pids(CLAIM_UID, PARTITION, RUNTIME_ID, [7, 3]) is True
    assert claims_path(node, f"{CONFIG}/pids.config").read_bytes() == b"3\n7\n"
    before = node.snapshot()
    assert node.partitions.record_pids(CLAIM_UID, PARTITION, RUNTIME_ID, [3, 7]) is False
    assert node.snapshot() == before


def test_list_is_renamed_into_the_mounted_directory(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    config = claims_path(node, CONFIG).stat().st_ino

    node.partitions.record_pids(CLAIM_UID, PARTITION, RUNTIME_ID, [3])
    first = claims_path(node, f"{CONFIG}/pids.config").stat().st_ino
    node.partitions.record_pids(CLAIM_UID, PARTITION, RUNTIME_ID, [4])

    assert claims_path(node, CONFIG).stat().st_ino == config
    assert claims_path(node, f"{CONFIG}/pids.config").stat().st_ino != first
    assert sorted(p.name for p in claims_path(node, CONFIG).iterdir()) == ["pids.config", "vgpu.config"]


@pytest.mark.parametrize("runtime_id", [NEXT_RUNTIME_ID, RUNTIME_ID])
def test_pids_of_who_does_not_hold_the_partition_are_refused(node: DraTree, facts: ContainerFacts, runtime_id: RuntimeId) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.partitions.stop(RUNTIME_ID)

    with pytest.raises(Superseded) as refusal:
        node.partitions.record_pids(CLAIM_UID, PARTITION, runtime_id, [3])

    assert str(refusal.value) == (
        f"partition {PARTITION} of claim {CLAIM_UID} is not held by container {runtime_id[:12]} any more"
    )


def test_list_that_the_library_cannot_use_is_refused(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    with pytest.raises(MalformedInput, match="a PID list is empty"):
        node.partitions.record_pids(CLAIM_UID, PARTITION, RUNTIME_ID, [])


# Release


def test_stop_frees_the_request_and_keeps_the_directory(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    node.partitions.stop(RUNTIME_ID)
    node.partitions.stop(RUNTIME_ID)

    assert node.binding().state is HolderState.STOPPED
    assert claims_path(node, f"{CONFIG}/vgpu.config").exists()


def test_remove_throws_the_directory_away(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    node.partitions.remove(RUNTIME_ID)
    node.partitions.remove(RUNTIME_ID)

    assert node.reader.partitions(CLAIM_UID) == []
    assert node.ledger.all_bindings() == []
    assert len(list(Path(node.agent.trash).iterdir())) == 1


def test_release_of_an_unknown_id_succeeds_and_its_late_ensure_does_not(node: DraTree, facts: ContainerFacts) -> None:
    """The runtime sends both after a create that was refused."""
    node.partitions.stop(RUNTIME_ID)
    node.partitions.remove(RUNTIME_ID)

    with pytest.raises(Superseded) as refusal:
        node.partitions.ensure(facts, session=SESSION)

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0 (9f3d6c0e4b6a) was released; a new container is needed"
    )
    assert node.reader.partitions(CLAIM_UID) == []


def test_released_id_is_forgotten_after_ten_minutes(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.remove(RUNTIME_ID)

    node.now_s += 600
    with pytest.raises(Superseded):
        node.partitions.ensure(facts, session=SESSION)
    node.now_s += 1
    assert node.partitions.ensure(facts, session=SESSION).is_new


# Synchronize


def test_synchronize_tells_the_containers_that_run_without_a_binding(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)

    found = node.synchronization.synchronize(
        SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=facts), Replayed(runtime_id=OTHER_ID, facts=None)]
    )

    assert (found.unbound, found.drifted, found.released) == ((OTHER_ID,), (), ())


def test_synchronize_tells_a_limits_file_that_differs_and_does_not_repair_it(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    limits = claims_path(node, f"{CONFIG}/vgpu.config")
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


def test_container_with_both_requests_is_limited_on_both_gpus(node: DraTree, facts: ContainerFacts, record: ClaimRecord) -> None:
    server = replace(facts.grants[0], key=SERVER.grant.key, request=SERVER.request, nonce=record.vgpus[1].grant.nonce)
    both = replace(
        facts,
        name=ContainerName("all"),
        grants=(*facts.grants, server),
        devices=(*facts.devices, gpu_node(1)),
    )

    node.partitions.ensure(both, session=SESSION)

    limits = claims_path(node, f"{CLAIM_UID}/{POD.uid}_all/config/vgpu.config").read_bytes()
    assert sorted(vgpu_config.decode_limits(limits).slots) == [1, 5]
    assert node.binding().grants == (TRAINER.grant.key, SERVER.grant.key)


def test_container_of_a_quarantined_claim_is_told_so(node: DraTree, facts: ContainerFacts) -> None:
    node.ledger.drop_claim(CLAIM_UID, now_s=0.0)
    node.ledger.quarantined[CLAIM_UID] = "its checksum does not fit"

    with pytest.raises(PreconditionFailed) as refusal:
        node.partitions.ensure(facts, session=SESSION)

    assert str(refusal.value).endswith(
        f": claim {CLAIM_UID} is quarantined (its checksum does not fit); delete its pods to unprepare it"
    )
