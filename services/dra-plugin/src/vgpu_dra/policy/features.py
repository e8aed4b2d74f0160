"""What of a ResourceSlice an API server keeps: its version and one slice that it is asked to make of nothing. Pure.

A field whose feature gate is off is dropped without a word. A slice that is created with `dryRun` goes the whole way but to the
disk, so its answer shows what a real one would lose.

Source: kubernetes pkg/registry/resource/resourceslice/strategy.go (dropDisabledFields), pkg/features/kube_features.go.
"""

from __future__ import annotations

from dataclasses import dataclass

from vgpu_dra import inventory
from vgpu_dra.slice_documents import GROUP_VERSION, KIND, Document
from vgpu_dra.taints import TaintEffect
from vgpu_state.ids import NodeName

# Before, a counter set and its devices had to be in one slice, and others were refused (kubernetes 1.34, alpha).
_COUNTERS_SINCE = (1, 35)
_INFORMING_TAINTS_SINCE = (1, 36)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a slice may rely on. Without counters nothing keeps the scheduler from giving a GPU away twice in two forms."""

    has_counters: bool
    has_taints: bool
    has_informing_taints: bool


def rehearsal(node: NodeName, *, version: tuple[int, int]) -> Document:
    """The slice to ask an API server of this version with. Nothing is stored of it."""
    device: dict[str, object] = {
        "name": "rehearsal",
        "taints": [{"key": f"{inventory.DRIVER}/rehearsal", "effect": str(TaintEffect.NO_SCHEDULE)}],
    }
    if version >= _COUNTERS_SINCE:
        device["consumesCounters"] = [{"counterSet": "rehearsal", "counters": {"memory": {"value": "1"}}}]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": GROUP_VERSION,
        "kind": KIND,
        "metadata": {"generateName": f"rehearsal-{inventory.DRIVER}-"},
        "spec": {"driver": inventory.DRIVER, "nodeName": node, "pool": pool, "devices": [device]},
    }


def judge_features(version: tuple[int, int], answer: Document) -> Features:
    """What the API server of this version keeps, when `answer` is the spec that it made of the rehearsal's."""
    device: Document = next(iter(answer.get("devices") or ()), {})
    has_taints = bool(device.get("taints"))
    return Features(
        has_counters=bool(device.get("consumesCounters")),
        has_taints=has_taints,
        has_informing_taints=has_taints and version >= _INFORMING_TAINTS_SINCE,
    )
