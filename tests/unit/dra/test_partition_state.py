"""Partitions made, started, listed and released, on a real tree, with /proc and cgroups as folders."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_dra.assignments import Assigned
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state import vgpu_config
from vgpu_state.claims import ClaimRecord, HolderState
from vgpu_state.errors import (
    MalformedInput,
    PermissionRefused,
    PreconditionFailed,
    StorageFailed,
    Superseded,
)
from vgpu_state.ids import ContainerName, RuntimeId
from vgpu_testkit.dra_tree import DraTree
from vgpu_testkit.dra_values import (
    CLAIM_UID,
    FACTS,
    NEXT_RUNTIME_ID,
    OTHER_ID,
    OTHER_POD,
    PARTITION,
    POD,
    RUNTIME_ID,
    SERVER,
    SESSION,
    TRAINER,
    gpu_node,
)

CONFIG = f"{CLAIM_UID}/{PARTITION}/config"


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
