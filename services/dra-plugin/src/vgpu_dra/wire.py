"""Messages ↔ domain values: what the decoders let through is checked here, once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vgpu_dra.assignments import Assigned, Comparison, Registrant, Replayed
from vgpu_dra.policy.admission import ContainerFacts, ShownDevice
from vgpu_proto import partitions, registrations
from vgpu_state import grants, ids
from vgpu_state.claims import PodRef
from vgpu_state.container_abi import Mount
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, RegisterUuid, RuntimeId

_MAX_SHOWN = 253


def container_facts(message: partitions.Container) -> ContainerFacts:
    """The container about to be created.

    Raises:
        MalformedInput: naming the field.
    """
    if not message.grants:
        raise MalformedInput(f"container {ids.shown(message.name)} shows no grant ({grants.ENV_PREFIX}…)")
    return ContainerFacts(
        runtime_id=ids.parse_runtime_id(message.runtime_id),
        name=ids.parse_container_name(message.name),
        pod=pod_ref(message.pod),
        runtime_handler=message.pod.runtime_handler,
        grants=_grants(message.grants),
        mounts=tuple(
            Mount(destination=m.destination, source=m.source, type=m.type, options=tuple(m.options)) for m in message.mounts
        ),
        devices=tuple(ShownDevice(path=d.path, major=d.major, minor=d.minor) for d in message.devices),
        allows_all_devices=message.allows_all_devices,
    )


def pod_ref(message: partitions.Pod) -> PodRef:
    """The pod of a container.

    Raises:
        MalformedInput: naming the field.
    """
    return PodRef(
        uid=ids.parse_pod_uid(message.uid),
        namespace=_bounded(message.namespace, "pod namespace"),
        name=_bounded(message.name, "pod name"),
    )


def session(number: int) -> int:
    """The NRI session of a call.

    Raises:
        MalformedInput: it is 0, which stands for "none yet".
    """
    if number == 0:
        raise MalformedInput("session is 0; expected CLOCK_BOOTTIME in ns when nri-plugin registered with the runtime")
    return number


def replayed(message: partitions.Container) -> Replayed:
    """A container of the runtime's replay. Malformed grants mark it as drift instead of failing all."""
    try:
        facts = container_facts(message)
    except MalformedInput:
        facts = None
    return Replayed(runtime_id=ids.parse_runtime_id(message.runtime_id), facts=facts, pid=message.pid)


def assigned(value: Assigned) -> partitions.EnsurePartitionResponse:
    return partitions.EnsurePartitionResponse(
        mounts=[
            partitions.Mount(destination=m.destination, source=m.source, type=m.type, options=m.options) for m in value.mounts
        ],
        env=[partitions.EnvVar(name=name, value=text) for name, text in value.env],
        claim_uid=value.claim_uid,
        partition=value.partition,
    )


def comparison(value: Comparison) -> partitions.SynchronizeResponse:
    return partitions.SynchronizeResponse(
        unbound_runtime_ids=value.unbound, drifted_runtime_ids=value.drifted, released_runtime_ids=value.released
    )


def recorded_pids(message: registrations.RecordPidsRequest) -> tuple[ClaimUid, PartitionName, RuntimeId, list[int]]:
    """What registry found. betterproto keeps a field of another wire type as it came, so types are checked.

    Raises:
        MalformedInput: naming the field.
    """
    found = message.pids
    if not isinstance(found, list) or not all(type(p) is int and 0 < p <= 0x7FFFFFFF for p in found):
        raise MalformedInput("pids is no list of positive PIDs")
    return (
        ids.parse_claim_uid(text(message.claim_uid, "claim_uid")),
        ids.parse_partition_name(text(message.partition, "partition")),
        ids.parse_runtime_id(text(message.runtime_id, "runtime_id")),
        found,
    )


def registrant(message: registrations.BindPartitionRequest) -> tuple[RegisterUuid, Registrant]:
    """Who registers, and with which UUID.

    Raises:
        MalformedInput: naming the field.
    """
    pid, container = message.pid, text(message.container_name, "container_name")
    if type(pid) is not int or pid <= 0:
        raise MalformedInput("pid is no positive number")
    who = Registrant(
        runtime_id=ids.parse_runtime_id(text(message.runtime_id, "runtime_id")),
        pod_uid=ids.parse_pod_uid(text(message.pod_uid, "pod_uid")),
        pid=pid,
        container=ids.parse_container_name(container) if container else ContainerName(""),
    )
    return ids.parse_register_uuid(text(message.register_uuid, "register_uuid")), who


def claim_messages(asked: object) -> list[Any]:
    """The Claim messages of a kubelet call, of either version; each one's uid is text.

    Raises:
        MalformedInput: the field was filled by another wire type, as for `text`.
    """
    if not isinstance(asked, list) or not all(isinstance(getattr(m, "uid", None), str) for m in asked):
        raise MalformedInput("claims is no list of claims with a uid")
    return asked


def text(value: object, field: str) -> str:
    """A string field of a betterproto message, which another wire type may have filled with something else.

    Raises:
        MalformedInput: naming the field.
    """
    if not isinstance(value, str):
        raise MalformedInput(f"{field} is no text")
    return value


def _grants(entries: Iterable[partitions.Grant]) -> tuple[grants.ShownGrant, ...]:
    shown_entries = list(entries)
    grants.check_count(len(shown_entries))
    shown = tuple(grants.parse_grant(e.key, e.value) for e in shown_entries)
    if len({g.key for g in shown}) < len(shown):
        raise MalformedInput("the same grant is shown twice")
    return shown


def _bounded(value: str, field: str) -> str:
    if not value or len(value) > _MAX_SHOWN or not value.isprintable() or "/" in value:
        raise MalformedInput(f"{field} is {ids.shown(value)}; expected 1 to {_MAX_SHOWN} printable characters without a slash")
    return value
