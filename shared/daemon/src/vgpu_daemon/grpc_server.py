"""A gRPC server on a unix socket for peers that may be hostile: what grpclib lacks, closed here and nowhere else.

Adds to grpclib 0.4.9 (pinned exactly; this uses its private names): a cap on message size, a gate on the caller's uid at
accept, UNIMPLEMENTED for unknown methods as Go expects it, domain errors as statuses, a limit on connections and on time spent
sending a request, survival of any bytes, and a stop that lets running calls finish.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
from grpclib.const import Cardinality, Handler, Status
from grpclib.events import RecvRequest, listen
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from vgpu_daemon import context, grpc_status
from vgpu_daemon.bounded_streams import BoundedProcessor
from vgpu_daemon.crowd import Bound, Crowd
from vgpu_daemon.strict_codec import StrictCodec
from vgpu_state.errors import VgpuError

_log = structlog.get_logger()


class _Protocol(H2Protocol):
    owner: GrpcServer
    is_refused = False
    group = ""
    idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self.peer = context.Peer(pid=pid, uid=uid, gid=gid)
        if not self.owner.admit(self):
            self.is_refused = True
            cast(asyncio.Transport, transport).abort()
            return
        super().connection_made(transport)
        self.processor = BoundedProcessor(self.handler, self.connection)
        self.processor.max_message_bytes = self.owner.limits.max_message_bytes
        self.processor.crowd, self.processor.group = self.owner.streams, self.group
        self._watch_idleness()

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        try:
            super().data_received(data)
        except Exception:  # noqa: BLE001 - the boundary to hostile bytes: that connection ends, the process lives
            _log.debug("connection dropped for its bytes", socket=self.owner.name)
            self.processor.close("malformed frames")

    def connection_lost(self, exc: BaseException | None) -> None:
        if self.is_refused:
            return
        if self.idle_timer is not None:
            self.idle_timer.cancel()
        self.owner.dismiss(self)
        super().connection_lost(exc)

    def _watch_idleness(self) -> None:
        """Closes the connection when it carries no call now; looks again later otherwise."""
        idle_s = self.owner.limits.idle_s
        if idle_s is None:
            return
        if self.idle_timer is not None and not self.processor.streams:
            self.processor.close("idle")
            return
        self.idle_timer = asyncio.get_running_loop().call_later(idle_s, self._watch_idleness)


class _Server(Server):
    owner: GrpcServer

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        protocol = _Protocol(plain.handler, plain.config, plain.h2_config)
        protocol.owner = self.owner
        return protocol


class _Mapping(dict[str, Handler]):
    """Answers UNIMPLEMENTED with the headers that grpc-go needs to see it as that; grpclib's own reply lacks them."""

    def get(self, key: str, default: Any = None) -> Any:  # Any: dict's own signature
        return super().get(key, _UNKNOWN_METHOD)


async def _refuse_unknown_method(stream: Stream[Any, Any]) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "unknown method")


_UNKNOWN_METHOD = Handler(_refuse_unknown_method, Cardinality.UNARY_UNARY, object, object)


def unary(method: Callable[[Any], Awaitable[Any]], request: type, response: type) -> Handler:
    """A grpclib handler for a method that takes a message and returns one (what betterproto generates for its own)."""

    async def serve(stream: Stream[Any, Any]) -> None:
        await stream.send_message(await method(await stream.recv_message()))

    return Handler(serve, Cardinality.UNARY_UNARY, request, response)


