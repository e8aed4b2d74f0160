"""Calls to dra-plugin, the only writer of PID lists."""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_proto.registrations import RecordPidsResponse
from vgpu_registry import wire
from vgpu_registry.policy import PartitionRef
from vgpu_state.ids import RuntimeId

_ROUTE = "/vgpu.registrations.v1.Registrations/RecordPids"
# A third of what a registration is held for: a dra-plugin that hangs costs one attempt, not the call.
_DEADLINE_S = 4.0


class RegistrationsClient:
    """RecordPids at whoever serves dra-plugin's socket just now."""

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
        answer = await self._dra.call(_ROUTE, request, RecordPidsResponse, deadline_s=_DEADLINE_S)
        return answer.changed is True
