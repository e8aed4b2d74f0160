"""Calls to dra-plugin, the only writer of bindings and PID lists."""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_daemon.grpc_status import MethodUnknown
from vgpu_proto.registrations import BindPartitionResponse, RecordPidsResponse
from vgpu_registry import wire
from vgpu_registry.policy import Caller, PartitionRef, Question
from vgpu_state.errors import NotReady
from vgpu_state.ids import RuntimeId

_RECORD_PIDS = "/vgpu.registrations.v1.Registrations/RecordPids"
_BIND_PARTITION = "/vgpu.registrations.v1.Registrations/BindPartition"
# A third of what a registration is held for: a dra-plugin that hangs costs one attempt, not the call.
_DEADLINE_S = 4.0


class RegistrationsClient:
    """RecordPids and BindPartition at whoever serves dra-plugin's socket just now."""

    def __init__(self, dra: PeerSocket) -> None:
        self._dra = dra

    async def record_pids(self, partition: PartitionRef, *, runtime_id: RuntimeId, pids: Sequence[int]) -> bool:
        """Replaces the partition's PID list; whether it was another one before.

        Raises:
            NotReady: dra-plugin is away, hung beyond 4 s, or draining.
            Superseded: `runtime_id` does not hold the partition any more.
            VgpuError: what else it refused with.
        """
        request = wire.record_pids_request(partition, runtime_id=runtime_id, pids=pids)
        answer = await self._dra.call(_RECORD_PIDS, request, RecordPidsResponse, deadline_s=_DEADLINE_S)
        return answer.changed is True

    async def bind_partition(self, question: Question, *, caller: Caller) -> PartitionRef:
        """Has the partition of the register UUID bound to the caller's container; which partition that is.

        Raises:
            PermissionRefused: there is none of that UUID for this container.
            PreconditionFailed: another live container has it.
            NotReady: dra-plugin is away, hung beyond 4 s, draining, or, in the middle of an update, of an older version.
            Superseded: the container was released.
            VgpuError: what else it refused with.
        """
        request = wire.bind_partition_request(question, caller=caller)
        try:
            answer = await self._dra.call(_BIND_PARTITION, request, BindPartitionResponse, deadline_s=_DEADLINE_S)
        except MethodUnknown as exc:
            raise NotReady("dra-plugin is of a version without register UUIDs") from exc
        return wire.parse_bound(answer)
