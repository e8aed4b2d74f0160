"""What this process shows of itself: metrics, the last hook calls, one log line per hook about a container of ours.

Env and grant values never come here; a reason is a sentence made for the container's owner to read.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_log = structlog.get_logger()

OK = "ok"
NOT_OURS = "not_ours"
UNDELIVERED = "undelivered"
CONNECTION_LOST = "connection_lost"

_KEPT_CALLS = 200
# The budgets are 0.6 and 2 ms for other containers, 6 and 15 ms for ours; the runtime gives up at 2 s.
_BUCKETS_S = (0.0003, 0.0006, 0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.03, 0.1, 0.3, 1.0, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCall:
    """One answered call of the runtime. `outcome` is a word above, or the name of the gRPC status it was refused with."""

    hook: str
    outcome: str
    duration_ms: float
    container_id: str = ""
    claim_uid: str = ""
    pod_uid: str = ""
    pod: str = ""
    container: str = ""
    op_id: str = ""
    reason: str = ""


class Telemetry:
    """Constructing it registers the metrics in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls: deque[tuple[float, HookCall]] = deque(maxlen=_KEPT_CALLS)
        self._hooks = Histogram(
            "vgpu_nri_hook_seconds",
            "Time from a call of the runtime to its answer",
            ("hook", "outcome"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.session_up = Gauge("vgpu_nri_session_up", "1 while synchronized with the runtime", registry=self.registry)
        self.reconnects = Counter("vgpu_nri_reconnects", "Attempts to connect after the first", registry=self.registry)
        self.closes = Counter("vgpu_nri_closes", "Sessions and attempts that ended", ("reason",), registry=self.registry)
        self._containers = Gauge(
            "vgpu_nri_synchronize_containers",
            "vGPU containers at the last Synchronize: reported by the runtime, rebuilt by dra-plugin",
            ("kind",),
            registry=self.registry,
        )
        self._faults = Counter(
            "vgpu_nri_synchronize_faults",
            "vGPU containers that Synchronize found without a binding, or with a limits file that differs",
            ("kind",),
            registry=self.registry,
        )
        self.undelivered = Gauge(
            "vgpu_nri_undelivered_releases", "Releases that dra-plugin has not heard of", registry=self.registry
        )

    def answered(self, call: HookCall) -> None:
        """Takes in one answered call; one about a foreign container is logged for debugging only."""
        self._hooks.labels(call.hook, call.outcome).observe(call.duration_ms / 1e3)
        self._calls.append((time.time(), call))
        if call.outcome == NOT_OURS:
            _log.debug("foreign container passed", hook=call.hook, container_id=call.container_id)
            return
        said = {key: value for key, value in asdict(call).items() if value != ""}
        if call.outcome == OK:
            _log.info("hook answered", **said)
        else:
            _log.warning("hook answered", **said)

    def synchronized(self, *, reported: int, unbound: int, drifted: int) -> None:
        self._containers.labels("reported").set(reported)
        self._containers.labels("rebuilt").set(reported - unbound)
        self._faults.labels("unbound").inc(unbound)
        self._faults.labels("drifted").inc(drifted)

    def recent_calls(self) -> list[dict[str, Any]]:
        """The last calls, newest first, as JSON can hold them; `at` is wall-clock time in seconds."""
        return [{"at": round(at, 3), **asdict(call)} for at, call in reversed(self._calls)]
