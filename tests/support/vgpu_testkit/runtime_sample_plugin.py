"""A small NRI plugin that does what a test tells it, faults included; for tests of the stand-in runtime.

It shares nothing with the plugin under test.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit import nri_frames
from vgpu_testkit.nri_frames import Frame, Request, Response

Handler = Callable[[Request], Awaitable[Response]]

ALL_EVENTS = 0
# What nri-plugin asks for: CREATE_CONTAINER, START_CONTAINER, STOP_CONTAINER, REMOVE_CONTAINER.
OURS = 0x008 | 0x020 | 0x200 | 0x400
_WITHIN_S = 10.0
_READ_BYTES = 1 << 16


def adjustment(**fields: object) -> Response:
    """The answer to CreateContainer that adjusts these fields, as ContainerAdjustment has them."""
    adjust = nri.ContainerAdjustment(**fields)  # type: ignore[arg-type]  # the message checks them
    return Response(payload=nri.CreateContainerResponse(adjust=adjust).SerializeToString())


def refusal(code: Status, message: str) -> Response:
    """The answer that refuses a call."""
    return Response(code=code.value, message=message)


async def accept(request: Request) -> Response:
    """Answers every call with nothing."""
    del request
    return Response()


def answering(**answers: Response) -> Handler:
    """Answers calls by the name of the method or the event, others with nothing."""

    async def answer(request: Request) -> Response:
        return answers.get(_name(request), Response())

    return answer


class SamplePlugin:
    """A plugin that is connected while its context is entered; `handler` answers everything but Configure."""

    def __init__(
        self, socket: Path, handler: Handler = accept, *, events: int = ALL_EVENTS, index: str = "10", name: str = "sample"
    ) -> None:
        self._socket = socket
        self._handler = handler
        self._events = events
        self._registration = nri.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        self._changed = asyncio.Condition()
        self.requests: list[Request] = []
        self.registered: Response | None = None
        self.is_closed = False

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(self._socket)
        self._serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def register(self) -> Response:
        """Registers; the runtime's answer."""
        request = Request(
            service="nri.pkg.api.v1alpha1.Runtime", method="RegisterPlugin", payload=self._registration.SerializeToString()
        )
        self._send(nri_frames.RUNTIME_CONNECTION, 1, nri_frames.REQUEST, nri_frames.encode_request(request))
        await self.until(lambda: self.registered is not None or self.is_closed)
        return self.registered or Response()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns as soon as `condition` holds.

        Raises:
            TimeoutError: it did not within 10 s.
        """
        async with asyncio.timeout(_WITHIN_S), self._changed:
            await self._changed.wait_for(condition)

    def send_raw(self, data: bytes) -> None:
        """Writes bytes as they are."""
        self._writer.write(data)

    def die(self) -> None:
        """Ends the connection at once, as the kernel does for a killed process."""
        self._writer.transport.abort()

    @property
    def calls(self) -> list[str]:
        """The methods that were called, events of StateChange by their names."""
        return [_name(request) for request in self.requests]

    def event(self, name: str) -> nri.StateChangeEvent:
        """What the first event of that name said."""
        return nri.StateChangeEvent.FromString(self.requests[self.calls.index(name)].payload)

    async def _serve(self) -> None:
        deframer = nri_frames.Deframer()
        async with asyncio.TaskGroup() as group:
            with contextlib.suppress(ConnectionError):
                while data := await self._reader.read(_READ_BYTES):
                    for frame in deframer.feed(data):
                        if frame.type == nri_frames.REQUEST:
                            group.create_task(self._answer(frame))
                        else:
                            self.registered = nri_frames.decode_response(frame.body)
                    await self._tell()
            self.is_closed = True
            await self._tell()

    async def _answer(self, frame: Frame) -> None:
        request = nri_frames.decode_request(frame.body)
        self.requests.append(request)
        await self._tell()
        if request.method == "Configure":
            response = Response(payload=nri.ConfigureResponse(events=self._events).SerializeToString())
        else:
            response = await self._handler(request)
        self._send(frame.connection, frame.stream, nri_frames.RESPONSE, nri_frames.encode_response(response))

    def _send(self, connection: int, stream: int, kind: int, body: bytes) -> None:
        self._writer.write(nri_frames.encode_frame(Frame(connection=connection, stream=stream, type=kind, body=body)))

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _name(request: Request) -> str:
    if request.method != "StateChange":
        return request.method
    return nri.Event.Name(nri.StateChangeEvent.FromString(request.payload).event)
