"""Calls to a peer that may be away, hung, refusing or restarted."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import pytest

from vgpu_daemon import context
from vgpu_daemon.grpc_client import PeerSocket
from vgpu_daemon.grpc_server import GrpcServer
from vgpu_daemon.grpc_status import MethodUnknown, PeerFailed
from vgpu_proto import registrations
from vgpu_state import errors

ROUTE = "/vgpu.registrations.v1.Registrations/RecordPids"
Request: TypeAlias = registrations.RecordPidsRequest
Response: TypeAlias = registrations.RecordPidsResponse
REQUEST = registrations.RecordPidsRequest(claim_uid="c", pids=[1])
Serving = Callable[..., AbstractAsyncContextManager[GrpcServer]]


class Clock:
    """Seconds, by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def peer(socket_path: Path, clock: Clock) -> AsyncIterator[PeerSocket]:
    async with PeerSocket(str(socket_path), peer="dra-plugin", clock=clock) as channel:
        yield channel


async def ask(peer: PeerSocket, *, deadline_s: float = 5.0, route: str = ROUTE) -> Response:
    return await peer.call(route, REQUEST, Response, deadline_s=deadline_s)


async def refusal(peer: PeerSocket, *, deadline_s: float = 5.0) -> str:
    with pytest.raises(errors.NotReady) as refused:
        await ask(peer, deadline_s=deadline_s)
    return str(refused.value)


async def test_answer_of_the_peer_is_returned(serving: Serving, peer: PeerSocket) -> None:
    async with serving():
        assert (await ask(peer)).changed is True


async def test_peer_that_is_away_is_not_ready_at_once(peer: PeerSocket, socket_path: Path) -> None:
    async with asyncio.timeout(2):
        assert await refusal(peer, deadline_s=60) == f"dra-plugin is away: No such file or directory ({socket_path})"


async def test_socket_that_nobody_serves_is_not_ready_at_once(peer: PeerSocket, socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))

    async with asyncio.timeout(2):
        assert await refusal(peer, deadline_s=60) == f"dra-plugin is away: Connection refused ({socket_path})"


async def test_failed_dial_is_not_repeated_within_a_fifth_of_a_second_and_its_reason_is_told(
    serving: Serving, peer: PeerSocket, clock: Clock, socket_path: Path
) -> None:
    reason = await refusal(peer)

    async with serving():
        clock.now_s += 0.19
        assert await refusal(peer) == reason == f"dra-plugin is away: No such file or directory ({socket_path})"
        clock.now_s += 0.02
        assert (await ask(peer)).changed is True


async def test_hung_peer_is_not_ready_at_the_deadline(serving: Serving, peer: PeerSocket, socket_path: Path) -> None:
    async def hang(_: Request) -> Response:
        await asyncio.Event().wait()
        return Response()

    async with serving(hang):
        async with asyncio.timeout(5):
            assert await refusal(peer, deadline_s=0.05) == f"dra-plugin did not answer within 0.05 s ({socket_path})"


async def test_peer_that_never_reads_is_not_ready_at_the_deadline(peer: PeerSocket, socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(socket_path))
        stopped.listen(8)

        async with asyncio.timeout(5):
            assert await refusal(peer, deadline_s=0.05) == f"dra-plugin did not answer within 0.05 s ({socket_path})"


async def test_deadline_of_one_call_does_not_pause_the_next(serving: Serving, peer: PeerSocket) -> None:
    hangs = True

    async def hang_once(_: Request) -> Response:
        if hangs:
            await asyncio.Event().wait()
        return Response(changed=True)

    async with serving(hang_once):
        await refusal(peer, deadline_s=0.05)
        hangs = False
        assert (await ask(peer)).changed is True


async def test_restarted_peer_is_found_again(serving: Serving, peer: PeerSocket) -> None:
    async with serving():
        await ask(peer)
    async with serving():
        assert (await ask(peer)).changed is True


async def test_connection_that_breaks_while_it_is_made_is_not_ready(peer: PeerSocket, socket_path: Path) -> None:
    """The peer dies with the connection in its backlog, before the client's first bytes."""
    loop = asyncio.get_running_loop()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(socket_path))
    listener.listen(8)

    def close_when_dialled() -> None:
        if select.select([listener], [], [], 0)[0]:
            listener.close()
        else:
            loop.call_soon(close_when_dialled)

    loop.call_soon(close_when_dialled)

    assert await refusal(peer) == f"dra-plugin broke the connection while it was made ({socket_path})"


async def test_connection_that_breaks_within_a_call_is_not_ready(serving: Serving, peer: PeerSocket, socket_path: Path) -> None:
    servers: list[GrpcServer] = []

    async def drop(_: Request) -> Response:
        for protocol in servers[0].connections:
            protocol.connection._transport.abort()
        await asyncio.Event().wait()
        return Response()

    async with serving(drop) as server:
        servers.append(server)
        assert await refusal(peer) == f"dra-plugin broke the connection: Connection lost ({socket_path})"


@pytest.mark.parametrize("known", ["0123abcd", ""])
async def test_operation_id_goes_along(serving: Serving, peer: PeerSocket, known: str) -> None:
    seen: list[str] = []

    async def look(_: Request) -> Response:
        seen.append(context.op_id.get())
        return Response()

    async with serving(look):
        token = context.op_id.set(known)
        await ask(peer)
        context.op_id.reset(token)

    assert len(seen[0]) == 8
    assert seen[0] == known or not known


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (errors.MalformedInput("a name is wrong"), errors.MalformedInput),
        (errors.PermissionRefused("not yours"), errors.PermissionRefused),
        (errors.PreconditionFailed("held"), errors.PreconditionFailed),
        (errors.Superseded("gone"), errors.Superseded),
        (errors.NotReady("starting"), errors.NotReady),
        (errors.StorageFailed(action="write", path="/m", error=OSError(30, "Read-only file system")), PeerFailed),
        (errors.VgpuError("else"), PeerFailed),
    ],
)
async def test_refusal_of_the_peer_is_the_error_it_raised_with_its_sentence(
    serving: Serving, peer: PeerSocket, raised: errors.VgpuError, kind: type[errors.VgpuError]
) -> None:
    async def refuse(_: Request) -> Response:
        raise raised

    async with serving(refuse):
        with pytest.raises(errors.VgpuError) as refused:
            await ask(peer)

    assert type(refused.value) is kind
    assert str(refused.value) == str(raised)


async def test_method_that_the_peer_lacks_is_its_failure_and_told_from_others(serving: Serving, peer: PeerSocket) -> None:
    assert issubclass(MethodUnknown, PeerFailed)
    async with serving():
        with pytest.raises(MethodUnknown, match=r"^unknown method$"):
            await ask(peer, route="/vgpu.registrations.v1.Registrations/Newer")
