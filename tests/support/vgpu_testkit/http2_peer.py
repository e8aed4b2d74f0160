"""An HTTP/2 server that reads and writes single frames, for what no well-behaved server does. Source: RFC 9113."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32

RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]
OK_TRAILERS = [("grpc-status", "0")]
EMPTY_MESSAGE = b"\0\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Frame:
    type: int
    flags: int
    stream: int
    payload: bytes


@dataclass(slots=True)
class Peer:
    """One accepted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    encoder: hpack.Encoder

    async def read(self) -> Frame:
        head = await self.reader.readexactly(9)
        high, low, kind, flags, stream = struct.unpack(">BHBBI", head)
        return Frame(kind, flags, stream, await self.reader.readexactly(high << 16 | low))

    async def send(self, kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> None:
        size = len(payload)
        self.writer.write(struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + payload)
        await self.writer.drain()

    async def greet(self, settings: bytes = b"") -> None:
        """Preface and settings both ways, as far as the client's acknowledgement."""
        assert await self.reader.readexactly(24) == PREFACE
        assert await self.read() == Frame(SETTINGS, 0, 0, b"")
        await self.send(SETTINGS, payload=settings)
        assert await self.read() == Frame(SETTINGS, ACK, 0, b"")

    async def read_request(self) -> tuple[Frame, Frame]:
        return await self.read(), await self.read()

    async def send_headers(self, headers: list[tuple[str, str]], flags: int = END_HEADERS) -> None:
        await self.send(HEADERS, flags, 1, self.encoder.encode(headers))

    async def succeed(self) -> None:
        await self.send_headers(RESPONSE)
        await self.send(DATA, 0, 1, EMPTY_MESSAGE)
        await self.send_headers(OK_TRAILERS, END_HEADERS | END_STREAM)
