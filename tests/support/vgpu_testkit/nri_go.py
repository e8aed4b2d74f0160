"""The NRI socket as the Go runtime reads it: with its buffers, its limits, and the ways in which it gives up.

Sans-IO. The layout of frames is `nri_frames`'s. Source: containerd/nri pkg/net/multiplex/mux.go, containerd/ttrpc channel.go,
Go's bufio.Reader.
"""

from __future__ import annotations

from vgpu_testkit import nri_frames
from vgpu_testkit.nri_frames import Frame

# bufio.NewReader's buffer: what does not begin a large read goes through it, and a mux frame must fit whole.
_BUFFER_BYTES = 4096
_MAX_BODY_BYTES = 4 << 20


class WouldClose(Exception):
    """Raised where Go's side ends the connection."""


def is_oversized(frame: Frame) -> bool:
    """Whether ttrpc refuses a message for its size; Go fails that call and goes on."""
    return len(frame.body) > _MAX_BODY_BYTES


class GoReader:
    """Turns bytes from a plugin into messages."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._streams = {one: _Stream(one) for one in (nri_frames.PLUGIN_CONNECTION, nri_frames.RUNTIME_CONNECTION)}

    def feed(self, data: bytes) -> list[Frame]:
        """The messages that these bytes complete. A mux frame for a connection that nobody opened is dropped.

        Raises:
            WouldClose: a mux frame is larger than the buffer that it is read into.
        """
        self._unread += data
        frames: list[Frame] = []
        for connection, payload in nri_frames.take_payloads(self._unread):
            if connection in self._streams:
                frames += self._streams[connection].take(payload)
        return frames


class _Stream:
    """One connection of the multiplexer, read as bufio.Reader reads it: a large body directly, all else through the buffer."""

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._held = bytearray()

    def take(self, payload: bytes) -> list[Frame]:
        room = max(self._body_bytes_missing(), _BUFFER_BYTES)
        if len(payload) > room:
            raise WouldClose(f"a mux frame of {len(payload)} bytes is read into a buffer of {room}: cannot allocate memory")
        self._held += payload
        return list(nri_frames.take_frames(self._connection, self._held))

    def _body_bytes_missing(self) -> int:
        """How much of a body is awaited: Go asks for exactly that, past the buffer."""
        if len(self._held) < nri_frames.TTRPC_HEADER.size:
            return 0
        length = nri_frames.TTRPC_HEADER.unpack_from(self._held)[0]
        return int(nri_frames.TTRPC_HEADER.size + length - len(self._held))
