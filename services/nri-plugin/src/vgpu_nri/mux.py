"""The trunk: one byte stream that carries several connections, as frames of (connection id, bytes). Sans-IO.

Shape of a frame: u32 connection id, u32 length, payload; big-endian. A payload is a slice of its connection's byte stream: a
message may span frames and a frame may hold several messages, so payloads are handed on as they arrive, whole or not.

Source: containerd/nri pkg/net/multiplex.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from vgpu_nri.errors import ProtocolViolation

PLUGIN_CONN = 1  # the Plugin service: the runtime calls
RUNTIME_CONN = 2  # the Runtime service: the plugin calls

# NRI 0.6 sends Synchronize as one message, whatever its size; 10 is the ttrpc header.
MAX_FRAME_BYTES = (64 << 20) + 10
# Go's reader hands a frame to one Read of a 4096-byte buffer and gives up on a longer one that begins with a ttrpc header.
GO_READ_BYTES = 4096

_TTRPC_HEADER_BYTES = 10
_HEADER = struct.Struct(">II")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of one connection's stream, in order; not necessarily a whole frame."""

    conn_id: int
    data: bytes


class Reader:
    """Bytes of the trunk in, chunks of the two connections out. Frames of other connections are dropped, as Go does."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._conn_id = 0
        self._missing = 0

    def receive_data(self, data: bytes) -> list[Chunk]:
        """What `data` adds to each connection.

        Raises:
            ProtocolViolation: a frame announces more than MAX_FRAME_BYTES.
        """
        chunks: list[Chunk] = []
        position = 0
        while position < len(data):
            if not self._missing:
                position = self._take_header(data, position)
                continue
            taken = data[position : position + self._missing]
            position += len(taken)
            self._missing -= len(taken)
            if self._conn_id in (PLUGIN_CONN, RUNTIME_CONN):
                chunks.append(Chunk(self._conn_id, taken))
        return chunks

    def _take_header(self, data: bytes, position: int) -> int:
        end = position + _HEADER.size - len(self._header)
        self._header += data[position:end]
        if len(self._header) < _HEADER.size:
            return len(data)
        self._conn_id, self._missing = _HEADER.unpack(self._header)
        self._header.clear()
        if self._missing > MAX_FRAME_BYTES:
            raise ProtocolViolation(f"mux frame of {self._missing} bytes; at most {MAX_FRAME_BYTES} are allowed")
        return end


def encode_frame(conn_id: int, payload: bytes) -> bytes:
    """One frame with exactly this payload."""
    return _HEADER.pack(conn_id, len(payload)) + payload


def encode_message(conn_id: int, message: bytes) -> bytes:
    """The frames of one ttrpc message: its header in a frame of its own where Go's reader could not take both at once."""
    if len(message) <= GO_READ_BYTES:
        return encode_frame(conn_id, message)
    header, body = message[:_TTRPC_HEADER_BYTES], message[_TTRPC_HEADER_BYTES:]
    return encode_frame(conn_id, header) + encode_frame(conn_id, body)
