"""Prepare and Unprepare on a real tree: whole or not at all, and a repetition writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from vgpu_dra.allocation import Allocation
from vgpu_dra.claim_state import mint_nonce
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_state.claims import Binding, ClaimRecord, ClaimRef, ClaimState
from vgpu_state.errors import NotReady, PreconditionFailed, StorageFailed, Superseded
from vgpu_state.ids import ClaimUid
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import BINDING, CLAIM_UID, INVENTORY, PARTITION, POD, RUNTIME_ID, h100

WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"
CDI_FILE = "cdi/k8s.manager.nvidia.com-claim_3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10.json"


class FailingFiles:
    """The tree on a disk that refuses the calls `fails`, counted from 1."""

    def __init__(self, tree: ClaimsTree, fails: set[int]) -> None:
        self._tree = tree
        self._fails = fails
        self.calls = 0

    def _step(self) -> None:
        self.calls += 1
        if self.calls in self._fails:
            raise StorageFailed(action="write", path="/full", error=OSError(28, "No space left on device"))

    def write_record(self, record: ClaimRecord) -> None:
        self._step()
        self._tree.write_record(record)

    def write_spec(self, uid: ClaimUid, spec: bytes) -> bool:
        self._step()
        return self._tree.write_spec(uid, spec)

    def remove_claim(self, uid: ClaimUid) -> None:
        self._step()
        self._tree.remove_claim(uid)


class HalfFailingFiles(FailingFiles):
    """A disk that refuses in the middle: the claim's directory is made, its record is not written."""

    def write_record(self, record: ClaimRecord) -> None:
        (Path(self._tree._agent.claim(record.claim.uid))).mkdir(mode=0o711)
        self._step()


def prepare(node: DraTree, asked_at_s: float = 1000.0) -> ClaimRecord:
    return node.claims.prepare(ALLOCATION, asked_at_s=asked_at_s)


def bind(node: DraTree, binding: Binding = BINDING) -> None:
    node.tree.make_partition(CLAIM_UID, PARTITION, limits=b"", binding=binding)
    node.ledger.bind(CLAIM_UID, PARTITION, binding, now_s=node.now_s)


def test_prepare_writes_record_and_cdi_file(node: DraTree) -> None:
    record = prepare(node)

    assert node.files() == [CLAIM_UID, f"{CLAIM_UID}/claim.json", CDI_FILE]
    assert node.reader.record(CLAIM_UID) == record
    assert (record.state, record.claim.name) == (ClaimState.PREPARED, "two-workers")
    assert f"/{record.vgpus[0].grant.nonce}" in (node.root / CDI_FILE).read_text()


def test_prepared_files_are_private(node: DraTree) -> None:
    prepare(node)

    claim = Path(node.agent.claim(CLAIM_UID))
    assert [oct(p.stat().st_mode & 0o777) for p in (claim, claim / "claim.json", node.root / CDI_FILE)] == [
        "0o711",
        "0o600",
        "0o600",
    ]


def test_repeated_prepare_answers_the_same_and_writes_nothing(node: DraTree) -> None:
    first = prepare(node)
    before = node.snapshot()

    assert prepare(node) == first
    assert node.snapshot() == before


def test_repeated_prepare_restores_a_lost_cdi_file(node: DraTree) -> None:
    prepare(node)
    content = (node.root / CDI_FILE).read_bytes()
    (node.root / CDI_FILE).unlink()

    prepare(node)

    assert (node.root / CDI_FILE).read_bytes() == content


def test_each_claim_gets_nonces_of_its_own() -> None:
    drawn = {mint_nonce() for _ in range(100)}

    assert len(drawn) == 100
    assert {len(n) for n in drawn} == {32}


@pytest.mark.parametrize("step", [1, 2, 3])
def test_disk_that_fails_at_a_step_leaves_nothing(node: DraTree, step: int) -> None:
    claims = node.claims_on(FailingFiles(node.tree, {step}))

    with pytest.raises(StorageFailed, match=r"cannot write /full: ENOSPC"):
        claims.prepare(ALLOCATION, asked_at_s=1000.0)

    assert node.files() == []
    assert node.ledger.records == {}
    assert prepare(node).state is ClaimState.PREPARED


