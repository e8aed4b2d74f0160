"""NRI's multiplexer, ttrpc's frames and its two envelopes, written apart from the plugin under test.

So that one can be held against the other. Knows bytes; knows no socket and no NRI message. Trusts what it reads.

Source: containerd/nri pkg/net/multiplex, containerd/ttrpc channel.go and request.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Connection 1 carries the calls of the runtime to the plugin, 2 those of the plugin to the runtime.
PLUGIN_CONNECTION = 1
RUNTIME_CONNECTION = 2
REQUEST = 1
RESPONSE = 2

TTRPC_HEADER = struct.Struct(">IIBB")  # length, stream, type, flags
_MUX_HEADER = struct.Struct(">II")  # connection, length

# Go reads a mux frame that begins with the ttrpc header into a buffer of 4096 bytes and fails on a larger one.
_UNSPLIT_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One whole ttrpc message."""

    connection: int
    stream: int
    type: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The body of a frame of type REQUEST; timeout_nano 0 is none."""

    service: str
    method: str
    payload: bytes
    timeout_nano: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The body of a frame of type RESPONSE; a gRPC code other than 0 is a refusal."""

    payload: bytes = b""
    code: int = 0
    message: str = ""


class Deframer:
    """Turns the bytes of one direction of a socket, however cut, into frames."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._connections: dict[int, bytearray] = {}

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete."""
        self._unread += data
        frames: list[Frame] = []
        for connection, payload in take_payloads(self._unread):
            stream_bytes = self._connections.setdefault(connection, bytearray())
            stream_bytes += payload
            frames += take_frames(connection, stream_bytes)
        return frames


def take_payloads(unread: bytearray) -> Iterator[tuple[int, bytes]]:
    """The whole mux frames at the beginning of `unread`, which loses them: connection and payload."""
    while len(unread) >= _MUX_HEADER.size:
        connection, length = _MUX_HEADER.unpack_from(unread)
        end = _MUX_HEADER.size + length
        if len(unread) < end:
            return
        payload = bytes(unread[_MUX_HEADER.size : end])
        del unread[:end]
        yield connection, payload


def take_frames(connection: int, stream_bytes: bytearray) -> Iterator[Frame]:
    """The whole messages at the beginning of what came for a connection, which loses them."""
    while len(stream_bytes) >= TTRPC_HEADER.size:
        length, stream, kind, _ = TTRPC_HEADER.unpack_from(stream_bytes)
        end = TTRPC_HEADER.size + length
        if len(stream_bytes) < end:
            return
        body = bytes(stream_bytes[TTRPC_HEADER.size : end])
        del stream_bytes[:end]
        yield Frame(connection=connection, stream=stream, type=kind, body=body)


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame for the socket, split as Go needs it."""
    header = TTRPC_HEADER.pack(len(frame.body), frame.stream, frame.type, 0)
    if len(header) + len(frame.body) <= _UNSPLIT_BYTES:
        return _mux(frame.connection, header + frame.body)
    return _mux(frame.connection, header) + _mux(frame.connection, frame.body)


def encode_request(request: Request) -> bytes:
    """The body of a request."""
    parts = [
        _length_delimited(1, request.service.encode()),
        _length_delimited(2, request.method.encode()),
        _length_delimited(3, request.payload),
    ]
    if request.timeout_nano:
        parts.append(_varint(4 << 3) + _varint(request.timeout_nano))
    return b"".join(parts)


def encode_response(response: Response) -> bytes:
    """The body of a response."""
    if response.code:
        code = _varint(1 << 3) + _varint(response.code)
        return _length_delimited(1, code + _length_delimited(2, response.message.encode()))
    return _length_delimited(2, response.payload)


def decode_request(body: bytes) -> Request:
    """The request in a body."""
    fields = dict(_fields(body))
    return Request(
        service=_bytes_of(fields, 1).decode(),
        method=_bytes_of(fields, 2).decode(),
        payload=_bytes_of(fields, 3),
        timeout_nano=_int_of(fields, 4),
    )


def decode_response(body: bytes) -> Response:
    """The response in a body."""
    fields = dict(_fields(body))
    status = dict(_fields(_bytes_of(fields, 1)))
    return Response(payload=_bytes_of(fields, 2), code=_int_of(status, 1), message=_bytes_of(status, 2).decode())


def _mux(connection: int, data: bytes) -> bytes:
    return _MUX_HEADER.pack(connection, len(data)) + data


def _length_delimited(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(body):
        key, at = _read_varint(body, at)
        value, at = _read_varint(body, at)
        if key & 7 == 0:
            yield key >> 3, value
        else:
            yield key >> 3, body[at : at + value]
            at += value


def _bytes_of(fields: dict[int, int | bytes], number: int) -> bytes:
    value = fields.get(number, b"")
    assert isinstance(value, bytes)
    return value


def _int_of(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, 0)
    assert isinstance(value, int)
    return value
