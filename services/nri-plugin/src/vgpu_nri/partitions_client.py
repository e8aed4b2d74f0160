"""dra-plugin's Partitions service, called with values and answering with values or domain errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from vgpu_daemon.grpc_client import PeerSocket
from vgpu_daemon.grpc_status import PeerFailed
from vgpu_nri import policy
from vgpu_nri.containers import Adjustment, Pod, Stage, SynchronizeReport, VgpuContainer
from vgpu_nri.session import Session
from vgpu_proto import partitions
from vgpu_state.container_abi import Mount

_MessageT = TypeVar("_MessageT", bound=Message)

_SERVICE = "/vgpu.partitions.v1.Partitions"
_STAGES = {
    Stage.STOPPED: partitions.ReleasePartitionRequest.STOPPED,
    Stage.REMOVED: partitions.ReleasePartitionRequest.REMOVED,
}
# Comparing hundreds of containers with their bindings reads files; nothing waits for it.
_SYNCHRONIZE_S = 10.0
_RENEW_S = 1.0


class PartitionsClient:
    """Every method raises the domain error that dra-plugin refused with, NotReady when it is away or too slow."""

    def __init__(self, peer: PeerSocket) -> None:
        self._peer = peer

    async def ensure(self, container: VgpuContainer, *, session_id: int, deadline_s: float) -> Adjustment:
        request = partitions.EnsurePartitionRequest(session=session_id, container=_encode(container))
        answer = await self._call("EnsurePartition", request, partitions.EnsurePartitionResponse, deadline_s=deadline_s)
        return Adjustment(
            mounts=tuple(
                Mount(destination=m.destination, source=m.source, type=m.type, options=tuple(m.options)) for m in answer.mounts
            ),
            env=tuple((variable.name, variable.value) for variable in answer.env),
            claim_uid=answer.claim_uid,
            partition=answer.partition,
        )

    async def record_start(self, container: VgpuContainer, *, unplaced_in: int | None, deadline_s: float) -> None:
        """`unplaced_in`: the session, where we do not know of a partition: dra-plugin is told all of the container then."""
        request = partitions.RecordStartRequest(runtime_id=container.runtime_id, pid=container.pid)
        if unplaced_in is not None:
            request.session = unplaced_in
            request.container.CopyFrom(_encode(container))
        await self._call("RecordStart", request, partitions.RecordStartResponse, deadline_s=deadline_s)

    async def release(self, runtime_id: str, stage: Stage, *, deadline_s: float) -> None:
        request = partitions.ReleasePartitionRequest(runtime_id=runtime_id, stage=_STAGES[stage])
        await self._call("ReleasePartition", request, partitions.ReleasePartitionResponse, deadline_s=deadline_s)

    async def synchronize(self, containers: Collection[VgpuContainer], *, session_id: int) -> SynchronizeReport:
        request = partitions.SynchronizeRequest(session=session_id, containers=map(_encode, containers))
        answer = await self._call("Synchronize", request, partitions.SynchronizeResponse, deadline_s=_SYNCHRONIZE_S)
        return SynchronizeReport(
            unbound=tuple(answer.unbound_runtime_ids),
            drifted=tuple(answer.drifted_runtime_ids),
            released=tuple(answer.released_runtime_ids),
        )

    async def renew(self, session: Session) -> bool:
        """Says that the session lives; False when dra-plugin does not know it and wants Synchronize."""
        request = partitions.RenewSessionRequest(
            session=session.id,
            runtime_name=session.runtime_name,
            runtime_version=session.runtime_version,
            synchronized_since=session.synchronized_since,
        )
        answer = await self._call("RenewSession", request, partitions.RenewSessionResponse, deadline_s=_RENEW_S)
        return answer.is_known

    async def _call(self, method: str, request: Message, kind: type[_MessageT], *, deadline_s: float) -> _MessageT:
        try:
            return await self._peer.call(f"{_SERVICE}/{method}", request, kind, deadline_s=deadline_s)
        except DecodeError as exc:
            raise PeerFailed(f"dra-plugin's answer to {method} cannot be read") from exc


def warm_up() -> None:
    """Pays for the first use of the codecs before the runtime waits for it."""
    container = VgpuContainer(
        runtime_id="0" * 64, name="warm", pod=Pod(), grants=(("k", "v"),), mounts=(Mount(destination="/", source="/"),)
    )
    partitions.EnsurePartitionRequest(session=1, container=_encode(container)).SerializeToString()
    partitions.EnsurePartitionResponse.FromString(b"")


def _encode(container: VgpuContainer) -> partitions.Container:
    pod = container.pod
    message = partitions.Container(
        runtime_id=container.runtime_id,
        name=container.name,
        pod=partitions.Pod(uid=pod.uid, namespace=pod.namespace, name=pod.name, runtime_handler=pod.runtime_handler),
        allows_all_devices=policy.allows_all_devices(container.device_rules),
        cgroup_path=container.cgroup_path,
        pid=container.pid,
    )
    for key, value in container.grants:
        message.grants.add(key=key, value=value)
    for mount in container.mounts:
        message.mounts.add(destination=mount.destination, source=mount.source, type=mount.type, options=mount.options)
    for device in container.devices:
        message.devices.add(path=device.path, type=device.type, major=device.major, minor=device.minor)
    return message
