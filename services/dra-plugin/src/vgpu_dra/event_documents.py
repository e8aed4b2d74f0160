"""Kubernetes Events as documents: what each is about, why, and what is written of it. Pure.

core/v1 and not events.k8s.io/v1: both are one object in the store, but only core/v1 has the `count` and `lastTimestamp` that
kubectl sorts by, as kubelet's own events of the same pod have, and lets both rise by a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vgpu_state.claims import ClaimRef, PodRef
from vgpu_state.ids import NodeName

COMPONENT = "vgpu-dra-plugin"

_MESSAGE_BYTES = 1024  # the API's limit for an event that names its reporter
_NAME_MAX = 253


class Reason(StrEnum):
    """Why, in the API's spelling; OPERATIONS.md lists what each means."""

    PREPARE_REFUSED = "VgpuPrepareRefused"
    POLICY_UNKNOWN = "VgpuComputePolicyUnknown"
    PARTITION_REFUSED = "VgpuPartitionRefused"
    START_REFUSED = "VgpuStartRefused"
    UNPREPARED_IN_USE = "VgpuClaimUnpreparedInUse"
    CLAIM_QUARANTINED = "VgpuClaimQuarantined"
    VANISHED_CLAIM_REMOVED = "VgpuVanishedClaimRemoved"
    GPU_UNHEALTHY = "VgpuGpuUnhealthy"
    GPU_RECOVERED = "VgpuGpuRecovered"
    SLICES_REFUSED = "VgpuResourceSlicesRefused"
    NRI_AWAY = "VgpuNriSessionAway"


class Severity(StrEnum):
    """Normal or Warning: the API knows no other."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object that an Event is about. A node's `namespace` is empty, and its uid is its name, as in kubelet's events."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """Something that happened. Equal ones are one Event; `note` is cut to what an Event can hold."""

    subject: Subject
    reason: Reason
    severity: Severity
    note: str


def pod_subject(pod: PodRef) -> Subject:
    return Subject(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)


def claim_subject(claim: ClaimRef) -> Subject:
    return Subject(
        api_version="resource.k8s.io/v1", kind="ResourceClaim", namespace=claim.namespace, name=claim.name, uid=claim.uid
    )


def node_subject(node: NodeName) -> Subject:
    return Subject(api_version="v1", kind="Node", namespace="", name=node, uid=node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """An Event that is not there yet."""

    namespace: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Raise:
    """The count of one that is there; `document` is a merge patch."""

    namespace: str
    name: str
    document: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Who writes: this program on `node`; `instance` tells its runs apart."""

    node: NodeName
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How often something was seen, and when first and last, in RFC 3339."""

    count: int
    first: str
    last: str


def create(occurrence: Occurrence, tally: Tally, *, name: str, reporter: Reporter) -> Create:
    """The whole Event. One about a node, which is in no namespace, is in `default`."""
    subject = occurrence.subject
    namespace = namespace_of(subject)
    about = {"apiVersion": subject.api_version, "kind": subject.kind, "name": subject.name, "uid": subject.uid}
    if subject.namespace:
        about["namespace"] = subject.namespace
    document = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": about,
        "reason": occurrence.reason.value,
        "message": _cut(occurrence.note),
        "type": occurrence.severity.value,
        "source": {"component": COMPONENT, "host": reporter.node},
        "reportingComponent": COMPONENT,
        "reportingInstance": reporter.instance,
        "firstTimestamp": tally.first,
        "lastTimestamp": tally.last,
        "count": tally.count,
    }
    return Create(namespace=namespace, document=document)


def raise_count(occurrence: Occurrence, tally: Tally, *, name: str) -> Raise:
    patch = {"count": tally.count, "lastTimestamp": tally.last}
    return Raise(namespace=namespace_of(occurrence.subject), name=name, document=patch)


def namespace_of(subject: Subject) -> str:
    return subject.namespace or "default"


def event_name(subject: Subject, digits: str) -> str:
    """A legal name: the subject's, and `digits` that tell its Events apart."""
    return f"{subject.name[: _NAME_MAX - len(digits) - 1].rstrip('.-')}.{digits}"


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _MESSAGE_BYTES:
        return note
    return encoded[: _MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
