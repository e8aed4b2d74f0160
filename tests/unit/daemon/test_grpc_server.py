"""The gRPC server over a real socket: what a well-behaved client gets, and what a hostile one cannot do."""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeAlias

import hpack
import pytest
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from vgpu_daemon import context, sockets
from vgpu_daemon.crowd import Bound
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_proto import dra_health_v1, registrations
from vgpu_state import errors
from vgpu_testkit import garbage

ROUTE = "/vgpu.registrations.v1.Registrations/RecordPids"
REQUEST = registrations.RecordPidsRequest(claim_uid="c", pids=[1])
YES = registrations.RecordPidsResponse(changed=True)

Request: TypeAlias = registrations.RecordPidsRequest
Response: TypeAlias = registrations.RecordPidsResponse
Serving = Callable[..., AbstractAsyncContextManager[GrpcServer]]


def method(channel: Channel, route: str = ROUTE) -> UnaryUnaryMethod[Request, Response]:
    return UnaryUnaryMethod(channel, route, Request, Response)


async def refusal(channel: Channel, request: Request = REQUEST, route: str = ROUTE) -> tuple[Status, str | None]:
    with pytest.raises(GRPCError) as refused:
        await method(channel, route)(request)
    return refused.value.status, refused.value.message


async def test_method_is_served(serving: Serving, socket_path: Path) -> None:
    async with serving(), Channel(path=str(socket_path)) as channel:
        assert await method(channel)(REQUEST) == YES


async def test_handler_knows_its_caller_by_the_kernels_word(serving: Serving, socket_path: Path) -> None:
    seen: list[context.Peer] = []

    async def look(_: Request) -> Response:
        seen.append(context.peer.get())
        return YES

    async with serving(look), Channel(path=str(socket_path)) as channel:
        await method(channel)(REQUEST)

    assert seen == [context.Peer(pid=os.getpid(), uid=os.getuid(), gid=os.getgid())]


@pytest.mark.parametrize(("sent", "is_kept"), [("0123abcd", True), ("short", False), ("0123 bcd", False), ("x" * 9, False)])
async def test_operation_id_of_the_caller_is_kept_when_it_is_one(
    serving: Serving, socket_path: Path, sent: str, is_kept: bool
) -> None:
    seen: list[str] = []

    async def look(_: Request) -> Response:
        seen.append(context.op_id.get())
        return YES

    async with serving(look), Channel(path=str(socket_path)) as channel:
        await method(channel)(REQUEST, metadata={"op-id": sent})

    assert (seen[0] == sent) is is_kept
    assert len(seen[0]) == 8


# Statuses


