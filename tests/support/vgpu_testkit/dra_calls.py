"""Calls to dra-plugin's two private sockets as nri-plugin and registry make them, with the bare gRPC status of each refusal."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import StreamTerminatedError

from vgpu_proto import partitions, registrations

STOPPED = partitions.ReleasePartitionRequest.STOPPED
REMOVED = partitions.ReleasePartitionRequest.REMOVED

EARLY_SESSION = 2
"""A session whose containers dra-plugin has not been told: it calls before its Synchronize."""

_CALL_S = 20.0
_T = TypeVar("_T")


class ConnectionBroke(Exception):
    """Raised when dra-plugin is away or went away during the call."""


class Raw:
    """Bytes that `call` sends as a message, whatever they are."""

    def __init__(self, raw: bytes = b"") -> None:
        self._raw = raw

    def __bytes__(self) -> bytes:
        return self._raw

    SerializeToString = __bytes__


class DraCalls:
    """Every call dials anew, so that it reaches whoever serves the path now.

    All raise GRPCError for a refusal and ConnectionBroke when there is no answer.
    """

    def __init__(self, run_dir: Path) -> None:
        self._partitions = run_dir / "partitions/claims.sock"
        self._registrations = run_dir / "registrations/claims.sock"

    async def ensure(
        self, container: partitions.Container, *, session: int = EARLY_SESSION
    ) -> partitions.EnsurePartitionResponse:
        request = partitions.EnsurePartitionRequest(session=session, container=container)
        return await self._partition_call("EnsurePartition", request, partitions.EnsurePartitionResponse)

    async def record_start(self, runtime_id: str, pid: int) -> None:
        request = partitions.RecordStartRequest(runtime_id=runtime_id, pid=pid)
        await self._partition_call("RecordStart", request, partitions.RecordStartResponse)

    async def release(self, runtime_id: str, stage: Any) -> None:  # Any: a protobuf enum value, or a number that is none
        request = partitions.ReleasePartitionRequest(runtime_id=runtime_id, stage=stage)
        await self._partition_call("ReleasePartition", request, partitions.ReleasePartitionResponse)

    async def synchronize(self, containers: Collection[partitions.Container] = (), *, session: int) -> Any:
        request = partitions.SynchronizeRequest(session=session, containers=containers)
        return await self._partition_call("Synchronize", request, partitions.SynchronizeResponse)

    async def record_pids(self, claim_uid: str, partition: str, runtime_id: str, pids: Collection[int]) -> bool:
        """Whether the list changed."""
        request = registrations.RecordPidsRequest(
            claim_uid=claim_uid, partition=partition, runtime_id=runtime_id, pids=list(pids)
        )
        route = "/vgpu.registrations.v1.Registrations/RecordPids"
        return (await call(self._registrations, route, request, registrations.RecordPidsResponse)).changed

    async def bind_partition(
        self, register_uuid: str, *, runtime_id: str, pod_uid: str, pid: int, container: str = ""
    ) -> tuple[str, str]:
        """The claim and the partition that the container has registered for."""
        request = registrations.BindPartitionRequest(
            register_uuid=register_uuid, runtime_id=runtime_id, pod_uid=pod_uid, pid=pid, container_name=container
        )
        route = "/vgpu.registrations.v1.Registrations/BindPartition"
        answer = await call(self._registrations, route, request, registrations.BindPartitionResponse)
        return answer.claim_uid, answer.partition

    async def _partition_call(self, method: str, request: object, response: Callable[..., _T]) -> _T:
        return await call(self._partitions, f"/vgpu.partitions.v1.Partitions/{method}", request, response)


async def call(path: Path, route: str, request: object, response: Callable[..., _T]) -> _T:
    """A unary call on a connection of its own."""
    channel = Channel(path=str(path))
    try:
        method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(channel, route, type(request), response)  # type: ignore[arg-type]
        answer: _T = await method(request, timeout=_CALL_S)
    except (OSError, StreamTerminatedError) as exc:
        raise ConnectionBroke(f"{route}: {exc}") from exc
    finally:
        channel.close()
    return answer
