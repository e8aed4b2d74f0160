"""Who may take a partition by registering: by the kernel's word, one at a time, and with our files before its eyes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_dra.assignments import Registrant, Replayed
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_state.claims import ClaimRecord, ContainerKind, HolderState
from vgpu_state.container_abi import LIBRARY
from vgpu_state.errors import NotReady, PermissionRefused, PreconditionFailed, Superseded
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, PodUid, RegisterUuid, RuntimeId
from vgpu_testkit.dra_assigned import EAGER, assigned, consumer, shown
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import CLAIM_UID, NEXT_RUNTIME_ID, POD, RUNTIME_ID, SERVE_PARTITION, SESSION, TRAIN_PARTITION

TRAIN = consumer("train", "trainer")
WARM, SERVE = consumer("warm", "server", kind=ContainerKind.INIT), consumer("serve", "server")
OTHER_POD = replace(POD, uid=PodUid("11111111-2222-4333-8444-555555555555"), name="attacker")
CALLER = Registrant(runtime_id=RUNTIME_ID, pod_uid=POD.uid, pid=41, container=ContainerName("train"))
UNNAMED = ContainerName("")


@pytest.fixture
def record(node: DraTree) -> ClaimRecord:
    return node.claims.prepare(ALLOCATION, asked_at_s=1000.0, assignment=assigned(EAGER, TRAIN, WARM, SERVE))


def uuid_of(record: ClaimRecord, name: PartitionName) -> RegisterUuid:
    assert record.eager is not None
    (found,) = [p.register_uuid for p in record.eager.partitions if p.name == name]
    assert found is not None
    return found


def run(
    node: DraTree, record: ClaimRecord, request: str, runtime_id: RuntimeId = RUNTIME_ID, *, pids: tuple[int, ...] = (41,)
) -> None:
    facts = shown(record, name="any", runtime_id=runtime_id, requests=(request,))
    node.run_container(runtime_id, POD, pids, mounts=facts.mounts)


def test_first_registration_binds_the_partition(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer", pids=(41, 42))

    place = node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)

    assert place == (CLAIM_UID, TRAIN_PARTITION.name)
    binding = node.reader.binding(*place)
    assert binding is not None
    assert (binding.runtime_id, binding.container, binding.pod, binding.state) == (RUNTIME_ID, "train", POD, HolderState.CREATED)
    assert binding.cgroup == f"/kubepods/burstable/pod{POD.uid}/{RUNTIME_ID}"
    assert Path(node.agent.pids(*place)).read_bytes() == b"41\n42\n"


def test_repeated_registration_writes_nothing(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")
    first = node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)
    before = node.snapshot()

    assert node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER) == first
    assert node.snapshot() == before


def test_second_live_container_is_refused_with_both_names(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "server")
    warm = replace(CALLER, container=ContainerName("warm"))
    node.eager_bindings.bind(uuid_of(record, SERVE_PARTITION.name), warm)
    run(node, record, "server", NEXT_RUNTIME_ID, pids=(51,))
    serve = Registrant(runtime_id=NEXT_RUNTIME_ID, pod_uid=POD.uid, pid=51, container=ContainerName("serve"))

    with pytest.raises(PreconditionFailed) as refusal:
        node.eager_bindings.bind(uuid_of(record, SERVE_PARTITION.name), serve)

    assert str(refusal.value) == (
        "container serve of pod research/two-workers-0 registers for requests server of claim research/two-workers "
        "(3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10), which container warm of pod research/two-workers-0 holds; one live container "
        "may hold a vGPU request"
    )


def test_app_container_follows_the_init_container_that_has_ended(node: DraTree, record: ClaimRecord) -> None:
    """Nobody tells of ends without NRI: the cgroup does."""
    run(node, record, "server")
    node.eager_bindings.bind(uuid_of(record, SERVE_PARTITION.name), replace(CALLER, container=UNNAMED))
    node.end_container(RUNTIME_ID, POD)
    run(node, record, "server", NEXT_RUNTIME_ID, pids=(51,))

    place = node.eager_bindings.bind(
        uuid_of(record, SERVE_PARTITION.name), Registrant(runtime_id=NEXT_RUNTIME_ID, pod_uid=POD.uid, pid=51, container=UNNAMED)
    )

    binding = node.reader.binding(*place)
    assert binding is not None
    assert (binding.runtime_id, binding.container, str(binding)) == (
        NEXT_RUNTIME_ID,
        "",
        "a container (aaaaaaaaaaaa) of pod research/two-workers-0",
    )
    assert Path(node.agent.pids(*place)).read_bytes() == b"51\n"


def test_container_of_another_pod_with_a_copied_uuid_is_refused(node: DraTree, record: ClaimRecord) -> None:
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))
    node.run_container(RUNTIME_ID, OTHER_POD, [41], mounts=facts.mounts)
    before = node.snapshot()

    with pytest.raises(PermissionRefused) as refusal:
        node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), replace(CALLER, pod_uid=OTHER_POD.uid))

    assert str(refusal.value) == (
        f"container train (9f3d6c0e4b6a) of pod {OTHER_POD.uid} registers for the partition of train of pod "
        f"research/two-workers-0 ({POD.uid}) of claim research/two-workers ({CLAIM_UID}): it is another's"
    )
    assert node.snapshot() == before


def test_pod_is_the_kernels_word(node: DraTree, record: ClaimRecord) -> None:
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))
    node.run_container(RUNTIME_ID, OTHER_POD, [41], mounts=facts.mounts)

    with pytest.raises(PermissionRefused, match=rf"process 41 runs in pod {OTHER_POD.uid}, the binding says {POD.uid}$"):
        node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)


def test_container_of_the_pod_that_has_no_such_request_is_refused(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")

    with pytest.raises(PermissionRefused, match="registers for the partition of serve, warm of pod"):
        node.eager_bindings.bind(uuid_of(record, SERVE_PARTITION.name), CALLER)


def test_container_that_does_not_say_who_it_is_must_see_the_partition_that_it_registers_for(
    node: DraTree, record: ClaimRecord
) -> None:
    run(node, record, "trainer")

    with pytest.raises(PreconditionFailed, match="/etc/vgpu-manager/config does not show what we mounted there"):
        node.eager_bindings.bind(uuid_of(record, SERVE_PARTITION.name), replace(CALLER, container=UNNAMED))
    assert node.ledger.all_bindings() == []


@pytest.mark.usefixtures("record")
def test_unknown_uuid_is_refused_without_repeating_it(node: DraTree) -> None:
    with pytest.raises(PermissionRefused) as refusal:
        node.eager_bindings.bind(RegisterUuid("6d0c1c5e-0e4b-4a7d-8a52-4f2a70f3c009"), CALLER)

    assert str(refusal.value) == "no partition on this node is registered for with this UUID"


def test_unprepared_claim_is_not_registered_for(node: DraTree, record: ClaimRecord) -> None:
    node.claims.unprepare(CLAIM_UID)

    with pytest.raises(PermissionRefused):
        node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)


def test_stopped_container_registers_no_more(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")
    node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)
    node.partitions.stop(RUNTIME_ID)

    with pytest.raises(Superseded):
        node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)


def test_container_that_registered_and_is_told_of_by_nri_later_is_known(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")
    node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))

    found = node.synchronization.synchronize(SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=facts, pid=41)])

    assert (found.unbound, found.drifted, found.released) == ((), (), ())


def test_container_that_never_registered_is_bound_when_nri_tells_of_it(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))

    found = node.synchronization.synchronize(SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=facts, pid=41)])

    assert (found.unbound, found.drifted, found.released) == ((), (), ())
    binding = node.reader.binding(CLAIM_UID, TRAIN_PARTITION.name)
    assert binding is not None
    assert (binding.runtime_id, binding.session, binding.is_started) == (RUNTIME_ID, SESSION, True)


@pytest.mark.parametrize("is_told_first", [True, False])
def test_attempt_that_was_created_and_never_started_takes_nothing_from_the_running_one(
    node: DraTree, record: ClaimRecord, *, is_told_first: bool
) -> None:
    """kubelet was restarted between create and start: it made another attempt, and the runtime lists both."""
    run(node, record, "trainer")
    created, running = (
        Replayed(runtime_id=runtime_id, facts=shown(record, name="train", runtime_id=runtime_id, requests=("trainer",)), pid=pid)
        for runtime_id, pid in ((NEXT_RUNTIME_ID, 0), (RUNTIME_ID, 41))
    )

    found = node.synchronization.synchronize(SESSION, [created, running] if is_told_first else [running, created])

    binding = node.reader.binding(CLAIM_UID, TRAIN_PARTITION.name)
    assert binding is not None
    assert (binding.runtime_id, binding.is_started, found.unbound, found.drifted) == (RUNTIME_ID, True, (NEXT_RUNTIME_ID,), ())


# A library set of another version was installed while the container ran


def install_another_library(node: DraTree) -> None:
    node.node.rules = replace(node.node.rules, library_version="v1.0.1")
    Path(node.agent.library("v1.0.1")).touch()


def test_container_created_with_an_earlier_library_registers(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")
    install_another_library(node)

    assert node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER) == (CLAIM_UID, TRAIN_PARTITION.name)


def test_container_created_with_an_earlier_library_is_bound_when_nri_tells_of_it(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))
    install_another_library(node)

    found = node.synchronization.synchronize(SESSION, [Replayed(runtime_id=RUNTIME_ID, facts=facts, pid=41)])

    assert (found.unbound, found.drifted, found.released) == ((), (), ())
    binding = node.reader.binding(CLAIM_UID, TRAIN_PARTITION.name)
    assert binding is not None
    assert binding.is_started


def test_library_that_is_none_of_ours_is_still_refused(node: DraTree, record: ClaimRecord) -> None:
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))
    hollow = [replace(m, source="/srv/hollow.so") if m.destination == LIBRARY else m for m in facts.mounts]
    node.run_container(RUNTIME_ID, POD, (41,), mounts=hollow)

    with pytest.raises(PreconditionFailed, match=r"/etc/vgpu-manager/driver/libvgpu-control\.so does not show what we mounted"):
        node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)


# What changes while it is looked at


def test_process_that_has_ended_says_nothing_of_its_container(node: DraTree, record: ClaimRecord) -> None:
    """A zombie still has a cgroup. Refused for good, every other process of the container that waits with it would end."""
    run(node, record, "trainer")
    (node.proc / "41" / "mountinfo").write_text("")

    with pytest.raises(NotReady, match=r"process 41 has ended, and sees no files any more$"):
        node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)
    assert node.ledger.all_bindings() == []


def test_restart_waits_for_the_end_of_the_earlier_attempt(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "trainer")
    node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)
    run(node, record, "trainer", NEXT_RUNTIME_ID, pids=(51,))
    restarted = replace(CALLER, runtime_id=NEXT_RUNTIME_ID, pid=51)

    with pytest.raises(NotReady, match=r"^container train of .* \(aaaaaaaaaaaa\): its earlier attempt 9f3d6c0e4b6a still runs$"):
        node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), restarted)
    node.end_container(RUNTIME_ID, POD)

    assert node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), restarted) == (CLAIM_UID, TRAIN_PARTITION.name)


def test_attempt_that_never_started_keeps_its_restart_from_nothing(node: DraTree, record: ClaimRecord) -> None:
    """NRI told of its creation, and went."""
    node.partitions.ensure(shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",)), session=SESSION)
    run(node, record, "trainer", NEXT_RUNTIME_ID, pids=(51,))
    restarted = replace(CALLER, runtime_id=NEXT_RUNTIME_ID, pid=51)

    assert node.eager_bindings.bind(uuid_of(record, TRAIN_PARTITION.name), restarted) == (CLAIM_UID, TRAIN_PARTITION.name)


def test_release_during_registration_leaves_no_holder(node: DraTree, record: ClaimRecord) -> None:
    """NRI, back by now, tells of the end while the registration is being written."""

    class InterruptedTree(ClaimsTree):
        def write_pids(self, uid: ClaimUid, name: PartitionName, pids: bytes) -> bool:
            node.partitions.stop(RUNTIME_ID)
            node.partitions.remove(RUNTIME_ID)
            return super().write_pids(uid, name, pids)

    run(node, record, "trainer")

    with pytest.raises(Superseded, match="was released while its partition was being made"):
        node.bindings_on(InterruptedTree(node.agent, node.cdi_dir)).bind(uuid_of(record, TRAIN_PARTITION.name), CALLER)
    assert node.ledger.all_bindings() == []
    assert node.reader.binding(CLAIM_UID, TRAIN_PARTITION.name) is None


def test_start_of_a_container_that_registered_without_its_name_is_recorded_as_it_is(node: DraTree, record: ClaimRecord) -> None:
    run(node, record, "server")
    place = node.eager_bindings.bind(uuid_of(record, SERVE_PARTITION.name), replace(CALLER, container=UNNAMED))
    before = node.snapshot()

    binding = node.partitions.record_start(RUNTIME_ID, 41)

    assert (binding, binding.container) == (node.reader.binding(*place), "")
    assert node.snapshot() == before
