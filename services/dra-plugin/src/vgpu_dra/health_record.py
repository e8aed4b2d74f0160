"""bytes ↔ NodeHealth: the file health.json, so that a taint outlives the process that gave it.

Shape: a JSON object {schema, boot_id, gpus: {uuid: {critical_xid, benign_xid, has_ecc_error, recovery_action, is_lost,
is_unmonitored, uncorrected_errors}}}; what is not known is null. Counts of looks are not in it: a process counts its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vgpu_dra.policy.health import GpuHealth, NodeHealth
from vgpu_state import ids, jsonshape
from vgpu_state.errors import VgpuError

SCHEMA = 1
MAX_BYTES = 1 << 20


class HealthUnusable(VgpuError):
    """Raised when the file is corrupt or of another schema. Nothing is known of the past then; claims do not need it."""


def encode_health(node: NodeHealth) -> bytes:
    """The file's bytes. Equal states give equal bytes."""
    gpus = {uuid: _encode_gpu(gpu) for uuid, gpu in node.gpus.items()}
    return json.dumps({"schema": SCHEMA, "boot_id": node.boot_id, "gpus": gpus}, indent=2, sort_keys=True).encode()


def decode_health(raw: bytes) -> NodeHealth:
    """The state.

    Raises:
        HealthUnusable: not JSON, a field missing or of another type, or another schema.
    """
    try:
        doc = json.loads(raw)
        if not isinstance(doc, dict):
            raise jsonshape.ShapeError("the document is no object")
        if (schema := jsonshape.whole(doc, "schema")) != SCHEMA:
            raise jsonshape.ShapeError(f"its schema is {schema}, this version reads {SCHEMA}")
        gpus = jsonshape.mapping(doc, "gpus")
        return NodeHealth(
            boot_id=jsonshape.text(doc, "boot_id"),
            gpus={ids.parse_gpu_uuid(uuid): _decode_gpu(jsonshape.mapping(gpus, uuid)) for uuid in gpus},
        )
    except (ValueError, RecursionError, VgpuError) as exc:
        raise HealthUnusable(f"the stored health of the GPUs cannot be used: {exc}") from exc


def _encode_gpu(gpu: GpuHealth) -> dict[str, Any]:
    return {
        "critical_xid": gpu.critical_xid,
        "benign_xid": gpu.benign_xid,
        "has_ecc_error": gpu.has_ecc_error,
        "recovery_action": gpu.recovery_action,
        "is_lost": gpu.is_lost,
        "is_unmonitored": gpu.is_unmonitored,
        "uncorrected_errors": gpu.uncorrected_errors,
    }


def _decode_gpu(doc: Mapping[str, Any]) -> GpuHealth:
    return GpuHealth(
        critical_xid=_whole_or_none(doc, "critical_xid"),
        benign_xid=_whole_or_none(doc, "benign_xid"),
        has_ecc_error=jsonshape.flag(doc, "has_ecc_error"),
        recovery_action=jsonshape.whole(doc, "recovery_action"),
        is_lost=jsonshape.flag(doc, "is_lost"),
        is_unmonitored=jsonshape.flag(doc, "is_unmonitored"),
        uncorrected_errors=_whole_or_none(doc, "uncorrected_errors"),
    )


def _whole_or_none(doc: Mapping[str, Any], field: str) -> int | None:
    return None if doc.get(field, 0) is None else jsonshape.whole(doc, field)
