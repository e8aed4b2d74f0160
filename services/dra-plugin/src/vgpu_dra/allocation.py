"""A ResourceClaim as the API server or a manifest has it → what of it is ours, or a refusal naming the field.

Source: resource.k8s.io/v1, ResourceClaim.status.allocation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vgpu_dra import inventory, quantity
from vgpu_dra.device_config import DeviceConfig, parse_configs
from vgpu_state import ids, jsonshape
from vgpu_state.claims import ClaimRef, ComputePolicy, PodRef
from vgpu_state.errors import MalformedInput, PreconditionFailed
from vgpu_state.ids import ClaimUid, DeviceName, PodUid, PoolName, RequestName, ShareId

POLICY_ANNOTATION = "/vgpu-compute-policy"  # the end of the key; what stands before it is the installation's
MAX_RESULTS = 32  # the API's own limit
_MAX_REMARKS = 4  # an object has room for thousands of annotations, and each remark is an Event


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedResult:
    """One allocation result of ours. A capacity that the claim omits is None and means the whole device.

    `request` is `main`, or `main/sub` where the claim gave alternatives. With admin access the device is shared with its users.
    """

    request: RequestName
    pool: PoolName
    device: DeviceName
    share_id: ShareId
    cores_percent: int | None
    memory_bytes: int | None
    has_admin_access: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A claim and the results that are this driver's, in the claim's order.

    `configs` stand with the strongest last. `remarks` are sentences for whoever made the claim: what of it was not understood.
    """

    claim: ClaimRef
    results: tuple[AllocatedResult, ...]
    configs: tuple[DeviceConfig, ...] = ()
    policy: ComputePolicy = ComputePolicy.FIXED
    is_being_deleted: bool = False
    remarks: tuple[str, ...] = ()


def parse_allocation(doc: Mapping[str, Any], *, expected_uid: ClaimUid) -> Allocation:
    """What the scheduler gave this claim of our devices.

    Raises:
        PreconditionFailed: the object has another uid (the claim was replaced), is not allocated, or none of it is ours.
        MalformedInput: a field is missing or not of its form; the message has its path.
    """
    try:
        metadata = jsonshape.mapping(doc, "metadata")
        claim = _claim(metadata)
        if claim.uid != expected_uid:
            raise PreconditionFailed(
                f"claim {claim.namespace}/{claim.name} now has uid {claim.uid}, kubelet asks for {expected_uid}: it was replaced"
            )
        devices = _devices(doc, claim)
        policy, remarks = _policy(metadata)
        return Allocation(
            claim=claim,
            results=_results(devices, claim),
            configs=_configs(devices, claim),
            policy=policy,
            is_being_deleted=metadata.get("deletionTimestamp") is not None,
            remarks=remarks,
        )
    except jsonshape.ShapeError as exc:
        raise MalformedInput(f"ResourceClaim {expected_uid}: {exc}") from exc


def reserved_pods(doc: Mapping[str, Any]) -> tuple[PodRef, ...]:
    """The pods that a claim is reserved for, in its order, up to 256. They are in the claim's own namespace.

    Raises:
        MalformedInput: a field is missing or not of its form; the message has its path.

    Source: ResourceClaim.status.reservedFor; consumers of another kind are left out.
    """
    found: dict[PodUid, PodRef] = {}
    where = "ResourceClaim"
    try:
        namespace = jsonshape.text(jsonshape.mapping(doc, "metadata"), "namespace")
        status = jsonshape.mapping(doc, "status") if doc.get("status") is not None else {}
        consumers = jsonshape.mappings(status, "reservedFor") if status.get("reservedFor") is not None else []
        for i, consumer in enumerate(consumers):
            where = f"ResourceClaim status.reservedFor[{i}]"
            if consumer.get("resource") == "pods" and consumer.get("apiGroup") in (None, ""):
                uid, name = ids.parse_pod_uid(jsonshape.text(consumer, "uid")), jsonshape.text(consumer, "name")
                found[uid] = PodRef(uid=uid, namespace=namespace, name=name)
    except (jsonshape.ShapeError, MalformedInput) as exc:
        raise MalformedInput(f"{where}: {exc}") from exc
    return tuple(found.values())


