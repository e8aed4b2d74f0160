"""The socket to the runtime: bytes ↔ trunk ↔ both ttrpc connections. The only socket code, and no NRI meaning."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from vgpu_nri import mux
from vgpu_nri.errors import ProtocolViolation
from vgpu_nri.mux import PLUGIN_CONN, RUNTIME_CONN
from vgpu_nri.ttrpc.connection import ClientConnection, ServerConnection
from vgpu_nri.ttrpc.envelope import Request, Response
from vgpu_nri.ttrpc.events import ClientEvent, RequestMalformed, RequestReceived, ResponseReceived, ServerEvent
from vgpu_state.errors import NotReady, VgpuError

_INVALID_ARGUMENT = 3

Deferred = Callable[[], Coroutine[Any, Any, Response]]
Serve = Callable[[Request], Response | Deferred]
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]  # into the session's task group


class CloseReason(StrEnum):
    UNREACHABLE = "unreachable"
    RUNTIME_CLOSED = "runtime_closed"
    PROTOCOL_VIOLATION = "protocol_violation"
    REGISTRATION_REFUSED = "registration_refused"
    NOT_SYNCHRONIZED = "not_synchronized"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Why a connection ended, as a word and as a sentence."""

    reason: CloseReason
    detail: str


class CallRefused(VgpuError):
    """Raised when the runtime answers a call of ours with an error."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"{response.message} (code {response.code})")


async def dial(path: str) -> socket.socket:
    """A connected socket.

    Raises:
        OSError: nothing listens there, or it cannot be reached.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(sock, path)
    except BaseException:
        sock.close()
        raise
    return sock


async def open_trunk(sock: socket.socket, *, serve: Serve, spawn: Spawn) -> Trunk:
    """Speaks NRI on a connected socket, which the trunk owns from here on."""
    trunk = Trunk(serve=serve, spawn=spawn)
    await asyncio.get_running_loop().create_unix_connection(lambda: trunk, sock=sock)
    return trunk


class Trunk(asyncio.Protocol):
    """One connection to the runtime: serves its calls on connection 1, calls it on connection 2."""

    def __init__(self, *, serve: Serve, spawn: Spawn) -> None:
        self._serve = serve
        self._spawn = spawn
        self._mux = mux.Reader()
        self._server = ServerConnection()
        self._client = ClientConnection()
        self._answers: dict[int, asyncio.Future[Response]] = {}
        self._closed: asyncio.Future[Closed] = asyncio.get_running_loop().create_future()
        self.in_flight: set[asyncio.Task[None]] = set()

    async def call(self, request: Request, *, deadline_s: float) -> bytes:
        """The payload of the runtime's answer.

        Raises:
            CallRefused: it answered with an error.
            NotReady: the connection ended, or the answer did not come in time or cannot be read.
        """
        if self._closed.done():
            raise NotReady("the runtime's connection is closed")
        stream_id, message = self._client.send_request(request)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._answers[stream_id] = answer
        self._write(RUNTIME_CONN, message)
        try:
            async with asyncio.timeout(deadline_s):
                response = await answer
        except TimeoutError as exc:
            raise NotReady(f"the runtime did not answer {request.method} within {deadline_s:g} s") from exc
        finally:
            self._answers.pop(stream_id, None)
        if response.code:
            raise CallRefused(response)
        return response.payload

    async def wait_closed(self) -> Closed:
        return await asyncio.shield(self._closed)

    def close(self, reason: CloseReason, detail: str) -> None:
        """Ends the connection after what was written has gone out. The first reason stands."""
        self._end(Closed(reason=reason, detail=detail))
        self._transport.close()

    def abort(self) -> None:
        """Gives the socket up, whatever is still to be written."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # a stream socket's transport always is one

    def connection_lost(self, exc: Exception | None) -> None:
        detail = f"the connection broke: {exc}" if exc else "the runtime closed the connection"
        self._end(Closed(reason=CloseReason.RUNTIME_CLOSED, detail=detail))

    def data_received(self, data: bytes) -> None:
        try:
            for chunk in self._mux.receive_data(data):
                if chunk.conn_id == PLUGIN_CONN:
                    for asked in self._server.receive_data(chunk.data):
                        self._answer(asked)
                else:
                    for answered in self._client.receive_data(chunk.data):
                        self._deliver(answered)
        except ProtocolViolation as exc:
            self.close(CloseReason.PROTOCOL_VIOLATION, str(exc))

    def _answer(self, event: ServerEvent) -> None:
        if self._closed.done():
            return
        match event:
            case RequestMalformed(stream_id=stream_id, reason=reason):
                self._respond(stream_id, Response(code=_INVALID_ARGUMENT, message=reason))
            case RequestReceived(stream_id=stream_id, request=request):
                answer = self._serve(request)
                if isinstance(answer, Response):
                    self._respond(stream_id, answer)
                    return
                task = self._spawn(self._answer_later(stream_id, answer))
                self.in_flight.add(task)
                task.add_done_callback(self.in_flight.discard)

    async def _answer_later(self, stream_id: int, answer: Deferred) -> None:
        self._respond(stream_id, await answer())

    def _respond(self, stream_id: int, response: Response) -> None:
        self._write(PLUGIN_CONN, self._server.send_response(stream_id, response))

    def _deliver(self, event: ClientEvent) -> None:
        answer = self._answers.get(event.stream_id)
        if answer is None or answer.done():
            return
        if isinstance(event, ResponseReceived):
            answer.set_result(event.response)
        else:
            answer.set_exception(NotReady(f"the runtime's answer cannot be read: {event.reason}"))

    def _write(self, conn_id: int, message: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(mux.encode_message(conn_id, message))

    def _end(self, closed: Closed) -> None:
        if not self._closed.done():
            self._closed.set_result(closed)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(NotReady(closed.detail))
