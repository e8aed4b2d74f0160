"""Who holds which partition, on disk and in memory at once, and whether it lives. The operations on partitions sit on this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import structlog

from vgpu_daemon.procfs import Procfs
from vgpu_dra.cdi import Edits
from vgpu_dra.inventory import Inventory
from vgpu_dra.ledger import Held, Ledger
from vgpu_dra.policy import assigners, partition, start_check
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.assigner import Granted, Placement
from vgpu_dra.policy.partition import Holders, Make
from vgpu_dra.rules import NodeRules
from vgpu_state import cgroup, pids
from vgpu_state.claims import Binding, PodRef
from vgpu_state.errors import NotReady, PermissionRefused, StorageFailed, Superseded
from vgpu_state.ids import ClaimUid, PartitionName, RuntimeId

_log = structlog.get_logger()


class PartitionFiles(Protocol):
    """What partitions do to the disk."""

    def make_partition(self, uid: ClaimUid, name: PartitionName, *, limits: bytes | None, binding: Binding | None) -> None: ...
    def write_binding(self, uid: ClaimUid, name: PartitionName, binding: Binding) -> None: ...
    def write_pids(self, uid: ClaimUid, name: PartitionName, pids: bytes) -> bool: ...
    def discard_partition(self, uid: ClaimUid, name: PartitionName) -> None: ...
    def vacate_partition(self, uid: ClaimUid, name: PartitionName) -> None: ...


class NodeView(Protocol):
    """What the node allows and has now."""

    @property
    def rules(self) -> NodeRules: ...
    def inventory(self) -> Inventory: ...
    def agent_path(self, host_path: str) -> str: ...


class PartitionHolders:
    """The bindings of this node. The caller holds the claims that it changes."""

    def __init__(
        self, *, ledger: Ledger, files: PartitionFiles, node: NodeView, procfs: Procfs, clock: Callable[[], float]
    ) -> None:
        self._ledger = ledger
        self._files = files
        self._node = node
        self._procfs = procfs
        self._clock = clock

    def is_live(self, binding: Binding) -> bool:
        """Whether a holder still counts, by its cgroup or by its age before the start."""
        return partition.is_holder_live(
            binding,
            still_runs=lambda: self.still_runs(binding),
            age_s=self._clock() - self._ledger.bound_at(binding.runtime_id),
        )

    def still_runs(self, binding: Binding) -> bool:
        """Whether the container may have a process: False only when its cgroup, read to the end, has none or is gone."""
        return self._procfs.has_processes(binding.cgroup, binding.runtime_id)

    def is_inhabited(self, whose: Binding | PodRef) -> bool:
        """Whether a process may be left in the container, or anywhere in the pod."""
        return self.still_runs(whose) if isinstance(whose, Binding) else self._procfs.pod_has_processes(whose.uid)

    def who_runs(self, uid: ClaimUid) -> str | None:
        """A container that may still use the claim, for a message. Where partitions were made at Prepare nobody need have told
        of one, and any process of the pod counts."""
        for binding in self._ledger.bindings(uid).values():
            if self.still_runs(binding):
                return str(binding)
        record = self._ledger.records.get(uid)
        if record is not None and record.eager is not None and self._procfs.pod_has_processes(record.eager.pod.uid):
            return f"a container of pod {record.eager.pod}"
        return None

    def holders(self, granted: Granted, *, newcomer: ContainerFacts) -> Holders:
        """Who holds the claim, and who of them lives but for the newcomer's own predecessor, from which it takes over anyway."""
        bindings = self._ledger.bindings(granted.record.claim.uid)
        live = frozenset(n for n, b in bindings.items() if not partition.is_held_by(b, newcomer) and self.is_live(b))
        return Holders(granted=granted, bindings=bindings, live=live)

    def granted(self, held: Held) -> tuple[Granted, ...]:
        """The shares that a holder has, by claim; of those claims that still have a record."""
        records = [r for uid in held.claims if (r := self._ledger.records.get(uid)) is not None]
        found = [Granted(record=r, results=tuple(v for v in r.vgpus if v.grant.key in held.binding.grants)) for r in records]
        return tuple(g for g in found if g.results)

    def make(self, placement: Placement, plan: Make, *, limits: bytes | None) -> None:
        """The binding and what is beside it. `limits` None: the directory stands already.

        Raises:
            StorageFailed: the disk refused; the container holds nothing.
            Superseded: it was released meanwhile.
        """
        runtime_id = plan.binding.runtime_id
        for uid, name, binding in plan.evicted:
            self.write(uid, name, binding)
            _log.warning("dead holder evicted", claim_uid=uid, partition=name, container_id=binding.runtime_id)
        with self._undone_on_failure(placement.name, plan):
            for uid, reference in plan.references.items():
                self._files.make_partition(uid, placement.name, limits=None, binding=reference)
                self._ledger.bind(uid, placement.name, reference, now_s=self._clock())
            if limits is None:
                self._files.write_binding(placement.claim_uid, placement.name, plan.binding)
            else:
                self._files.make_partition(placement.claim_uid, placement.name, limits=limits, binding=plan.binding)
        self._ledger.bind(placement.claim_uid, placement.name, plan.binding, now_s=self._clock())
        self.check_not_released(runtime_id, (placement.claim_uid, *plan.references), placement.name)

    def check_not_released(self, runtime_id: RuntimeId, uids: Sequence[ClaimUid], name: PartitionName) -> None:
        """Returns when the new holder was not released meanwhile. A release waits for no claim: until now it found nothing.

        Raises:
            Superseded: it was; it holds nothing any more.
        """
        if self._ledger.was_released(runtime_id, now_s=self._clock()):
            for uid in uids:
                self.release(uid, name)
            raise Superseded(f"container {runtime_id[:12]} was released while its partition was being made")

    def release(self, uid: ClaimUid, name: PartitionName) -> None:
        """Nobody holds the partition; its directory is gone, or is there for the next holder."""
        record = self._ledger.records.get(uid)
        if record is not None and assigners.assigner_of(record).keeps_directory:
            self._files.vacate_partition(uid, name)
        else:
            self._files.discard_partition(uid, name)
        self._ledger.unbind(uid, name, now_s=self._clock())

    def write(self, uid: ClaimUid, name: PartitionName, binding: Binding) -> None:
        self._files.write_binding(uid, name, binding)
        self._ledger.bind(uid, name, binding, now_s=self._clock())

    def each(self, held: Held) -> list[tuple[ClaimUid, Binding]]:
        """The binding and the references to it, by claim."""
        found = [(uid, self._ledger.bindings(uid).get(held.name)) for uid in held.claims]
        return [(uid, b) for uid, b in found if b is not None and b.runtime_id == held.binding.runtime_id]

    def cgroup_of(self, binding: Binding, pid: int) -> str:
        """The path of the container's cgroup, where `pid` is.

        Raises:
            PermissionRefused: the process is not in the container, or not in its pod.
        """
        place = self._procfs.locate(pid)
        if not isinstance(place, cgroup.ContainerCgroup) or place.container_id != binding.runtime_id:
            raise PermissionRefused(f"{binding}: process {pid} is not in the container's cgroup but in {place!r}")
        if place.pod_uid != binding.pod.uid:
            raise PermissionRefused(f"{binding}: process {pid} runs in pod {place.pod_uid}, the binding says {binding.pod.uid}")
        return place.path

    def check_mounts(self, granted: Sequence[Granted], pid: int, *, adjustment: Edits, who: Binding) -> None:
        """Returns when the process sees our files at our destinations, CDI's and those of the adjustment.

        Raises:
            PreconditionFailed: naming the place, and what is there.
            NotReady: the process has ended; who asks for another one of the container may get an answer.
        """
        rules, own = self._node.rules, self._procfs.mounts("self")
        mounts = assigners.container_mounts(granted, adjustment, rules=rules)
        expected = [start_check.expect(m, agent_path=self._node.agent_path(m.source), own_mounts=own) for m in mounts]
        found = self._procfs.mounts(pid)
        if not found:  # even a container without mounts has a root
            raise NotReady(f"{who}: process {pid} has ended, and sees no files any more")
        start_check.check_mount_table(found, expected, who=str(who))

    def write_started(self, uid: ClaimUid, name: PartitionName, started: Binding, pid: int) -> None:
        """The binding of a running container, and its first PIDs."""
        first = {pid, *self._procfs.cgroup_pids(started.cgroup, started.runtime_id)[: pids.MAX_PIDS - 1]}
        # PIDs first: a binding that says "started" promises a list that is not empty.
        self._files.write_pids(uid, name, pids.encode_pids(first))
        if started != self._ledger.bindings(uid).get(name):
            self.write(uid, name, started)

    @contextmanager
    def _undone_on_failure(self, name: PartitionName, plan: Make) -> Iterator[None]:
        try:
            yield
        except StorageFailed:
            for uid, reference in plan.references.items():
                if self._ledger.bindings(uid).get(name) == reference:
                    with suppress(StorageFailed):  # what stays is a dead holder, and is evicted
                        self.release(uid, name)
            raise
