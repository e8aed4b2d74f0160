"""kubelet's side of the wire: grpclib channels and calls that behave like grpc-go's.

With `kubelet_pod_resources`, the only module of the stand-in kubelet that sees protobuf messages or gRPC errors. Relies on
private names of grpclib 0.4.9 (`_get_authority`, `_protocol_factory`), which the distribution pins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, cast

import grpclib.client
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from h2.config import H2Configuration

from vgpu_daemon.apart import run_apart
from vgpu_proto import dra_health_v1, dra_health_v1alpha1, dra_v1, dra_v1beta1, pluginregistration
from vgpu_testkit.kubelet_rules import V1, V1BETA1, PrepareAnswer
from vgpu_testkit.kubelet_values import CallFailed, Claim, Device, HealthReport, Offer, Timings

# Source: grpc-go, defaultClientMaxReceiveMessageSize.
_MAX_RECEIVE_BYTES: Final = 4 << 20
_HEALTH: Final[dict[int, str]] = {1: "HEALTHY", 2: "UNHEALTHY"}
_API: Final = {V1: dra_v1, V1BETA1: dra_v1beta1}
_HEALTH_API: Final[dict[str, Any]] = {"v1": dra_health_v1, "v1alpha1": dra_health_v1alpha1}  # Any: modules of the same names


class KubeletChannel(grpclib.client.Channel):
    """A connection to one unix socket, whose state can be watched.

    Ready means that the server's first bytes, its SETTINGS, have arrived: grpc-go counts no earlier moment.
    """

    def __init__(self, path: str, *, on_change: Callable[[], None] = lambda: None) -> None:
        super().__init__(path=path, codec=_GrpcGoCodec())
        self._on_change = on_change
        self._link: _Link | None = None

    @property
    def is_ready(self) -> bool:
        return self._link is not None and self._link.settled.is_set() and not self._link.lost.is_set()

    async def connect(self) -> None:
        """Returns once the connection is ready.

        Raises:
            OSError: nobody listens on the path, or the connection was closed before it was ready.
        """
        link = cast("_Link", await self.__connect__())  # made by _protocol_factory below
        await link.settled.wait()
        if link.lost.is_set():
            raise ConnectionResetError("connection closed before the server preface was received")

    async def wait_lost(self) -> None:
        if self._link is not None:
            await self._link.lost.wait()

    async def aclose(self) -> None:
        link = self._link
        self.close()
        if link is not None:
            link.abort()
            await link.lost.wait()

    def _get_authority(self, host: str, port: int) -> str:
        # Source: grpc-go sends this for every unix: target since 1.31.
        return "localhost"

    def _protocol_factory(self) -> H2Protocol:
        self._link = _Link(self._config, self._h2_config, on_change=self._on_change)
        return self._link


@asynccontextmanager
async def dialled(path: str, timings: Timings) -> AsyncIterator[KubeletChannel]:
    """A short-lived ready channel; dialling repeats within the dial deadline, as grpc-go's blocking dial does.

    Raises:
        CallFailed: nothing answered in time.
    """
    channel = KubeletChannel(path)
    try:
        with _as_grpc_go("dial"):
            async with asyncio.timeout(timings.dial_s):
                while not channel.is_ready:
                    try:
                        await channel.connect()
                    except OSError:
                        await asyncio.sleep(timings.reconnect_s)
        yield channel
    finally:
        await channel.aclose()


async def get_info(channel: KubeletChannel, *, socket: str, timeout_s: float) -> Offer:
    """What the plugin says of itself.

    Raises:
        CallFailed: no answer in time, or an error.
    """
    stub = pluginregistration.RegistrationStub(channel)
    with _as_grpc_go("GetInfo"):
        info = await run_apart(stub.get_info(pluginregistration.InfoRequest(), timeout=timeout_s))
    return Offer(
        plugin_type=info.type,
        name=info.name,
        endpoint=info.endpoint or socket,
        supported_versions=tuple(info.supported_versions),
    )


async def notify(channel: KubeletChannel, *, error: str, timeout_s: float) -> None:
    """Tells the plugin the outcome: registered if `error` is empty.

    Raises:
        CallFailed: no answer in time, or an error.
    """
    stub = pluginregistration.RegistrationStub(channel)
    status = pluginregistration.RegistrationStatus(plugin_registered=not error, error=error)
    with _as_grpc_go("NotifyRegistrationStatus"):
        await run_apart(stub.notify_registration_status(status, timeout=timeout_s))


async def node_prepare(
    channel: KubeletChannel, service: str, claims: Collection[Claim], *, timeout_s: float
) -> Mapping[str, PrepareAnswer]:
    """The response's entries by claim uid, not judged.

    Raises:
        CallFailed: no answer in time, or an error.
    """
    api = _API[service]
    request = api.NodePrepareResourcesRequest(
        claims=[api.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
    )
    with _as_grpc_go("NodePrepareResources"):
        response = await run_apart(api.DraPluginStub(channel).node_prepare_resources(request, timeout=timeout_s))
    return {
        uid: PrepareAnswer(devices=tuple(_device(device) for device in entry.devices), error=entry.error)
        for uid, entry in response.claims.items()
    }


async def node_unprepare(
    channel: KubeletChannel, service: str, claims: Collection[Claim], *, timeout_s: float
) -> Mapping[str, str]:
    """The response's error per claim uid, empty for success, not judged.

    Raises:
        CallFailed: no answer in time, or an error.
    """
    api = _API[service]
    request = api.NodeUnprepareResourcesRequest(
        claims=[api.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]
    )
    with _as_grpc_go("NodeUnprepareResources"):
        response = await run_apart(api.DraPluginStub(channel).node_unprepare_resources(request, timeout=timeout_s))
    return {uid: entry.error for uid, entry in response.claims.items()}


async def watch_health(channel: KubeletChannel, package: str) -> AsyncGenerator[dict[tuple[str, str], HealthReport], None]:
    """Each health report as it arrives, by (pool, device), not judged; ends with the stream.

    Raises:
        CallFailed: the stream ended with an error.
    """
    api = _HEALTH_API[package]
    replies = api.DraResourceHealthStub(channel).node_watch_resources(api.NodeWatchResourcesRequest())

    async def next_reply() -> dra_health_v1.NodeWatchResourcesResponse | dra_health_v1alpha1.NodeWatchResourcesResponse | None:
        return await anext(replies, None)

    with _as_grpc_go("NodeWatchResources"):
        while (reply := await run_apart(next_reply())) is not None:
            yield {
                (entry.device.pool_name, entry.device.device_name): HealthReport(
                    word=_HEALTH.get(entry.health, "UNKNOWN"),
                    message=entry.message,
                    last_updated_s=entry.last_updated_time,
                    timeout_s=entry.health_check_timeout_seconds,
                )
                for entry in reply.devices
            }


class _Link(H2Protocol):
    """One HTTP/2 connection that says when it is settled (ready or lost) and when it is lost."""

    def __init__(self, config: Configuration, h2_config: H2Configuration, *, on_change: Callable[[], None]) -> None:
        super().__init__(grpclib.client.Handler(), config, h2_config)
        self._on_change = on_change
        self._transport: asyncio.BaseTransport | None = None
        self.settled = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.settled.is_set():
            self.settled.set()
            self._on_change()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.lost.set()
        self.settled.set()
        self._on_change()

    def abort(self) -> None:
        """Ends the connection without waiting for a peer that does not read."""
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()


class _GrpcGoCodec(CodecBase):
    """Decodes what grpc-go would accept: at most 4 MiB, and text that is UTF-8."""

    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: type) -> bytes:
        return bytes(message)  # type: ignore[call-overload, no-any-return]  # every betterproto message has __bytes__

    def decode(self, data: bytes, message_type: type) -> object:
        if len(data) > _MAX_RECEIVE_BYTES:
            raise GRPCError(
                Status.RESOURCE_EXHAUSTED,
                f"grpc: received message larger than max ({len(data)} vs. {_MAX_RECEIVE_BYTES})",
            )
        try:
            return message_type().parse(data)
        except (ValueError, EOFError) as exc:
            raise GRPCError(Status.INTERNAL, f"grpc: failed to unmarshal the received message: {exc}") from exc


@contextmanager
def _as_grpc_go(method: str) -> Iterator[None]:
    try:
        yield
    except GRPCError as exc:
        raise CallFailed(method, exc.status, exc.message or "") from exc
    except TimeoutError as exc:  # before OSError, whose subclass it is
        raise CallFailed(method, Status.DEADLINE_EXCEEDED, "context deadline exceeded") from exc
    except (StreamTerminatedError, OSError) as exc:
        raise CallFailed(method, Status.UNAVAILABLE, str(exc)) from exc
    except ProtocolError as exc:
        raise CallFailed(method, Status.INTERNAL, str(exc)) from exc


def _device(device: dra_v1.Device | dra_v1beta1.Device) -> Device:
    return Device(
        request_names=tuple(device.request_names),
        pool_name=device.pool_name,
        device_name=device.device_name,
        cdi_device_ids=tuple(device.cdi_device_ids),
        share_id=device.share_id if isinstance(device, dra_v1.Device) else None,
    )
