"""EnsurePartition, RecordStart, ReleasePartition, RecordPids: where partition plans become files.

Runs in worker threads, one operation per claim at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from vgpu_dra.assignments import Assigned
from vgpu_dra.ledger import Held, Ledger
from vgpu_dra.partition_holders import NodeView, PartitionFiles, PartitionHolders
from vgpu_dra.policy import admission, assigners, partition, reach
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.assigner import Granted
from vgpu_state import pids, vgpu_config
from vgpu_state.claims import Binding, HolderState, PodRef
from vgpu_state.errors import PermissionRefused, PreconditionFailed, Superseded
from vgpu_state.ids import ClaimUid, PartitionName, RuntimeId


class Partitions:
    """The partitions of this node. `synchronized_session` is the NRI session whose containers were compared last, 0 before."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        files: PartitionFiles,
        node: NodeView,
        holders: PartitionHolders,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._node = node
        self._holders = holders
        self._clock = clock
        self.synchronized_session = 0

    def ensure(self, facts: ContainerFacts, *, session: int) -> Assigned:
        """The container's partition. The same runtime id gets the same answer and nothing is written.

        Raises:
            VgpuError: as its class says; the message names the container, what was found and what is allowed.
        """
        uids = admission.claims_of(facts)
        with self._ledger.claims_held(uids):
            granted = [self._granted(facts, uid) for uid in uids]
            inventory, rules = self._node.inventory(), self._node.rules
            assigner = assigners.assigner_among(facts.pod, facts.name, granted)
            placement = assigner.at_create(facts.pod, facts.name, granted, host=rules.host)
            admission.check_container(facts, granted, rules=rules, inventory=inventory)
            if self._ledger.was_released(facts.runtime_id, now_s=self._clock()):
                raise Superseded(f"{facts} ({facts.runtime_id[:12]}) was released; a new container is needed")
            plan = partition.plan_ensure(
                facts,
                placement=placement,
                claims=[self._holders.holders(g, newcomer=facts) for g in granted],
                session=session,
                # On the word of this session only: an earlier one may have missed what was created between them.
                may_evict=session == self.synchronized_session != 0,
            )
            if isinstance(plan, partition.Make):
                reach.check_reachable([r for g in granted for r in g.results], inventory, who=facts)
                limits = assigner.limits(plan.binding, granted, inventory=inventory, ratios=rules.ratios)
                encoded = None if assigner.keeps_directory else vgpu_config.encode_limits(limits)
                self._holders.make(placement, plan, limits=encoded)
            return Assigned(
                claim_uid=placement.claim_uid,
                partition=placement.name,
                mounts=placement.adjustment.mounts,
                env=placement.adjustment.env,
                is_new=isinstance(plan, partition.Make),
            )

    def record_start(self, runtime_id: RuntimeId, pid: int) -> Binding:
        """The binding, complete with the container's cgroup; its PID list holds the first process.

        Raises:
            PermissionRefused: no partition was made for this container, or the process is not in it.
            Superseded: the container was stopped or replaced.
            PreconditionFailed: its mount table does not show our files at our destinations.
        """
        with self._ledger.claims_held(self._bound(runtime_id).claims):
            held = self._bound(runtime_id)
            binding, granted = held.binding, self._holders.granted(held)
            if binding.state is HolderState.STOPPED:
                raise Superseded(f"{binding} was stopped; it cannot start again")
            cgroup = self._holders.cgroup_of(binding, pid)
            assigner = assigners.assigner_of(granted[0].record)
            placement = assigner.at_create(binding.pod, binding.container, granted, host=self._node.rules.host)
            self._holders.check_mounts(granted, pid, adjustment=placement.adjustment, who=binding)
            for uid, reference in self._holders.each(held)[1:]:
                if reference.cgroup != cgroup:
                    self._holders.write(uid, held.name, replace(reference, cgroup=cgroup))
            started = replace(binding, cgroup=cgroup)
            self._holders.write_started(held.uid, held.name, started, pid)
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
            if binding is None or binding.runtime_id != runtime_id or binding.state is HolderState.STOPPED or binding.home:
                raise Superseded(f"partition {name} of claim {uid} is not held by container {runtime_id[:12]} any more")
            return self._files.write_pids(uid, name, encoded)

    def stop(self, runtime_id: RuntimeId) -> None:
        """The container's requests are free, its directory stays. An unknown id is a success."""
        with self._releasing(runtime_id) as bindings:
            for uid, name, binding in bindings:
                if binding.state is not HolderState.STOPPED:
                    self._holders.write(uid, name, partition.stopped(binding))

    def remove(self, runtime_id: RuntimeId) -> None:
        """The container holds nothing; a directory of its own is in the trash. An unknown id is a success."""
        with self._releasing(runtime_id) as bindings:
            for uid, name, _ in reversed(bindings):  # its home last, as it was made
                self._holders.release(uid, name)

    def pod_of(self, runtime_id: RuntimeId) -> PodRef | None:
        """The pod of a container that has a partition."""
        return self._ledger.pod_of(runtime_id)

    def _granted(self, facts: ContainerFacts, uid: ClaimUid) -> Granted:
        if (reason := self._ledger.quarantined.get(uid)) is not None:
            raise PreconditionFailed(f"{facts}: claim {uid} is quarantined ({reason}); delete its pods to unprepare it")
        return admission.granted_of(facts, uid, self._ledger.records.get(uid))

    @contextmanager
    def _releasing(self, runtime_id: RuntimeId) -> Iterator[Sequence[tuple[ClaimUid, PartitionName, Binding]]]:
        """What this runtime id holds, its home first, with its claims held. From here on a late Ensure for the id is refused."""
        self._ledger.remember_released(runtime_id, now_s=self._clock())
        uids = {uid for uid, _, _ in self._ledger.bindings_of(runtime_id)}
        with self._ledger.claims_held(uids):
            # An Ensure that is still under way adds to them, and undoes all of it at its end.
            yield [entry for entry in self._ledger.bindings_of(runtime_id) if entry[0] in uids]

    def _bound(self, runtime_id: RuntimeId) -> Held:
        held = self._ledger.find(runtime_id)
        if held is None:
            raise PermissionRefused(
                f"container {runtime_id[:12]} has no partition: it was created while nri-plugin was away, or has been released"
            )
        return held
