"""The two messages that every ttrpc call is wrapped in, as protobuf by hand.

Request: 1 service, 2 method, 3 payload, 4 timeout_nano (int64), 5 metadata (repeated KeyValue: 1 key, 2 value).
Response: 1 status (google.rpc.Status: 1 code int32, 2 message), 2 payload.

By hand because every hook pays for them twice, and a protobuf runtime has no place in a core without I/O. Decoding is strict:
a known field with another wire type, a truncated field or text that is not UTF-8 is refused; unknown fields are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vgpu_nri.errors import ProtocolViolation

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call. `timeout_ns` is the time that the caller still waits, 0 for no limit."""

    service: str = ""
    method: str = ""
    payload: bytes = b""
    timeout_ns: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer: a payload, or a gRPC code other than 0 with its message.

    Go decodes the payload before it looks at the code, so an error's payload is empty.
    """

    payload: bytes = b""
    code: int = 0
    message: str = ""


def encode_request(request: Request) -> bytes:
    parts = [_text(1, request.service), _text(2, request.method), _bytes(3, request.payload)]
    if request.timeout_ns:
        parts.append(b"\x20" + _varint(request.timeout_ns))
    for key, value in request.metadata:
        entry = _text(1, key) + _text(2, value)
        parts.append(b"\x2a" + _varint(len(entry)) + entry)
    return b"".join(parts)


def encode_response(response: Response) -> bytes:
    if not response.code:
        return _bytes(2, response.payload)
    status = b"\x08" + _varint(response.code) + _text(2, response.message)
    return b"\x0a" + _varint(len(status)) + status


def decode_request(data: bytes) -> Request:
    """The call in `data`.

    Raises:
        ProtocolViolation: the bytes are no Request.
    """
    service = method = ""
    payload, timeout_ns = b"", 0
    metadata: list[tuple[str, str]] = []
    for number, value in _fields(data, message="Request"):
        match number:
            case 1:
                service = _as_text(value, "Request.service")
            case 2:
                method = _as_text(value, "Request.method")
            case 3:
                payload = _as_bytes(value, "Request.payload")
            case 4:
                timeout_ns = _as_signed(value, "Request.timeout_nano", bits=64)
            case 5:
                metadata.append(_decode_pair(_as_bytes(value, "Request.metadata")))
    return Request(service=service, method=method, payload=payload, timeout_ns=timeout_ns, metadata=tuple(metadata))


def decode_response(data: bytes) -> Response:
    """The answer in `data`.

    Raises:
        ProtocolViolation: the bytes are no Response.
    """
    payload, code, message = b"", 0, ""
    for number, value in _fields(data, message="Response"):
        if number == 1:
            for inner, part in _fields(_as_bytes(value, "Response.status"), message="Status"):
                if inner == 1:
                    code = _as_signed(part, "Status.code", bits=32)
                elif inner == 2:
                    message = _as_text(part, "Status.message")
        elif number == 2:
            payload = _as_bytes(value, "Response.payload")
    return Response(payload=payload, code=code, message=message)


def _decode_pair(data: bytes) -> tuple[str, str]:
    key = text = ""
    for number, value in _fields(data, message="KeyValue"):
        if number == 1:
            key = _as_text(value, "KeyValue.key")
        elif number == 2:
            text = _as_text(value, "KeyValue.value")
    return key, text


_Value = int | bytes | None  # None: a fixed-size field, which no field of ours is


def _fields(data: bytes, *, message: str) -> Iterator[tuple[int, _Value]]:
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position, message)
        number, wire_type = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise ProtocolViolation(f"{message} has field number {number}")
        if wire_type == _VARINT:
            value, position = _read_varint(data, position, message)
            yield number, value
            continue
        if wire_type == _BYTES:
            length, position = _read_varint(data, position, message)
        elif wire_type in (_FIXED64, _FIXED32):
            length = 8 if wire_type == _FIXED64 else 4
        else:
            raise ProtocolViolation(f"{message} has wire type {wire_type} in field {number}")
        end = position + length
        if end > len(data):
            raise ProtocolViolation(
                f"{message} ends within field {number}: {length} bytes announced, {len(data) - position} left"
            )
        yield number, data[position:end] if wire_type == _BYTES else None
        position = end


def _read_varint(data: bytes, position: int, message: str) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise ProtocolViolation(f"{message} has a number that does not end at offset {position}")


def _as_bytes(value: _Value, field: str) -> bytes:
    if not isinstance(value, bytes):
        raise ProtocolViolation(f"{field} is not length-delimited")
    return value


def _as_text(value: _Value, field: str) -> str:
    try:
        return _as_bytes(value, field).decode()
    except UnicodeDecodeError as exc:
        raise ProtocolViolation(f"{field} is not UTF-8") from exc


def _as_signed(value: _Value, field: str, *, bits: int) -> int:
    if not isinstance(value, int):
        raise ProtocolViolation(f"{field} is not a number")
    low = value & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) else low


def _varint(value: int) -> bytes:
    rest = value & 0xFFFF_FFFF_FFFF_FFFF
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _bytes(number: int, value: bytes) -> bytes:
    return bytes((number << 3 | _BYTES,)) + _varint(len(value)) + value if value else b""


def _text(number: int, value: str) -> bytes:
    # A path in an error's message may hold bytes that are no text; the answer must go out all the same.
    return _bytes(number, value.encode(errors="replace"))
