"""A claim prepared without NRI, on a real tree: its partitions are there from Prepare to Unprepare, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_dra import startup
from vgpu_dra.allocation import Allocation
from vgpu_dra.ledger import Ledger
from vgpu_state import vgpu_config
from vgpu_state.claims import ClaimRecord, ClaimRef, ClaimState, ContainerKind, EagerReason
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.errors import NotReady, PreconditionFailed
from vgpu_state.ids import ClaimUid
from vgpu_testkit.dra_assigned import EAGER, assigned, consumer, shown
from vgpu_testkit.dra_tree import ALLOCATION, DraTree, allocated
from vgpu_testkit.dra_values import (
    BOOT_ID,
    CLAIM,
    CLAIM_UID,
    INVENTORY,
    POD,
    RUNTIME_ID,
    SERVE_PARTITION,
    SERVER,
    SESSION,
    TRAIN_PARTITION,
    h100,
)

TRAIN = consumer("train", "trainer")
WARM, SERVE = consumer("warm", "server", kind=ContainerKind.INIT), consumer("serve", "server")
MORE = ClaimRef(namespace="research", name="more", uid=ClaimUid("9a0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"))
MORE_ALLOCATION = Allocation(claim=MORE, results=(allocated(SERVER),))
CDI_FILE = f"cdi/k8s.manager.nvidia.com-claim_{CLAIM_UID}.json"


def prepare(node: DraTree, *, asked_at_s: float = 1000.0) -> ClaimRecord:
    return node.claims.prepare(ALLOCATION, asked_at_s=asked_at_s, assignment=assigned(EAGER, TRAIN, WARM, SERVE))


def recover(node: DraTree, *, boot_id: str = BOOT_ID) -> Ledger:
    ledger = Ledger()
    startup.recover(node.tree, node.reader, ledger, boot_id=boot_id, clock=lambda: node.now_s)
    return ledger


def limits(node: DraTree, partition: str) -> vgpu_config.Limits:
    return vgpu_config.decode_limits((Path(node.agent.claim(CLAIM_UID)) / partition / "config/vgpu.config").read_bytes())


def test_prepare_makes_a_partition_for_all_that_share_a_request(node: DraTree) -> None:
    record = prepare(node)

    assert record.eager is not None
    assert (record.state, record.eager.reason, record.eager.pod) == (ClaimState.PREPARED, EagerReason.NRI_LOST, POD)
    made = [replace(p, register_uuid=None) for p in record.eager.partitions]
    assert made == sorted(
        (replace(p, register_uuid=None) for p in (TRAIN_PARTITION, SERVE_PARTITION)), key=lambda partition: partition.name
    )
    assert node.reader.record(CLAIM_UID) == record
    assert node.files() == sorted(
        [
            CLAIM_UID,
            f"{CLAIM_UID}/claim.json",
            *(
                f"{CLAIM_UID}/{p.name}{below}"
                for p in (TRAIN_PARTITION, SERVE_PARTITION)
                for below in ("", "/config", "/config/vgpu.config")
            ),
            CDI_FILE,
        ]
    )


def test_limits_say_whom_they_are_for_and_how_it_registers(node: DraTree) -> None:
    record = prepare(node)

    assert record.eager is not None
    uuids = {p.name: p.register_uuid for p in record.eager.partitions}
    train, serve = limits(node, TRAIN_PARTITION.name), limits(node, SERVE_PARTITION.name)
    assert (train.pod_uid, train.container_name, sorted(train.slots)) == (POD.uid, "train", [5])
    assert (serve.pod_uid, serve.container_name, sorted(serve.slots)) == (POD.uid, "", [1])  # two take turns
    assert (train.register_uuid, serve.register_uuid) == (uuids[TRAIN_PARTITION.name], uuids[SERVE_PARTITION.name])
    assert train.register_uuid != serve.register_uuid
    assert (train.compatibility_mode, len(train.register_uuid)) == (236, 36)


def test_every_device_of_a_partition_brings_all_of_it(node: DraTree) -> None:
    record = node.claims.prepare(ALLOCATION, asked_at_s=1000.0, assignment=assigned(EAGER, consumer("all", None)))

    assert record.eager is not None
    (partition,) = record.eager.partitions
    for device in json.loads((node.root / CDI_FILE).read_text())["devices"]:
        edits = device["containerEdits"]
        mounts = {m["containerPath"]: m for m in edits["mounts"]}
        assert mounts["/etc/vgpu-manager/config"]["hostPath"] == f"/etc/vgpu-manager/claims/{CLAIM_UID}/{partition.name}/config"
        assert mounts["/tmp/.vgpu_lock"] == {
            "hostPath": "tmpfs",
            "containerPath": "/tmp/.vgpu_lock",
            "type": "tmpfs",
            "options": ["rw", "nosuid", "nodev", "noexec", "size=2m", "nr_inodes=64", "mode=0777"],
        }
        assert f"MANAGER_CLIENT_REGISTER_UUID={partition.register_uuid}" in edits["env"]
        assert "VGPU_CONTAINER_NAME=all" in edits["env"]


def test_request_that_no_container_refers_to_comes_with_the_poison(node: DraTree) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0, assignment=assigned(EAGER, TRAIN))

    _, server = json.loads((node.root / CDI_FILE).read_text())["devices"]
    sources = {m["containerPath"]: m["hostPath"] for m in server["containerEdits"]["mounts"]}
    assert sources["/etc/vgpu-manager/config"] == f"/etc/vgpu-manager/claims/{CLAIM_UID}/created-without-nri"


def test_without_client_mode_nothing_registers_and_the_hosts_processes_are_shown(node: DraTree) -> None:
    node.node.rules = replace(node.node.rules, compatibility=CompatibilityMode.CGROUP_V1)

    record = prepare(node)

    assert record.eager is not None
    assert [p.register_uuid for p in record.eager.partitions] == [None, None]
    found = limits(node, TRAIN_PARTITION.name)
    assert (found.register_uuid, found.compatibility_mode) == ("", 101)
    edits = json.loads((node.root / CDI_FILE).read_text())["devices"][0]["containerEdits"]
    assert {
        "hostPath": "/proc",
        "containerPath": "/etc/vgpu-manager/.host_proc",
        "options": ["ro", "nosuid", "nodev", "bind"],
    } in (edits["mounts"])
    assert "MANAGER_COMPATIBILITY_MODE=101" in edits["env"]
    assert "MANAGER_CLIENT_REGISTER_UUID=" in edits["env"]


def test_repeated_prepare_writes_nothing_whatever_the_node_is_like_by_then(node: DraTree) -> None:
    first = prepare(node)
    before = node.snapshot()

    assert node.claims.prepare(ALLOCATION, asked_at_s=1001.0) == first
    assert node.snapshot() == before


def test_partition_that_somebody_removed_is_made_again(node: DraTree) -> None:
    prepare(node)
    before = node.files()
    node.tree.discard_partition(CLAIM_UID, TRAIN_PARTITION.name)

    assert node.claims.restore_spec(CLAIM_UID) is True

    assert node.files() == before
    assert node.claims.restore_spec(CLAIM_UID) is False


def test_limits_follow_a_gpu_to_its_new_index_while_nobody_holds_them(node: DraTree) -> None:
    record = prepare(node)
    node.inventory = replace(INVENTORY, gpus=(replace(h100(5), index=0), h100(1)))
    facts = shown(record, name="serve", runtime_id=RUNTIME_ID, requests=("server",))
    node.partitions.ensure(facts, session=SESSION)
    held = limits(node, SERVE_PARTITION.name)

    node.inventory = replace(INVENTORY, gpus=(replace(h100(5), index=0), replace(h100(1), index=2)))
    assert node.claims.restore_spec(CLAIM_UID) is True

    assert sorted(limits(node, TRAIN_PARTITION.name).slots) == [0]
    assert limits(node, SERVE_PARTITION.name) == held


def test_limits_follow_a_gpu_whose_last_container_has_ended_untold(node: DraTree) -> None:
    """A GPU fell off the bus and the others moved up: the container that comes back reads its slot by the index of now."""
    record = prepare(node)
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))
    node.partitions.ensure(facts, session=SESSION)
    node.run_container(RUNTIME_ID, POD, [41], mounts=facts.mounts)
    node.partitions.record_start(RUNTIME_ID, 41)
    node.inventory = replace(INVENTORY, gpus=(replace(h100(5), index=0), h100(1)))

    assert node.claims.restore_spec(CLAIM_UID) is False
    node.end_container(RUNTIME_ID, POD)
    assert node.claims.restore_spec(CLAIM_UID) is True

    assert sorted(limits(node, TRAIN_PARTITION.name).slots) == [0]


def test_partition_that_is_made_again_keeps_its_holder(node: DraTree) -> None:
    record = prepare(node)
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))
    node.partitions.ensure(facts, session=SESSION)
    Path(node.agent.limits(CLAIM_UID, TRAIN_PARTITION.name)).unlink()

    assert node.claims.restore_spec(CLAIM_UID) is True

    binding = node.reader.binding(CLAIM_UID, TRAIN_PARTITION.name)
    assert binding is not None
    assert binding.runtime_id == RUNTIME_ID
    assert sorted(limits(node, TRAIN_PARTITION.name).slots) == [5]


# Refused


def test_pod_whose_containers_would_share_a_request_at_once_is_refused_without_a_trace(node: DraTree) -> None:
    with pytest.raises(PreconditionFailed, match=r"(train and serve|serve and train)"):
        node.claims.prepare(
            ALLOCATION, asked_at_s=1000.0, assignment=assigned(EAGER, TRAIN, replace(SERVE, references=TRAIN.references))
        )

    assert node.files() == []
    assert node.ledger.records == {}


@pytest.mark.parametrize("first", [EAGER, "lazy"])
def test_container_of_two_claims_is_refused_whichever_is_prepared_last(node: DraTree, first: str) -> None:
    train = consumer("train", "trainer", other_claims=("more",))
    node.claims.prepare(MORE_ALLOCATION, asked_at_s=1000.0, assignment=assigned(first, consumer("train", "server")))

    with pytest.raises(PreconditionFailed) as refusal:
        node.claims.prepare(ALLOCATION, asked_at_s=1000.0, assignment=assigned(EAGER, train))

    assert str(refusal.value) == (
        f"claim {CLAIM} cannot be prepared without NRI: container train of pod research/two-workers-0 uses claim {MORE} too, and "
        "one container has the shares of one claim then; use one claim with several requests, or NRI on this node would lift "
        "this (feature gate NRISupport, nri-plugin connected to the runtime)"
    )
    assert list(node.ledger.records) == [MORE.uid]


# After the process, or the node, went


def test_started_claim_is_undone_with_its_partitions(node: DraTree) -> None:
    record = prepare(node)
    node.tree.write_record(replace(record, state=ClaimState.STARTED))

    assert recover(node).records == {}
    assert node.files() == []


def test_prepared_claim_is_taken_up_with_partitions_that_nobody_holds(node: DraTree) -> None:
    record = prepare(node)
    before = node.files()

    ledger = recover(node)

    assert (ledger.records, ledger.quarantined) == ({CLAIM_UID: record}, {})
    assert node.files() == before


def test_directory_without_a_holder_that_prepare_did_not_make_is_still_nobodys(node: DraTree) -> None:
    prepare(node)
    (Path(node.agent.claim(CLAIM_UID)) / "cg-000000000000").mkdir()

    assert recover(node).quarantined == {CLAIM_UID: "partition cg-000000000000: it has no binding.json"}


def test_after_a_reboot_partitions_stay_without_their_holders(node: DraTree) -> None:
    record = prepare(node)
    before = node.files()
    facts = shown(record, name="train", runtime_id=RUNTIME_ID, requests=("trainer",))
    node.partitions.ensure(facts, session=SESSION)

    ledger = recover(node, boot_id="another boot")

    assert ledger.records == {CLAIM_UID: replace(record, boot_id="another boot")}
    assert ledger.all_bindings() == []
    assert node.files() == before


# Unprepare


def test_unprepare_waits_for_a_container_of_which_nobody_told(node: DraTree) -> None:
    prepare(node)
    node.run_container(RUNTIME_ID, POD, [41])

    with pytest.raises(NotReady) as refusal:
        node.claims.unprepare(CLAIM_UID)

    assert str(refusal.value) == (
        f"claim {CLAIM_UID}: a container of pod research/two-workers-0 still runs; it is unprepared when that has ended"
    )
    node.end_container(RUNTIME_ID, POD)
    assert node.claims.unprepare(CLAIM_UID) is False
    assert node.files() == []


def test_files_of_a_claim_unprepared_by_force_stay_while_the_pod_has_a_process(node: DraTree) -> None:
    prepare(node)
    node.run_container(RUNTIME_ID, POD, [41])
    with pytest.raises(NotReady):
        node.claims.unprepare(CLAIM_UID)
    node.now_s += 61
    assert node.claims.unprepare(CLAIM_UID) is True

    node.tree.empty_trash(is_inhabited=node.holders.is_inhabited)
    kept = list(Path(node.agent.trash).rglob("vgpu.config"))
    node.end_container(RUNTIME_ID, POD)
    node.tree.empty_trash(is_inhabited=node.holders.is_inhabited)

    assert len(kept) == 2
    assert list(Path(node.agent.trash).iterdir()) == []
