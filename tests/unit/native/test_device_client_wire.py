"""The client's side of HTTP/2, seen by a peer that reads and writes single frames."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import hpack
import pytest

from vgpu_testkit.http2_peer import (
    ACK,
    CONTINUATION,
    DATA,
    EMPTY_MESSAGE,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    OK_TRAILERS,
    PADDED,
    PING,
    PRIORITY,
    RESPONSE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    Peer,
)


async def converse(native: Path, path: Path, script: Callable[[Peer], Awaitable[None]], *more: str) -> tuple[int, str]:
    """Runs the client against `script`; its exit status and stderr."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(Peer(reader, writer, hpack.Encoder()))
            writer.write_eof()
            await reader.read()
        except AssertionError as error:
            ended.set_exception(error)
        except ConnectionError:  # the client had enough before the script's end
            ended.set_result(None)
        else:
            ended.set_result(None)
        finally:
            writer.close()

    async with await asyncio.start_unix_server(accept, path):
        client = await asyncio.create_subprocess_exec(
            native / "device-client", "--address", path, "--register-uuid", "u", *more, stderr=asyncio.subprocess.PIPE
        )
        _, stderr = await client.communicate()
        await ended
    assert client.returncode is not None
    return client.returncode, stderr.decode()


async def test_request_is_the_one_grpc_go_sends(native: Path, tmp_path: Path) -> None:
    request: list[Frame] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        request.extend(await peer.read_request())
        await peer.succeed()

    outcome = await converse(native, tmp_path / "a b.sock", script, "--pod-uid", "p", "--container-name", "c")

    headers, data = request
    *fields, (timeout_name, timeout) = hpack.Decoder().decode(headers.payload, raw=True)
    assert outcome == (0, "")
    assert (headers.type, headers.flags, headers.stream) == (HEADERS, END_HEADERS, 1)
    assert [tuple(field) for field in fields] == [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/registry.VDeviceRegistry/RegisterContainerDevice"),
        (b":authority", str(tmp_path).replace("/", "%2F").encode() + b"%2Fa%20b.sock"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-go/1.83.0"),
        (b"te", b"trailers"),
    ]
    assert timeout_name == b"grpc-timeout"
    assert re.fullmatch(rb"11[89]\d{5}u|12000000u", timeout)
    assert data == Frame(DATA, END_STREAM, 1, b"\0\0\0\0\x09\x0a\x01p\x12\x01c\x1a\x01u")


async def test_ping_is_answered_and_a_goaway_sent_when_the_call_is_done(native: Path, tmp_path: Path) -> None:
    last: list[Frame] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.read_request()
        await peer.send(PING, payload=b"8 bytes.")
        assert await peer.read() == Frame(PING, ACK, 0, b"8 bytes.")
        await peer.succeed()
        last.append(await peer.read())

    outcome = await converse(native, tmp_path / "s.sock", script)

    assert outcome == (0, "")
    assert last == [Frame(GOAWAY, 0, 0, bytes(8))]


async def test_body_waits_for_window_updates_when_the_window_is_small(native: Path, tmp_path: Path) -> None:
    body: list[bytes] = []

    async def script(peer: Peer) -> None:
        await peer.greet(struct.pack(">HI", 4, 10))
        _, first = await peer.read_request()
        await peer.send(WINDOW_UPDATE, 0, 1, struct.pack(">I", 15))
        second = await peer.read()
        await peer.send(SETTINGS, payload=struct.pack(">HI", 4, 1000))
        assert await peer.read() == Frame(SETTINGS, ACK, 0, b"")
        third = await peer.read()
        body.extend((first.payload, second.payload, third.payload))
        assert (first.flags, second.flags, third.flags) == (0, 0, END_STREAM)
        await peer.succeed()

    outcome = await converse(native, tmp_path / "s.sock", script, "--container-name", "n" * 100)

    assert outcome == (0, "")
    assert [len(part) for part in body] == [10, 15, 85]
    assert b"".join(body) == b"\0\0\0\0\x69\x12\x64" + b"n" * 100 + b"\x1a\x01u"


async def test_headers_are_read_when_they_use_the_dynamic_table_padding_and_priority(native: Path, tmp_path: Path) -> None:
    extra = [("x-trace", "3f0c1f6e8f0a4f57"), ("x-note", "~\x7fé\\^")]

    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.read_request()
        first = peer.encoder.encode(RESPONSE + extra)
        await peer.send(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, b"\x04" + b"\0\0\0\0\x0f" + first + bytes(4))
        await peer.send(DATA, PADDED, 1, b"\x03" + EMPTY_MESSAGE + bytes(3))
        await peer.send_headers([*extra, ("grpc-status", "7"), ("grpc-message", "no%21")], END_HEADERS | END_STREAM)

    outcome = await converse(native, tmp_path / "s.sock", script)

    assert outcome == (1, "device-client: rpc error: code = PermissionDenied desc = no!\n")


async def test_headers_are_read_when_they_fill_several_frames(native: Path, tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.read_request()
        block = peer.encoder.encode([*RESPONSE, *((f"x-{i}", f"{i:08}" * 100) for i in range(60))])
        assert 16384 < len(block) < 65536
        await peer.send(HEADERS, 0, 1, block[:16384])
        await peer.send(CONTINUATION, 0, 1, block[16384:20000])
        await peer.send(CONTINUATION, END_HEADERS, 1, block[20000:])
        await peer.send(DATA, 0, 1, EMPTY_MESSAGE)
        await peer.send_headers(OK_TRAILERS, END_HEADERS | END_STREAM)

    outcome = await converse(native, tmp_path / "s.sock", script)

    assert outcome == (0, "")


async def test_call_fails_when_the_headers_are_huge(native: Path, tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.read_request()
        await peer.send(HEADERS, 0, 1, b"\0" * 16384)
        for _ in range(4):
            await peer.send(CONTINUATION, 0, 1, b"\0" * 16384)

    outcome = await converse(native, tmp_path / "s.sock", script)

    assert outcome == (1, "device-client: rpc error: code = Unavailable desc = header list too large\n")


async def test_dial_ends_when_the_server_sends_no_settings_in_time(native: Path, tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read()

    outcome = await converse(native, tmp_path / "s.sock", script, "--timeout", "1")

    assert outcome == (1, "device-client: rpc error: code = DeadlineExceeded desc = context deadline exceeded\n")


async def _close_at_once(peer: Peer) -> None:
    await peer.reader.readexactly(24)


async def _close_after_request(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()


async def _close_within_a_frame(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    peer.writer.write(b"\0\0\x08\x01")


async def _go_away(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send(GOAWAY, payload=bytes(8))


async def _reset(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send(RST_STREAM, 0, 1, b"\0\0\0\x0b")


async def _answer_in_plain_http(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send_headers([(":status", "404"), ("content-type", "text/plain")], END_HEADERS | END_STREAM)


async def _forget_the_content_type(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send_headers([(":status", "200"), ("grpc-status", "12")], END_HEADERS | END_STREAM)


async def _end_without_trailers(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send_headers(RESPONSE)
    await peer.send(DATA, END_STREAM, 1, EMPTY_MESSAGE)


async def _succeed_without_a_message(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send_headers(RESPONSE + OK_TRAILERS, END_HEADERS | END_STREAM)


async def _compress(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send_headers(RESPONSE)
    await peer.send(DATA, 0, 1, b"\1\0\0\0\0")


async def _index_beyond_the_table(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send(HEADERS, END_HEADERS, 1, b"\xbe")


async def _pad_beyond_the_frame(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send(HEADERS, END_HEADERS | PADDED, 1, b"\x09\x88")


async def _end_a_huffman_string_in_the_wrong_bits(peer: Peer) -> None:
    await peer.greet()
    await peer.read_request()
    await peer.send(HEADERS, END_HEADERS, 1, b"\x00\x01a\x81\x00")


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (_close_at_once, "Unavailable desc = error reading from server: EOF"),
        (_close_after_request, "Unavailable desc = error reading from server: EOF"),
        (_close_within_a_frame, "Unavailable desc = error reading from server: EOF"),
        (_go_away, "Unavailable desc = the server is going away, error code: 0"),
        (_reset, "ResourceExhausted desc = stream terminated by RST_STREAM with error code: 11"),
        (_answer_in_plain_http, "Unimplemented desc = unexpected HTTP status code received from server: 404"),
        (_forget_the_content_type, "Unknown desc = malformed header: missing HTTP content-type"),
        (_end_without_trailers, "Internal desc = server closed the stream without sending trailers"),
        (
            _succeed_without_a_message,
            "Internal desc = cardinality violation: received no response message from non-server-streaming RPC",
        ),
        (_compress, "Internal desc = compressed response without a compressor"),
        (_index_beyond_the_table, "Unavailable desc = header index out of range"),
        (_pad_beyond_the_frame, "Unavailable desc = padding longer than the frame"),
        (_end_a_huffman_string_in_the_wrong_bits, "Unavailable desc = bad header string"),
    ],
)
async def test_call_fails_when_the_server_breaks_off(
    native: Path, tmp_path: Path, script: Callable[[Peer], Awaitable[None]], outcome: str
) -> None:
    assert await converse(native, tmp_path / "s.sock", script) == (1, f"device-client: rpc error: code = {outcome}\n")
