"""Prepare and Unprepare: where the plans of `policy.prepare` become files, one operation per claim at a time.

Runs in worker threads: an operation that has begun is never cut short by a caller that went away.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import structlog

from vgpu_dra.allocation import Allocation
from vgpu_dra.inventory import Inventory
from vgpu_dra.ledger import Ledger
from vgpu_dra.policy import assigners, eager, occupancy, prepare, reach
from vgpu_dra.policy.assigner import THROUGH_NRI, Assignment
from vgpu_dra.policy.prepare import NodeNow
from vgpu_dra.rules import NodeRules
from vgpu_state import claims, vgpu_config
from vgpu_state.claims import Binding, ClaimRecord
from vgpu_state.errors import NotReady, PreconditionFailed, Superseded, VgpuError
from vgpu_state.ids import ClaimUid, Nonce, PartitionName, RegisterUuid

_log = structlog.get_logger()

BUSY_PATIENCE_S = 60.0  # how long kubelet is asked to try again while a container of the claim still runs


class Removal(Enum):
    """What became of a claim that the API server does not have."""

    REMOVED = "removed"
    WAS_GONE = "was gone"
    WANTED_SINCE = "wanted since"  # kubelet has had it prepared after the API server was asked
    STILL_RUNS = "still runs"


class ClaimFiles(Protocol):
    """What Prepare and Unprepare do to the disk."""

    def write_record(self, record: ClaimRecord) -> None: ...
    def write_spec(self, uid: ClaimUid, spec: bytes) -> bool: ...
    def make_partition(self, uid: ClaimUid, name: PartitionName, *, limits: bytes | None, binding: Binding | None) -> None: ...
    def read_limits(self, uid: ClaimUid, name: PartitionName) -> bytes | None: ...
    def write_limits(self, uid: ClaimUid, name: PartitionName, limits: bytes) -> None: ...
    def remove_claim(self, uid: ClaimUid) -> None: ...


class HolderView(Protocol):
    """Who uses a claim, by its processes."""

    def who_runs(self, uid: ClaimUid) -> str | None: ...
    def is_live(self, binding: Binding) -> bool: ...


class NodeView(Protocol):
    """What Prepare needs to know of the node now."""

    @property
    def rules(self) -> NodeRules: ...
    @property
    def boot_id(self) -> str: ...
    def inventory(self) -> Inventory: ...
    def spec(self, record: ClaimRecord, inventory: Inventory) -> bytes: ...
    def check_library_set(self) -> None: ...


def mint_nonce() -> Nonce:
    """128 random bits as 32 hex digits."""
    return Nonce(secrets.token_hex(16))


def mint_register_uuid() -> RegisterUuid:
    """A random UUID."""
    return RegisterUuid(str(uuid.uuid4()))


class PreparedClaims:
    """The claims of this node."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        files: ClaimFiles,
        node: NodeView,
        holders: HolderView,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._node = node
        self._holders = holders
        self._clock = clock
        self._busy_since: dict[ClaimUid, float] = {}
        self._prepared_at: dict[ClaimUid, float] = {}  # when kubelet's last Prepare of a claim was answered
        self._unprepared_at: dict[ClaimUid, float] = {}
        self._tombstones = threading.Lock()  # of all claims, while an operation holds only its own
        self._deciding = threading.Lock()  # which claim gets the last of a GPU; held for no I/O

    def prepare(self, allocation: Allocation, *, asked_at_s: float, assignment: Assignment = THROUGH_NRI) -> ClaimRecord:
        """The prepared record; its files are on disk. Repeating it writes nothing.

        `asked_at_s` is when kubelet asked: an Unprepare that came later, while the claim was being looked up, wins. `assignment`
        says how its containers come to their partitions; a claim that has a record stays as it is.

        Raises:
            VgpuError: as its class says; nothing of a refused claim is left behind.
        """
        uid = allocation.claim.uid
        with self._ledger.claim(uid):
            if self._was_unprepared_since(uid, asked_at_s):
                raise Superseded(f"claim {allocation.claim} was unprepared while it was being prepared; kubelet may ask again")
            if (reason := self._ledger.quarantined.get(uid)) is not None:
                raise PreconditionFailed(f"claim {allocation.claim} is quarantined ({reason}); delete its pods to unprepare it")
            inventory = self._node.inventory()
            rules = self._node.rules
            now = NodeNow(
                inventory=inventory,
                ratios=rules.ratios,
                boot_id=self._node.boot_id,
                has_shares=rules.has_shares,
                compatibility=rules.compatibility,
            )
            existing = self._ledger.records.get(uid)
            record = prepare.plan_prepare(allocation, existing=existing, node=now, mint=mint_nonce)
            if record is not existing and record.vgpus:
                record = assigners.assigner_for(assignment).at_prepare(record, assignment, mint=mint_register_uuid)
            if record.vgpus:
                self._node.check_library_set()
            if record.state is not claims.ClaimState.PREPARED:
                reach.check_reachable(record.results, inventory, who=f"claim {allocation.claim}")
            self._busy_since.pop(uid, None)  # the claim is wanted: a later Unprepare waits for what runs then
            spec = self._node.spec(record, inventory)  # before the first effect: a missing device node refuses without a trace
            limits = self._partition_limits(record, inventory)
            self._reserve(record, now, assignment)
            self._prepared_at[uid] = self._clock()
            return self._apply(record, spec, limits)

    def is_recorded(self, uid: ClaimUid) -> bool:
        """Whether the claim has a record: how its partitions are assigned is settled."""
        return uid in self._ledger.records

    def restore_spec(self, uid: ClaimUid) -> bool:
        """Writes the CDI file of a prepared claim, and partitions made at Prepare, anew where they are missing or differ.

        Whether it did. The limits of a partition whose holder lives stay as they are.
        """
        with self._ledger.claim(uid):
            record = self._ledger.records.get(uid)
            if record is None or record.state is not claims.ClaimState.PREPARED:
                return False
            inventory = self._node.inventory()
            has_restored = self._restore_partitions(record, self._partition_limits(record, inventory))
            return self._files.write_spec(uid, self._node.spec(record, inventory)) or has_restored

    def unprepare(self, uid: ClaimUid) -> bool:
        """The claim's CDI file and directory are gone; an unknown claim is a success. Whether a container of it still runs.

        Raises:
            NotReady: a container of the claim still runs; for 60 s, then it goes on all the same.
            StorageFailed: the disk refused; the claim is as it was or without its CDI file.
        """
        with self._ledger.claim(uid):
            is_forced = self._wait_for_containers(uid)
            self._remove(uid)
        return is_forced

    def _reserve(self, record: ClaimRecord, now: NodeNow, assignment: Assignment) -> None:
        """The record is in the ledger, where the Prepare of every other claim counts it. A prepared one is there already."""
        if record.state is claims.ClaimState.PREPARED:
            return
        with self._deciding:
            uid = record.claim.uid
            minors = {minor: u for u, held in list(self._ledger.quarantined_gpus.items()) for minor in held}
            if record.eager is not None:
                others = [other for u, other in list(self._ledger.records.items()) if u != uid]
                eager.check_sole_claim(record, assignment, others=others)
            beside = self._ledger.records_on({result.gpu_uuid for result in record.results})
            occupancy.check_free(
                record,
                others=[other for other in beside if other.claim.uid != uid],
                blocked={gpu.uuid: minors[gpu.minor] for gpu in now.inventory.gpus if gpu.minor in minors},
                node=now,
            )
            self._ledger.note_record(record)

    def unprepare_vanished(self, uid: ClaimUid, *, asked_at_s: float) -> Removal:
        """As `unprepare`, for a claim that the API server, asked at `asked_at_s`, did not have; never under a container.

        Raises:
            StorageFailed: as for `unprepare`.
        """
        with self._ledger.claim(uid):
            if uid not in self._ledger.records and uid not in self._ledger.quarantined:
                return Removal.WAS_GONE
            if self._prepared_at.get(uid, float("-inf")) >= asked_at_s:
                return Removal.WANTED_SINCE
            if self._holders.who_runs(uid) is not None:
                return Removal.STILL_RUNS
            self._remove(uid)
        return Removal.REMOVED

    def _remove(self, uid: ClaimUid) -> None:
        self._files.remove_claim(uid)
        now = self._clock()
        self._ledger.drop_claim(uid, now_s=now)
        self._busy_since.pop(uid, None)
        self._prepared_at.pop(uid, None)
        self._remember_unprepared(uid, now)

    def _partition_limits(self, record: ClaimRecord, inventory: Inventory) -> dict[PartitionName, bytes]:
        """The limits of each partition that is there from Prepare on."""
        made = record.eager.partitions if record.eager is not None else ()
        ratios = self._node.rules.ratios
        return {
            p.name: vgpu_config.encode_limits(eager.partition_limits(record, p, inventory=inventory, ratios=ratios)) for p in made
        }

    def _restore_partitions(self, record: ClaimRecord, limits: dict[PartitionName, bytes]) -> bool:
        uid, held, has_restored = record.claim.uid, self._ledger.bindings(record.claim.uid), False
        for name, wanted in limits.items():
            found, holder = self._files.read_limits(uid, name), held.get(name)
            if found is None:
                self._files.make_partition(uid, name, limits=wanted, binding=holder)
            # Without NRI nobody tells of a holder's end, and its restart reads what is there then.
            elif found != wanted and (holder is None or not self._holders.is_live(holder)):
                self._files.write_limits(uid, name, wanted)
            else:
                continue
            has_restored = True
        return has_restored

    def _apply(self, record: ClaimRecord, spec: bytes, limits: dict[PartitionName, bytes]) -> ClaimRecord:
        uid = record.claim.uid
        if record.state is claims.ClaimState.PREPARED:
            self._restore_partitions(record, limits)
            self._files.write_spec(uid, spec)
            return record
        try:
            # All that undoing needs is in the record before the first side effect.
            self._files.write_record(record)
            for name, content in limits.items():
                self._files.make_partition(uid, name, limits=content, binding=None)
            self._files.write_spec(uid, spec)
            done = prepare.completed(record)
            self._files.write_record(done)
        except VgpuError:
            self._undo(uid)
            raise
        self._ledger.note_record(done)
        return done

    def _undo(self, uid: ClaimUid) -> None:
        try:
            self._files.remove_claim(uid)
            self._ledger.drop_claim(uid, now_s=self._clock())
            self._prepared_at.pop(uid, None)
        except VgpuError as exc:
            # The record says STARTED: kubelet's retry goes on with it, the next start undoes it.
            _log.warning("half a claim could not be undone", claim_uid=uid, error=str(exc))

    def _was_unprepared_since(self, uid: ClaimUid, asked_at_s: float) -> bool:
        with self._tombstones:
            return self._unprepared_at.get(uid, float("-inf")) >= asked_at_s

    def _remember_unprepared(self, uid: ClaimUid, now_s: float) -> None:
        with self._tombstones:
            self._unprepared_at[uid] = now_s
            for old in [u for u, at in self._unprepared_at.items() if now_s - at > BUSY_PATIENCE_S]:
                del self._unprepared_at[old]

    def _wait_for_containers(self, uid: ClaimUid) -> bool:
        """Whether a container still runs, and has been waited for long enough."""
        who = self._holders.who_runs(uid)
        if who is None:
            return False
        now = self._clock()
        since = self._busy_since.setdefault(uid, now)
        if now - since < BUSY_PATIENCE_S:
            raise NotReady(f"claim {uid}: {who} still runs; it is unprepared when that has ended")
        _log.warning("claim unprepared under a running container", claim_uid=uid, waited_s=round(now - since), reason=who)
        return True
