"""RegisterContainerDevice, as the device-client in a container calls it: one call, held until its answer cannot change.

The client makes one call and never repeats it, and any error ends the workload's process: "not yet" is no answer before the
deadline. Decides nothing itself: `policy` judges, `batches` and `processes` find out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import structlog
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from vgpu_daemon import backoff, context
from vgpu_proto.registry import ContainerDeviceRequest, ContainerDeviceResponse
from vgpu_registry import policy, wire
from vgpu_registry.batches import Call
from vgpu_registry.limits import ANSWER_S, FIRST_POLL_S, HOLD_S, LONGEST_POLL_S, QueueFull
from vgpu_registry.metrics import Metrics
from vgpu_registry.policy import Accept, Caller, Denied, NotYet, Words
from vgpu_state.errors import MalformedInput, NotReady, PermissionRefused, PreconditionFailed

_log = structlog.get_logger()

ROUTE = "/registry.VDeviceRegistry/RegisterContainerDevice"
REMEMBERED = 200


class CallerLook(Protocol):
    async def look(self, pid: int) -> Caller | NotYet | Denied: ...


class Judge(Protocol):
    async def join(self, call: Call, *, caller: Caller, said: Words) -> Accept | Denied: ...


class RegistryService:
    """The service; hand it to a GrpcServer. `clock` counts seconds and never jumps."""

    def __init__(self, *, callers: CallerLook, judge: Judge, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._callers = callers
        self._judge = judge
        self._metrics = metrics
        self._clock = clock
        self._held: dict[Call, asyncio.Timeout] = {}
        self._answer_by_s: float | None = None
        self._history: deque[Mapping[str, Any]] = deque(maxlen=REMEMBERED)  # Any: what JSON can hold

    def __mapping__(self) -> dict[str, Handler]:
        """Our own handler and not the generated base class: that one hides the call's deadline."""
        return {ROUTE: Handler(self._serve, Cardinality.UNARY_UNARY, ContainerDeviceRequest, ContainerDeviceResponse)}

    def drain(self, grace_s: float) -> None:
        """From now on no call is held for longer than `grace_s` seconds."""
        self._answer_by_s = self._clock() + grace_s
        at_latest = asyncio.get_running_loop().time() + grace_s
        for limit in self._held.values():
            when = limit.when()
            if when is not None and when > at_latest and not limit.expired():
                limit.reschedule(at_latest)

    def held(self) -> list[Mapping[str, Any]]:
        """The calls that wait for their answer, for /debug."""
        return [_facts(call) | {"age_s": round(self._clock() - call.since_s, 3), "reason": call.reason} for call in self._held]

    def history(self) -> list[Mapping[str, Any]]:
        """The last 200 registrations, the newest last, for /debug."""
        return list(self._history)

    async def _serve(self, stream: Stream[ContainerDeviceRequest, ContainerDeviceResponse]) -> None:
        call = Call(peer_pid=context.peer.get().pid, since_s=self._clock(), op_id=context.op_id.get())
        verdict = "failed"
        try:
            verdict = await self._answer(call, stream)
        except asyncio.CancelledError:
            verdict, call.reason = "gone", f"the caller went away while: {call.reason}"
            raise
        except MalformedInput as exc:
            verdict, call.reason = "invalid", str(exc)
            raise
        except PermissionRefused:
            verdict = "denied"
            raise
        except PreconditionFailed as exc:
            verdict, call.reason = "denied", str(exc)
            raise
        except NotReady:
            verdict = "unavailable"
            raise
        except QueueFull as exc:
            verdict, call.reason = "unavailable", str(exc)
            raise GRPCError(Status.RESOURCE_EXHAUSTED, str(exc)) from exc
        except Exception as exc:
            call.reason = str(exc)
            raise
        finally:
            self._conclude(call, verdict)
        await stream.send_message(ContainerDeviceResponse())

    async def _answer(self, call: Call, stream: Stream[ContainerDeviceRequest, ContainerDeviceResponse]) -> str:
        """ "ok", once the PIDs are recorded.

        Raises:
            MalformedInput: the request is not of its form.
            PermissionRefused: the caller can never register.
            PreconditionFailed: another live container has the partition.
            NotReady: it cannot yet, at the deadline.
            QueueFull: too many calls of its container or process wait.
        """
        request = await stream.recv_message()
        assert request is not None  # GrpcServer refuses a call without a message
        said = wire.parse_registration(request)
        remaining_s = HOLD_S if stream.deadline is None else stream.deadline.time_remaining()
        limit = asyncio.timeout(self._hold_s(remaining_s))
        self._metrics.held.inc()
        self._held[call] = limit
        try:
            async with limit:
                verdict = await self._register(call, said)
        except TimeoutError as exc:
            raise NotReady(call.reason) from exc
        finally:
            del self._held[call]
            self._metrics.held.dec()
        if isinstance(verdict, Denied):
            _refuse(call, verdict)
        call.reason = ""
        return "ok"

    async def _register(self, call: Call, said: Words) -> Accept | Denied:
        caller = await self._find_caller(call)
        if isinstance(caller, Denied):
            return caller
        call.caller = caller
        if (refusal := policy.judge_words(said, caller=caller)) is not None:
            return refusal
        call.container = said.container
        return await self._judge.join(call, caller=caller, said=said)

    async def _find_caller(self, call: Call) -> Caller | Denied:
        for delay_s in backoff.delays_s(first_s=FIRST_POLL_S, longest_s=LONGEST_POLL_S):
            match await self._callers.look(call.peer_pid):
                case NotYet(reason=reason):
                    call.reason = reason
                    call.attempts += 1
                case found:
                    return found
            await asyncio.sleep(delay_s)
        raise AssertionError("the schedule has no end")

    def _hold_s(self, remaining_s: float) -> float:
        """How long the call may wait. A deadline shorter than the answer's own time leaves half of it for one attempt."""
        hold_s = min(max(remaining_s - ANSWER_S, remaining_s / 2), HOLD_S)
        return hold_s if self._answer_by_s is None else max(0.0, min(hold_s, self._answer_by_s - self._clock()))

    def _conclude(self, call: Call, verdict: str) -> None:
        duration_s = self._clock() - call.since_s
        self._metrics.registrations.labels(verdict).inc()
        self._metrics.duration_s.labels(verdict).observe(duration_s)
        facts = _facts(call) | {
            "verdict": verdict,
            "reason": call.reason,
            "attempts": call.attempts,
            "duration_ms": round(duration_s * 1000, 1),
        }
        self._history.append(facts)
        _log.info("registration", **facts)


def _refuse(call: Call, verdict: Denied) -> NoReturn:
    call.reason = verdict.reason
    raise PermissionRefused(verdict.reason)


def _facts(call: Call) -> dict[str, Any]:
    caller, partition = call.caller, call.partition
    return {
        "container_id": caller and caller.container_id,
        "claim_uid": partition and partition.claim_uid,
        "pod_uid": caller and caller.pod_uid,
        "container": call.container,
        "peer_pid": call.peer_pid,
        "op_id": call.op_id,
    }