async def reply_headers(path: Path, raw: bytes) -> dict[str, str]:
    """The headers and trailers of the answer to raw bytes, as grpc-go sees them."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(raw)
    decoder = hpack.Decoder()
    found: dict[str, str] = {}
    async with asyncio.timeout(10):
        while "grpc-status" not in found:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == 1:
                found |= {str(k): str(v) for k, v in decoder.decode(payload)}
    writer.close()
    await writer.wait_closed()
    return found


async def test_unknown_method_is_unimplemented_with_the_headers_that_go_asks_for(serving: Serving, socket_path: Path) -> None:
    async with serving():
        headers = await reply_headers(socket_path, garbage.call("/no.such.Service/Method", garbage.message(b"")))

    assert headers[":status"] == "200"
    assert headers["content-type"].startswith("application/grpc")
    assert (headers["grpc-status"], headers["grpc-message"]) == ("12", "unknown method")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (errors.MalformedInput("a"), Status.INVALID_ARGUMENT, "a"),
        (errors.PermissionRefused("b"), Status.PERMISSION_DENIED, "b"),
        (errors.PreconditionFailed("c"), Status.FAILED_PRECONDITION, "c"),
        (errors.Superseded("d"), Status.ABORTED, "d"),
        (errors.NotReady("e"), Status.UNAVAILABLE, "e"),
        (
            errors.StorageFailed(action="write", path="/m/x", error=OSError(28, "No space left on device")),
            Status.INTERNAL,
            "cannot write /m/x: ENOSPC (No space left on device)",
        ),
        (errors.VgpuError("f"), Status.INTERNAL, "f"),
    ],
)
async def test_domain_error_is_its_status_with_its_sentence(
    serving: Serving, socket_path: Path, error: errors.VgpuError, status: Status, message: str
) -> None:
    async def fail(_: Request) -> Response:
        raise error

    async with serving(fail), Channel(path=str(socket_path)) as channel:
        assert await refusal(channel) == (status, message)


async def test_fault_of_ours_is_internal_with_the_operation_and_nothing_else(serving: Serving, socket_path: Path) -> None:
    async def fail(_: Request) -> Response:
        raise RuntimeError("nonce c0ffee")

    async with serving(fail), Channel(path=str(socket_path)) as channel:
        with pytest.raises(GRPCError) as refused:
            await method(channel)(REQUEST, metadata={"op-id": "0123abcd"})

    assert (refused.value.status, refused.value.message) == (Status.INTERNAL, "internal error, op_id 0123abcd")


# Requests


async def test_call_without_a_message_is_refused(serving: Serving, socket_path: Path) -> None:
    async with serving():
        headers = await reply_headers(socket_path, garbage.call(ROUTE, b""))

    assert (headers["grpc-status"], headers["grpc-message"]) == ("3", "the call carries no request message")


async def test_request_that_never_ends_is_refused_after_a_while(serving: Serving, socket_path: Path) -> None:
    without_its_last_frame = garbage.call(ROUTE, b"")[:-9]

    async with serving(limits=Limits(receive_s=0.05)):
        headers = await reply_headers(socket_path, without_its_last_frame)

    assert (headers["grpc-status"], headers["grpc-message"]) == ("3", "no whole request within 0.05 s")


@pytest.mark.parametrize("raw", [b"\x0a\xff", b"\x0a\x02\xff\xfe", b"\x09ab"], ids=["cut off", "no text", "other wire type"])
async def test_message_that_is_no_protobuf_is_refused(serving: Serving, socket_path: Path, raw: bytes) -> None:
    async with serving():
        headers = await reply_headers(socket_path, garbage.call(ROUTE, garbage.message(raw)))

    assert (headers["grpc-status"], headers["grpc-message"]) == ("3", "RecordPidsRequest is malformed")


async def test_message_above_the_cap_is_reset_and_the_same_connection_serves_on(serving: Serving, socket_path: Path) -> None:
    async with serving(limits=Limits(max_message_bytes=1000)) as server, Channel(path=str(socket_path)) as channel:
        assert await method(channel)(REQUEST) == YES
        for size in (2000, 20_000, 100_000):  # in one frame, in several of one read, in more than a window
            with pytest.raises(StreamTerminatedError):
                await method(channel)(Request(claim_uid="x" * size, pids=[1]))

        assert await method(channel)(Request(claim_uid="x" * 900, pids=[1])) == YES
        assert len(server.connections) == 1


async def test_caller_of_another_uid_is_hung_up_on(serving: Serving, socket_path: Path) -> None:
    async with serving(limits=Limits(allowed_uids=frozenset({os.getuid() + 1}))) as server:
        reader, writer = await asyncio.open_unix_connection(socket_path)
        try:
            said = await reader.read()
        except ConnectionResetError:
            said = b""
        writer.close()

        assert (said, server.connections) == (b"", set())


async def test_more_connections_than_allowed_are_hung_up_on(serving: Serving, socket_path: Path) -> None:
    async with (
        serving(limits=Limits(connections=Bound(of_all=2, of_group=2))) as server,
        Channel(path=str(socket_path)) as one,
        Channel(path=str(socket_path)) as other,
        Channel(path=str(socket_path)) as third,
    ):
        assert [await method(channel)(REQUEST) for channel in (one, other)] == [YES, YES]
        with pytest.raises((StreamTerminatedError, ConnectionError)):
            await method(third)(REQUEST)

        assert len(server.connections) == 2
        assert await method(one)(REQUEST) == YES


# Stop


async def test_stop_lets_the_running_call_finish_and_takes_no_new_connection(serving: Serving, socket_path: Path) -> None:
    running, may_end = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        running.set()
        await may_end.wait()
        return YES

    async with serving(slow) as server, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(reply_headers(socket_path, garbage.call(ROUTE, garbage.message(bytes(REQUEST)))))
        await running.wait()
        stopping = tasks.create_task(server.stop(10))
        await asyncio.sleep(0)  # one turn of the loop: stop() begins
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(socket_path)
        assert not stopping.done()
        may_end.set()

    assert call.result()["grpc-status"] == "0"


async def test_stop_ends_a_call_that_outlives_its_grace(serving: Serving, socket_path: Path) -> None:
    running = asyncio.Event()
    ended: list[str] = []

    async def endless(_: Request) -> Response:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return YES

    async with serving(endless) as server, Channel(path=str(socket_path)) as channel, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(refused_somehow(channel))
        await running.wait()
        async with asyncio.timeout(5):
            await server.stop(0.05)

    assert call.result() is True
    assert ended == ["cancelled"]


async def refused_somehow(channel: Channel) -> bool:
    with pytest.raises((StreamTerminatedError, GRPCError)):
        await method(channel)(REQUEST)
    return True


class Watch(dra_health_v1.DraResourceHealthBase):
    """Answers once, and holds its stream open."""

    async def node_watch_resources(
        self, node_watch_resources_request: dra_health_v1.NodeWatchResourcesRequest
    ) -> AsyncIterator[dra_health_v1.NodeWatchResourcesResponse]:
        yield dra_health_v1.NodeWatchResourcesResponse()
        await asyncio.Event().wait()


async def test_stop_ends_a_stream_without_its_grace(socket_path: Path) -> None:
    server = GrpcServer([Watch()], name="test", limits=Limits())
    await server.start(sockets.publish(socket_path, mode=0o600))
    async with Channel(path=str(socket_path)) as channel:
        answers = dra_health_v1.DraResourceHealthStub(channel).node_watch_resources(dra_health_v1.NodeWatchResourcesRequest())
        await anext(answers)

        async with asyncio.timeout(5):
            await server.stop(60)

        with pytest.raises((StreamTerminatedError, GRPCError)):
            await anext(answers)


async def test_stop_before_start_is_nothing() -> None:
    await GrpcServer([], name="test", limits=Limits()).stop(1)


# Garbage

WHOLE = garbage.call(ROUTE, garbage.message(bytes(REQUEST)))
KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "noise": lambda dice: dice.randbytes(dice.randrange(1, 300)),
    "noise after the preface": lambda dice: garbage.PREFACE + dice.randbytes(dice.randrange(1, 300)),
    "truncated": lambda dice: WHOLE[: dice.randrange(len(WHOLE))],
    "random frames": lambda dice: (
        garbage.PREFACE
        + garbage.SETTINGS
        + b"".join(
            garbage.frame(dice.randrange(12), dice.randrange(256), dice.randrange(5), dice.randbytes(dice.randrange(60)))
            for _ in range(dice.randrange(1, 6))
        )
    ),
    "oversized": lambda dice: garbage.call(
        ROUTE, struct.pack(">BI", 0, dice.choice([2**20, 2**31, 2**32 - 1])) + dice.randbytes(5000)
    ),
    "bent": lambda dice: bent(WHOLE, dice),
}


def bent(raw: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(raw))
    return raw[:at] + dice.randbytes(1) + raw[at + 1 :]


@pytest.mark.parametrize("kind", KINDS)
async def test_garbage_hurts_nobody_else_and_leaves_nothing(serving: Serving, socket_path: Path, kind: str) -> None:
    """2 000 connections of each kind, 20 at a time; a client that was connected before is served in between and after."""
    asyncio.get_running_loop().set_debug(False)  # it doubles the time of 2 000 connections
    dice = random.Random(f"seed of {kind}")
    limits = Limits(max_message_bytes=2000, receive_s=5)

    async def pester(raw: bytes) -> None:
        reader, writer = await asyncio.open_unix_connection(socket_path)
        try:
            writer.write(raw)
            writer.write_eof()
            async with asyncio.timeout(10):
                await reader.read(1)
        except (ConnectionError, BrokenPipeError):
            pass
        writer.transport.abort()

    async with serving(limits=limits) as server, Channel(path=str(socket_path)) as good:
        assert await method(good)(REQUEST) == YES
        resident, descriptors = 0, 0
        for batch in range(100):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(20):
                    tasks.create_task(pester(KINDS[kind](dice)))
            assert await method(good)(REQUEST) == YES
            if batch == 20:
                resident, descriptors = resident_bytes(), len(os.listdir("/proc/self/fd"))

        async with asyncio.timeout(10):
            while len(server.connections) > 1:
                await method(good)(REQUEST)
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert resident_bytes() - resident < 16 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
