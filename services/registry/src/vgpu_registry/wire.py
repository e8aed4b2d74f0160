"""Generated messages ↔ values: what leaves and enters the process, checked type by type.

betterproto stores a wrong wire type as it comes, so a field of a request may be anything until it was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_proto.registrations import BindPartitionRequest, BindPartitionResponse, RecordPidsRequest
from vgpu_proto.registry import ContainerDeviceRequest
from vgpu_registry.policy import Caller, PartitionRef, Question, Words
from vgpu_state import ids
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import RuntimeId


def parse_registration(message: ContainerDeviceRequest) -> Words:
    """What the caller says of itself.

    Raises:
        MalformedInput: a field is no text or not of its form, or pod_uid or container_name is missing and there is no
            register_uuid either.
    """
    pod_uid = _text(message.pod_uid, field="pod_uid")
    container = _text(message.container_name, field="container_name")
    register_uuid = _text(message.register_uuid, field="register_uuid")
    if not register_uuid and not (pod_uid and container):
        missing = "pod_uid" if not pod_uid else "container_name"
        raise MalformedInput(f"{missing} is empty and there is no register_uuid; expected both pod_uid and container_name")
    return Words(
        pod_uid=ids.parse_pod_uid(pod_uid) if pod_uid else None,
        container=ids.parse_container_name(container) if container else None,
        register_uuid=ids.parse_register_uuid(register_uuid) if register_uuid else None,
    )


def bind_partition_request(question: Question, *, caller: Caller) -> BindPartitionRequest:
    return BindPartitionRequest(
        register_uuid=question.register_uuid,
        runtime_id=caller.container_id,
        pod_uid=caller.pod_uid,
        container_name=question.container or "",
        pid=caller.pid,
    )


def parse_bound(message: BindPartitionResponse) -> PartitionRef:
    """The partition that dra-plugin has given.

    Raises:
        MalformedInput: the answer names none.
    """
    return PartitionRef(
        ids.parse_claim_uid(_text(message.claim_uid, field="claim_uid")),
        ids.parse_partition_name(_text(message.partition, field="partition")),
    )


def record_pids_request(partition: PartitionRef, *, runtime_id: RuntimeId, pids: Sequence[int]) -> RecordPidsRequest:
    return RecordPidsRequest(claim_uid=partition.claim_uid, partition=partition.name, runtime_id=runtime_id, pids=list(pids))


def _text(value: object, *, field: str) -> str:
    if not isinstance(value, str):
        raise MalformedInput(f"{field} is of type {type(value).__name__}; expected text")
    return value
