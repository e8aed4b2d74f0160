"""Calls to a peer's unix socket: one deadline for dial and call, the operation's id sent along, domain errors back."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.exceptions import GRPCError, StreamTerminatedError

from vgpu_daemon import context, grpc_status
from vgpu_daemon.apart import run_apart
from vgpu_state.errors import NotReady

_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")

REDIAL_PAUSE_S = 0.2  # a dial that is refused takes 0.1 ms; a longer pause refuses what a successor could already answer


class PeerSocket:
    """A channel to the process that serves `path`; it may be away, and another may serve there after a restart.

    A dial that failed is not repeated for `redial_pause_s` seconds: until then every call is refused at once, so that a peer's
    absence never costs a caller its deadline.
    """

    def __init__(self, path: str, *, peer: str, clock: Callable[[], float], redial_pause_s: float = REDIAL_PAUSE_S) -> None:
        self._path = path
        self._redial_pause_s = redial_pause_s
        self._peer = peer
        self._clock = clock
        self._channel = Channel(path=path)
        self._refused_until = float("-inf")
        self._refusal = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._channel.close()

    async def call(self, route: str, request: _RequestT, response_type: type[_ResponseT], *, deadline_s: float) -> _ResponseT:
        """The peer's answer.

        Raises:
            NotReady: the peer is away, hung beyond `deadline_s` seconds, draining, or the connection broke.
            VgpuError: what the peer refused with.
        """
        if self._clock() < self._refused_until:
            raise NotReady(self._refusal)
        method: UnaryUnaryMethod[Any, Any] = UnaryUnaryMethod(self._channel, route, type(request), response_type)
        op_id = context.op_id.get() or context.new_op_id()
        try:
            # Our own timeout too: grpclib starts its deadline only when the connection stands.
            answer: _ResponseT = await run_apart(
                method(request, timeout=deadline_s, metadata={context.OP_ID_METADATA: op_id}), timeout_s=deadline_s
            )
        except GRPCError as exc:
            raise grpc_status.from_grpc(exc) from exc
        except TimeoutError as exc:
            raise NotReady(f"{self._peer} did not answer within {deadline_s:g} s ({self._path})") from exc
        except OSError as exc:
            self._refused_until = self._clock() + self._redial_pause_s
            self._refusal = f"{self._peer} is away: {exc.strerror or exc} ({self._path})"
            raise NotReady(self._refusal) from exc
        except StreamTerminatedError as exc:
            raise NotReady(f"{self._peer} broke the connection: {exc} ({self._path})") from exc
        except AttributeError as exc:
            # grpclib hands out a connection that was lost before its first bytes, and stumbles over what is left of it.
            if exc.name != "_transport":
                raise
            raise NotReady(f"{self._peer} broke the connection while it was made ({self._path})") from exc
        return answer