def _claim(metadata: Mapping[str, Any]) -> ClaimRef:
    namespace, name = jsonshape.text(metadata, "namespace"), jsonshape.text(metadata, "name")
    try:
        return ClaimRef(namespace=namespace, name=name, uid=ids.parse_claim_uid(jsonshape.text(metadata, "uid")))
    except MalformedInput as exc:
        raise MalformedInput(f"ResourceClaim {namespace}/{name}: {exc}") from exc


def _policy(metadata: Mapping[str, Any]) -> tuple[ComputePolicy, tuple[str, ...]]:
    """The annotation's policy, the strictest where several say one, and a remark for each of the first that are none.

    What is not understood is FIXED, as upstream has it: the policy that takes least from the GPU's other users.
    """
    if metadata.get("annotations") is None:
        return ComputePolicy.FIXED, ()
    said = {k: v for k, v in jsonshape.mapping(metadata, "annotations").items() if k.endswith(POLICY_ANNOTATION)}
    known = [policy for policy in ComputePolicy if policy.value in said.values()]
    unknown = sorted(key for key, value in said.items() if value not in list(ComputePolicy))
    remarks = tuple(
        f"annotation {key} is {ids.shown(str(said[key]))}; expected one of {', '.join(ComputePolicy)}: taken as "
        f"{ComputePolicy.FIXED}"
        for key in unknown[:_MAX_REMARKS]
    )
    return ComputePolicy.FIXED if remarks or not known else known[0], remarks


def _configs(devices: Mapping[str, Any], claim: ClaimRef) -> tuple[DeviceConfig, ...]:
    if devices.get("config") is None:
        return ()
    try:
        return parse_configs(jsonshape.mappings(devices, "config"))
    except MalformedInput as exc:
        raise MalformedInput(f"claim {claim} {exc}") from exc


def _devices(doc: Mapping[str, Any], claim: ClaimRef) -> Mapping[str, Any]:
    status = doc.get("status") or {}
    allocation = status.get("allocation") if isinstance(status, dict) else None
    if not isinstance(allocation, dict):
        raise PreconditionFailed(f"claim {claim} is not allocated (status.allocation is empty)")
    return jsonshape.mapping(allocation, "devices")


def _results(devices: Mapping[str, Any], claim: ClaimRef) -> tuple[AllocatedResult, ...]:
    rows = jsonshape.mappings(devices, "results")
    ours = [row for row in rows if row.get("driver") == inventory.DRIVER]
    if not ours:
        raise PreconditionFailed(f"claim {claim} has no allocation result of driver {inventory.DRIVER}")
    if len(ours) > MAX_RESULTS:
        raise MalformedInput(f"claim {claim} has {len(ours)} allocation results; at most {MAX_RESULTS} are allowed")
    return tuple(_result(row, claim=claim, index=i) for i, row in enumerate(ours))


def _result(row: Mapping[str, Any], *, claim: ClaimRef, index: int) -> AllocatedResult:
    where = f"claim {claim} status.allocation.devices.results[{index}]"
    try:
        consumed = jsonshape.mapping(row, "consumedCapacity") if row.get("consumedCapacity") is not None else {}
        return AllocatedResult(
            request=ids.parse_request_name(jsonshape.text(row, "request")),
            pool=ids.parse_pool_name(jsonshape.text(row, "pool")),
            device=ids.parse_device_name(jsonshape.text(row, "device")),
            share_id=ids.parse_share_id(jsonshape.text(row, "shareID") if row.get("shareID") is not None else ""),
            cores_percent=_capacity(consumed, "cores"),
            memory_bytes=_capacity(consumed, "memory"),
            has_admin_access=jsonshape.flag(row, "adminAccess") if row.get("adminAccess") is not None else False,
        )
    except (MalformedInput, jsonshape.ShapeError) as exc:
        raise MalformedInput(f"{where}: {exc}") from exc


def _capacity(consumed: Mapping[str, Any], name: str) -> int | None:
    value = consumed.get(name)
    if value is None:
        return None
    # A manifest may say 50 where the API server says "50".
    return quantity.parse_quantity(str(value), field=f"consumedCapacity.{name}")
