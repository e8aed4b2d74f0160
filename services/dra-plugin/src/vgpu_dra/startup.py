"""What happens before anything is served: the views compared, the skeleton made, the predecessor's tree understood."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from vgpu_daemon import procfs
from vgpu_daemon.run import StartFailed
from vgpu_dra.effects.claims_tree import ClaimsTree
from vgpu_dra.event_documents import Reason
from vgpu_dra.ledger import Ledger
from vgpu_dra.policy.recovery import FoundClaim, RecoveryPlan, plan_recovery
from vgpu_dra.recorder import Recorder
from vgpu_state.bindings import BindingUnusable
from vgpu_state.claims import Binding, ClaimRecord
from vgpu_state.errors import StorageFailed
from vgpu_state.ids import ClaimUid, PartitionName
from vgpu_state.layout import Layout
from vgpu_state.reader import ClaimsReader
from vgpu_state.records import RecordUnusable

_log = structlog.get_logger()


def boot_id(proc_root: Path) -> str:
    """Which boot of the machine this is.

    Raises:
        StartFailed: the proc file system does not say.
    """
    try:
        return procfs.boot_id(proc_root)
    except OSError as exc:
        raise StartFailed(f"cannot read the boot id below {proc_root}: {exc.strerror} (--proc-root)") from exc


def compare_views(agent: Layout, host: Layout, host_root: str) -> None:
    """Returns when both views of the manager directory are one directory.

    Raises:
        StartFailed: they are two: mount sources would lead the runtime elsewhere.
    """
    if not host_root:
        _log.info("views of the manager directory are not compared", reason="--host-root is empty")
        return
    seen_by_host = Path(host_root) / str(host.root).lstrip("/")
    try:
        ours, theirs = Path(agent.root).stat(), seen_by_host.stat()
    except OSError as exc:
        raise StartFailed(
            f"cannot compare the manager directory with the host's: {exc.filename}: {exc.strerror} "
            "(--manager-dir, --host-manager-dir, --host-root)"
        ) from exc
    if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
        raise StartFailed(
            f"--manager-dir {agent.root} is not the host's {host.root}: the runtime would mount another directory; mount "
            "that one here or correct --host-manager-dir"
        )


def make_tree(tree: ClaimsTree) -> None:
    """Lays out the manager directory.

    Raises:
        StartFailed: the disk refused.
    """
    try:
        tree.make_skeleton()
    except StorageFailed as exc:
        raise StartFailed(f"cannot lay out the manager directory: {exc}") from exc


def warn_of_what_containers_see(*, is_client_mode: bool) -> None:
    """Says what an operator has agreed to by turning client mode off."""
    if not is_client_mode:
        _log.warning(
            "new vGPU containers see the host's processes",
            reason="client mode is off (feature gate DevicePluginClientMode): root in one of them reaches the files and the "
            "environment of others through /proc; for pods that trust each other only",
        )


def recover(tree: ClaimsTree, reader: ClaimsReader, ledger: Ledger, *, boot_id: str, clock: Callable[[], float]) -> None:
    """Fills the ledger from the disk and makes every claim fully prepared or fully undone.

    Raises:
        StorageFailed: the disk refused.
    """
    removed = tree.remove_leftovers()
    found = {uid: _found(reader, uid) for uid in reader.claim_uids()}
    plan = plan_recovery(found, boot_id=boot_id)
    _carry_out(plan, tree)
    known = {str(uid) for uid in (*plan.kept, *plan.renewed, *plan.quarantined)}
    orphans = [uid for uid in tree.spec_claims() if uid not in known]
    for orphan in orphans:
        tree.remove_spec(orphan)
    for record in (*plan.kept.values(), *plan.renewed.values()):
        ledger.note_record(record)
    ledger.quarantined.update(plan.quarantined)
    ledger.quarantined_names.update({uid: ref for uid in plan.quarantined if (ref := reader.claim_ref(uid)) is not None})
    for uid, bindings in plan.bindings.items():
        for name, binding in bindings.items():
            ledger.bind(uid, name, binding, now_s=clock())
    for uid, reason in plan.quarantined.items():
        # What the record does not say its CDI file may: it is of this boot, and so are the minor numbers in it. Where that has
        # gone too, no GPU counts as used: all of them would cost the node for one file.
        ledger.quarantined_gpus[uid] = gpus = tree.spec_gpus(uid)
        _log.error("claim quarantined", claim_uid=uid, reason=reason, gpus=sorted(gpus) or "unknown, none counts as used")
    _log.info(
        "recovered",
        claims=len(ledger.records),
        quarantined=len(plan.quarantined),
        undone=list(plan.undone),
        rebooted=len(plan.renewed),
        partitions_discarded=len(plan.discarded),
        partitions_vacated=len(plan.vacated),
        orphan_specs=orphans,
        leftovers=removed,
    )


def _carry_out(plan: RecoveryPlan, tree: ClaimsTree) -> None:
    for uid, partition in plan.discarded:
        tree.discard_partition(uid, partition)
    for uid, partition in plan.vacated:
        tree.vacate_partition(uid, partition)
    for uid in plan.undone:
        tree.remove_claim(uid)
    for record in plan.renewed.values():
        tree.write_record(record)


def tell_quarantined(ledger: Ledger, recorder: Recorder) -> None:
    """Tells the node of every claim that cannot be used, and the claim itself where its record still names it."""
    for uid, reason in ledger.quarantined.items():
        claim = ledger.quarantined_names.get(uid)
        note = f"claim {claim or uid} is quarantined: {reason}; delete its pods to unprepare it"
        recorder.node(Reason.CLAIM_QUARANTINED, note)
        if claim is not None:
            recorder.claim(claim, Reason.CLAIM_QUARANTINED, note)


def _found(reader: ClaimsReader, uid: ClaimUid) -> FoundClaim:
    record: ClaimRecord | str | None
    try:
        record = reader.record(uid)
    except (RecordUnusable, StorageFailed) as exc:
        record = str(exc)
    bindings: dict[PartitionName, Binding | str | None] = {}
    try:
        names = reader.partitions(uid)
    except StorageFailed as exc:
        return FoundClaim(record=str(exc), bindings=bindings)
    for name in names:
        try:
            bindings[name] = reader.binding(uid, name)
        except (BindingUnusable, StorageFailed) as exc:
            bindings[name] = str(exc)
    return FoundClaim(record=record, bindings=bindings)
