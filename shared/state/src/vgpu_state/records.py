"""bytes ↔ ClaimRecord: the file claim.json.

Shape: a JSON envelope {schema, min_reader, sha256, payload}; `sha256` is over the payload in compact form with sorted keys. A
reader older than `min_reader` must not touch the claim: it would drop what it does not know. A record is written in the oldest
form that holds it: 1 knows shares of GPUs under the fixed policy, 2 every kind of device and policy, 3 partitions that were made
at Prepare and containers whose processes do not register.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, assert_never

from vgpu_state import ids, jsonshape
from vgpu_state.claims import (
    AssignmentMode,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    ComputePolicy,
    Consumed,
    ContainerKind,
    DeviceKind,
    EagerAssignment,
    EagerContainer,
    EagerPartition,
    EagerReason,
    Grant,
    PodRef,
    PreparedGpu,
    PreparedMig,
    PreparedResult,
    PreparedVgpu,
)
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.errors import VgpuError

READER = 3
_SHARES_ONLY = 1
_EVERY_KIND = 2
_EVERY_ASSIGNMENT = 3
MAX_BYTES = 1 << 20  # a claim has at most 32 results of some 600 bytes; anything larger is not ours


class RecordUnusable(VgpuError):
    """Raised when claim.json is corrupt or was written by a newer version. Its claim is quarantined, the others go on."""


def encode_record(record: ClaimRecord) -> bytes:
    """The file's bytes. Equal records give equal bytes."""
    payload: dict[str, Any] = {
        "claim": {"namespace": record.claim.namespace, "name": record.claim.name, "uid": record.claim.uid},
        "boot_id": record.boot_id,
        "state": record.state.value,
        "mode": record.mode.value,
        "results": [_encode_result(r) for r in record.results],
    }
    if record.policy is not ComputePolicy.FIXED:
        payload["compute_policy"] = record.policy.value
    if record.compatibility is not CompatibilityMode.CLIENT:
        payload["compatibility_mode"] = record.compatibility.value
    if record.eager is not None:
        payload["eager"] = _encode_eager(record.eager)
    form = _form(record)
    envelope = {"schema": form, "min_reader": form, "sha256": _checksum(payload), "payload": payload}
    return json.dumps(envelope, indent=2, sort_keys=True).encode()


def decode_record(raw: bytes) -> ClaimRecord:
    """The record.

    Raises:
        RecordUnusable: not JSON, a field missing or of another type, a wrong checksum, or a newer schema.
    """
    try:
        return _decode(raw)
    except (ValueError, RecursionError, VgpuError) as exc:
        if isinstance(exc, RecordUnusable):
            raise
        raise RecordUnusable(f"claim record is corrupt: {exc}") from exc


def decode_claim_ref(raw: bytes) -> ClaimRef | None:
    """Which claim a record is of, also one that is newer or has a wrong checksum; None when it does not say."""
    try:
        envelope = json.loads(raw)
        return _claim_ref(jsonshape.mapping(envelope, "payload")) if isinstance(envelope, dict) else None
    except (ValueError, RecursionError, VgpuError):
        return None


def _decode(raw: bytes) -> ClaimRecord:
    envelope = json.loads(raw)
    if not isinstance(envelope, dict):
        raise jsonshape.ShapeError("the document is no object")
    min_reader = jsonshape.whole(envelope, "min_reader")
    if min_reader > READER:
        raise RecordUnusable(f"claim record needs a reader of version {min_reader}, this one is {READER}: upgrade again")
    payload = jsonshape.mapping(envelope, "payload")
    if jsonshape.text(envelope, "sha256") != _checksum(payload):
        raise RecordUnusable("claim record is corrupt: its checksum does not fit its content")
    return ClaimRecord(
        claim=_claim_ref(payload),
        boot_id=jsonshape.text(payload, "boot_id"),
        state=ClaimState(jsonshape.text(payload, "state")),
        policy=ComputePolicy(jsonshape.text(payload, "compute_policy")) if "compute_policy" in payload else ComputePolicy.FIXED,
        compatibility=_decode_compatibility(payload),
        eager=_decode_eager(payload),
        results=tuple(_decode_result(r) for r in jsonshape.mappings(payload, "results")),
    )


def _claim_ref(payload: Mapping[str, Any]) -> ClaimRef:
    claim = jsonshape.mapping(payload, "claim")
    return ClaimRef(
        namespace=jsonshape.text(claim, "namespace"),
        name=jsonshape.text(claim, "name"),
        uid=ids.parse_claim_uid(jsonshape.text(claim, "uid")),
    )


def _form(record: ClaimRecord) -> int:
    if record.eager is not None or record.compatibility is not CompatibilityMode.CLIENT:
        return _EVERY_ASSIGNMENT
    is_shares_only = record.policy is ComputePolicy.FIXED and len(record.vgpus) == len(record.results)
    return _SHARES_ONLY if is_shares_only else _EVERY_KIND


