"""Whole GPUs and MIG devices from Prepare to Unprepare, beside shares of GPUs or alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vgpu_dra import debug, startup
from vgpu_dra.allocation import Allocation
from vgpu_dra.ledger import Ledger
from vgpu_state.claims import ClaimRecord, ClaimRef, Consumed, PreparedResult
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import ClaimUid
from vgpu_testkit.dra_tree import DraTree, allocated
from vgpu_testkit.dra_values import BOOT_ID, CLAIM, CLAIM_UID, FACTS, GIB, SESSION, SLICE, TRAINER, WHOLE, gpu_node

OTHER = ClaimRef(namespace="team-b", name="batch", uid=ClaimUid("11111111-8f0a-4f57-9d0e-6a6d1b2c7e10"))
WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"


def prepare(node: DraTree, *results: PreparedResult) -> ClaimRecord:
    return node.claims.prepare(Allocation(claim=CLAIM, results=tuple(map(allocated, results))), asked_at_s=1000.0)


def edits(node: DraTree) -> list[dict[str, Any]]:
    (path,) = node.cdi_dir.iterdir()
    return [device["containerEdits"] for device in json.loads(path.read_text())["devices"]]


def test_claim_without_a_share_needs_no_enforcement_library(node: DraTree) -> None:
    """It has no poison mount either: its containers run while nri-plugin is away."""
    node.enter_mig_mode()
    Path(node.agent.preload_list).unlink()

    record = prepare(node, WHOLE, SLICE)

    assert record.results == (WHOLE, SLICE)
    assert node.reader.record(CLAIM_UID) == record
    assert [[n["path"] for n in e["deviceNodes"]] for e in edits(node)] == [
        ["/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"],
        [
            "/dev/nvidia3",
            "/dev/nvidia-caps/nvidia-cap417",
            "/dev/nvidia-caps/nvidia-cap418",
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
        ],
    ]
    assert not [e for e in edits(node) for m in e["mounts"] if "vgpu-manager" in m["hostPath"] + m["containerPath"]]
    assert not [e for e in edits(node) for entry in e["env"] if entry.startswith(("VGPU_", "MANAGER_"))]


def test_claim_with_a_share_needs_the_enforcement_library(node: DraTree) -> None:
    Path(node.agent.preload_list).unlink()

    with pytest.raises(PreconditionFailed, match="is missing: the enforcement library is not installed on this node"):
        prepare(node, WHOLE, TRAINER)

    assert node.files() == []


def test_repeated_prepare_of_every_kind_writes_nothing(node: DraTree) -> None:
    node.enter_mig_mode()
    first = prepare(node, TRAINER, WHOLE, SLICE)
    before = node.snapshot()

    assert prepare(node, TRAINER, WHOLE, SLICE) == first
    assert node.snapshot() == before


def test_unprepare_of_every_kind_leaves_nothing(node: DraTree) -> None:
    node.enter_mig_mode()
    prepare(node, TRAINER, WHOLE, SLICE)

    node.claims.unprepare(CLAIM_UID)

    assert node.files() == []
    assert node.ledger.records == {}


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        (
            "dev/nvidia-caps/nvidia-cap418",
            "has no nvidia-cap nodes under {root}/dev/nvidia-caps, or {root}/proc does not say which they are",
        ),
        (
            "proc/driver/nvidia/capabilities/gpu3/mig/gi9/access",
            "has no nvidia-cap nodes under {root}/dev/nvidia-caps, or {root}/proc does not say which they are",
        ),
    ],
)
def test_mig_device_without_its_nodes_is_refused_without_a_trace(node: DraTree, missing: str, reason: str) -> None:
    node.enter_mig_mode()
    (node.root / missing).unlink()

    with pytest.raises(PreconditionFailed) as refusal:
        prepare(node, SLICE)

    assert str(refusal.value) == f"{WHO} request tester: MIG device {SLICE.mig_uuid} {reason.format(root=node.root)}"
    assert node.files() == []


def test_cdi_file_of_a_mig_device_that_is_gone_is_not_written_anew(node: DraTree) -> None:
    node.enter_mig_mode()
    prepare(node, SLICE)
    node.inventory = replace(node.inventory, gpus=tuple(replace(g, mig_devices=()) for g in node.inventory.gpus))

    with pytest.raises(PreconditionFailed) as refusal:
        node.claims.restore_spec(CLAIM_UID)

    assert str(refusal.value) == (f"{WHO} request tester: MIG device {SLICE.mig_uuid} is not on GPU {SLICE.gpu_uuid} any more")


def test_container_with_a_share_and_a_whole_gpu_of_its_claim_is_refused(node: DraTree) -> None:
    record = prepare(node, TRAINER, WHOLE)
    grant = replace(FACTS.grants[0], nonce=record.vgpus[0].grant.nonce)

    with pytest.raises(PreconditionFailed) as refusal:
        node.partitions.ensure(replace(FACTS, grants=(grant,), devices=(*FACTS.devices, gpu_node(2))), session=SESSION)

    assert str(refusal.value) == (
        "container train of pod research/two-workers-0 also sees /dev/nvidia2, for which it has no grant: the enforcement "
        "library stops a process that sees a GPU without limits; give the whole GPU, MIG device or host path that brings it to "
        "another container"
    )


def test_debug_output_shows_every_device_and_the_unused_grants_of_shares(node: DraTree) -> None:
    node.enter_mig_mode()
    prepare(node, TRAINER, WHOLE, SLICE)

    shown = debug.claims(node.ledger)[CLAIM_UID]

    assert shown["devices"] == ["trainer=vgpu-5", "solver=gpu-2", "tester=gpu-3-mig-19-2-1"]
    assert shown["unused_grants"] == ["trainer"]


def test_quarantined_claim_keeps_the_gpus_of_its_cdi_file_from_others(node: DraTree) -> None:
    prepare(node, TRAINER, WHOLE)
    Path(node.agent.record(CLAIM_UID)).write_bytes(b"torn")
    ledger = Ledger()
    startup.recover(node.tree, node.reader, ledger, boot_id=BOOT_ID, clock=lambda: 0.0)
    claims = node.claims_of(ledger)
    other = Allocation(claim=OTHER, results=(allocated(replace(TRAINER, consumed=Consumed(cores_percent=1, memory_bytes=GIB))),))

    with pytest.raises(PreconditionFailed) as refusal:
        claims.prepare(other, asked_at_s=1000.0)
    claims.unprepare(CLAIM_UID)
    claims.prepare(other, asked_at_s=1000.0)

    assert str(refusal.value) == (
        "claim team-b/batch (11111111-8f0a-4f57-9d0e-6a6d1b2c7e10) request trainer: GPU "
        f"{TRAINER.gpu_uuid} counts as fully used by claim {CLAIM_UID}, which is quarantined; delete its pods to unprepare it"
    )
    assert ledger.quarantined_gpus == {}


def test_quarantined_claim_without_a_cdi_file_keeps_nothing_from_others(node: DraTree) -> None:
    """Nobody knows its GPUs; to take all of them for used would cost the node for one file."""
    prepare(node, TRAINER)
    Path(node.agent.record(CLAIM_UID)).write_bytes(b"torn")
    for spec in node.cdi_dir.iterdir():
        spec.unlink()
    ledger = Ledger()
    startup.recover(node.tree, node.reader, ledger, boot_id=BOOT_ID, clock=lambda: 0.0)

    record = node.claims_of(ledger).prepare(Allocation(claim=OTHER, results=(allocated(TRAINER),)), asked_at_s=1000.0)

    assert list(ledger.quarantined) == [CLAIM_UID]
    assert record.claim == OTHER
