"""Synchronize: what the runtime says lives, compared with what is bound.

What nobody could tell of meanwhile is noted; what differs is told, and nothing of it repaired.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Protocol

import structlog

from vgpu_dra.assignments import Comparison, Replayed
from vgpu_dra.ledger import Ledger
from vgpu_dra.partition_holders import NodeView, PartitionHolders
from vgpu_dra.partition_state import Partitions
from vgpu_dra.policy import admission, assigners, partition
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state import vgpu_config
from vgpu_state.claims import HolderState
from vgpu_state.errors import VgpuError
from vgpu_state.ids import ClaimUid, PartitionName, RuntimeId

_log = structlog.get_logger()


class LimitsFiles(Protocol):
    """The limits files as they are on disk."""

    def read_limits(self, uid: ClaimUid, name: PartitionName) -> bytes | None: ...


class Synchronization:
    """Compares. The session that was compared last is `partitions.synchronized_session`."""

    def __init__(
        self, *, ledger: Ledger, partitions: Partitions, holders: PartitionHolders, files: LimitsFiles, node: NodeView
    ) -> None:
        self._ledger = ledger
        self.partitions = partitions
        self._holders = holders
        self._files = files
        self._node = node

    def synchronize(self, session: int, replayed: Collection[Replayed]) -> Comparison:
        """Compares what the runtime says lives with what is bound. Releases only what an earlier session left: bound, absent
        now, and without a process. A start of which nobody told, since no plugin was connected, is recorded; so is a container
        that was created meanwhile on a partition made at Prepare.
        """
        present = {r.runtime_id for r in replayed}
        released = sorted(
            binding.runtime_id
            for _, _, binding in self._ledger.all_bindings()
            if binding.home is None
            and binding.session < session
            and binding.runtime_id not in present
            and not self._holders.is_live(binding)
        )
        for runtime_id in released:
            self.partitions.remove(runtime_id)
        self.partitions.synchronized_session = session
        running_first = sorted(replayed, key=lambda r: r.pid == 0)
        bound = [r for r in running_first if self._ledger.find(r.runtime_id) is not None or self._adopts(r, session)]
        unbound = tuple(sorted(present - {r.runtime_id for r in bound}))
        unrecorded = self._record_missed_starts(bound)
        drifted = tuple(sorted(r.runtime_id for r in bound if r.runtime_id in unrecorded or self.has_drifted(r)))
        return Comparison(unbound=unbound, drifted=drifted, released=tuple(released))

    def has_drifted(self, container: Replayed) -> bool:
        """Whether a bound container's limits file differs from what its binding gives, or its grants are malformed."""
        held = self._ledger.find(container.runtime_id)
        if held is None or container.facts is None:
            return True
        granted = self._holders.granted(held)
        if not granted:
            return True
        assigner = assigners.assigner_of(granted[0].record)
        try:
            limits = assigner.limits(held.binding, granted, inventory=self._node.inventory(), ratios=self._node.rules.ratios)
        except VgpuError:
            return True
        return self._files.read_limits(held.uid, held.name) != vgpu_config.encode_limits(limits)

    def adopt(self, facts: ContainerFacts, session: int) -> None:
        """Binds a container that nobody told of to a partition made at Prepare, which was there before it.

        One that is made with its container is not there: such a container does not start, or was refused, and nothing is done.

        Raises:
            VgpuError: as for `Partitions.ensure`.
        """
        if all(self._is_there_before(grant.claim_uid) for grant in facts.grants):
            then = replace(facts, mounts=assigners.with_library_of_now(facts.mounts, rules=self._node.rules))
            self.partitions.ensure(then, session=session)

    def _adopts(self, container: Replayed, session: int) -> bool:
        facts = container.facts
        if facts is None:
            return False
        about = {"container_id": container.runtime_id, "pod_uid": facts.pod.uid}
        if (other := self._running_attempt(facts)) is not None:
            _log.error("container not bound", **about, reason=f"another attempt of it runs: {other[:12]}")
            return False
        try:
            self.adopt(facts, session)
        except VgpuError as exc:
            _log.error("container not bound", **about, reason=str(exc))
        return self._ledger.find(container.runtime_id) is not None

    def _running_attempt(self, facts: ContainerFacts) -> RuntimeId | None:
        """Which attempt of the container holds its partition and runs. The list does not say which of two is the newer one: one
        that was created and never started may stay in it for as long as its pod lives."""
        bindings = [b for uid in admission.claims_of(facts) for b in self._ledger.bindings(uid).values()]
        rivals = [b for b in bindings if partition.is_held_by(b, facts) and b.runtime_id != facts.runtime_id]
        return next((b.runtime_id for b in rivals if self._holders.still_runs(b)), None)

    def _is_there_before(self, uid: ClaimUid) -> bool:
        record = self._ledger.records.get(uid)
        return record is not None and assigners.assigner_of(record).keeps_directory

    def _record_missed_starts(self, bound: Collection[Replayed]) -> frozenset[RuntimeId]:
        """Those that run, whose start was not recorded, and cannot be: they do not show what we gave them."""
        # By the partition itself: a reference to it in another claim is written first, and may be all that was.
        own = [b for _, _, b in self._ledger.all_bindings() if b.home is None]
        started = {b.runtime_id for b in own if b.is_started or b.state is HolderState.STOPPED}
        unrecorded = set()
        for container in [r for r in bound if r.pid and r.runtime_id not in started]:
            try:
                self.partitions.record_start(container.runtime_id, container.pid)
            except VgpuError as exc:
                unrecorded.add(container.runtime_id)
                _log.error("missed start not recorded", container_id=container.runtime_id, reason=str(exc))
        return frozenset(unrecorded)