def _decode_compatibility(payload: Mapping[str, Any]) -> CompatibilityMode:
    if "compatibility_mode" not in payload:
        return CompatibilityMode.CLIENT
    return CompatibilityMode(jsonshape.whole(payload, "compatibility_mode"))


def _encode_eager(eager: EagerAssignment) -> dict[str, Any]:
    return {
        "reason": eager.reason.value,
        "pod": {"uid": eager.pod.uid, "namespace": eager.pod.namespace, "name": eager.pod.name},
        "partitions": [
            {
                "name": partition.name,
                "containers": [{"name": c.name, "kind": c.kind.value} for c in partition.containers],
                "requests": list(partition.requests),
                "register_uuid": partition.register_uuid or "",
            }
            for partition in eager.partitions
        ],
    }


def _decode_eager(payload: Mapping[str, Any]) -> EagerAssignment | None:
    if AssignmentMode(jsonshape.text(payload, "mode")) is AssignmentMode.LAZY:
        return None
    doc = jsonshape.mapping(payload, "eager")
    pod = jsonshape.mapping(doc, "pod")
    return EagerAssignment(
        reason=EagerReason(jsonshape.text(doc, "reason")),
        pod=PodRef(
            uid=ids.parse_pod_uid(jsonshape.text(pod, "uid")),
            namespace=jsonshape.text(pod, "namespace"),
            name=jsonshape.text(pod, "name"),
        ),
        partitions=tuple(_decode_partition(p) for p in jsonshape.mappings(doc, "partitions")),
    )


def _decode_partition(doc: Mapping[str, Any]) -> EagerPartition:
    register_uuid = jsonshape.text(doc, "register_uuid")
    return EagerPartition(
        name=ids.parse_partition_name(jsonshape.text(doc, "name")),
        containers=tuple(
            EagerContainer(
                name=ids.parse_container_name(jsonshape.text(c, "name")), kind=ContainerKind(jsonshape.text(c, "kind"))
            )
            for c in jsonshape.mappings(doc, "containers")
        ),
        requests=tuple(ids.parse_request_name(r) for r in jsonshape.texts(doc, "requests")),
        register_uuid=ids.parse_register_uuid(register_uuid) if register_uuid else None,
    )


def _encode_result(result: PreparedResult) -> dict[str, Any]:
    doc = {
        "request": result.request,
        "pool": result.pool,
        "device": result.device,
        "share_id": result.share_id,
        "gpu_uuid": result.gpu_uuid,
        "cdi_device": result.cdi_device,
    }
    match result:
        case PreparedVgpu(consumed=consumed, grant=grant):
            return doc | {
                "consumed": {"cores": consumed.cores_percent, "memory_bytes": consumed.memory_bytes},
                "grant": {"key": grant.key, "nonce": grant.nonce},
            }
        case PreparedGpu(has_admin_access=has_admin_access):
            return doc | {"kind": DeviceKind.GPU.value, "admin_access": has_admin_access}
        case PreparedMig(mig_uuid=mig_uuid):
            return doc | {"kind": DeviceKind.MIG.value, "mig_uuid": mig_uuid}
        case never:
            assert_never(never)


def _decode_result(doc: Mapping[str, Any]) -> PreparedResult:
    common: dict[str, Any] = {
        "request": ids.parse_request_name(jsonshape.text(doc, "request")),
        "pool": ids.parse_pool_name(jsonshape.text(doc, "pool")),
        "device": ids.parse_device_name(jsonshape.text(doc, "device")),
        "share_id": ids.parse_share_id(jsonshape.text(doc, "share_id")),
        "gpu_uuid": ids.parse_gpu_uuid(jsonshape.text(doc, "gpu_uuid")),
        "cdi_device": jsonshape.text(doc, "cdi_device"),
    }
    # The first form has no kinds: everything in it is a share.
    match DeviceKind(jsonshape.text(doc, "kind")) if "kind" in doc else DeviceKind.VGPU:
        case DeviceKind.VGPU:
            return PreparedVgpu(**common, consumed=_decode_consumed(doc), grant=_decode_grant(doc))
        case DeviceKind.GPU:
            return PreparedGpu(**common, has_admin_access=jsonshape.flag(doc, "admin_access"))
        case DeviceKind.MIG:
            return PreparedMig(**common, mig_uuid=ids.parse_mig_uuid(jsonshape.text(doc, "mig_uuid")))
        case never:
            assert_never(never)


def _decode_consumed(doc: Mapping[str, Any]) -> Consumed:
    consumed = jsonshape.mapping(doc, "consumed")
    return Consumed(cores_percent=jsonshape.whole(consumed, "cores"), memory_bytes=jsonshape.whole(consumed, "memory_bytes"))


def _decode_grant(doc: Mapping[str, Any]) -> Grant:
    grant = jsonshape.mapping(doc, "grant")
    return Grant(key=ids.parse_grant_key(jsonshape.text(grant, "key")), nonce=ids.parse_nonce(jsonshape.text(grant, "nonce")))


def _checksum(payload: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(payload, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
