"""Generated messages ↔ values: what leaves and enters the process, checked type by type.

betterproto stores a wrong wire type as it comes, so a field of a request may be anything until it was looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpu_proto.registrations import RecordPidsRequest
from vgpu_proto.registry import ContainerDeviceRequest
from vgpu_registry.policy import ByName, ByUuid, PartitionRef
from vgpu_state import ids
from vgpu_state.errors import MalformedInput
from vgpu_state.ids import RuntimeId


def parse_registration(message: ContainerDeviceRequest) -> ByName | ByUuid:
    """What the caller says of itself.

    Raises:
        MalformedInput: a field is no text or not of its form, or pod_uid or container_name is missing and there is no
            register_uuid either.
    """
    pod_uid = _text(message.pod_uid, field="pod_uid")
    container = _text(message.container_name, field="container_name")
    register_uuid = _text(message.register_uuid, field="register_uuid")
    if pod_uid and container:
        return ByName(pod_uid=ids.parse_pod_uid(pod_uid), container=ids.parse_container_name(container))
    if register_uuid:
        return ByUuid()
    missing = "pod_uid" if not pod_uid else "container_name"
    raise MalformedInput(f"{missing} is empty and there is no register_uuid; expected both pod_uid and container_name")


def record_pids_request(partition: PartitionRef, *, runtime_id: RuntimeId, pids: Sequence[int]) -> RecordPidsRequest:
    return RecordPidsRequest(claim_uid=partition.claim_uid, partition=partition.name, runtime_id=runtime_id, pids=list(pids))


def _text(value: object, *, field: str) -> str:
    if not isinstance(value, str):
        raise MalformedInput(f"{field} is of type {type(value).__name__}; expected text")
    return value
