"""The call that a workload's client makes, by this very process: who it is depends on where the host's /proc shows it."""

from __future__ import annotations

from pathlib import PurePath

from grpclib.client import Channel
from grpclib.exceptions import StreamTerminatedError

from vgpu_proto.registry import ContainerDeviceRequest, VDeviceRegistryStub
from vgpu_testkit.dra_calls import ConnectionBroke

_CALL_S = 20.0


async def register(socket: PurePath, *, pod_uid: str = "", container: str = "", register_uuid: str = "") -> None:
    """Registers this process for a container, on a connection of its own, by names or by the UUID of its partition.

    Raises:
        GRPCError: registry refused.
        ConnectionBroke: it went away, or is.
    """
    channel = Channel(path=str(socket))
    request = ContainerDeviceRequest(pod_uid=pod_uid, container_name=container, register_uuid=register_uuid)
    try:
        await VDeviceRegistryStub(channel).register_container_device(request, timeout=_CALL_S)
    except (OSError, StreamTerminatedError) as exc:
        raise ConnectionBroke(f"registry: {exc}") from exc
    finally:
        channel.close()