def test_directory_without_a_record_does_not_stay(node: DraTree) -> None:
    claims = node.claims_on(HalfFailingFiles(node.tree, {1}))

    with pytest.raises(StorageFailed):
        claims.prepare(ALLOCATION, asked_at_s=1000.0)

    assert node.files() == []


def test_retry_goes_on_under_the_same_grants_when_the_undo_failed_too(node: DraTree) -> None:
    claims = node.claims_on(FailingFiles(node.tree, {2, 3}))
    with pytest.raises(StorageFailed):
        claims.prepare(ALLOCATION, asked_at_s=1000.0)
    left = node.reader.record(CLAIM_UID)

    record = prepare(node)

    assert left is not None
    assert left.state is ClaimState.STARTED
    assert record == replace(left, state=ClaimState.PREPARED)


@pytest.mark.parametrize("missing", ["libvgpu-control.so.v1.0.0", "ld.so.preload", "registry/device-client"])
def test_prepare_without_the_library_set_says_which_file_is_missing(node: DraTree, missing: str) -> None:
    (Path(node.agent.root) / missing).unlink()

    with pytest.raises(PreconditionFailed) as refusal:
        prepare(node)

    assert str(refusal.value) == (
        f"{node.agent.root}/{missing} is missing: the enforcement library is not installed on this node"
    )
    assert node.files() == []


def test_prepare_without_the_gpus_device_node_leaves_no_trace(node: DraTree) -> None:
    (node.dev_root / "nvidia1").unlink()

    with pytest.raises(PreconditionFailed) as refusal:
        prepare(node)

    assert str(refusal.value) == (
        f"{WHO} request server: GPU GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001 has no device node under {node.dev_root}"
    )
    assert node.files() == []


def test_prepare_asked_before_an_unprepare_loses(node: DraTree) -> None:
    node.now_s = 1005.0
    node.claims.unprepare(CLAIM_UID)

    with pytest.raises(Superseded) as refusal:
        prepare(node, asked_at_s=1004.0)

    assert str(refusal.value) == f"{WHO} was unprepared while it was being prepared; kubelet may ask again"
    assert node.files() == []
    assert prepare(node, asked_at_s=1006.0).state is ClaimState.PREPARED


def test_quarantined_claim_is_refused_and_can_be_unprepared(node: DraTree) -> None:
    prepare(node)
    node.ledger.drop_claim(CLAIM_UID, now_s=node.now_s)
    node.ledger.quarantined[CLAIM_UID] = "claim record is corrupt: torn"

    with pytest.raises(PreconditionFailed) as refusal:
        prepare(node)
    node.claims.unprepare(CLAIM_UID)

    assert str(refusal.value) == (f"{WHO} is quarantined (claim record is corrupt: torn); delete its pods to unprepare it")
    assert node.files() == []
    assert node.ledger.quarantined == {}


def test_unprepare_removes_record_partitions_and_cdi_file(node: DraTree) -> None:
    prepare(node)
    bind(node)

    node.claims.unprepare(CLAIM_UID)

    assert node.files() == []
    assert node.ledger.records == {}
    assert node.ledger.all_bindings() == []


def test_unprepare_of_an_unknown_claim_succeeds(node: DraTree) -> None:
    node.claims.unprepare(CLAIM_UID)
    node.claims.unprepare(CLAIM_UID)

    assert node.files() == []


def test_unprepare_waits_a_minute_for_a_running_container(node: DraTree) -> None:
    prepare(node)
    bind(node)
    node.run_container(RUNTIME_ID, POD, [41, 42])
    before = node.files()

    for now in (1000.0, 1030.0, 1059.9):
        node.now_s = now
        with pytest.raises(NotReady) as refusal:
            node.claims.unprepare(CLAIM_UID)
        assert str(refusal.value) == (
            f"claim {CLAIM_UID}: container train of pod research/two-workers-0 still runs; it is unprepared when that has ended"
        )
    assert node.files() == before

    node.now_s = 1060.0
    assert node.claims.unprepare(CLAIM_UID)
    assert node.files() == []


def test_unprepare_goes_on_at_once_when_the_container_has_ended(node: DraTree) -> None:
    prepare(node)
    bind(node)
    node.run_container(RUNTIME_ID, POD, [41])
    with pytest.raises(NotReady):
        node.claims.unprepare(CLAIM_UID)

    node.end_container(RUNTIME_ID, POD)

    assert not node.claims.unprepare(CLAIM_UID)
    assert node.files() == []


