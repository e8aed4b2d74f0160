"""Which Events are written, when, and how they look."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from vgpu_dra.event_documents import (
    Create,
    Occurrence,
    Raise,
    Reason,
    Reporter,
    Severity,
    Subject,
    claim_subject,
    event_name,
    node_subject,
    pod_subject,
)
from vgpu_dra.policy.events import Journal
from vgpu_state.ids import NodeName
from vgpu_testkit.dra_values import CLAIM, POD

NODE = NodeName("node-a")
START = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
PARTITION = Occurrence(
    subject=pod_subject(POD), reason=Reason.PARTITION_REFUSED, severity=Severity.WARNING, note="the grant is another's"
)


class Bench:
    """A journal, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.journal = Journal(reporter=Reporter(node=NODE, instance="node-a-1"))

    def note(self, occurrence: Occurrence = PARTITION) -> None:
        self.journal.note(occurrence, now_s=self.now_s, now=START + timedelta(seconds=self.now_s - 1000))

    def write(self) -> Create | Raise:
        """What is written now, with success."""
        assert self.journal.next_in_s(self.now_s) == 0
        occurrence, write = self.journal.take(self.now_s)
        self.journal.written(occurrence, write.document["count"], now_s=self.now_s)
        return write

    def write_all(self) -> int:
        """How many can be written at this moment."""
        count = 0
        while self.journal.next_in_s(self.now_s) == 0:
            self.write()
            count += 1
        return count


@pytest.fixture
def bench() -> Bench:
    return Bench()


def about(number: int) -> Occurrence:
    subject = Subject(api_version="v1", kind="Pod", namespace="n", name=f"p-{number}", uid=str(number))
    return Occurrence(subject=subject, reason=Reason.START_REFUSED, severity=Severity.WARNING, note="x")


def test_nothing_is_written_when_nothing_has_happened(bench: Bench) -> None:
    assert bench.journal.next_in_s(bench.now_s) is None


def test_event_of_a_pod_says_what_whom_when_and_by_whom(bench: Bench) -> None:
    bench.note()

    write = bench.write()

    assert isinstance(write, Create)
    name = write.document["metadata"]["name"]
    assert name.startswith("two-workers-0.")
    assert len(name) == len("two-workers-0.") + 16
    assert (write.namespace, write.document) == (
        "research",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": "research"},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "research",
                "name": "two-workers-0",
                "uid": "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11",
            },
            "reason": "VgpuPartitionRefused",
            "message": "the grant is another's",
            "type": "Warning",
            "source": {"component": "vgpu-dra-plugin", "host": "node-a"},
            "reportingComponent": "vgpu-dra-plugin",
            "reportingInstance": "node-a-1",
            "firstTimestamp": "2026-11-30T12:00:00Z",
            "lastTimestamp": "2026-11-30T12:00:00Z",
            "count": 1,
        },
    )


def test_event_of_the_node_is_in_the_default_namespace_under_the_uid_that_kubelet_uses(bench: Bench) -> None:
    bench.note(Occurrence(subject=node_subject(NODE), reason=Reason.NRI_AWAY, severity=Severity.WARNING, note="x"))

    write = bench.write()

    assert isinstance(write, Create)
    assert write.namespace == write.document["metadata"]["namespace"] == "default"
    assert write.document["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-a"}


def test_event_of_a_claim_is_about_the_claim_object() -> None:
    subject = claim_subject(CLAIM)

    assert (subject.api_version, subject.kind, subject.namespace, subject.name) == (
        "resource.k8s.io/v1",
        "ResourceClaim",
        "research",
        "two-workers",
    )


def test_same_thing_again_raises_the_count_of_its_event_once_a_minute(bench: Bench) -> None:
    bench.note()
    first = bench.write()
    assert isinstance(first, Create)
    for _ in range(30):
        bench.now_s += 1
        bench.note()
    assert bench.journal.next_in_s(bench.now_s) == 30
    bench.now_s += 30

    again = bench.write()

    patch = {"count": 31, "lastTimestamp": "2026-11-30T12:00:30Z"}
    assert again == Raise(namespace="research", name=first.document["metadata"]["name"], document=patch)
    assert bench.journal.next_in_s(bench.now_s) is None


def test_same_thing_after_ten_quiet_minutes_is_another_event(bench: Bench) -> None:
    bench.note()
    first = bench.write()
    bench.now_s += 600.1
    bench.note()

    second = bench.write()

    assert isinstance(first, Create)
    assert isinstance(second, Create)
    assert second.document["count"] == 1
    assert second.document["metadata"]["name"] != first.document["metadata"]["name"]


def test_other_words_are_another_event(bench: Bench) -> None:
    bench.note()
    bench.note(
        Occurrence(subject=PARTITION.subject, reason=PARTITION.reason, severity=PARTITION.severity, note="another sentence")
    )

    assert bench.write_all() == 2


def test_crash_looping_pods_write_a_burst_and_then_one_in_two_seconds(bench: Bench) -> None:
    for number in range(200):
        bench.note(about(number))

    assert bench.write_all() == 25
    assert bench.journal.next_in_s(bench.now_s) == pytest.approx(2.0)
    bench.now_s += 60
    assert bench.write_all() == 30 - 5  # no more than the burst is ever saved
    bench.now_s += 2
    assert bench.write_all() == 1


def test_more_different_things_than_can_be_kept_are_dropped_and_counted(bench: Bench) -> None:
    for number in range(1000):
        bench.note(about(number))

    assert bench.journal.dropped_full == 1000 - 256


def test_room_is_made_by_what_is_written(bench: Bench) -> None:
    for number in range(256):
        bench.note(about(number))
    assert bench.write_all() == 25

    bench.note(about(1000))

    assert bench.journal.dropped_full == 0


def test_what_could_not_be_written_for_ten_minutes_is_dropped_and_counted(bench: Bench) -> None:
    bench.note()
    bench.now_s += 600.1

    assert bench.journal.next_in_s(bench.now_s) is None
    assert bench.journal.dropped_late == 1


def test_event_that_someone_deleted_is_made_anew(bench: Bench) -> None:
    bench.note()
    first = bench.write()
    bench.now_s += 61
    bench.note()
    occurrence, _ = bench.journal.take(bench.now_s)
    bench.journal.gone(occurrence, now_s=bench.now_s)

    write = bench.write()

    assert isinstance(first, Create)
    assert isinstance(write, Create)
    assert write.document["count"] == 2
    assert write.document["metadata"]["name"] != first.document["metadata"]["name"]


def test_long_words_are_cut_to_what_an_event_can_hold(bench: Bench) -> None:
    bench.note(Occurrence(subject=PARTITION.subject, reason=PARTITION.reason, severity=PARTITION.severity, note="ä" * 600))

    message = bench.write().document["message"]

    assert len(message.encode()) <= 1024
    assert message == "ä" * 510 + "…"


def test_name_of_an_event_is_legal_whatever_its_subjects_name_is() -> None:
    long = Subject(api_version="v1", kind="Pod", namespace="n", name="a" * 235 + "." + "b" * 17, uid="u")

    assert event_name(long, "0123456789abcdef") == "a" * 235 + ".0123456789abcdef"
