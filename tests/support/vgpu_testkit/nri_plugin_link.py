"""One plugin's connection to the stand-in runtime: its registration, and calls to it with Go's deadlines.

Knows frames and calls; what the calls mean is `nri_runtime`'s. Source: containerd/nri pkg/adaptation/plugin.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit import nri_frames, nri_go
from vgpu_testkit.nri_frames import Frame, Request, Response

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
_READ_BYTES = 1 << 16
# What `nri_frames`, which trusts what it reads, stumbles over.
_UNREADABLE = (IndexError, ValueError, AssertionError)

M = TypeVar("M", bound=Message)


class PluginGone(Exception):
    """Raised when a plugin is closed, dead or late: the runtime goes on without it."""


class PluginRefused(Exception):
    """Raised for an answer that is an error; `str` is what the Go runtime prints."""

    def __init__(self, code: Status, text: str) -> None:
        super().__init__(text)
        self.code = code

    @classmethod
    def from_status(cls, code: Status, message: str) -> PluginRefused:
        """What the plugin answered."""
        name = "".join(part.capitalize() for part in code.name.split("_"))
        return cls(code, f"rpc error: code = {name} desc = {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What a plugin said when it registered."""

    name: str
    index: str

    def __str__(self) -> str:
        return f"{self.index}-{self.name}"


class PluginLink:
    """A connection that a plugin opened; `serve` reads from it until it ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, request_timeout_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout_s = request_timeout_s
        self._stream = -1
        self._pending: dict[int, asyncio.Future[Response]] = {}
        self.is_open = True
        self.closed_because = ""

    async def serve(self, register: Callable[[Registered], Awaitable[None]], group: asyncio.TaskGroup) -> None:
        """Answers the plugin's calls and hands its answers to those who wait, until the connection ends.

        `register` runs while the plugin waits for the answer to its RegisterPlugin; its PluginRefused becomes that answer.
        """
        frames = nri_go.GoReader()
        try:
            while self.is_open and (data := await self._reader.read(_READ_BYTES)):
                for frame in frames.feed(data):
                    if frame.connection == nri_frames.PLUGIN_CONNECTION:
                        self._take_answer(frame)
                    else:
                        # A task of its own: Configure must be answered while the plugin awaits RegisterPlugin's answer.
                        group.create_task(self._answer(frame, register))
            self.close("the plugin closed the connection")
        except nri_go.WouldClose as exc:
            self.close(str(exc))
        except OSError as exc:
            self.close(f"connection lost: {exc}")

    async def call(self, method: str, message: Message) -> bytes:
        """Calls the plugin; the payload of its answer.

        Raises:
            PluginGone: no answer came within the request timeout, or the connection ended.
            PluginRefused: the answer is an error.
        """
        if not self.is_open:
            raise PluginGone(self.closed_because)
        self._stream += 2
        stream = self._stream
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._pending[stream] = answer
        request = Request(
            service=PLUGIN_SERVICE,
            method=method,
            payload=message.SerializeToString(),
            timeout_nano=int(self._timeout_s * 1e9),
        )
        self._send(nri_frames.PLUGIN_CONNECTION, stream, nri_frames.REQUEST, nri_frames.encode_request(request))
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await answer
        except TimeoutError:
            raise PluginGone(f"failed to handle {method} request: context deadline exceeded") from None
        finally:
            self._pending.pop(stream, None)
        if response.code:
            raise PluginRefused.from_status(Status(response.code), response.message)
        return response.payload

    def close(self, reason: str) -> None:
        """Ends the connection; those who wait for an answer are told."""
        if not self.is_open:
            return
        self.is_open = False
        self.closed_because = reason
        self._writer.close()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(PluginGone(reason))

    async def closed(self) -> None:
        """Returns when the transport is gone."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _take_answer(self, frame: Frame) -> None:
        answer = self._pending.get(frame.stream)
        if answer is None or answer.done():
            return
        if nri_go.is_oversized(frame):
            answer.set_exception(PluginRefused.from_status(Status.RESOURCE_EXHAUSTED, "message length exceeds maximum"))
            return
        try:
            answer.set_result(nri_frames.decode_response(frame.body))
        except _UNREADABLE:
            answer.set_exception(PluginRefused(Status.UNKNOWN, "proto: cannot parse invalid wire-format data"))

    async def _answer(self, frame: Frame, register: Callable[[Registered], Awaitable[None]]) -> None:
        try:
            request = nri_frames.decode_request(frame.body)
        except _UNREADABLE:
            self.close("the plugin's request cannot be read")
            return
        response = Response(code=Status.UNIMPLEMENTED.value, message=f"method {request.service}/{request.method} is not there")
        if request.service == RUNTIME_SERVICE and request.method == "RegisterPlugin":
            response = await self._register(request, register)
        if request.service == RUNTIME_SERVICE and request.method == "UpdateContainers":
            response = Response()  # accepted, as containerd does for a container it does not find
        if self.is_open:
            self._send(frame.connection, frame.stream, nri_frames.RESPONSE, nri_frames.encode_response(response))

    async def _register(self, request: Request, register: Callable[[Registered], Awaitable[None]]) -> Response:
        try:
            message = decode(nri.RegisterPluginRequest, request.payload)
            if not message.plugin_name:
                raise PluginRefused(Status.UNKNOWN, "plugin registered with an empty name")
            if not re.fullmatch(r"[0-9]{2}", message.plugin_idx):
                text = f'invalid plugin index: invalid plugin index "{message.plugin_idx}", must be 2 digits'
                raise PluginRefused(Status.UNKNOWN, text)
            await register(Registered(name=message.plugin_name, index=message.plugin_idx))
        except PluginRefused as exc:
            return Response(code=Status.UNKNOWN.value, message=str(exc))
        except PluginGone as exc:
            self.close(str(exc))
        return Response()

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        self._writer.write(nri_frames.encode_frame(Frame(connection=connection, stream=stream, type=kind, body=body)))


def decode(kind: type[M], payload: bytes) -> M:
    """A message of the plugin.

    Raises:
        PluginRefused: it is none, in Go's words.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as exc:
        raise PluginRefused(Status.UNKNOWN, "proto: cannot parse invalid wire-format data") from exc
