"""ttrpc messages on a byte stream: u32 length, u32 stream id, u8 type, u8 flags (big-endian), then `length` bytes of body.

Source: containerd/ttrpc PROTOCOL.md and channel.go.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from vgpu_nri.errors import ProtocolViolation

REQUEST = 1
RESPONSE = 2
DATA = 3

MAX_SENT_BYTES = 4 << 20  # what Go's reader takes
# Sixteen times what ttrpc allows: NRI 0.6 sends a Synchronize of any size as one message.
MAX_RECEIVED_BYTES = 64 << 20

_HEADER = struct.Struct(">IIBB")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: whose stream, which kind, what it carries."""

    stream_id: int
    kind: int
    body: bytes
    flags: int = 0


def encode(frame: Frame) -> bytes:
    return _HEADER.pack(len(frame.body), frame.stream_id, frame.kind, frame.flags) + frame.body


class Reader:
    """Bytes in, whole frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive_data(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes.

        Raises:
            ProtocolViolation: a body is announced with more than MAX_RECEIVED_BYTES.
        """
        self._buffer += data
        frames: list[Frame] = []
        position = 0
        while len(self._buffer) - position >= HEADER_BYTES:
            length, stream_id, kind, flags = _HEADER.unpack_from(self._buffer, position)
            if length > MAX_RECEIVED_BYTES:
                raise ProtocolViolation(f"ttrpc message of {length} bytes; at most {MAX_RECEIVED_BYTES} are allowed")
            start = position + HEADER_BYTES
            if len(self._buffer) - start < length:
                break
            position = start + length
            frames.append(Frame(stream_id, kind, bytes(memoryview(self._buffer)[start:position]), flags))
        del self._buffer[:position]
        return frames
