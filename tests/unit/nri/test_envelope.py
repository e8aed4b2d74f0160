"""Request and Response by hand against bytes written by hand, and against the protobuf runtime."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from vgpu_nri.errors import ProtocolViolation
from vgpu_nri.ttrpc import envelope
from vgpu_nri.ttrpc.envelope import Request, Response

_TYPES = descriptor_pb2.FieldDescriptorProto


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="ttrpc_test.proto", package="ttrpc_test", syntax="proto3")
    fields = {
        "KeyValue": [("key", 1, _TYPES.TYPE_STRING, ""), ("value", 2, _TYPES.TYPE_STRING, "")],
        "Request": [
            ("service", 1, _TYPES.TYPE_STRING, ""),
            ("method", 2, _TYPES.TYPE_STRING, ""),
            ("payload", 3, _TYPES.TYPE_BYTES, ""),
            ("timeout_nano", 4, _TYPES.TYPE_INT64, ""),
            ("metadata", 5, _TYPES.TYPE_MESSAGE, "KeyValue"),
        ],
        "Status": [("code", 1, _TYPES.TYPE_INT32, ""), ("message", 2, _TYPES.TYPE_STRING, "")],
        "Response": [("status", 1, _TYPES.TYPE_MESSAGE, "Status"), ("payload", 2, _TYPES.TYPE_BYTES, "")],
    }
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in members:
            is_repeated = field == "metadata"
            label = _TYPES.LABEL_REPEATED if is_repeated else _TYPES.LABEL_OPTIONAL
            message.field.add(name=field, number=number, type=kind, label=label, type_name=f".ttrpc_test.{of}" if of else None)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ttrpc_test.{name}")) for name in fields}


_CLASSES = _classes()
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_REQUESTS = st.builds(
    Request,
    service=_TEXT,
    method=_TEXT,
    payload=st.binary(max_size=300),
    timeout_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    metadata=st.lists(st.tuples(_TEXT, _TEXT), max_size=3).map(tuple),
)


def test_request_has_the_bytes_of_the_field_table() -> None:
    request = Request(service="S", method="M", payload=b"\x01\x02", timeout_ns=300, metadata=(("k", "v"),))

    assert envelope.encode_request(request) == b"\x0a\x01S\x12\x01M\x1a\x02\x01\x02\x20\xac\x02\x2a\x06\x0a\x01k\x12\x01v"


def test_error_has_its_status_and_no_payload() -> None:
    assert envelope.encode_response(Response(code=9, message="no", payload=b"left out")) == b"\x0a\x06\x08\x09\x12\x02no"


def test_answer_without_payload_is_no_bytes() -> None:
    assert envelope.encode_response(Response()) == b""


def test_message_that_is_no_text_is_still_sent() -> None:
    sent = envelope.encode_response(Response(code=13, message="cannot open \udcff"))

    assert envelope.decode_response(sent) == Response(code=13, message="cannot open ?")


@given(_REQUESTS)
def test_requests_are_read_as_the_protobuf_runtime_reads_them(request: Request) -> None:
    theirs = _CLASSES["Request"](service=request.service, method=request.method, payload=request.payload)
    theirs.timeout_nano = request.timeout_ns
    for key, value in request.metadata:
        theirs.metadata.add(key=key, value=value)

    assert envelope.decode_request(theirs.SerializeToString()) == request
    assert _CLASSES["Request"].FromString(envelope.encode_request(request)) == theirs


@given(st.integers(-(1 << 31), (1 << 31) - 1).filter(bool), _TEXT)
def test_errors_are_read_as_the_protobuf_runtime_reads_them(code: int, message: str) -> None:
    theirs = _CLASSES["Response"](status=_CLASSES["Status"](code=code, message=message))

    assert envelope.decode_response(theirs.SerializeToString()) == Response(code=code, message=message)
    assert _CLASSES["Response"].FromString(envelope.encode_response(Response(code=code, message=message))) == theirs


@given(st.binary(max_size=300))
def test_answers_are_read_as_the_protobuf_runtime_reads_them(payload: bytes) -> None:
    theirs = _CLASSES["Response"](payload=payload)

    assert envelope.decode_response(theirs.SerializeToString()) == Response(payload=payload)
    assert envelope.encode_response(Response(payload=payload)) == theirs.SerializeToString()


def test_unknown_fields_of_every_size_are_passed_over() -> None:
    unknown = b"\x78\x01" + b"\x79" + b"8" * 8 + b"\x7a\x02ab" + b"\x7d" + b"4" * 4

    assert envelope.decode_request(unknown + b"\x12\x01M" + unknown) == Request(method="M")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a", "does not end at offset 1"),
        (b"\x0a\x05S", "ends within field 1: 5 bytes announced, 1 left"),
        (b"\x08\x01", "Request.service is not length-delimited"),
        (b"\x22\x01S", "Request.timeout_nano is not a number"),
        (b"\x0a\x01\xff", "Request.service is not UTF-8"),
        (b"\x1b", "wire type 3 in field 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x20" + b"\xff" * 10 + b"\x01", "does not end at offset 1"),
        (b"\x19" + b"8" * 7, "ends within field 3: 8 bytes announced, 7 left"),
        (b"\x2a\x02\x08\x01", "KeyValue.key is not length-delimited"),
    ],
)
def test_what_is_no_request_is_refused_with_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        envelope.decode_request(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x08\x01", "Response.status is not length-delimited"),
        (b"\x10\x01", "Response.payload is not length-delimited"),
        (b"\x0a\x02\x0a\x00", "Status.code is not a number"),
        (b"\x0a\x02\x10\x00", "Status.message is not length-delimited"),
        (b"\x0a\x03\x08\x01", "ends within field 1: 3 bytes announced, 2 left"),
    ],
)
def test_what_is_no_response_is_refused_with_what_is_wrong(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        envelope.decode_response(data)


@given(st.binary(max_size=200))
def test_garbage_never_raises_anything_but_a_violation(data: bytes) -> None:
    for decode in (envelope.decode_request, envelope.decode_response):
        try:
            decode(data)
        except ProtocolViolation:
            continue
