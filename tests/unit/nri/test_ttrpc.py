"""Frames and both ends of a ttrpc connection."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_nri.errors import ProtocolViolation
from vgpu_nri.ttrpc import envelope, frames
from vgpu_nri.ttrpc.connection import ClientConnection, ServerConnection
from vgpu_nri.ttrpc.envelope import Request, Response
from vgpu_nri.ttrpc.events import RequestMalformed, RequestReceived, ResponseMalformed, ResponseReceived
from vgpu_state.errors import MalformedInput


def _call(stream_id: int, method: str = "M") -> bytes:
    return frames.encode(frames.Frame(stream_id, frames.REQUEST, envelope.encode_request(Request(method=method))))


def test_frame_is_length_stream_type_flags_body_in_big_endian() -> None:
    assert frames.encode(frames.Frame(3, frames.RESPONSE, b"ab")) == b"\0\0\0\x02\0\0\0\x03\x02\x00ab"


def test_frames_are_whole_when_fed_byte_by_byte() -> None:
    reader = frames.Reader()
    data = b"\0\0\0\x02\0\0\0\x03\x02\x00ab" + b"\0\0\0\x00\0\0\0\x05\x01\x00"

    seen = [frame for byte in data for frame in reader.receive_data(bytes((byte,)))]

    assert seen == [frames.Frame(3, 2, b"ab"), frames.Frame(5, 1, b"")]


def test_trailing_bytes_wait_for_their_frame() -> None:
    reader = frames.Reader()

    assert reader.receive_data(b"\0\0\0\x01\0\0\0\x01\x01\x00a" + b"\0\0\0\x01\0") == [frames.Frame(1, 1, b"a")]
    assert reader.receive_data(b"\0\0\x03\x01\x00b") == [frames.Frame(3, 1, b"b")]


def test_body_of_5_mib_is_received() -> None:
    body = b"x" * (5 << 20)

    assert frames.Reader().receive_data(frames.encode(frames.Frame(1, 1, body))) == [frames.Frame(1, 1, body)]


def test_body_above_64_mib_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="ttrpc message of 67108865 bytes"):
        frames.Reader().receive_data(b"\x04\0\0\x01\0\0\0\x01\x01\x00")


def test_pair_carries_a_call_and_its_answer() -> None:
    client, server = ClientConnection(), ServerConnection()

    stream_id, sent = client.send_request(Request(service="S", method="M", payload=b"p", timeout_ns=7))
    asked = server.receive_data(sent)
    answered = client.receive_data(server.send_response(stream_id, Response(payload=b"q")))

    assert asked == [RequestReceived(1, Request(service="S", method="M", payload=b"p", timeout_ns=7))]
    assert answered == [ResponseReceived(1, Response(payload=b"q"))]


def test_streams_of_a_client_are_odd_and_increase() -> None:
    client = ClientConnection()

    assert [client.send_request(Request())[0] for _ in range(3)] == [1, 3, 5]


def test_answers_may_come_in_another_order() -> None:
    client, server = ClientConnection(), ServerConnection()
    server.receive_data(client.send_request(Request(method="A"))[1] + client.send_request(Request(method="B"))[1])

    answers = server.send_response(3, Response(payload=b"b")) + server.send_response(1, Response(code=9, message="no"))

    assert client.receive_data(answers) == [
        ResponseReceived(3, Response(payload=b"b")),
        ResponseReceived(1, Response(code=9, message="no")),
    ]


@pytest.mark.parametrize("stream_id", [2, 0, 3])
def test_call_on_an_even_or_old_stream_must_be_answered_with_an_error(stream_id: int) -> None:
    server = ServerConnection()
    server.receive_data(_call(5))
    server.send_response(5, Response())

    events = server.receive_data(_call(stream_id))

    assert events == [RequestMalformed(stream_id, f"stream id is {stream_id}; expected odd and above 5")]


def test_stream_used_again_before_its_answer_is_a_violation() -> None:
    server = ServerConnection()

    with pytest.raises(ProtocolViolation, match="stream 1 is used again"):
        server.receive_data(_call(1) + _call(1))


def test_undecodable_call_waits_for_its_error() -> None:
    server = ServerConnection()

    events = server.receive_data(frames.encode(frames.Frame(1, frames.REQUEST, b"\x0a\x05S")))

    assert events == [RequestMalformed(1, "Request ends within field 1: 5 bytes announced, 1 left")]
    assert server.send_response(1, Response(code=3)) == b"\0\0\0\x04\0\0\0\x01\x02\x00\x0a\x02\x08\x03"


def test_undecodable_answer_ends_its_call() -> None:
    client = ClientConnection()
    client.send_request(Request())

    events = client.receive_data(frames.encode(frames.Frame(1, frames.RESPONSE, b"\x12\x05q")))

    assert events == [ResponseMalformed(1, "Response ends within field 2: 5 bytes announced, 1 left")]


def test_answers_that_nobody_waits_for_are_passed_over() -> None:
    client = ClientConnection()
    client.send_request(Request())
    answer = frames.encode(frames.Frame(1, frames.RESPONSE, b""))

    assert client.receive_data(answer + answer) == [ResponseReceived(1, Response())]


def test_other_kinds_of_message_are_passed_over() -> None:
    data = frames.encode(frames.Frame(1, frames.DATA, b"x")) + frames.encode(frames.Frame(1, 99, b"x"))

    assert ServerConnection().receive_data(data) == []
    assert ClientConnection().receive_data(data) == []


def test_answer_above_4_mib_becomes_an_error() -> None:
    server = ServerConnection()
    server.receive_data(_call(1))

    sent = server.send_response(1, Response(payload=b"x" * (4 << 20)))

    (frame,) = frames.Reader().receive_data(sent)
    answer = envelope.decode_response(frame.body)
    assert answer == Response(code=8, message="the answer has 4194309 bytes; at most 4194304 can be sent")


def test_call_above_4_mib_is_refused_before_it_is_sent() -> None:
    with pytest.raises(MalformedInput, match="Register has 4194319 bytes; at most 4194304"):
        ClientConnection().send_request(Request(method="Register", payload=b"x" * (4 << 20)))


def test_answer_on_a_stream_without_a_call_is_an_error_of_ours() -> None:
    with pytest.raises(ValueError, match="no call waits on stream 1"):
        ServerConnection().send_response(1, Response())


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_garbage_never_raises_anything_but_a_violation(pieces: list[bytes]) -> None:
    server, client = ServerConnection(), ClientConnection()
    try:
        for piece in pieces:
            server.receive_data(piece)
            client.receive_data(piece)
    except ProtocolViolation:
        return


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.binary(max_size=30)), max_size=10))
def test_well_framed_garbage_never_raises_anything_but_a_violation(sent: list[tuple[int, int, bytes]]) -> None:
    server, client = ServerConnection(), ClientConnection()
    client.send_request(Request())
    data = b"".join(frames.encode(frames.Frame(stream_id, kind, body)) for stream_id, kind, body in sent)
    try:
        server.receive_data(data)
        client.receive_data(data)
    except ProtocolViolation:
        return
