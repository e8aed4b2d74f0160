"""Calls of one container judged together: one look at its binding, one cgroup read, one RecordPids for all that have joined.

A container has at most one batch under way. Calls that join meanwhile wait, in order, for the next one, which reads the cgroup
after the last of them; calls whose answer may still change stay. Containers do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from vgpu_daemon import backoff, context
from vgpu_daemon.grpc_status import PeerFailed
from vgpu_registry import policy
from vgpu_registry.limits import AT_ONCE, FIRST_POLL_S, LONGEST_POLL_S, MAX_WAITING, QueueFull
from vgpu_registry.policy import Accept, ByName, Caller, Denied, Holding, NotYet, PartitionRef, Seen
from vgpu_state.claims import Binding
from vgpu_state.errors import NotReady, PermissionRefused, StorageFailed, Superseded, VgpuError
from vgpu_state.ids import ContainerName, RuntimeId

_log = structlog.get_logger()


class Bindings(Protocol):
    async def find(self, runtime_id: RuntimeId) -> Holding | None: ...


class Kernel(Protocol):
    async def container_pids(self, binding: Binding) -> tuple[int, ...]: ...
    async def started_ticks(self, pids: Sequence[int]) -> tuple[int | None, ...]: ...


class PidsRecorder(Protocol):
    async def record_pids(self, partition: PartitionRef, *, runtime_id: RuntimeId, pids: Sequence[int]) -> bool: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """How far a held call has come, for its answer at the deadline, its log line and /debug."""

    peer_pid: int
    since_s: float
    op_id: str
    reason: str = "not judged yet"
    attempts: int = 0
    container: ContainerName | None = None
    caller: Caller | None = None
    partition: PartitionRef | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Member:
    call: Call
    caller: Caller
    said: ByName
    answer: asyncio.Future[Accept | Denied]

    def settle(self, verdict: Accept | NotYet | Denied) -> None:
        """Answers the call, or notes why it has to wait."""
        if isinstance(verdict, NotYet):
            self.call.reason = verdict.reason
        elif not self.answer.done():
            self.answer.set_result(verdict)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True, eq=False)
class _Lane:
    """The calls of one container, in the order in which they came."""

    container_id: RuntimeId
    members: list[_Member] = field(default_factory=list)
    joined: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Batches:
    """One lane per container that has calls. `serve` must run while calls are taken."""

    def __init__(self, *, bindings: Bindings, kernel: Kernel, recorder: PidsRecorder) -> None:
        self._bindings = bindings
        self._kernel = kernel
        self._recorder = recorder
        self._lanes: dict[RuntimeId, _Lane] = {}
        self._turns: dict[RuntimeId, _Turn] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def serve(self) -> None:
        """Runs the lanes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.Event().wait()

    async def join(self, call: Call, *, caller: Caller, said: ByName) -> Accept | Denied:
        """The verdict on a call, however long it takes to come; after Accept the PID list is recorded.

        Raises:
            QueueFull: 1024 calls of this container wait already.
            NotReady: the process is starting.
            VgpuError: dra-plugin refused the list for a reason that no caller can change.
        """
        if self._tasks is None:
            raise NotReady("registry is starting")
        lane = self._lanes.get(caller.container_id)
        if lane is not None and len(lane.members) >= MAX_WAITING:
            raise QueueFull(f"container {caller.container_id} has {MAX_WAITING} calls waiting; no more are held")
        answer: asyncio.Future[Accept | Denied] = asyncio.get_running_loop().create_future()
        member = _Member(call=call, caller=caller, said=said, answer=answer)
        if lane is None:
            lane = self._lanes[caller.container_id] = _Lane(caller.container_id)
            self._tasks.create_task(self._run(lane), name=f"lane {caller.container_id[:12]}")
        lane.members.append(member)
        lane.joined.set()
        try:
            return await answer
        finally:
            # A caller that went away leaves nothing; an answered one has been taken out already.
            if member in lane.members:
                lane.members.remove(member)

    @asynccontextmanager
    async def exclusive(self, container_id: RuntimeId) -> AsyncIterator[None]:
        """Nobody else reads this container's cgroup and records it: an older list must not be recorded over a newer one."""
        turn = self._turns.setdefault(container_id, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[container_id]

    async def _run(self, lane: _Lane) -> None:
        delays = backoff.delays_s(first_s=FIRST_POLL_S, longest_s=LONGEST_POLL_S)
        while lane.members:
            lane.joined.clear()
            await self._batch(lane)
            lane.members = [m for m in lane.members if not m.answer.done()]
            if not lane.members:
                break
            try:
                async with asyncio.timeout(next(delays)):
                    await lane.joined.wait()
                delays = backoff.delays_s(first_s=FIRST_POLL_S, longest_s=LONGEST_POLL_S)
            except TimeoutError:
                continue
        del self._lanes[lane.container_id]

    async def _batch(self, lane: _Lane) -> None:
        try:
            await self._judge(lane)
        except (NotReady, StorageFailed) as exc:
            for member in lane.members:
                member.settle(NotYet(reason=str(exc)))
        except Exception as exc:  # noqa: BLE001 - the root of a task that outlives its calls; each of them reports the fault
            for member in lane.members:
                member.fail(exc)

    async def _judge(self, lane: _Lane) -> None:
        holding = await self._bindings.find(lane.container_id)
        async with self.exclusive(lane.container_id):
            waiting = []
            for member in tuple(lane.members):  # all that have joined by now, before the cgroup is read
                member.call.attempts += 1
                refusal = policy.judge_holding(member.said, caller=member.caller, holding=holding)
                if refusal is not None:
                    member.settle(refusal)
                elif not member.answer.done():
                    waiting.append(member)
            if waiting and holding is not None:
                await self._register(waiting, holding=holding)

    async def _register(self, members: Sequence[_Member], *, holding: Holding) -> None:
        pids = await self._kernel.container_pids(holding.binding)
        accepted: list[tuple[_Member, Accept]] = []
        for first in range(0, len(members), AT_ONCE):
            some = members[first : first + AT_ONCE]
            ticks = await self._kernel.started_ticks([m.caller.pid for m in some])
            for member, now in zip(some, ticks, strict=True):
                seen = Seen(pids=pids, caller_ticks=now)
                verdict = policy.judge_registration(member.said, caller=member.caller, holding=holding, seen=seen)
                member.call.partition = holding.partition
                if isinstance(verdict, Accept):
                    accepted.append((member, verdict))
                else:
                    member.settle(verdict)
        if accepted:
            await self._record(accepted, runtime_id=holding.binding.runtime_id)

    async def _record(self, accepted: Sequence[tuple[_Member, Accept]], *, runtime_id: RuntimeId) -> None:
        first, accept = accepted[0]  # the lists are one: all were judged by the same reading
        context.op_id.set(first.call.op_id)
        refusal: NotYet | Denied | None = None
        try:
            await self._recorder.record_pids(accept.partition, runtime_id=runtime_id, pids=accept.pids)
        except (NotReady, Superseded) as exc:
            refusal = NotYet(reason=str(exc))
        except PermissionRefused as exc:
            refusal = Denied(reason=f"dra-plugin refuses the PID list: {exc}")
        except VgpuError as exc:
            for member, _ in accepted:
                member.fail(PeerFailed(f"dra-plugin cannot record the PID list of {accept.partition}: {exc}"))
        for member, verdict in accepted:
            member.settle(refusal or verdict)
