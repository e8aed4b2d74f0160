"""The streams of one HTTP/2 connection, within bounds: how large a message, how many calls at once.

Uses private names of grpclib 0.4.9, as `grpc_server` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from grpclib.protocol import EventsProcessor
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event, RequestReceived, StreamReset

from vgpu_daemon.crowd import Crowd

_GRPC_PREFIX_BYTES = 5


class BoundedProcessor(EventsProcessor):
    """Refuses what is too much; a stream that breaks takes no other with it."""

    max_message_bytes = 0
    crowd: Crowd
    group = ""

    def __init__(self, handler: Any, connection: Any) -> None:  # Any: grpclib's own, which have no public names
        super().__init__(handler, connection)
        self._counted: set[int] = set()

    def process_request_received(self, event: RequestReceived) -> None:
        if self.crowd.enter(self.group):
            self._counted.add(event.stream_id)
            super().process_request_received(event)
        else:
            # Not processed at all: a gRPC client may try again.
            cast(Any, self.connection)._connection.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)

    def register(self, stream: Any) -> Callable[[], None]:
        release = super().register(stream)

        def end() -> None:
            self._leave(stream.id)
            release()

        return end

    def close(self, reason: str = "Connection closed") -> None:
        super().close(reason)
        for stream_id in list(self._counted):  # a call that was cancelled before its first step is never released
            self._leave(stream_id)

    def _leave(self, stream_id: int) -> None:
        if stream_id in self._counted:
            self._counted.discard(stream_id)
            self.crowd.leave(self.group)

    def process(self, event: Event) -> None:
        try:
            super().process(event)
        except NotImplementedError:
            return  # a frame type that grpclib does not know is no reason to drop the connection

    def process_data_received(self, event: DataReceived) -> None:
        stream = self.streams.get(event.stream_id)
        super().process_data_received(event)
        if stream is None or not stream.closable:
            return  # one read may bring several frames, the later ones of a stream that an earlier one had reset
        # Every method takes one message, so the bytes of a stream are the bytes of its message.
        if stream.data_received > self.max_message_bytes + _GRPC_PREFIX_BYTES:
            stream.reset_nowait(ErrorCodes.ENHANCE_YOUR_CALM)
            stream.__terminated__("message too large")
            self._cancel(stream)

    def process_stream_reset(self, event: StreamReset) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is not None:
            stream.__terminated__("stream reset")
            self._cancel(stream)

    def _cancel(self, stream: Any) -> None:  # Any: grpclib.protocol.Stream has no public name
        if stream in cast(Any, self.handler)._tasks:  # a finished call may be gone from there already
            self.handler.cancel(stream)
