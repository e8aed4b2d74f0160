"""What is said of the GPUs' health where nobody looks after it: feature gate NVMLDeviceHealthCheck off.

Nothing is heard, tainted or stored; what an earlier process has stored stays, for the next that looks. Stands where a
`health_monitor.HealthMonitor` would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from vgpu_dra.health_monitor import Ear, Listener, State
from vgpu_dra.policy.health import Condition
from vgpu_dra.readings import Look
from vgpu_dra.recorder import NoRecorder, Recorder
from vgpu_dra.taints import Taints
from vgpu_dra.workers import TreeWorkers
from vgpu_state.ids import GpuUuid

_REASON = "health is not checked: the feature gate NVMLDeviceHealthCheck is off"


class UncheckedHealth:
    """Every GPU's health is unknown and stays so."""

    quiet_s = 0.0  # no error is missed that anybody waits for
    is_alive = True

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None
        self.recorder: Recorder = NoRecorder()
        self.look_soon: Callable[[], None] = lambda: None

    async def load(self, workers: TreeWorkers, *, boot_id: str) -> None:
        """Takes up nothing."""

    async def serve(self, listen: Callable[[Ear], Listener], workers: TreeWorkers) -> None:
        """Listens to nothing, until cancelled."""
        await asyncio.Event().wait()

    def taints(self) -> Taints:
        return {}

    def state_of(self, uuid: GpuUuid) -> State:
        return State(condition=Condition.UNKNOWN, message=_REASON)

    def show(self) -> dict[str, Any]:
        return {"reason": _REASON, "gpus": {}}

    def gpus_changed(self) -> None:
        """Nothing comes of it, as of the looks: the inventory is another's."""

    def looked(self, look: Look) -> None: ...

    def unreachable(self, reason: str) -> None: ...

    def unanswered(self) -> None: ...
