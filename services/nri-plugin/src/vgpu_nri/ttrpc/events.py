"""What a ttrpc connection tells its user."""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_nri.ttrpc.envelope import Request, Response


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A call that waits for its answer on this stream."""

    stream_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class RequestMalformed:
    """A call that cannot be understood. Its stream waits for an error: the caller must not hang until its timeout."""

    stream_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """The answer to a call of ours."""

    stream_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class ResponseMalformed:
    """An answer to a call of ours that cannot be understood. The stream is finished."""

    stream_id: int
    reason: str


ServerEvent = RequestReceived | RequestMalformed
ClientEvent = ResponseReceived | ResponseMalformed
