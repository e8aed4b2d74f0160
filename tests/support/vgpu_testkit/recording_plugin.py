"""An NRI plugin that answers as it is told and keeps every byte that passes.

Knows the order of the first calls. Its answers come from its owner, call by call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from vgpu_proto import nri
from vgpu_testkit import nri_frames
from vgpu_testkit.nri_frames import Frame, Request, Response
from vgpu_testkit.recording import Chunk, Direction

_READ_BYTES = 64 * 1024
_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A call that was answered: its method, with the event's name where it is a StateChange."""

    what: str
    container_id: str


class RecordingPlugin:
    """One connection to a runtime's NRI socket; registered and synchronized once its context is entered."""

    def __init__(self, socket: Path, *, answer: Callable[[Request], Response], name: str, index: str = "00") -> None:
        self._socket = socket
        self._answer = answer
        self._name = name
        self._index = index
        self._began_s = time.monotonic()
        self._chunks: list[Chunk] = []
        self._seen: list[Seen] = []
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_unix_connection(self._socket)
        self._serving = asyncio.create_task(self._serve())
        body = nri.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index).SerializeToString()
        request = Request(
            service="nri.pkg.api.v1alpha1.Runtime",
            method="RegisterPlugin",
            payload=body,
            timeout_nano=5_000_000_000,
        )
        self._send(
            Frame(
                connection=nri_frames.RUNTIME_CONNECTION,
                stream=1,
                type=nri_frames.REQUEST,
                body=nri_frames.encode_request(request),
            )
        )
        await self.seen("Synchronize")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.close()
        await self._writer.wait_closed()
        await self._serving

    async def seen(self, what: str, container_id: str = "") -> None:
        """Returns once such a call was answered.

        Raises:
            TimeoutError: it did not come within 10 s.
        """
        async with asyncio.timeout(_WITHIN_S), self._changed:
            await self._changed.wait_for(
                lambda: any(s.what == what and s.container_id.startswith(container_id) for s in self._seen)
            )

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All that has passed so far."""
        return tuple(self._chunks)

    async def _serve(self) -> None:
        deframer = nri_frames.Deframer()
        while data := await self._read():
            self._keep(Direction.IN, data)
            for frame in deframer.feed(data):
                if frame.type == nri_frames.REQUEST:
                    await self._answer_call(frame)

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_READ_BYTES)
        except ConnectionError:
            return b""

    async def _answer_call(self, frame: Frame) -> None:
        request = nri_frames.decode_request(frame.body)
        body = nri_frames.encode_response(self._answer(request))
        self._send(Frame(connection=frame.connection, stream=frame.stream, type=nri_frames.RESPONSE, body=body))
        async with self._changed:
            self._seen.append(_seen(request))
            self._changed.notify_all()

    def _send(self, frame: Frame) -> None:
        data = nri_frames.encode_frame(frame)
        self._keep(Direction.OUT, data)
        self._writer.write(data)

    def _keep(self, direction: Direction, data: bytes) -> None:
        t_ms = round((time.monotonic() - self._began_s) * 1000)
        self._chunks.append(Chunk(t_ms=t_ms, direction=direction, data=data))


def _seen(request: Request) -> Seen:
    match request.method:
        case "StateChange":
            event = nri.StateChangeEvent.FromString(request.payload)
            return Seen(nri.Event.Name(event.event), event.container.id)
        case "CreateContainer":
            return Seen(request.method, nri.CreateContainerRequest.FromString(request.payload).container.id)
        case "StopContainer":
            return Seen(request.method, nri.StopContainerRequest.FromString(request.payload).container.id)
        case _:
            return Seen(request.method, "")
