"""claim.json and binding.json: what is written is read back, and what was damaged is not believed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_state import bindings, records
from vgpu_state.claims import (
    Binding,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    ComputePolicy,
    Consumed,
    ContainerKind,
    EagerAssignment,
    EagerContainer,
    EagerPartition,
    EagerReason,
    Grant,
    HolderState,
    PodRef,
    PreparedGpu,
    PreparedMig,
    PreparedVgpu,
)
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.ids import (
    ClaimUid,
    ContainerName,
    DeviceName,
    GpuUuid,
    GrantKey,
    MigUuid,
    Nonce,
    PartitionName,
    PodUid,
    PoolName,
    RegisterUuid,
    RequestName,
    RuntimeId,
    ShareId,
)
from vgpu_testkit.dra_values import BINDING, EAGER_RECORD, RECORD, SLICE, TRAINER, WHOLE

EXAMPLES = Path(__file__).parents[3] / "examples"
FORMS = Path(__file__).parents[2] / "contract" / "records"
MIXED = replace(RECORD, policy=ComputePolicy.BALANCE, results=(TRAINER, WHOLE, replace(WHOLE, has_admin_access=True), SLICE))
UNREGISTERED = replace(EAGER_RECORD, compatibility=CompatibilityMode.CGROUP_V1)

UUIDS = st.uuids().map(str)
LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
WHOLES = st.integers(min_value=0, max_value=2**63 - 1)
KEYS = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)


COMMON: dict[str, st.SearchStrategy[str]] = {
    "request": (LABELS | st.tuples(LABELS, LABELS).map("/".join)).map(RequestName),
    "pool": LABELS.map(PoolName),
    "device": LABELS.map(DeviceName),
    "share_id": (st.just("") | UUIDS).map(ShareId),
    "gpu_uuid": UUIDS.map(lambda u: GpuUuid(f"GPU-{u}")),
    "cdi_device": NAMES,
}
VGPUS = st.builds(
    PreparedVgpu,
    **COMMON,
    consumed=st.builds(Consumed, cores_percent=WHOLES, memory_bytes=WHOLES),
    grant=st.builds(Grant, key=KEYS.map(GrantKey), nonce=st.from_regex(r"[0-9a-f]{32}", fullmatch=True).map(Nonce)),
)
GPUS = st.builds(PreparedGpu, **COMMON, has_admin_access=st.booleans())
MIGS = st.builds(PreparedMig, **COMMON, mig_uuid=UUIDS.map(lambda u: MigUuid(f"MIG-{u}")))
PODS = st.builds(PodRef, uid=UUIDS.map(PodUid), namespace=NAMES, name=NAMES)
EAGERS = st.builds(
    EagerAssignment,
    reason=st.sampled_from(EagerReason),
    pod=PODS,
    partitions=st.lists(
        st.builds(
            EagerPartition,
            name=st.from_regex(r"cg-[0-9a-f]{12}", fullmatch=True).map(PartitionName),
            containers=st.lists(
                st.builds(EagerContainer, name=LABELS.map(ContainerName), kind=st.sampled_from(ContainerKind)), max_size=2
            ).map(tuple),
            requests=st.lists(LABELS.map(RequestName), max_size=2).map(tuple),
            register_uuid=st.none() | UUIDS.map(RegisterUuid),
        ),
        max_size=2,
    ).map(tuple),
)
RECORDS = st.builds(
    ClaimRecord,
    claim=st.builds(ClaimRef, namespace=NAMES, name=NAMES, uid=UUIDS.map(ClaimUid)),
    boot_id=NAMES,
    state=st.sampled_from(ClaimState),
    policy=st.sampled_from(ComputePolicy),
    compatibility=st.sampled_from(CompatibilityMode),
    eager=st.none() | EAGERS,
    results=st.lists(VGPUS | GPUS | MIGS, max_size=3).map(tuple),
)
BINDINGS = st.builds(
    Binding,
    pod=PODS,
    container=(st.just("") | LABELS).map(ContainerName),
    runtime_id=st.from_regex(r"[0-9a-f]{64}", fullmatch=True).map(RuntimeId),
    session=WHOLES,
    cgroup=NAMES,
    state=st.sampled_from(HolderState),
    grants=st.lists(KEYS.map(GrantKey), max_size=3).map(tuple),
    home=st.none() | UUIDS.map(ClaimUid),
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


@pytest.mark.parametrize(("record", "file"), [(MIXED, "second-form.json"), (UNREGISTERED, "third-form.json")])
def test_record_of_a_later_form_is_the_file_that_states_it(record: ClaimRecord, file: str) -> None:
    stated = (FORMS / file).read_bytes()

    assert records.encode_record(record) == stated
    assert records.decode_record(stated) == record


def test_eager_record_without_its_partitions_is_refused() -> None:
    doc = json.loads(records.encode_record(EAGER_RECORD))
    del doc["payload"]["eager"]
    compact = json.dumps(doc["payload"], separators=(",", ":"), sort_keys=True)
    doc["sha256"] = hashlib.sha256(compact.encode()).hexdigest()

    with pytest.raises(records.RecordUnusable, match=r"^claim record is corrupt: field eager is missing$"):
        records.decode_record(json.dumps(doc).encode())


@pytest.mark.parametrize(
    ("record", "form"),
    [
        (RECORD, 1),
        (replace(RECORD, results=()), 1),
        (replace(RECORD, policy=ComputePolicy.NONE), 2),
        (replace(RECORD, results=(TRAINER, WHOLE)), 2),
        (replace(RECORD, results=(SLICE,)), 2),
        (EAGER_RECORD, 3),
        (replace(RECORD, compatibility=CompatibilityMode.CGROUP_V2), 3),
    ],
)
def test_record_is_written_in_the_oldest_form_that_holds_it(record: ClaimRecord, form: int) -> None:
    """An older version, started again, must be able to go on with all that it understands and with nothing else."""
    envelope = json.loads(records.encode_record(record))

    assert (envelope["schema"], envelope["min_reader"]) == (form, form)


@given(record=RECORDS.filter(lambda r: records.encode_record(r).startswith(b'{\n  "min_reader": 1')))
def test_record_of_the_first_form_has_no_field_that_the_first_reader_did_not_know(record: ClaimRecord) -> None:
    payload = json.loads(records.encode_record(record))["payload"]

    assert sorted(payload) == ["boot_id", "claim", "mode", "results", "state"]
    for result in payload["results"]:
        assert sorted(result) == ["cdi_device", "consumed", "device", "gpu_uuid", "grant", "pool", "request", "share_id"]


def test_record_for_a_newer_reader_is_refused_saying_so() -> None:
    doc = json.loads((EXAMPLES / "claim.json").read_text())

    with pytest.raises(records.RecordUnusable) as refusal:
        records.decode_record(json.dumps({**doc, "min_reader": 4}).encode())

    assert str(refusal.value) == "claim record needs a reader of version 4, this one is 3: upgrade again"


def test_record_of_a_newer_writer_that_this_reader_may_read_is_read() -> None:
    doc = json.loads((EXAMPLES / "claim.json").read_text())

    assert records.decode_record(json.dumps({**doc, "schema": 4, "further": True}).encode()) == RECORD


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
        ("schema", 3, "binding.json: schema 3 is newer than 2"),
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


@pytest.mark.parametrize(
    ("binding", "form"),
    [(BINDING, 1), (replace(BINDING, container=ContainerName("")), 2), (replace(BINDING, home=ClaimUid(RECORD.claim.uid)), 2)],
)
def test_binding_is_written_in_the_oldest_form_that_holds_it(binding: Binding, form: int) -> None:
    """An older version cannot tell whose directory these are: it keeps their claim as it is, and its GPUs with it."""
    assert json.loads(bindings.encode_binding(binding))["schema"] == form
