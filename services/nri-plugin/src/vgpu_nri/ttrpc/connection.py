"""The two ends of a ttrpc connection: the stream table and the rules about stream ids. Unary calls only.

A stream is opened by the client's request and finished by the server's one answer, so the table holds the unanswered calls.

Source: containerd/ttrpc PROTOCOL.md; client.go and server.go of 1.2 where that leaves room.
"""

from __future__ import annotations

from vgpu_nri.errors import ProtocolViolation
from vgpu_nri.ttrpc import envelope, frames
from vgpu_nri.ttrpc.envelope import Request, Response
from vgpu_nri.ttrpc.events import (
    ClientEvent,
    RequestMalformed,
    RequestReceived,
    ResponseMalformed,
    ResponseReceived,
    ServerEvent,
)
from vgpu_state.errors import MalformedInput

RESOURCE_EXHAUSTED = 8


class ServerConnection:
    """The end that answers."""

    def __init__(self) -> None:
        self._reader = frames.Reader()
        self._last_stream_id = 0
        self._unanswered: set[int] = set()

    def receive_data(self, data: bytes) -> list[ServerEvent]:
        """The calls that `data` completes. Other kinds of message are passed over, as Go does.

        Raises:
            ProtocolViolation: the byte stream is of no more use.
        """
        return [self._open(frame) for frame in self._reader.receive_data(data) if frame.kind == frames.REQUEST]

    def send_response(self, stream_id: int, response: Response) -> bytes:
        """The bytes of the one answer on this stream; an error instead when it would be larger than the client takes.

        Raises:
            ValueError: no call waits on this stream.
        """
        if stream_id not in self._unanswered:
            raise ValueError(f"no call waits on stream {stream_id}")
        self._unanswered.discard(stream_id)
        body = envelope.encode_response(response)
        if len(body) > frames.MAX_SENT_BYTES:
            reason = f"the answer has {len(body)} bytes; at most {frames.MAX_SENT_BYTES} can be sent"
            body = envelope.encode_response(Response(code=RESOURCE_EXHAUSTED, message=reason))
        return frames.encode(frames.Frame(stream_id, frames.RESPONSE, body))

    def _open(self, frame: frames.Frame) -> ServerEvent:
        if frame.stream_id in self._unanswered:
            raise ProtocolViolation(f"stream {frame.stream_id} is used again before its call was answered")
        self._unanswered.add(frame.stream_id)
        if frame.stream_id % 2 == 0 or frame.stream_id <= self._last_stream_id:
            expected = f"odd and above {self._last_stream_id}"
            return RequestMalformed(frame.stream_id, f"stream id is {frame.stream_id}; expected {expected}")
        self._last_stream_id = frame.stream_id
        try:
            return RequestReceived(frame.stream_id, envelope.decode_request(frame.body))
        except ProtocolViolation as exc:
            return RequestMalformed(frame.stream_id, str(exc))


class ClientConnection:
    """The end that calls."""

    def __init__(self) -> None:
        self._reader = frames.Reader()
        self._next_stream_id = 1
        self._unanswered: set[int] = set()

    def send_request(self, request: Request) -> tuple[int, bytes]:
        """The new stream's id and the bytes of the call.

        Raises:
            MalformedInput: the call is larger than a server takes.
        """
        body = envelope.encode_request(request)
        if len(body) > frames.MAX_SENT_BYTES:
            raise MalformedInput(f"{request.method} has {len(body)} bytes; at most {frames.MAX_SENT_BYTES} can be sent")
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        self._unanswered.add(stream_id)
        return stream_id, frames.encode(frames.Frame(stream_id, frames.REQUEST, body))

    def receive_data(self, data: bytes) -> list[ClientEvent]:
        """The answers that `data` completes; those to calls that nobody waits for are passed over.

        Raises:
            ProtocolViolation: the byte stream is of no more use.
        """
        return [
            self._finish(frame)
            for frame in self._reader.receive_data(data)
            if frame.kind == frames.RESPONSE and frame.stream_id in self._unanswered
        ]

    def _finish(self, frame: frames.Frame) -> ClientEvent:
        self._unanswered.discard(frame.stream_id)
        try:
            return ResponseReceived(frame.stream_id, envelope.decode_response(frame.body))
        except ProtocolViolation as exc:
            return ResponseMalformed(frame.stream_id, str(exc))
