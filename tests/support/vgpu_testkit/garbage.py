"""Bytes that a hostile peer may send to a gRPC socket, and sending them.

From pure noise to well-formed HTTP/2 whose message is wrong: deeper layers see only what the upper ones let through.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpack import Encoder
from hypothesis import strategies as st

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = struct.pack(">I", 0)[1:] + b"\x04\x00" + bytes(4)
_DATA, _HEADERS, _RESET, _GOAWAY = 0, 1, 3, 7
_END_STREAM, _END_HEADERS = 1, 4
_ANSWER_S = 5.0


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def call(route: str, body: bytes) -> bytes:
    """A connection's first bytes: a unary call of `route` whose body, gRPC's five-byte prefix included, is `body`."""
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", route),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    opening = frame(_HEADERS, _END_HEADERS, 1, Encoder().encode(headers))
    chunks = [body[i : i + 16384] for i in range(0, len(body), 16384)] or [b""]
    data = [frame(_DATA, _END_STREAM if i == len(chunks) - 1 else 0, 1, chunk) for i, chunk in enumerate(chunks)]
    return PREFACE + SETTINGS + opening + b"".join(data)


def message(payload: bytes, *, said_bytes: int | None = None, compressed: int = 0) -> bytes:
    """gRPC's framing of a message, which may lie about the size."""
    return struct.pack(">BI", compressed, len(payload) if said_bytes is None else said_bytes) + payload


@dataclass(frozen=True, slots=True)
class Garbage:
    """What one connection sends. A whole call gets an answer; of anything else only the end of the connection is sure."""

    raw: bytes
    is_call: bool = False


def garbage(routes: Sequence[str], valid: bytes) -> st.SearchStrategy[Garbage]:
    """Half of them noise, frames of any kind, calls of unknown routes and calls that break off; half whole calls whose message
    is noise, wrong protobuf or a bent `valid`.
    """
    messages = _messages(valid)
    whole = st.builds(call, st.sampled_from(list(routes)), messages)
    unknown = st.builds(call, st.text(min_size=1, max_size=50).filter(str.isascii), messages)
    noise = st.binary(max_size=2000)
    frames = st.lists(
        st.builds(frame, st.integers(0, 12), st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=200)),
        max_size=8,
    )
    broken = st.one_of(
        noise,
        noise.map(lambda raw: PREFACE + SETTINGS + raw),
        frames.map(lambda parts: PREFACE + b"".join(parts)),
        unknown,
        st.builds(lambda raw, part: raw[: int(len(raw) * part)], whole, st.floats(0, 1)),
    )
    answered = whole.map(lambda raw: Garbage(raw, is_call=True))
    return st.booleans().flatmap(lambda is_call: answered if is_call else broken.map(Garbage))


def _messages(valid: bytes) -> st.SearchStrategy[bytes]:
    """Bodies of a call, with gRPC's framing or without."""
    places = st.integers(0, max(len(valid) - 1, 0))
    wrong = st.one_of(
        _protobuf(),
        st.binary(max_size=2000),
        places.map(lambda n: valid[:n]),
        st.builds(lambda n, raw: valid[:n] + raw + valid[n + len(raw) :], places, st.binary(min_size=1, max_size=8)),
    )
    return st.one_of(
        wrong.map(message),
        wrong.map(lambda raw: message(valid + raw)),
        st.builds(lambda raw, said: message(raw, said_bytes=said), wrong, st.integers(0, 2**32 - 1)),
        st.builds(lambda raw, flag: message(raw, compressed=flag), wrong, st.integers(1, 255)),
        st.binary(max_size=2000),
        st.integers(1, 20).map(lambda mebibytes: message(bytes(mebibytes << 20))),
    )


def _protobuf() -> st.SearchStrategy[bytes]:
    """Well-formed protobuf that fits no schema: any wire type under any low field number, three levels deep."""
    text = st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=40), st.just(b"a" * 64))
    deepest = st.lists(_field(text), max_size=4).map(b"".join)
    deeper = st.lists(_field(st.one_of(text, deepest)), max_size=4).map(b"".join)
    return st.lists(_field(st.one_of(text, deeper)), max_size=5).map(b"".join)


def _field(content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    number = st.integers(1, 9)
    return st.one_of(
        st.builds(lambda n, v: bytes((n << 3,)) + _varint(v), number, st.integers(0, 2**64 - 1)),
        st.builds(lambda n, v: bytes((n << 3 | 1,)) + v, number, st.binary(min_size=8, max_size=8)),
        st.builds(lambda n, v: bytes((n << 3 | 5,)) + v, number, st.binary(min_size=4, max_size=4)),
        st.builds(lambda n, v: bytes((n << 3 | 2,)) + _varint(len(v)) + v, number, content),
    )


def _varint(value: int) -> bytes:
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*raw, value))


def send(path: Path, garbage: Garbage) -> None:
    """Sends it on a connection of its own, waits for a call's answer, and until the server has closed the connection.

    Raises:
        TimeoutError: the server neither answers nor closes.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ANSWER_S)
        sock.connect(str(path))
        try:
            sock.sendall(garbage.raw)
            if garbage.is_call:
                _await_answer(sock)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except (BrokenPipeError, ConnectionResetError):
            return  # the server has had enough


def _await_answer(sock: socket.socket) -> None:
    """Returns when stream 1 or the connection has ended."""
    received = b""
    while chunk := sock.recv(65536):
        received += chunk
        while len(received) >= 9 and len(received) >= (end := 9 + int.from_bytes(received[:3], "big")):
            kind, flags = received[3], received[4]
            if kind in (_RESET, _GOAWAY) or (kind in (_HEADERS, _DATA) and flags & _END_STREAM):
                return
            received = received[end:]
