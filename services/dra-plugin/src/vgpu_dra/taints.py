"""A device taint as the scheduler reads it: which devices new claims should not get, and why.

Source: resource.k8s.io/v1, DeviceTaint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from vgpu_state.ids import GpuUuid


class TaintEffect(StrEnum):
    """NONE tells only (Kubernetes 1.36 on); NO_SCHEDULE keeps new claims away. Ending running pods is left to the operator."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """One taint. `key` is qualified, such as "manager.nvidia.com/xid". When it was added is left to the API server."""

    key: str
    value: str
    effect: TaintEffect


Taints = Mapping[GpuUuid, tuple[Taint, ...]]
