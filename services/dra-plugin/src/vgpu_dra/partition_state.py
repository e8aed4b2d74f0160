"""EnsurePartition, RecordStart, ReleasePartition, RecordPids, Synchronize: where partition plans become files.

Runs in worker threads, one operation per claim at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import structlog

from vgpu_daemon.procfs import Procfs
from vgpu_dra.assignments import Assigned, Comparison, Replayed
from vgpu_dra.inventory import Inventory
from vgpu_dra.ledger import Ledger
from vgpu_dra.policy import admission, limits, partition, reach, start_check
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.rules import NodeRules
from vgpu_state import cgroup, ids, pids, vgpu_config
from vgpu_state.claims import Binding, ClaimRecord, HolderState, PodRef
from vgpu_state.errors import PermissionRefused, PreconditionFailed, Superseded, VgpuError
from vgpu_state.ids import ClaimUid, PartitionName, RuntimeId

_log = structlog.get_logger()


class PartitionFiles(Protocol):
    """What partitions do to the disk."""

    def make_partition(self, uid: ClaimUid, name: PartitionName, *, limits: bytes, binding: Binding) -> None: ...
    def write_binding(self, uid: ClaimUid, name: PartitionName, binding: Binding) -> None: ...
    def write_pids(self, uid: ClaimUid, name: PartitionName, pids: bytes) -> bool: ...
    def read_limits(self, uid: ClaimUid, name: PartitionName) -> bytes | None: ...
    def discard_partition(self, uid: ClaimUid, name: PartitionName) -> None: ...


class NodeView(Protocol):
    """What the node allows and has now."""

    @property
    def rules(self) -> NodeRules: ...
    def inventory(self) -> Inventory: ...
    def agent_path(self, host_path: str) -> str: ...


class Partitions:
    """The partitions of this node."""

    def __init__(
        self, *, ledger: Ledger, files: PartitionFiles, node: NodeView, procfs: Procfs, clock: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._node = node
        self._procfs = procfs
        self._clock = clock
        self._synchronized_session = 0

    def ensure(self, facts: ContainerFacts, *, session: int) -> Assigned:
        """The container's partition. The same runtime id gets the same answer and nothing is written.

        Raises:
            VgpuError: as its class says; the message names the container, what was found and what is allowed.
        """
        uid = admission.single_claim(facts)
        with self._ledger.claim(uid):
            if (reason := self._ledger.quarantined.get(uid)) is not None:
                raise PreconditionFailed(f"{facts}: claim {uid} is quarantined ({reason}); delete its pods to unprepare it")
            record = self._ledger.records.get(uid)
            results = admission.granted_results(facts, record)
            assert record is not None  # granted_results refuses without one
            inventory = self._node.inventory()
            admission.check_container(facts, results, rules=self._node.rules, inventory=inventory)
            if self._ledger.was_released(facts.runtime_id, now_s=self._clock()):
                raise Superseded(f"{facts} ({facts.runtime_id[:12]}) was released; a new container is needed")
            name = ids.partition_name(facts.pod.uid, facts.name)
            holders = self._holders(record, name, session)
            plan = partition.plan_ensure(facts, results=results, holders=holders, session=session)
            if isinstance(plan, partition.Make):
                reach.check_reachable(results, inventory, who=facts)
                content = limits.container_limits(
                    results, record=record, holder=plan.binding, inventory=inventory, ratios=self._node.rules.ratios
                )
                self._make(uid, name, plan, content)
            return Assigned(
                claim_uid=uid,
                partition=name,
                mounts=partition.adjustment_mounts(record, name, host=self._node.rules.host),
                env=partition.adjustment_env(plan.binding),
                is_new=isinstance(plan, partition.Make),
            )

    def record_start(self, runtime_id: RuntimeId, pid: int) -> Binding:
        """The binding, complete with the container's cgroup; its PID list holds the first process.

        Raises:
            PermissionRefused: no partition was made for this container, or the process is not in it.
            Superseded: the container was stopped or replaced.
            PreconditionFailed: its mount table does not show our files at our destinations.
        """
        uid, name, _ = self._bound(runtime_id)
        with self._ledger.claim(uid):
            uid, name, binding = self._bound(runtime_id)
            who = f"container {binding.container} of pod {binding.pod.namespace}/{binding.pod.name}"
            if binding.state is HolderState.STOPPED:
                raise Superseded(f"{who} was stopped; it cannot start again")
            place = self._procfs.locate(pid)
            if not isinstance(place, cgroup.ContainerCgroup) or place.container_id != runtime_id:
                raise PermissionRefused(f"{who}: process {pid} is not in the container's cgroup but in {place!r}")
            if place.pod_uid != binding.pod.uid:
                raise PermissionRefused(f"{who}: process {pid} runs in pod {place.pod_uid}, the binding says {binding.pod.uid}")
            self._check_mounts(uid, name, pid, who)
            first = {pid, *self._procfs.cgroup_pids(place.path, runtime_id)[: pids.MAX_PIDS - 1]}
            # PIDs first: a binding that says "started" promises a list that is not empty.
            self._files.write_pids(uid, name, pids.encode_pids(first))
            started = replace(binding, cgroup=place.path)
            if started != binding:
                self._files.write_binding(uid, name, started)
                self._ledger.bind(uid, name, started, now_s=self._clock())
            return started

    def record_pids(self, uid: ClaimUid, name: PartitionName, runtime_id: RuntimeId, found: Collection[int]) -> bool:
        """Whether the PID list changed.

        Raises:
            Superseded: this runtime id does not hold the partition, or is stopped.
            MalformedInput: the list is empty, too long, or holds no PIDs.
        """
        encoded = pids.encode_pids(found)
        with self._ledger.claim(uid):
            binding = self._ledger.bindings(uid).get(name)
            if binding is None or binding.runtime_id != runtime_id or binding.state is HolderState.STOPPED:
                raise Superseded(f"partition {name} of claim {uid} is not held by container {runtime_id[:12]} any more")
            return self._files.write_pids(uid, name, encoded)

    def stop(self, runtime_id: RuntimeId) -> None:
        """The container's requests are free, its directory stays. An unknown id is a success."""
        with self._releasing(runtime_id) as held:
            if held is not None and held[2].state is not HolderState.STOPPED:
                uid, name, binding = held
                self._write(uid, name, partition.stopped(binding))

    def remove(self, runtime_id: RuntimeId) -> None:
        """The container's directory is in the trash. An unknown id is a success."""
        with self._releasing(runtime_id) as held:
            if held is not None:
                self._discard(held[0], held[1])

    def synchronize(self, session: int, replayed: Collection[Replayed]) -> Comparison:
        """Compares what the runtime says lives with what is bound. Releases only what an earlier session left: bound, absent
        now, and without a process. A start of which nobody told, since no plugin was connected, is recorded.
        """
        present = {r.runtime_id for r in replayed}
        bound = [r for r in replayed if self._ledger.find(r.runtime_id) is not None]
        unbound = tuple(sorted(present - {r.runtime_id for r in bound}))
        unrecorded = self._record_missed_starts(bound)
        drifted = tuple(sorted(r.runtime_id for r in bound if r.runtime_id in unrecorded or self.has_drifted(r)))
        released = [
            binding.runtime_id
            for uid, _, binding in self._ledger.all_bindings()
            if binding.session < session and binding.runtime_id not in present and not self.is_live(binding)
        ]
        for runtime_id in released:
            self.remove(runtime_id)
        self._synchronized_session = session
        return Comparison(unbound=unbound, drifted=drifted, released=tuple(sorted(released)))

    @property
    def synchronized_session(self) -> int:
        """The NRI session whose containers were compared last, 0 before the first."""
        return self._synchronized_session

    def has_drifted(self, container: Replayed) -> bool:
        """Whether a bound container's limits file differs from what its binding gives, or its grants are malformed."""
        place = self._ledger.find(container.runtime_id)
        if place is None or container.facts is None:
            return True
        uid, name = place
        record = self._ledger.records.get(uid)
        binding = self._ledger.bindings(uid).get(name)
        if record is None or binding is None:
            return True
        granted = [r for r in record.vgpus if r.grant.key in binding.grants]
        try:
            content = limits.container_limits(
                granted, record=record, holder=binding, inventory=self._node.inventory(), ratios=self._node.rules.ratios
            )
        except VgpuError:
            return True
        return self._files.read_limits(uid, name) != vgpu_config.encode_limits(content)

    def is_live(self, binding: Binding) -> bool:
        """Whether a holder still counts, by its cgroup or by its age before the start."""
        return partition.is_holder_live(
            binding,
            still_runs=lambda: self.still_runs(binding),
            age_s=self._clock() - self._ledger.bound_at(binding.runtime_id),
        )

    def pod_of(self, runtime_id: RuntimeId) -> PodRef | None:
        """The pod of a container that has a partition."""
        return self._ledger.pod_of(runtime_id)

    def still_runs(self, binding: Binding) -> bool:
        """Whether the container may have a process: False only when its cgroup, read to the end, has none or is gone."""
        return self._procfs.has_processes(binding.cgroup, binding.runtime_id)

    @contextmanager
    def _releasing(self, runtime_id: RuntimeId) -> Iterator[tuple[ClaimUid, PartitionName, Binding] | None]:
        """What this runtime id holds, with its claim held, or None. From here on a late Ensure for the id is refused."""
        self._ledger.remember_released(runtime_id, now_s=self._clock())
        place = self._ledger.find(runtime_id)
        if place is None:
            yield None
            return
        uid, name = place
        with self._ledger.claim(uid):
            binding = self._ledger.bindings(uid).get(name)
            yield (uid, name, binding) if binding is not None and binding.runtime_id == runtime_id else None

    def _record_missed_starts(self, bound: Collection[Replayed]) -> frozenset[RuntimeId]:
        """Those that run, whose start was not recorded, and cannot be: they do not show what we gave them."""
        started = {b.runtime_id for _, _, b in self._ledger.all_bindings() if b.is_started or b.state is HolderState.STOPPED}
        unrecorded = set()
        for container in [r for r in bound if r.pid and r.runtime_id not in started]:
            try:
                self.record_start(container.runtime_id, container.pid)
            except VgpuError as exc:
                unrecorded.add(container.runtime_id)
                _log.error("missed start not recorded", container_id=container.runtime_id, reason=str(exc))
        return frozenset(unrecorded)

    def _holders(self, record: ClaimRecord, own: PartitionName, session: int) -> partition.Holders:
        bindings = self._ledger.bindings(record.claim.uid)
        return partition.Holders(
            record=record,
            bindings=bindings,
            live=frozenset(n for n, b in bindings.items() if n != own and self.is_live(b)),  # its own it takes over anyway
            # On the word of this session only: an earlier one may have missed what was created between them.
            may_evict=session == self._synchronized_session != 0,
        )

    def _make(self, uid: ClaimUid, name: PartitionName, plan: partition.Make, content: vgpu_config.Limits) -> None:
        for other, binding in plan.evicted.items():
            self._write(uid, other, binding)
            _log.warning("dead holder evicted", claim_uid=uid, partition=other, container_id=binding.runtime_id)
        self._files.make_partition(uid, name, limits=vgpu_config.encode_limits(content), binding=plan.binding)
        self._ledger.bind(uid, name, plan.binding, now_s=self._clock())
        # A release does not wait for the claim: one that came before the line above has found nothing to release.
        if self._ledger.was_released(plan.binding.runtime_id, now_s=self._clock()):
            self._discard(uid, name)
            raise Superseded(f"container {plan.binding.runtime_id[:12]} was released while its partition was being made")

    def _discard(self, uid: ClaimUid, name: PartitionName) -> None:
        self._files.discard_partition(uid, name)
        self._ledger.unbind(uid, name, now_s=self._clock())

    def _write(self, uid: ClaimUid, name: PartitionName, binding: Binding) -> None:
        self._files.write_binding(uid, name, binding)
        self._ledger.bind(uid, name, binding, now_s=self._clock())

    def _bound(self, runtime_id: RuntimeId) -> tuple[ClaimUid, PartitionName, Binding]:
        place = self._ledger.find(runtime_id)
        binding = self._ledger.bindings(place[0]).get(place[1]) if place else None
        if place is None or binding is None or binding.runtime_id != runtime_id:
            raise PermissionRefused(
                f"container {runtime_id[:12]} has no partition: it was created while nri-plugin was away, or has been released"
            )
        return *place, binding

    def _check_mounts(self, uid: ClaimUid, name: PartitionName, pid: int, who: str) -> None:
        own, rules, record = self._procfs.mounts("self"), self._node.rules, self._ledger.records[uid]
        mounts = partition.container_mounts(record, name, host=rules.host, library_version=rules.library_version)
        expected = [start_check.expect(m, agent_path=self._node.agent_path(m.source), own_mounts=own) for m in mounts]
        start_check.check_mount_table(self._procfs.mounts(pid), expected, who=who)
