"""BindPartition: a container that registers takes the partition that was made for it at Prepare, where NRI told nobody of it.

Its UUID says which partition; who it is, the kernel says. It must see our files, as at a start that NRI tells of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from vgpu_dra.assignments import Registrant
from vgpu_dra.cdi import Edits
from vgpu_dra.ledger import Ledger
from vgpu_dra.partition_holders import PartitionHolders
from vgpu_dra.policy import eager
from vgpu_dra.policy.assigner import Granted
from vgpu_state.claims import Binding, ClaimRecord, ClaimState, EagerPartition, HolderState
from vgpu_state.errors import NotReady, PermissionRefused, PreconditionFailed, Superseded
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, RegisterUuid

_log = structlog.get_logger()
_NO_SESSION = 0  # no NRI session has told of the container


class EagerBindings:
    """Binds partitions that are there before their containers."""

    def __init__(self, *, ledger: Ledger, holders: PartitionHolders, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._holders = holders
        self._clock = clock

    def bind(self, register_uuid: RegisterUuid, who: Registrant) -> tuple[ClaimUid, PartitionName]:
        """The partition, now the container's. Repeating it for the container that has it writes nothing.

        Raises:
            PermissionRefused: nobody registers with this UUID, or not this container, or the process is not in it.
            PreconditionFailed: a live container has the partition, or the container does not see our files.
            NotReady: the process has ended, or an earlier attempt of the same container has not yet.
            Superseded: the container was released.
            StorageFailed: the disk refused.
        """
        uid = self._claim_of(register_uuid)
        with self._ledger.claim(uid):
            record, partition = self._partition(uid, register_uuid)
            holder = self._ledger.bindings(uid).get(partition.name)
            if holder is not None and holder.runtime_id == who.runtime_id:
                if holder.state is HolderState.STOPPED:
                    raise Superseded(f"{holder} was stopped")
                if holder.is_started:
                    return uid, partition.name
            self._check_candidate(record, partition, who)
            if self._ledger.was_released(who.runtime_id, now_s=self._clock()):
                raise Superseded(f"container {who.runtime_id[:12]} was released")
            named = holder.container if holder is not None and holder.runtime_id == who.runtime_id else partition.sole_container
            newcomer = self._started(record, partition, who, named=who.container or named)
            if holder is not None and holder.runtime_id != who.runtime_id:
                self._check_ended(holder, newcomer, what=f"requests {', '.join(partition.requests)} of claim {record.claim}")
            granted = Granted(record=record, results=eager.partition_results(record, partition))
            self._holders.check_mounts((granted,), who.pid, adjustment=Edits(), who=newcomer)
            self._holders.write_started(uid, partition.name, newcomer, who.pid)
            self._holders.check_not_released(who.runtime_id, (uid,), partition.name)
            _log.info(
                "partition bound by registration",
                claim_uid=uid,
                partition=partition.name,
                container_id=who.runtime_id,
                pod_uid=who.pod_uid,
                replaced=holder and holder.runtime_id,
            )
            return uid, partition.name

    def _claim_of(self, register_uuid: RegisterUuid) -> ClaimUid:
        for uid, record in list(self._ledger.records.items()):
            if record.eager is not None and any(p.register_uuid == register_uuid for p in record.eager.partitions):
                return uid
        raise PermissionRefused("no partition on this node is registered for with this UUID")

    def _partition(self, uid: ClaimUid, register_uuid: RegisterUuid) -> tuple[ClaimRecord, EagerPartition]:
        record = self._ledger.records.get(uid)
        if record is not None and record.eager is not None and record.state is ClaimState.PREPARED:
            for partition in record.eager.partitions:
                if partition.register_uuid == register_uuid:
                    return record, partition
        raise PermissionRefused(f"claim {uid} is not prepared on this node any more")

    def _check_candidate(self, record: ClaimRecord, partition: EagerPartition, who: Registrant) -> None:
        assert record.eager is not None  # `_partition` has looked
        if not eager.is_candidate(record, partition, who.pod_uid, who.container):
            said = f"container {who.container} " if who.container else "a container "
            raise PermissionRefused(
                f"{said}({who.runtime_id[:12]}) of pod {who.pod_uid} registers for the partition of "
                f"{eager.candidates(record, partition)} ({record.eager.pod.uid}) of claim {record.claim}: it is another's"
            )

    def _check_ended(self, holder: Binding, newcomer: Binding, *, what: str) -> None:
        if newcomer.container and holder.container == newcomer.container:
            # An earlier attempt, or a later one: nobody says which. One that has no process makes way, started or not.
            if self._holders.still_runs(holder):
                raise NotReady(
                    f"{newcomer} ({newcomer.runtime_id[:12]}): its earlier attempt {holder.runtime_id[:12]} still runs"
                )
        elif self._holders.is_live(holder):
            raise PreconditionFailed(
                f"{newcomer} registers for {what}, which {holder} holds; one live container may hold a vGPU request"
            )

    def _started(self, record: ClaimRecord, partition: EagerPartition, who: Registrant, *, named: ContainerName) -> Binding:
        assert record.eager is not None  # `_partition` has looked
        binding = Binding(
            pod=record.eager.pod,
            container=named,
            runtime_id=who.runtime_id,
            session=_NO_SESSION,
            cgroup="",
            state=HolderState.CREATED,
            grants=tuple(r.grant.key for r in eager.partition_results(record, partition)),
        )
        return replace(binding, cgroup=self._holders.cgroup_of(binding, who.pid))
