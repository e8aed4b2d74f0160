"""The Plugin service: what the runtime calls, answered from policy and dra-plugin.

NRI is fail-open for everything but an error reply, so every fault here becomes one, in time. A container that is not ours is
answered at once, without a task and without a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import structlog
from grpclib.const import Status

from vgpu_daemon import context, grpc_status
from vgpu_nri import policy, telemetry, wire
from vgpu_nri.containers import Adjustment, Stage, Subject, VgpuContainer
from vgpu_nri.ledger import Ledger
from vgpu_nri.session import Session
from vgpu_nri.telemetry import HookCall, Telemetry
from vgpu_nri.ttrpc.envelope import Request, Response
from vgpu_state.errors import MalformedInput, NotReady, VgpuError

_log = structlog.get_logger()

# With code 12 for one of the nine dedicated methods of NRI 0.12 the runtime falls back to StateChange for all of them.
_NOTHING_TO_DO = (
    "RunPodSandbox",
    "PostUpdatePodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PostCreateContainer",
    "PostStartContainer",
    "PostUpdateContainer",
)


_LABELS = {"CreateContainer": "create", "StartContainer": "start", "StopContainer": "stop", "RemoveContainer": "remove"}


class Partitions(Protocol):
    """dra-plugin, as far as hooks need it. Each call raises a domain error, within its deadline."""

    async def ensure(self, container: VgpuContainer, *, session_id: int, deadline_s: float) -> Adjustment: ...

    async def record_start(self, container: VgpuContainer, *, unplaced_in: int | None, deadline_s: float) -> None: ...

    async def release(self, runtime_id: str, stage: Stage, *, deadline_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every session of the process shares. `clock` is in seconds and only measures durations."""

    partitions: Partitions
    ledger: Ledger
    telemetry: Telemetry
    clock: Callable[[], float]
    boottime_ns: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """Whom a session tells that the runtime has given its whole list, that our answer came late, that the runtime ends."""

    synchronized: Callable[[], None]
    late: Callable[[], None]
    shutdown: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    hook: str
    payload: bytes
    outcome: str = telemetry.OK
    runtime_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """An answer that needs dra-plugin. `call` names the RPC in a refusal."""

    hook: str
    call: str
    subject: Subject
    work: Callable[[float], Coroutine[Any, Any, _Done]]


