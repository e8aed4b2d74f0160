"""What nri-plugin says while something else is under way, or could not say at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_daemon.procfs import Procfs
from vgpu_dra.assignments import Replayed
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state.claims import Binding
from vgpu_state.errors import Superseded
from vgpu_state.ids import ClaimUid, PartitionName, RuntimeId
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import CLAIM_UID, FACTS, NEXT_RUNTIME_ID, PARTITION, POD, RUNTIME_ID, SESSION


class InterruptedTree(ClaimsTree):
    """The tree, where something happens just before a partition is made."""

    meanwhile: Callable[[], None]

    def make_partition(self, uid: ClaimUid, name: PartitionName, *, limits: bytes | None, binding: Binding | None) -> None:
        self.meanwhile()
        super().make_partition(uid, name, limits=limits, binding=binding)


class AskedProcfs(Procfs):
    """/proc and the cgroups, which keep whose processes were asked for."""

    asked: list[RuntimeId]

    def has_processes(self, path: str, container_id: RuntimeId) -> bool:
        self.asked.append(container_id)
        return super().has_processes(path, container_id)


@pytest.fixture
def facts(node: DraTree) -> ContainerFacts:
    """The container `train` of a prepared claim."""
    record = node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    return replace(FACTS, grants=(replace(FACTS.grants[0], nonce=record.vgpus[0].grant.nonce),))


def test_release_during_ensure_leaves_no_partition(node: DraTree, facts: ContainerFacts) -> None:
    """nri-plugin's deadline passed while the disk was slow: the runtime has undone the create before Ensure is through."""
    tree = InterruptedTree(node.agent, node.cdi_dir)
    partitions = node.partitions_on(tree)

    def undo() -> None:
        partitions.stop(RUNTIME_ID)
        partitions.remove(RUNTIME_ID)

    tree.meanwhile = undo

    with pytest.raises(Superseded, match="was released while its partition was being made"):
        partitions.ensure(facts, session=SESSION)
    assert node.reader.partitions(CLAIM_UID) == []
    assert node.ledger.all_bindings() == []


def test_start_that_nri_plugin_missed_is_recorded_at_synchronize(node: DraTree, facts: ContainerFacts) -> None:
    """The runtime starts a container without asking while no plugin is connected."""
    assigned = node.partitions.ensure(facts, session=SESSION)
    node.run_container(RUNTIME_ID, POD, [41, 42], mounts=node.container_mounts(assigned.mounts))

    found = node.synchronization.synchronize(SESSION + 1, [Replayed(runtime_id=RUNTIME_ID, facts=facts, pid=41)])

    assert (found.unbound, found.drifted, found.released) == ((), (), ())
    assert node.binding().is_started
    pids = Path(node.agent.pids(CLAIM_UID, PARTITION))
    assert pids.read_bytes() == b"41\n42\n"


def test_missed_start_that_cannot_be_recorded_is_drift(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    node.run_container(RUNTIME_ID, POD, [41])  # none of our mounts

    found = node.synchronization.synchronize(SESSION + 1, [Replayed(runtime_id=RUNTIME_ID, facts=facts, pid=41)])

    assert found.drifted == (RUNTIME_ID,)
    assert not node.binding().is_started


def test_containers_that_have_no_process_yet_are_left_alone_at_synchronize(node: DraTree, facts: ContainerFacts) -> None:
    node.partitions.ensure(facts, session=SESSION)
    before = node.snapshot()

    replayed = [Replayed(runtime_id=RUNTIME_ID, facts=facts), Replayed(runtime_id=NEXT_RUNTIME_ID, facts=facts, pid=43)]
    found = node.synchronization.synchronize(SESSION + 1, replayed)

    assert (found.unbound, found.drifted) == ((NEXT_RUNTIME_ID,), ())
    assert node.snapshot() == before


def test_restart_in_place_does_not_ask_for_the_processes_of_its_predecessor(node: DraTree, facts: ContainerFacts) -> None:
    """Those may be many cgroups, and the partition changes hands whatever is in them."""
    procfs = AskedProcfs(proc_root=node.proc, cgroup_root=node.cgroups)
    procfs.asked = []
    partitions = node.partitions_on(node.tree, procfs)
    partitions.ensure(facts, session=SESSION)
    node.now_s += 500

    partitions.ensure(replace(facts, runtime_id=NEXT_RUNTIME_ID), session=SESSION)

    assert procfs.asked == []
