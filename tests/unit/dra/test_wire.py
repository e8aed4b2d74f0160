"""Messages as values: what the decoders let through is refused here, naming the field."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vgpu_dra import wire
from vgpu_dra.assignments import Assigned, Comparison
from vgpu_proto import dra_v1, partitions, registrations
from vgpu_state.container_abi import Mount
from vgpu_state.errors import MalformedInput
from vgpu_testkit.dra_values import (
    CDI_MOUNTS,
    CLAIM_UID,
    FACTS,
    PARTITION,
    RUNTIME_ID,
    TRAINER_GRANT,
)

VALUE = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10/trainer/c0ffee00c0ffee00c0ffee00c0ffee05"


def container() -> partitions.Container:
    """The container of FACTS on the wire."""
    return partitions.Container(
        runtime_id=RUNTIME_ID,
        name="train",
        pod=partitions.Pod(uid=FACTS.pod.uid, namespace="research", name="two-workers-0", runtime_handler=""),
        grants=[partitions.Grant(key=TRAINER_GRANT.key, value=VALUE)],
        mounts=[partitions.Mount(destination=m.destination, source=m.source, type=m.type, options=m.options) for m in CDI_MOUNTS],
        devices=[partitions.Device(path=d.path, type="c", major=d.major, minor=d.minor) for d in FACTS.devices],
    )


def test_container_is_the_facts_it_shows() -> None:
    assert wire.container_facts(container()) == FACTS


def _set(**fields: str) -> Callable[[partitions.Container], None]:
    def change(message: partitions.Container) -> None:
        for name, value in fields.items():
            setattr(message, name, value)

    return change


def _pod(**fields: str) -> Callable[[partitions.Container], None]:
    def change(message: partitions.Container) -> None:
        for name, value in fields.items():
            setattr(message.pod, name, value)

    return change


def _twice(message: partitions.Container) -> None:
    message.grants.append(message.grants[0])


def _without_grants(message: partitions.Container) -> None:
    del message.grants[:]


def _grant(value: str) -> Callable[[partitions.Container], None]:
    def change(message: partitions.Container) -> None:
        message.grants[0].value = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without_grants, "container 'train' shows no grant (VGPU_GRANT_…)"),
        (_set(runtime_id="../x"), "runtime container id is '../x'; expected 64 lower-case hex digits"),
        (_set(runtime_id=""), "runtime container id is ''; expected 64 lower-case hex digits"),
        (_set(name="a/b"), "container name is 'a/b'; expected a DNS label of at most 63 characters"),
        (_set(name="a\0"), r"container name is 'a\x00'; expected a DNS label of at most 63 characters"),
        (_pod(uid="static-pod"), "pod uid is 'static-pod'; expected a lower-case UUID (static pods have none)"),
        (
            _pod(namespace=""),
            "pod namespace is ''; expected 1 to 253 printable characters without a slash",
        ),
        (_pod(name="a/b"), "pod name is 'a/b'; expected 1 to 253 printable characters without a slash"),
        (_pod(name="a\nb"), r"pod name is 'a\nb'; expected 1 to 253 printable characters without a slash"),
        (
            _pod(name="n" * 254),
            f"pod name is '{'n' * 80}…'; expected 1 to 253 printable characters without a slash",
        ),
        (_twice, "the same grant is shown twice"),
        (_grant("x"), "env VGPU_GRANT_4e2893ec0fa33030: claim uid is 'x'; expected a lower-case UUID"),
    ],
)
def test_malformed_container_is_refused_naming_the_field(change: Callable[[partitions.Container], None], words: str) -> None:
    message = container()
    change(message)

    with pytest.raises(MalformedInput) as refusal:
        wire.container_facts(message)

    assert str(refusal.value) == words


def test_replayed_container_with_a_malformed_grant_has_no_facts() -> None:
    message = container()
    _grant("x")(message)

    replayed = wire.replayed(message)

    assert (replayed.runtime_id, replayed.facts) == (RUNTIME_ID, None)
    assert wire.replayed(container()).facts == FACTS


def test_replayed_container_without_an_id_is_refused() -> None:
    message = container()
    message.runtime_id = "x"

    with pytest.raises(MalformedInput, match="runtime container id is 'x'"):
        wire.replayed(message)


def test_session_zero_is_refused_for_it_means_none() -> None:
    with pytest.raises(MalformedInput, match=r"^session is 0; expected CLOCK_BOOTTIME in ns"):
        wire.session(0)


def test_assignment_is_mounts_env_claim_and_partition() -> None:
    message = wire.assigned(
        Assigned(
            claim_uid=CLAIM_UID,
            partition=PARTITION,
            mounts=(Mount(destination="/d", source="/s", type="bind", options=("ro", "bind")),),
            env=(("A", "1"), ("B", "")),
            is_new=True,
        )
    )

    assert (message.claim_uid, message.partition) == (CLAIM_UID, PARTITION)
    assert [(m.destination, m.source, m.type, list(m.options)) for m in message.mounts] == [("/d", "/s", "bind", ["ro", "bind"])]
    assert [(e.name, e.value) for e in message.env] == [("A", "1"), ("B", "")]


def test_comparison_is_three_lists_of_ids() -> None:
    message = wire.comparison(Comparison(unbound=(RUNTIME_ID,), drifted=(), released=(RUNTIME_ID,)))

    assert (list(message.unbound_runtime_ids), list(message.drifted_runtime_ids), list(message.released_runtime_ids)) == (
        [RUNTIME_ID],
        [],
        [RUNTIME_ID],
    )


# betterproto keeps what the wire had, whatever type the field is of.


def pids_request(**fields: object) -> registrations.RecordPidsRequest:
    given: dict[str, object] = {"claim_uid": CLAIM_UID, "partition": PARTITION, "runtime_id": RUNTIME_ID, "pids": [7, 8]}
    message = registrations.RecordPidsRequest()
    for name, value in (given | fields).items():
        setattr(message, name, value)
    return message


def test_recorded_pids_are_claim_partition_container_and_list() -> None:
    assert wire.recorded_pids(pids_request()) == (CLAIM_UID, PARTITION, RUNTIME_ID, [7, 8])


def test_field_of_another_wire_type_really_comes_through_the_decoder() -> None:
    decoded = registrations.RecordPidsRequest().parse(b"\x08\x05")  # claim_uid as a varint

    assert decoded.claim_uid == 5  # type: ignore[comparison-overlap]  # that is the point
    with pytest.raises(MalformedInput):
        wire.recorded_pids(decoded)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"claim_uid": 5}, "claim_uid is no text"),
        ({"claim_uid": None}, "claim_uid is no text"),
        ({"claim_uid": b"x"}, "claim_uid is no text"),
        ({"partition": []}, "partition is no text"),
        ({"runtime_id": 5}, "runtime_id is no text"),
        ({"claim_uid": "x"}, "claim uid is 'x'; expected a lower-case UUID"),
        ({"partition": ".trash"}, "partition is '.trash'; expected <pod uid>_<container name>, or cg- and 12 hex digits"),
        ({"runtime_id": "x"}, "runtime container id is 'x'; expected 64 lower-case hex digits"),
        ({"pids": 5}, "pids is no list of positive PIDs"),
        ({"pids": ["5"]}, "pids is no list of positive PIDs"),
        ({"pids": [True]}, "pids is no list of positive PIDs"),
        ({"pids": [0]}, "pids is no list of positive PIDs"),
        ({"pids": [-5]}, "pids is no list of positive PIDs"),
        ({"pids": [1 << 31]}, "pids is no list of positive PIDs"),
    ],
)
def test_malformed_pids_are_refused_naming_the_field(fields: dict[str, object], words: str) -> None:
    with pytest.raises(MalformedInput) as refusal:
        wire.recorded_pids(pids_request(**fields))

    assert str(refusal.value) == words


def test_claims_of_a_call_are_messages_with_a_uid() -> None:
    claim = dra_v1.Claim(namespace="research", name="two-workers", uid=CLAIM_UID)

    assert wire.claim_messages([claim]) == [claim]
    assert wire.claim_messages([]) == []


@pytest.mark.parametrize("asked", [5, None, [5], [dra_v1.Claim().parse(b"\x10\x05")]])
def test_claims_of_another_wire_type_are_refused(asked: object) -> None:
    with pytest.raises(MalformedInput, match="claims is no list of claims with a uid"):
        wire.claim_messages(asked)