class PluginService:
    """One session's hooks."""

    def __init__(self, session: Session, *, surroundings: Surroundings, notices: Notices) -> None:
        self._session = session
        self._partitions = surroundings.partitions
        self._ledger = surroundings.ledger
        self._telemetry = surroundings.telemetry
        self._clock = surroundings.clock
        self._boottime_ns = surroundings.boottime_ns
        self._notices = notices
        self._methods: dict[str, Callable[[bytes], _Done | _Pending]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "Shutdown": self._shutdown,
            "CreateContainer": self._create,
            "StartContainer": lambda payload: self._start(wire.decode_start(payload)),
            "StopContainer": lambda payload: self._release("stop", wire.decode_stop(payload), Stage.STOPPED),
            "RemoveContainer": lambda payload: self._release("remove", wire.decode_remove(payload), Stage.REMOVED),
            "StateChange": self._state_change,
            **dict.fromkeys(_NOTHING_TO_DO, _do_nothing),
        }

    def serve(self, request: Request) -> Response | Callable[[], Coroutine[Any, Any, Response]]:
        """The answer, or how to get it. Neither raises."""
        begun = self._clock()
        method = self._methods.get(request.method) if request.service == wire.PLUGIN_SERVICE else None
        if method is None:
            return Response(code=Status.UNIMPLEMENTED.value, message=f"unknown method {request.service}/{request.method}")
        try:
            answer = method(request.payload)
        except Exception as exc:  # noqa: BLE001 - the hooks' boundary: a fault of ours is an error reply, never a lost connection
            status, reason = _refusal(exc)
            self._tell(
                _Done(
                    hook=_LABELS.get(request.method, request.method.lower()),
                    payload=wire.EMPTY,
                    outcome=status.name.lower(),
                    reason=reason,
                ),
                None,
                begun,
            )
            return Response(code=status.value, message=f"{request.method}: {reason}")
        if isinstance(answer, _Pending):
            return partial(self._finish, answer, policy.hook_deadline_s(request.timeout_ns), begun)
        self._tell(answer, None, begun)
        if answer.hook == "synchronize" and policy.is_late(self._clock() - begun, timeout_ns=request.timeout_ns):
            self._notices.late()
        return Response(payload=answer.payload)

    async def _finish(self, pending: _Pending, deadline_s: float, begun: float) -> Response:
        context.op_id.set(context.new_op_id())
        subject = pending.subject
        container = subject.vgpu or self._known(subject.runtime_id)
        try:
            done = await pending.work(deadline_s)
        except asyncio.CancelledError:
            self._tell(_fault(pending, telemetry.CONNECTION_LOST, ""), container, begun)
            raise
        except Exception as exc:  # noqa: BLE001 - as in serve()
            status, reason = _refusal(exc)
            self._tell(_fault(pending, status.name.lower(), reason), container, begun)
            message = policy.refusal(pending.call, container, reason) if container else f"{pending.call}: {reason}"
            return Response(code=status.value, message=message)
        self._tell(done, container, begun)
        return Response(payload=done.payload)

    def _configure(self, payload: bytes) -> _Done:
        name, version = wire.decode_configure(payload)
        mask = self._session.configure(runtime_name=name, runtime_version=version)
        return _Done(hook="configure", payload=wire.encode_configured(mask))

    def _synchronize(self, payload: bytes) -> _Done:
        """Answered before dra-plugin hears of it: NRI 0.6 never calls a plugin again whose answer came late."""
        containers, has_more = wire.decode_synchronize(payload)
        if has_more:
            self._session.add_part(containers)
            return _Done(hook="synchronize", payload=wire.MORE_PARTS)
        whole = self._session.finish(containers, at_ns=self._boottime_ns())
        self._ledger.synchronize(policy.live_containers(whole), session_id=self._session.id)
        self._notices.synchronized()
        return _Done(hook="synchronize", payload=wire.EMPTY)

    def _shutdown(self, _: bytes) -> _Done:
        self._notices.shutdown()
        return _Done(hook="shutdown", payload=wire.EMPTY)

    def _create(self, payload: bytes) -> _Done | _Pending:
        self._session.admit_hook()
        subject = wire.decode_create(payload)
        if subject.vgpu is None:
            return _foreign("create", subject)
        return _Pending(hook="create", call="EnsurePartition", subject=subject, work=partial(self._ensure, subject.vgpu))

    async def _ensure(self, container: VgpuContainer, deadline_s: float) -> _Done:
        self._ledger.expect(container.runtime_id)
        policy.claims_of(container)
        adjustment = await self._partitions.ensure(container, session_id=self._session.id, deadline_s=deadline_s)
        self._ledger.hold(container, session_id=self._session.id, partition=adjustment.partition)
        return _Done(hook="create", payload=wire.encode_adjustment(adjustment), runtime_id=container.runtime_id)

    def _start(self, subject: Subject) -> _Done | _Pending:
        self._session.admit_hook()
        if not self._is_ours(subject):
            return _foreign("start", subject)
        return _Pending(hook="start", call="RecordStart", subject=subject, work=partial(self._record_start, subject))

    async def _record_start(self, subject: Subject, deadline_s: float) -> _Done:
        """A container that was created while we were away is asked about too: dra-plugin decides whether it may start."""
        container = subject.vgpu
        if container is None:
            # Its env is final here, and a container keeps its grants: without them it must not run on a partition.
            raise MalformedInput(f"the env of container {subject.runtime_id} no longer shows a grant")
        policy.claims_of(container)
        held = self._ledger.live.get(container.runtime_id)
        unplaced_in = None if held is not None and held.partition else self._session.id
        await self._partitions.record_start(container, unplaced_in=unplaced_in, deadline_s=deadline_s)
        self._ledger.hold(container, session_id=self._session.id)
        return _Done(hook="start", payload=wire.EMPTY, runtime_id=container.runtime_id)

    def _release(self, hook: str, subject: Subject, stage: Stage) -> _Done | _Pending:
        self._session.admit_hook()
        if not self._is_ours(subject):
            return _foreign(hook, subject)
        work = partial(self._deliver_release, hook, subject.runtime_id, stage)
        return _Pending(hook=hook, call="ReleasePartition", subject=subject, work=work)

    async def _deliver_release(self, hook: str, runtime_id: str, stage: Stage, deadline_s: float) -> _Done:
        """The runtime would ignore an error, and says it once: what dra-plugin did not hear is kept and said again."""
        self._ledger.release(runtime_id, stage)
        # Kept first, so that nothing which ends this call, foreseen or not, can lose it.
        self._ledger.keep_release(runtime_id, stage)
        outcome, reason = telemetry.OK, ""
        try:
            await self._partitions.release(runtime_id, stage, deadline_s=deadline_s)
        except (NotReady, grpc_status.PeerFailed) as exc:
            outcome, reason = telemetry.UNDELIVERED, str(exc)
        except VgpuError as exc:
            # It was heard, and saying it again would not help.
            self._ledger.delivered(runtime_id, stage)
            outcome, reason = grpc_status.to_grpc(exc).status.name.lower(), str(exc)
        else:
            self._ledger.delivered(runtime_id, stage)
        self._telemetry.undelivered.set(len(self._ledger.undelivered))
        return _Done(hook=hook, payload=wire.EMPTY, runtime_id=runtime_id, outcome=outcome, reason=reason)

    def _state_change(self, payload: bytes) -> _Done | _Pending:
        """How runtimes before NRI 0.12 tell of everything that has no method of its own."""
        event, subject = wire.decode_state_change(payload)
        if event == wire.START_CONTAINER:
            return self._start(subject)
        if event == wire.STOP_CONTAINER:
            return self._release("stop", subject, Stage.STOPPED)
        if event == wire.REMOVE_CONTAINER:
            return self._release("remove", subject, Stage.REMOVED)
        return _do_nothing(payload)

    def _is_ours(self, subject: Subject) -> bool:
        return subject.vgpu is not None or self._ledger.is_ours(subject.runtime_id)

    def _known(self, runtime_id: str) -> VgpuContainer | None:
        held = self._ledger.live.get(runtime_id)
        return held.container if held else None

    def _tell(self, done: _Done, container: VgpuContainer | None, begun: float) -> None:
        self._telemetry.answered(
            HookCall(
                hook=done.hook,
                outcome=done.outcome,
                duration_ms=round((self._clock() - begun) * 1e3, 3),
                container_id=done.runtime_id,
                claim_uid=policy.shown_claims(container) if container else "",
                pod_uid=container.pod.uid if container else "",
                pod=policy.pod_name(container) if container else "",
                container=container.name if container else "",
                op_id=context.op_id.get(),
                reason=done.reason,
            )
        )


def _do_nothing(_: bytes) -> _Done:
    return _Done(hook="other", payload=wire.EMPTY, outcome=telemetry.NOT_OURS)


def _foreign(hook: str, subject: Subject) -> _Done:
    return _Done(hook=hook, payload=wire.EMPTY, outcome=telemetry.NOT_OURS, runtime_id=subject.runtime_id)


def _fault(pending: _Pending, outcome: str, reason: str) -> _Done:
    return _Done(hook=pending.hook, payload=wire.EMPTY, outcome=outcome, runtime_id=pending.subject.runtime_id, reason=reason)


def _refusal(error: Exception) -> tuple[Status, str]:
    if isinstance(error, VgpuError):
        refused = grpc_status.to_grpc(error)
        return refused.status, str(error)
    _log.error("hook failed", error=str(error), exc_info=error, op_id=context.op_id.get())
    return Status.INTERNAL, f"internal error of nri-plugin: {type(error).__name__}"
