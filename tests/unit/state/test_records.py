"""claim.json and binding.json: what is written is read back, and what was damaged is not believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_state import bindings, records
from vgpu_state.claims import (
    AssignmentMode,
    Binding,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    Consumed,
    Grant,
    HolderState,
    PodRef,
    PreparedResult,
)
from vgpu_state.ids import (
    ClaimUid,
    ContainerName,
    DeviceName,
    GpuUuid,
    GrantKey,
    Nonce,
    PodUid,
    PoolName,
    RequestName,
    RuntimeId,
    ShareId,
)
from vgpu_testkit.dra_values import BINDING, RECORD

EXAMPLES = Path(__file__).parents[3] / "examples"

UUIDS = st.uuids().map(str)
LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
WHOLES = st.integers(min_value=0, max_value=2**63 - 1)
KEYS = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)


def results() -> st.SearchStrategy[PreparedResult]:
    return st.builds(
        PreparedResult,
        request=LABELS.map(RequestName),
        pool=LABELS.map(PoolName),
        device=LABELS.map(DeviceName),
        share_id=(st.just("") | UUIDS).map(ShareId),
        consumed=st.builds(Consumed, cores_percent=WHOLES, memory_bytes=WHOLES),
        gpu_uuid=UUIDS.map(lambda u: GpuUuid(f"GPU-{u}")),
        cdi_device=NAMES,
        grant=st.builds(Grant, key=KEYS.map(GrantKey), nonce=st.from_regex(r"[0-9a-f]{32}", fullmatch=True).map(Nonce)),
    )


RECORDS = st.builds(
    ClaimRecord,
    claim=st.builds(ClaimRef, namespace=NAMES, name=NAMES, uid=UUIDS.map(ClaimUid)),
    boot_id=NAMES,
    state=st.sampled_from(ClaimState),
    mode=st.sampled_from(AssignmentMode),
    results=st.lists(results(), max_size=3).map(tuple),
)
BINDINGS = st.builds(
    Binding,
    pod=st.builds(PodRef, uid=UUIDS.map(PodUid), namespace=NAMES, name=NAMES),
    container=LABELS.map(ContainerName),
    runtime_id=st.from_regex(r"[0-9a-f]{64}", fullmatch=True).map(RuntimeId),
    session=WHOLES,
    cgroup=NAMES,
    state=st.sampled_from(HolderState),
    grants=st.lists(KEYS.map(GrantKey), max_size=3).map(tuple),
)


@given(record=RECORDS)
def test_record_is_read_back_as_it_was_written(record: ClaimRecord) -> None:
    assert records.decode_record(records.encode_record(record)) == record


@given(binding=BINDINGS)
def test_binding_is_read_back_as_it_was_written(binding: Binding) -> None:
    assert bindings.decode_binding(bindings.encode_binding(binding)) == binding


def test_record_with_one_byte_changed_is_refused_or_equal() -> None:
    """Every position of the example file, each with another letter, one bit less and a NUL."""
    good = (EXAMPLES / "claim.json").read_bytes()
    believed: set[ClaimRecord] = set()
    refused = 0

    for at in range(len(good)):
        for value in {ord("z"), good[at] ^ 1, 0} - {good[at]}:
            try:
                believed.add(records.decode_record(good[:at] + bytes([value]) + good[at + 1 :]))
            except records.RecordUnusable:
                refused += 1

    assert believed <= {RECORD}
    assert refused > 3000


@pytest.mark.parametrize("size", [0, 1, 2, 700, 1493])
def test_torn_record_is_refused(size: int) -> None:
    with pytest.raises(records.RecordUnusable, match=r"^claim record is corrupt: "):
        records.decode_record((EXAMPLES / "claim.json").read_bytes()[:size])


@given(content=st.binary(max_size=200))
def test_random_bytes_are_no_record_and_no_binding(content: bytes) -> None:
    with pytest.raises(records.RecordUnusable):
        records.decode_record(content)
    with pytest.raises(bindings.BindingUnusable):
        bindings.decode_binding(content)


def test_record_for_a_newer_reader_is_refused_saying_so() -> None:
    doc = json.loads((EXAMPLES / "claim.json").read_text())

    with pytest.raises(records.RecordUnusable) as refusal:
        records.decode_record(json.dumps({**doc, "min_reader": 2}).encode())

    assert str(refusal.value) == "claim record needs a reader of version 2, this one is 1: upgrade again"


def test_record_of_a_newer_writer_that_this_reader_may_read_is_read() -> None:
    doc = json.loads((EXAMPLES / "claim.json").read_text())

    assert records.decode_record(json.dumps({**doc, "schema": 2, "further": True}).encode()) == RECORD


def _without(field: str) -> dict[str, Any]:
    doc = json.loads((EXAMPLES / "claim.json").read_text())
    del doc[field]
    return dict(doc)


@pytest.mark.parametrize(
    ("doc", "words"),
    [
        ([], "claim record is corrupt: the document is no object"),
        (_without("min_reader"), "claim record is corrupt: field min_reader is missing"),
        (_without("sha256"), "claim record is corrupt: field sha256 is missing"),
        (_without("payload"), "claim record is corrupt: field payload is missing"),
        ({**_without("payload"), "payload": []}, "claim record is corrupt: field payload is of type list; expected an object"),
        ({**_without("payload"), "payload": {}}, "claim record is corrupt: its checksum does not fit its content"),
        ({**_without("sha256"), "sha256": "0" * 64}, "claim record is corrupt: its checksum does not fit its content"),
    ],
)
def test_record_of_another_shape_is_refused_naming_the_field(doc: object, words: str) -> None:
    with pytest.raises(records.RecordUnusable) as refusal:
        records.decode_record(json.dumps(doc).encode())

    assert str(refusal.value) == words


def test_record_with_a_uid_that_is_none_is_refused_although_its_checksum_fits() -> None:
    spoiled = replace(RECORD, claim=replace(RECORD.claim, uid=ClaimUid("../../etc")))

    with pytest.raises(records.RecordUnusable, match=r"claim uid is '\.\./\.\./etc'; expected a lower-case UUID"):
        records.decode_record(records.encode_record(spoiled))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("schema", 2, "binding.json: schema 2 is newer than 1"),
        ("session", -1, "binding.json: field session is -1; expected a whole number"),
        ("session", True, "binding.json: field session is True; expected a whole number"),
        ("container", "a/b", "binding.json: container name is 'a/b'; expected a DNS label of at most 63 characters"),
        ("state", "lost", "binding.json: 'lost' is not a valid HolderState"),
        ("grants", [1], "binding.json: field grants holds something that is no string"),
        ("pod", None, "binding.json: field pod is of type NoneType; expected an object"),
    ],
)
def test_binding_with_a_wrong_field_is_refused_naming_it(field: str, value: object, words: str) -> None:
    doc = json.loads(bindings.encode_binding(BINDING))

    with pytest.raises(bindings.BindingUnusable) as refusal:
        bindings.decode_binding(json.dumps({**doc, field: value}).encode())

    assert str(refusal.value) == words
