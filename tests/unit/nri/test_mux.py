"""The trunk's frames: what Go sends us, what Go can take from us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_nri import mux
from vgpu_nri.errors import ProtocolViolation


def _streams(chunks: list[mux.Chunk]) -> dict[int, bytes]:
    joined: dict[int, bytes] = {}
    for chunk in chunks:
        joined[chunk.conn_id] = joined.get(chunk.conn_id, b"") + chunk.data
    return joined


def test_frame_is_id_length_payload_in_big_endian() -> None:
    assert mux.encode_frame(1, b"abc") == b"\0\0\0\x01\0\0\0\x03abc"


def test_frames_of_both_connections_are_told_apart() -> None:
    data = mux.encode_frame(1, b"ab") + mux.encode_frame(2, b"xyz") + mux.encode_frame(1, b"c")

    chunks = mux.Reader().receive_data(data)

    assert chunks == [mux.Chunk(1, b"ab"), mux.Chunk(2, b"xyz"), mux.Chunk(1, b"c")]


def test_streams_are_the_same_when_fed_byte_by_byte() -> None:
    reader = mux.Reader()
    data = mux.encode_frame(1, b"ab") + mux.encode_frame(7, b"----") + mux.encode_frame(2, b"") + mux.encode_frame(2, b"xyz")

    chunks = [chunk for byte in data for chunk in reader.receive_data(bytes((byte,)))]

    assert _streams(chunks) == {1: b"ab", 2: b"xyz"}


@pytest.mark.parametrize("conn_id", [0, 3, 4_294_967_295])
def test_frames_of_unknown_connections_are_dropped(conn_id: int) -> None:
    assert mux.Reader().receive_data(mux.encode_frame(conn_id, b"lost") + mux.encode_frame(1, b"kept")) == [mux.Chunk(1, b"kept")]


def test_truncated_frame_yields_what_is_there_and_no_more() -> None:
    reader = mux.Reader()

    assert reader.receive_data(b"\0\0\0\x01\0\0\0\x05ab") == [mux.Chunk(1, b"ab")]
    assert reader.receive_data(b"cde") == [mux.Chunk(1, b"cde")]


def test_frame_of_64_mib_and_a_header_is_accepted() -> None:
    assert mux.Reader().receive_data(b"\0\0\0\x01\x04\0\0\x0a") == []


def test_frame_above_64_mib_and_a_header_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="mux frame of 67108875 bytes"):
        mux.Reader().receive_data(b"\0\0\0\x01\x04\0\0\x0b")


def test_message_up_to_4096_bytes_is_one_frame() -> None:
    assert mux.encode_message(1, b"h" * 4096) == b"\0\0\0\x01\0\0\x10\0" + b"h" * 4096


def test_longer_message_has_its_ttrpc_header_in_a_frame_of_its_own() -> None:
    message = b"0123456789" + b"b" * 4087

    assert mux.encode_message(2, message) == b"\0\0\0\x02\0\0\0\x0a0123456789" + b"\0\0\0\x02\0\0\x0f\xf7" + b"b" * 4087


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_garbage_never_raises_anything_but_a_violation(pieces: list[bytes]) -> None:
    reader = mux.Reader()
    try:
        for piece in pieces:
            reader.receive_data(piece)
    except ProtocolViolation:
        return


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 9]), st.binary(max_size=40)), max_size=8), st.integers(1, 30))
def test_cutting_the_trunk_anywhere_changes_nothing(sent: list[tuple[int, bytes]], size: int) -> None:
    reader = mux.Reader()
    data = b"".join(mux.encode_frame(conn_id, payload) for conn_id, payload in sent)

    chunks = [chunk for at in range(0, len(data), size) for chunk in reader.receive_data(data[at : at + size])]

    for conn_id in (1, 2):
        assert _streams(chunks).get(conn_id, b"") == b"".join(payload for own, payload in sent if own == conn_id)
