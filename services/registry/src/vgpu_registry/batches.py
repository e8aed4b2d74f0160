"""Calls of one container judged together: one look at its binding, one cgroup read, one RecordPids for all that have joined.

A container without a binding, or whose start nobody has recorded, asks dra-plugin for the partition of its call's register UUID,
once a batch.

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
from vgpu_registry.policy import Accept, Caller, Denied, Holding, NotYet, PartitionRef, Question, Seen, Words
from vgpu_state.claims import Binding
from vgpu_state.errors import NotReady, PermissionRefused, PreconditionFailed, StorageFailed, Superseded, VgpuError
from vgpu_state.ids import ContainerName, RuntimeId

_log = structlog.get_logger()


class Bindings(Protocol):
    async def find(self, runtime_id: RuntimeId) -> Holding | None: ...
    async def find_in(self, partition: PartitionRef, runtime_id: RuntimeId) -> Holding | None: ...


class Kernel(Protocol):
    async def container_pids(self, binding: Binding) -> tuple[int, ...]: ...
    async def started_ticks(self, pids: Sequence[int]) -> tuple[int | None, ...]: ...


class PidsRecorder(Protocol):
    async def record_pids(self, partition: PartitionRef, *, runtime_id: RuntimeId, pids: Sequence[int]) -> bool: ...


class PartitionBinder(Protocol):
    async def bind_partition(self, question: Question, *, caller: Caller) -> PartitionRef: ...


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


@dataclass(slots=True, eq=False, kw_only=True)
class _Member:
    """A call that waits. `uuid_refusal` is why dra-plugin has no partition for its register UUID."""

    call: Call
    caller: Caller
    said: Words
    answer: asyncio.Future[Accept | Denied]
    uuid_refusal: str | None = None

    @property
    def question(self) -> Question | None:
        """What dra-plugin is asked where the container has no binding; None where there is nothing, or no more, to ask."""
        return None if self.uuid_refusal is not None or self.answer.done() else self.said.question

    def judge(self, holding: Holding | None) -> NotYet | Denied | None:
        if holding is None:
            return policy.judge_unbound(self.said, caller=self.caller, uuid_refusal=self.uuid_refusal)
        self.call.partition = holding.partition
        self.call.container = self.call.container or holding.binding.container or None
        return policy.judge_holding(self.said, caller=self.caller, holding=holding)

    def settle(self, verdict: Accept | NotYet | Denied) -> None:
        """Answers the call, or notes why it has to wait."""
        self.call.attempts += 1
        if isinstance(verdict, NotYet):
            self.call.reason = verdict.reason
        elif not self.answer.done():
            self.answer.set_result(verdict)

    def fail(self, error: Exception) -> None:
        self.call.attempts += 1
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True, eq=False)
class _Lane:
    """The calls of one container, in the order in which they came."""

    container_id: RuntimeId
    members: list[_Member] = field(default_factory=list)
    joined: asyncio.Event = field(default_factory=asyncio.Event)

    def asking(self, question: Question) -> list[_Member]:
        return [member for member in self.members if member.question == question]


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Batches:
    """One lane per container that has calls. `serve` must run while calls are taken."""

    def __init__(self, *, bindings: Bindings, kernel: Kernel, recorder: PidsRecorder, binder: PartitionBinder) -> None:
        self._bindings = bindings
        self._kernel = kernel
        self._recorder = recorder
        self._binder = binder
        self._lanes: dict[RuntimeId, _Lane] = {}
        self._turns: dict[RuntimeId, _Turn] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def serve(self) -> None:
        """Runs the lanes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            await asyncio.Event().wait()

    async def join(self, call: Call, *, caller: Caller, said: Words) -> Accept | Denied:
        """The verdict on a call, however long it takes to come; after Accept the PID list is recorded.

        Raises:
            QueueFull: 1024 calls of this container wait already.
            NotReady: the process is starting.
            PreconditionFailed: another live container has the partition of the call's register UUID.
            VgpuError: dra-plugin refused the list, or the partition, for a reason that no caller can change.
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
        except (NotReady, StorageFailed, Superseded) as exc:
            for member in lane.members:
                member.settle(NotYet(reason=str(exc)))
        except Exception as exc:  # noqa: BLE001 - the root of a task that outlives its calls; each of them reports the fault
            for member in lane.members:
                member.fail(exc)

    async def _judge(self, lane: _Lane) -> None:
        holding = await self._bindings.find(lane.container_id)
        if holding is None or holding.awaits_start:
            holding = await self._bind(lane) or holding
        async with self.exclusive(lane.container_id):
            waiting = []
            for member in tuple(lane.members):  # all that have joined by now, before the cgroup is read
                if (refusal := member.judge(holding)) is not None:
                    member.settle(refusal)
                elif not member.answer.done():
                    waiting.append(member)
            if waiting and holding is not None:
                await self._register(waiting, holding=holding)

    async def _bind(self, lane: _Lane) -> Holding | None:
        """What the container gets by the register UUID of the first caller that has one; a refusal is noted with all that ask so.

        Raises:
            NotReady: dra-plugin is away, or cannot tell now.
            Superseded: the container was released.
        """
        asker, question = next(((m, m.question) for m in lane.members if m.question is not None), (None, None))
        if asker is None or question is None:
            return None
        context.op_id.set(asker.call.op_id)
        try:
            partition = await self._binder.bind_partition(question, caller=asker.caller)
        except (NotReady, Superseded):
            raise
        except PermissionRefused as exc:
            await self._refuse_uuid(lane, asker=asker, question=question, why=str(exc))
        except VgpuError as exc:
            for member in lane.asking(question):
                member.fail(_unbound(exc, lane.container_id))
        else:
            return await self._bindings.find_in(partition, lane.container_id)
        return None

    async def _refuse_uuid(self, lane: _Lane, *, asker: _Member, question: Question, why: str) -> None:
        (now,) = await self._kernel.started_ticks([asker.caller.pid])
        if (gone := policy.judge_process(asker.caller, now_ticks=now)) is not None:
            asker.settle(gone)  # dra-plugin looked at who has its PID by now, which says nothing of the others
            return
        for member in lane.asking(question):
            member.uuid_refusal = why

    async def _register(self, members: Sequence[_Member], *, holding: Holding) -> None:
        pids = await self._kernel.container_pids(holding.binding)
        accepted: list[tuple[_Member, Accept]] = []
        for first in range(0, len(members), AT_ONCE):
            some = members[first : first + AT_ONCE]
            ticks = await self._kernel.started_ticks([m.caller.pid for m in some])
            for member, now in zip(some, ticks, strict=True):
                seen = Seen(pids=pids, caller_ticks=now)
                verdict = policy.judge_registration(member.said, caller=member.caller, holding=holding, seen=seen)
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


def _unbound(error: VgpuError, container_id: RuntimeId) -> VgpuError:
    """Why a container got no partition by its register UUID: dra-plugin's own words where another one has it."""
    if isinstance(error, PreconditionFailed):
        return PreconditionFailed(str(error))
    return PeerFailed(f"dra-plugin cannot bind a partition to container {container_id}: {error}")