# A connection costs some 24 KiB, a stream whose request has not come 16 KiB more.
_FEW_CONNECTIONS = Bound(of_all=256, of_group=256)
_FEW_STREAMS = Bound(of_all=1024, of_group=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What peers may do. `allowed_uids` None lets every uid connect; a request must be whole `receive_s` after its headers.

    `group_of` names whom a peer belongs to; all of one group share its bounds (None: all peers are one group). A connection that
    carries no call for `idle_s` is closed; None lets it stay, as kubelet's does.
    """

    # Our own uid too: who has it could be us. On a node it is 0.
    allowed_uids: frozenset[int] | None = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    max_message_bytes: int = 1 << 20
    connections: Bound = _FEW_CONNECTIONS
    streams: Bound = _FEW_STREAMS
    receive_s: float = 10.0
    idle_s: float | None = None
    group_of: Callable[[context.Peer], str] | None = None


class GrpcServer:
    """Serves `services` on one listening unix socket. Constructing it starts nothing."""

    def __init__(self, services: Collection[Any], *, name: str, limits: Limits) -> None:
        self._services = services
        self.name = name
        self.limits = limits
        self.connections: set[_Protocol] = set()
        self._connected = Crowd(limits.connections)
        self.streams = Crowd(limits.streams)
        self._server: _Server | None = None
        self._watches: set[asyncio.Task[Any]] = set()

    def admit(self, protocol: _Protocol) -> bool:
        """Whether the connection may stay; it counts then until `dismiss`."""
        limits, peer = self.limits, protocol.peer
        if limits.allowed_uids is not None and peer.uid not in limits.allowed_uids:
            _log.warning("connection refused", socket=self.name, peer_pid=peer.pid, uid=peer.uid, reason="uid not allowed")
            return False
        protocol.group = "" if limits.group_of is None else limits.group_of(peer)
        if not self._connected.enter(protocol.group):
            return False
        self.connections.add(protocol)
        return True

    def dismiss(self, protocol: _Protocol) -> None:
        """A connection has ended."""
        if protocol in self.connections:
            self.connections.discard(protocol)
            self._connected.leave(protocol.group)

    async def start(self, listener: socket.socket) -> None:
        server = _Server(self._services, codec=StrictCodec())
        server.owner = self
        server._mapping = _Mapping({path: self._guarded(path, h) for path, h in server._mapping.items()})
        listen(server, RecvRequest, _bind_context)
        await server.start(sock=listener, backlog=128)
        self._server = server

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections or calls, waits up to `grace_s` for the running ones, then closes.

        A stream of answers has no end of its own, and is ended at once.
        """
        server = self._server
        if server is None or server._server is None:
            return
        server._server.close()
        for protocol in self.connections:
            _send_goaway(protocol)
        for watch in self._watches:
            watch.cancel()
        if calls := [task for handler in server._handlers for task in handler._tasks.values() if not task.done()]:
            await asyncio.wait(calls, timeout=grace_s)
        server.close()
        await asyncio.sleep(0)
        for protocol in list(self.connections):
            # Python 3.12 and later wait in wait_closed() for peers that keep their connection, as kubelet does.
            protocol.processor.close("server stopped")
        await server.wait_closed()

    def _guarded(self, path: str, handler: Handler) -> Handler:
        """`handler` with its errors made statuses, and with a request that is absent or never ends refused."""

        async def serve(stream: Stream[Any, Any]) -> None:
            setattr(stream, "recv_message", _whole_request(stream, self.limits.receive_s))  # noqa: B010 - for mypy
            task = asyncio.current_task()
            if handler.cardinality.server_streaming and task is not None:
                self._watches.add(task)
                task.add_done_callback(self._watches.discard)
            try:
                await handler.func(stream)
            except VgpuError as exc:
                raise grpc_status.to_grpc(exc) from exc
            except (GRPCError, TimeoutError):
                raise
            except Exception as exc:
                # The gRPC boundary: a fault of ours must fail this call and no other.
                _log.exception("call failed", method=path, op_id=context.op_id.get())
                raise GRPCError(Status.INTERNAL, f"internal error, op_id {context.op_id.get()}") from exc

        return Handler(serve, handler.cardinality, handler.request_type, handler.reply_type)


def _whole_request(stream: Stream[Any, Any], receive_s: float) -> Callable[[], Awaitable[Any]]:
    """The stream's receive, which refuses a request that is absent, broken, or not there in time."""
    receive = stream.recv_message

    async def recv_message() -> Any:
        try:
            async with asyncio.timeout(receive_s):
                message = await receive()
        except TimeoutError as exc:
            raise GRPCError(Status.INVALID_ARGUMENT, f"no whole request within {receive_s:g} s") from exc
        except (AssertionError, NotImplementedError) as exc:  # how grpclib meets a peer that breaks gRPC's framing
            raise GRPCError(Status.INVALID_ARGUMENT, "the request message is cut off or compressed") from exc
        if message is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "the call carries no request message")
        return message

    return recv_message


async def _bind_context(event: RecvRequest) -> None:
    transport = cast(Any, event.peer)._transport
    protocol = transport.get_protocol()
    context.peer.set(protocol.peer)
    sent = event.metadata.get(context.OP_ID_METADATA, "")
    op_id = sent if isinstance(sent, str) and len(sent) == 8 and sent.isalnum() else context.new_op_id()
    context.op_id.set(op_id)
    structlog.contextvars.bind_contextvars(op_id=op_id)


def _send_goaway(protocol: _Protocol) -> None:
    """GOAWAY by hand: h2's close_connection() would also stop the answers that are still to be sent."""
    inner = cast(Any, protocol.connection)
    last = inner._connection.highest_inbound_stream_id
    inner._transport.write(b"\0\0\x08\x07\0\0\0\0\0" + struct.pack(">II", last, 0))
