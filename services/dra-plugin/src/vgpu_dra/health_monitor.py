"""The health of this node's GPUs: hears events, is told of every look, keeps what it knows on disk, and says it to others.

What is decided lies in `policy.health`. A fault here never keeps a claim from being served: the worst is that a taint comes late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from vgpu_dra import health_record
from vgpu_dra.event_documents import Reason, Severity
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy import health
from vgpu_dra.policy.health import Condition, NodeHealth
from vgpu_dra.policy.xids import XidRules
from vgpu_dra.readings import Event, EventKind, Look
from vgpu_dra.recorder import NoRecorder, Recorder
from vgpu_dra.taints import Taint, TaintEffect, Taints
from vgpu_dra.workers import TreeWorkers
from vgpu_state.errors import VgpuError
from vgpu_state.ids import GpuUuid

_log = structlog.get_logger()

# A taint is published when it is on disk, or after this: a disk that hangs must not keep pods coming to a broken GPU.
_SAVE_S = 0.5
# The listener is heard twice a second; a look that does not end is given up after 10 s.
DEAF_S = 15.0
# kubelet, too, takes a device for unknown when it was not told of it for this long.
UNKNOWN_S = 30.0
_WEDGED = f"NVML has not answered for more than {UNKNOWN_S:g} s"


class HealthStore(Protocol):
    """Where the state outlives the process."""

    def load(self) -> NodeHealth | None: ...
    def save(self, current: Callable[[], NodeHealth]) -> NodeHealth: ...


class Listener(Protocol):
    """Waits for events on a thread of its own."""

    def start(self) -> None: ...
    def ask_anew(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How one GPU is, as others are told."""

    condition: Condition = Condition.HEALTHY
    message: str = ""