def test_unprepare_that_the_disk_refuses_can_be_repeated(node: DraTree) -> None:
    prepare(node)
    claims = node.claims_on(FailingFiles(node.tree, {1}))

    with pytest.raises(StorageFailed):
        claims.unprepare(CLAIM_UID)
    assert CLAIM_UID in node.ledger.records

    claims.unprepare(CLAIM_UID)
    assert node.files() == []


def test_cdi_file_of_a_prepared_claim_is_restored_once(node: DraTree) -> None:
    prepare(node)
    content = (node.root / CDI_FILE).read_bytes()
    (node.root / CDI_FILE).unlink()

    assert node.claims.restore_spec(CLAIM_UID) is True
    assert node.claims.restore_spec(CLAIM_UID) is False
    assert (node.root / CDI_FILE).read_bytes() == content


def test_cdi_file_is_restored_for_no_claim_that_is_not_prepared(node: DraTree) -> None:
    assert node.claims.restore_spec(CLAIM_UID) is False

    with pytest.raises(StorageFailed):
        node.claims_on(FailingFiles(node.tree, {2, 3})).prepare(ALLOCATION, asked_at_s=1000.0)

    assert node.claims.restore_spec(CLAIM_UID) is False
    assert CDI_FILE not in node.files()


def test_cdi_file_follows_a_gpu_that_got_another_minor(node: DraTree) -> None:
    prepare(node)
    node.inventory = replace(INVENTORY, gpus=(h100(5, minor=2), h100(1, minor=7)))

    assert node.claims.restore_spec(CLAIM_UID) is True

    assert '"path": "/dev/nvidia2"' in (node.root / CDI_FILE).read_text()


def _claims(count: int) -> Iterator[Allocation]:
    for number in range(count):
        uid = ClaimUid(f"{number:08x}-8f0a-4f57-9d0e-6a6d1b2c7e10")
        small = tuple(replace(r, cores_percent=5, memory_bytes=4 << 30) for r in ALLOCATION.results)  # all fit at once
        yield replace(ALLOCATION, claim=ClaimRef(namespace="research", name=f"claim-{number}", uid=uid), results=small)


def test_claims_that_come_and_go_in_many_threads_do_not_disturb_each_other(node: DraTree) -> None:
    def churn(allocation: Allocation) -> None:
        for _ in range(5):
            node.claims.prepare(allocation, asked_at_s=2000.0)
            node.claims.unprepare(allocation.claim.uid)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(churn, _claims(16)))

    assert node.files() == []


def test_unprepare_waits_a_minute_for_each_container_that_a_prepare_has_come_between(node: DraTree) -> None:
    """The minute is one for the containers that keep kubelet waiting now, whatever was asked an hour ago."""
    prepare(node)
    bind(node)
    node.run_container(RUNTIME_ID, POD, [41])
    with pytest.raises(NotReady):
        node.claims.unprepare(CLAIM_UID)

    node.now_s += 3600
    prepare(node, asked_at_s=node.now_s)

    with pytest.raises(NotReady):
        node.claims.unprepare(CLAIM_UID)


def test_missing_driver_libraries_refuse_without_a_trace(node: DraTree) -> None:
    library = node.root / "driver/usr/lib64/libcuda.so.550.90.07"
    library.rename(library.with_name("libcuda.so.570.00"))

    with pytest.raises(PreconditionFailed) as refusal:
        prepare(node)

    assert str(refusal.value) == (
        f"{WHO}: the driver's libraries of version 550.90.07 are not under {node.root}/driver (--driver-root); NVML still "
        "reports 550.90.07: was the driver upgraded without a restart?"
    )
    assert node.files() == []


def test_cdi_file_of_a_lost_gpu_is_refused_by_its_name(node: DraTree) -> None:
    prepare(node)
    before = node.snapshot()
    node.inventory = replace(INVENTORY, gpus=INVENTORY.gpus[:5])

    with pytest.raises(PreconditionFailed) as refusal:
        node.claims.restore_spec(CLAIM_UID)

    assert str(refusal.value) == f"{WHO} request trainer: GPU {h100(5).uuid} is not on this node any more"
    assert node.snapshot() == before
