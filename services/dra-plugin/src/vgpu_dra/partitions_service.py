"""nri-plugin's calls: vgpu.partitions.v1 on its private socket. Thin: decode, hand to a worker, encode, one log line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog
from grpclib.const import Handler

from vgpu_daemon import memory
from vgpu_daemon.grpc_server import unary
from vgpu_dra import wire
from vgpu_dra.assignments import Assigned
from vgpu_dra.confirmation import Confirmation
from vgpu_dra.event_documents import Reason
from vgpu_dra.metrics import Metrics
from vgpu_dra.nri_lease import NriLease
from vgpu_dra.policy.listing import Word
from vgpu_dra.recorder import NoRecorder, Recorder
from vgpu_dra.synchronization import Synchronization
from vgpu_dra.workers import TreeWorkers
from vgpu_proto import partitions
from vgpu_state import ids
from vgpu_state.claims import Binding, PodRef
from vgpu_state.errors import MalformedInput, NotReady, Superseded, VgpuError
from vgpu_state.ids import RuntimeId

_log = structlog.get_logger()
_T = TypeVar("_T")
_SERVICE = "/vgpu.partitions.v1.Partitions/"
_ANSWERED_S = 0.5


class PartitionsService:
    """Serves EnsurePartition, RecordStart, ReleasePartition, Synchronize and RenewSession."""

    def __init__(
        self,
        synchronization: Synchronization,
        confirmation: Confirmation,
        workers: TreeWorkers,
        metrics: Metrics,
        *,
        after_removal: Callable[[], None],
    ) -> None:
        self._state = synchronization.partitions
        self._synchronization = synchronization
        self._confirmation = confirmation
        self._workers = workers
        self._metrics = metrics
        self._after_removal = after_removal
        self.recorder: Recorder = NoRecorder()
        self.lease = NriLease(time.monotonic)
        self.recent: list[dict[str, object]] = []

    async def ensure(self, request: partitions.EnsurePartitionRequest) -> partitions.EnsurePartitionResponse:
        container = request.container
        about = {"container_id": container.runtime_id, "pod_uid": container.pod.uid, "container": container.name}

        async def confirm_and_ensure() -> tuple[Word, Assigned]:
            facts, session = wire.container_facts(container), wire.session(request.session)
            word = await self._confirmation.confirm(facts)
            return word, await self._workers.run(lambda: self._state.ensure(facts, session=session))

        try:
            _, answer = await self._logged("ensure", about, confirm_and_ensure, found=_ensured)
        except Superseded:
            self._after_removal()  # its own directory, if a release came while that was made
            raise
        except VgpuError as exc:
            self._tell(_pod(container.pod), Reason.PARTITION_REFUSED, exc)
            raise
        if answer.is_new:
            self._after_removal()  # the directory that it replaced, if any
        return wire.assigned(answer)

    async def record_start(self, request: partitions.RecordStartRequest) -> partitions.RecordStartResponse:
        about = {"container_id": request.runtime_id, "pid": request.pid}
        record = self._on_worker(lambda: self._record_start(request))
        try:
            await self._logged("record_start", about, record, found=lambda b: {"pod_uid": b.pod.uid, "container": b.container})
        except VgpuError as exc:
            pod = self._state.pod_of(RuntimeId(request.runtime_id)) or _pod(request.container.pod)
            self._tell(pod, Reason.START_REFUSED, exc)
            raise
        return partitions.RecordStartResponse()

    def _record_start(self, request: partitions.RecordStartRequest) -> Binding:
        if request.HasField("container"):  # from an nri-plugin that says whom it is about
            started = wire.replayed(request.container)
            if self._state.pod_of(started.runtime_id) is None and started.facts is not None:
                self._synchronization.adopt(started.facts, wire.session(request.session))
        return self._state.record_start(ids.parse_runtime_id(request.runtime_id), request.pid)

    async def release(self, request: partitions.ReleasePartitionRequest) -> partitions.ReleasePartitionResponse:
        stages = {
            partitions.ReleasePartitionRequest.STOPPED: self._state.stop,
            partitions.ReleasePartitionRequest.REMOVED: self._state.remove,
        }
        act = stages.get(request.stage)
        if act is None:
            raise MalformedInput(f"stage is {request.stage}; expected STOPPED or REMOVED")
        name = partitions.ReleasePartitionRequest.Stage.Name(request.stage).lower()
        about = {"container_id": request.runtime_id, "stage": name}
        await self._logged("release", about, self._on_worker(lambda: act(ids.parse_runtime_id(request.runtime_id))))
        self._after_removal()
        return partitions.ReleasePartitionResponse()

    async def synchronize(self, request: partitions.SynchronizeRequest) -> partitions.SynchronizeResponse:
        answer = await self._logged(
            "synchronize",
            {"session": request.session, "containers": len(request.containers)},
            self._on_worker(
                lambda: self._synchronization.synchronize(
                    wire.session(request.session), [wire.replayed(c) for c in request.containers]
                )
            ),
            found=lambda c: {"unbound": list(c.unbound), "drifted": list(c.drifted), "released": list(c.released)},
        )
        self.lease.renew(request.session, is_synchronized=True)
        self._metrics.unbound.inc(len(answer.unbound))
        self._metrics.drifted.inc(len(answer.drifted))
        self._after_removal()
        # The message was megabytes, and is let go of when this has returned.
        asyncio.get_running_loop().call_later(_ANSWERED_S, memory.give_back)
        return wire.comparison(answer)

    async def renew(self, request: partitions.RenewSessionRequest) -> partitions.RenewSessionResponse:
        is_known = request.session == self._state.synchronized_session != 0
        self.lease.renew(request.session, is_synchronized=is_known and request.synchronized_since != 0)
        return partitions.RenewSessionResponse(is_known=is_known)

    def __mapping__(self) -> dict[str, Handler]:
        return {
            _SERVICE + "EnsurePartition": unary(
                self.ensure, partitions.EnsurePartitionRequest, partitions.EnsurePartitionResponse
            ),
            _SERVICE + "RecordStart": unary(self.record_start, partitions.RecordStartRequest, partitions.RecordStartResponse),
            _SERVICE + "ReleasePartition": unary(
                self.release, partitions.ReleasePartitionRequest, partitions.ReleasePartitionResponse
            ),
            _SERVICE + "Synchronize": unary(self.synchronize, partitions.SynchronizeRequest, partitions.SynchronizeResponse),
            _SERVICE + "RenewSession": unary(self.renew, partitions.RenewSessionRequest, partitions.RenewSessionResponse),
        }

    def _tell(self, pod: PodRef | None, reason: Reason, refusal: VgpuError) -> None:
        """Tells the pod, but not of "not now": the runtime or kubelet asks again, and it may well succeed."""
        if pod is not None and not isinstance(refusal, NotReady | Superseded):
            self.recorder.pod(pod, reason, str(refusal))

    def _on_worker(self, work: Callable[[], _T]) -> Callable[[], Awaitable[_T]]:
        return lambda: self._workers.run(work)

    async def _logged(
        self,
        operation: str,
        about: Mapping[str, object],
        work: Callable[[], Awaitable[_T]],
        *,
        found: Callable[[_T], dict[str, object]] = lambda _: {},
    ) -> _T:
        """`work`'s result; one line says what came of it."""
        started = time.monotonic()
        try:
            with self._metrics.timed(operation):
                answer = await work()
        except VgpuError as exc:
            refusal = {"outcome": type(exc).__name__, "reason": str(exc)}
            _log.warning(f"{operation} refused", **about, **refusal, duration_ms=_ms(started))
            self._metrics.events.labels(f"{operation}_refused").inc()
            self._note(operation, {**about, **refusal}, started)
            raise
        _log.info(operation, **about, **found(answer), duration_ms=_ms(started))
        self._note(operation, {**about, **found(answer), "outcome": "ok"}, started)
        return answer

    def _note(self, operation: str, what: dict[str, object], started: float) -> None:
        self.recent.append({"operation": operation, **what, "duration_ms": _ms(started)})
        del self.recent[:-200]


def _pod(message: partitions.Pod) -> PodRef | None:
    try:
        return wire.pod_ref(message)
    except MalformedInput:
        return None


def _ensured(found: tuple[Word, Assigned]) -> dict[str, object]:
    word, answer = found
    return {"claim_uid": answer.claim_uid, "partition": answer.partition, "is_new": answer.is_new, "kubelet": str(word)}


def _ms(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 2)