class HealthMonitor:
    """One per process. All but the ear's methods is for the event loop; `clock` gives seconds, sleep included."""

    def __init__(
        self,
        store: HealthStore,
        rules: XidRules,
        metrics: Metrics,
        *,
        poll_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._rules = rules
        self._metrics = metrics
        self._poll_s = poll_s
        self._clock = clock
        self._node = self._told = NodeHealth(boot_id="", gpus={})
        self._saved = b""
        self._failure = ""
        self._is_due = asyncio.Event()
        self._last_look: Look | None = None
        self._listening: tuple[frozenset[GpuUuid], frozenset[GpuUuid]] | None = None
        self._beat_at = self._looked_at = clock()
        self._listener: Listener | None = None
        self.changed = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None
        self.recorder: Recorder = NoRecorder()
        self.look_soon: Callable[[], None] = lambda: None

    async def load(self, workers: TreeWorkers, *, boot_id: str) -> None:
        """Takes up what the last process knew, and what the last look found since. To be called once, by the one writer."""
        for variable, words in self._rules.malformed.items():
            _log.warning("words that are no XID are ignored", variable=variable, words=list(words))
        stored = None
        try:
            stored = await workers.run(self._store.load)
        except VgpuError as exc:
            self._metrics.health_file_failures.inc()
            _log.error("health of the GPUs begins anew", reason=str(exc))
        self._saved = b"" if stored is None else health_record.encode_health(stored)
        self._node = self._told = health.begin(stored, boot_id=boot_id)
        if self._last_look is not None:
            self.looked(self._last_look)

    def taints(self) -> Taints:
        """The taints that the GPUs' devices have now, GPUs without any left out."""
        return self._told.taints

    def state_of(self, uuid: GpuUuid) -> State:
        """How the GPU is, as far as it is known now."""
        if self.quiet_s > UNKNOWN_S:
            return State(condition=Condition.UNKNOWN, message=_WEDGED)
        gpu = self._told.gpus.get(uuid, health.GpuHealth())
        return State(condition=gpu.condition, message=gpu.message)

    @property
    def quiet_s(self) -> float:
        """For how long there is no proof that an error of a GPU would be noticed; 0 while all is as it should be."""
        now = self._clock()
        return max(0.0, now - self._beat_at, now - self._looked_at - self._poll_s)

    @property
    def is_alive(self) -> bool:
        """Whether an error of a GPU would be noticed now."""
        return self.quiet_s <= DEAF_S

    async def serve(self, listen: Callable[[Ear], Listener], workers: TreeWorkers) -> None:
        """Listens, saves and tells, until cancelled; the listener's thread stays behind."""
        self._beat_at = self._looked_at = self._clock()
        self._listener = listen(Ear(self, asyncio.get_running_loop()))
        self._listener.start()
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            await self._save(workers)
            self._tell()

    def gpus_changed(self) -> None:
        """The GPUs, or whether they are lost, are others than before."""
        if self._listener is not None:
            self._listener.ask_anew()

    # What `Gpus` tells.

    def looked(self, look: Look) -> None:
        self._last_look = look
        self._looked_at = self._clock()
        self._metrics.gpu_looks.inc()
        node = health.looked(self._node, look.readings, looks_beyond_xids=self._rules.looks_beyond_xids)
        self._become(self._with_ears(node))

    def unreachable(self, reason: str) -> None:
        self._last_look = None
        self._looked_at = self._clock()
        self._become(health.lost(self._node, self._node.gpus.keys()))

    def unanswered(self) -> None:
        self._last_look = None
        self._become(health.silent(self._node))

    # What the ear tells, on the event loop.

    def heard(self, event: Event) -> None:
        node, counted = self._node, event.kind.value
        if event.kind is EventKind.XID:
            rated = self._rules.judge(event.code)
            counted = rated.value
            node = health.heard_xid(node, event.gpu, event.code, rated=rated)
        elif event.kind is EventKind.UNCORRECTED_ECC and self._rules.looks_beyond_xids:
            node = health.heard_uncorrectable(node, event.gpu)
        self._metrics.health_events.labels(counted).inc()
        if event.kind is not EventKind.CORRECTED_ECC:
            _log.warning("GPU error", gpu=event.gpu, kind=counted, xid=event.code or None)
        self._become(node)

    def listening(self, monitored: frozenset[GpuUuid], unmonitored: frozenset[GpuUuid]) -> None:
        self._listening = (monitored, unmonitored)
        self._become(self._with_ears(self._node))

    def beat(self) -> None:
        """Also from another thread."""
        self._beat_at = self._clock()

    def show(self) -> dict[str, Any]:
        """For /debug: what others have been told, and how far each GPU is on its way back."""
        return {
            "quiet_s": round(self.quiet_s, 1),
            "gpus": {
                uuid: {
                    "condition": gpu.condition.value,
                    "message": gpu.message,
                    "taints": [f"{t.key}={t.value}:{t.effect}" for t in gpu.taints],
                    "clean_polls": self._node.gpus[uuid].clean_polls,
                    "uncorrected_errors": gpu.uncorrected_errors,
                }
                for uuid, gpu in self._told.gpus.items()
            },
        }

    def _with_ears(self, node: NodeHealth) -> NodeHealth:
        """Whose events are heard, if the listener lives; not before it has asked for them the first time."""
        if self._listening is None:
            return node
        monitored, unmonitored = self._listening
        if not self._rules.looks_at_anything:
            return health.listening(node, monitored | unmonitored, ())  # nothing is missed, whatever an earlier process said
        if self._clock() - self._beat_at > DEAF_S:
            return health.listening(node, (), monitored | unmonitored)
        return health.listening(node, monitored, unmonitored)

    def _become(self, node: NodeHealth) -> None:
        self._node = node
        if _shown(node) != _shown(self._told) or health_record.encode_health(node) != self._saved:
            self._is_due.set()

    async def _save(self, workers: TreeWorkers) -> None:
        if health_record.encode_health(self._node) == self._saved:
            return
        try:
            async with asyncio.timeout(_SAVE_S):
                saved = await workers.run(lambda: self._store.save(lambda: self._node))
            self._saved = health_record.encode_health(saved)
            self._failure = ""
        except (VgpuError, TimeoutError) as exc:
            # Tried again after the next look.
            self._metrics.health_file_failures.inc()
            reason = str(exc) or f"the disk has not answered for {_SAVE_S:g} s"
            if reason != self._failure:
                _log.error("health of the GPUs not saved", reason=reason)
            self._failure = reason

    def _tell(self) -> None:
        before, self._told = self._told, self._node
        for uuid, gpu in self._told.gpus.items():
            old = before.gpus.get(uuid, health.GpuHealth())
            if gpu.taints != old.taints:
                taints = [f"{t.key}={t.value}:{t.effect}" for t in gpu.taints]
                _log.warning("taints of a GPU changed", gpu=uuid, taints=taints, reason=gpu.message)
            self._tell_users(uuid, before=_keeps_away(old), now=_keeps_away(gpu), message=gpu.message)
        for key in health.KEYS:
            tainted = sum(any(t.key == key for t in taints) for taints in self._told.taints.values())
            self._metrics.tainted_gpus.labels(key).set(tainted)
        if _shown(before) == _shown(self._told):
            return
        if before.taints != self._told.taints:
            self.on_change()
        self.changed.set()
        self.changed = asyncio.Event()

    def _tell_users(self, uuid: GpuUuid, *, before: tuple[Taint, ...], now: tuple[Taint, ...], message: str) -> None:
        """Tells the node of what keeps new claims away, and of its end; what only informs is in the slices."""
        if now and now != before:
            keys = ", ".join(t.key for t in now)
            self.recorder.node(Reason.GPU_UNHEALTHY, f"GPU {uuid} gets no new claims ({keys}): {message}")
        if before and not now:
            self.recorder.node(Reason.GPU_RECOVERED, f"GPU {uuid} is well again and gets new claims", Severity.NORMAL)


class Ear:
    """The monitor's ear on the listener's thread: carries what it hears to the event loop."""

    def __init__(self, monitor: HealthMonitor, loop: asyncio.AbstractEventLoop) -> None:
        self._monitor = monitor
        self._loop = loop

    def heard(self, event: Event) -> None:
        self._carry(lambda: self._monitor.heard(event))

    def listening(self, monitored: frozenset[GpuUuid], unmonitored: frozenset[GpuUuid]) -> None:
        self._carry(lambda: self._monitor.listening(monitored, unmonitored))

    def beat(self) -> None:
        self._monitor.beat()

    def failed(self, _: str) -> None:
        self._carry(self._monitor.look_soon)

    def _carry(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended: so does the process
            self._loop.call_soon_threadsafe(act)


def _keeps_away(gpu: health.GpuHealth) -> tuple[Taint, ...]:
    return tuple(t for t in gpu.taints if t.effect is TaintEffect.NO_SCHEDULE)


def _shown(node: NodeHealth) -> Mapping[GpuUuid, tuple[object, ...]]:
    """What others are told of each GPU."""
    return {uuid: (gpu.taints, gpu.condition, gpu.message) for uuid, gpu in node.gpus.items()}
