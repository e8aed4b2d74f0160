"""What the kernel says of processes, asked in threads of their own and fairly between callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from vgpu_daemon.procfs import Procfs
from vgpu_registry import policy
from vgpu_registry.limits import AT_ONCE, MAX_WAITING, QueueFull
from vgpu_registry.policy import Caller, Denied, Look, NotYet
from vgpu_state.claims import Binding

_T = TypeVar("_T")
_WORKERS = 4  # a look costs some 0.1 ms of file reads; more threads only contend for the interpreter
MAX_GPU_LOOKS = 2000  # processes of one container whose open files are read; more must not delay the others' re-reads
_GPU_LOOKS_AT_ONCE = 100


@dataclass(slots=True)
class _Gate:
    """How many calls of one PID are here, and the first come, first served door to the threads."""

    door: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    calls: int = 0


class Processes:
    """Procfs for the event loop."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs
        self._executor = ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="procfs")
        self._gates: dict[int, _Gate] = {}

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def look(self, pid: int) -> Caller | NotYet | Denied:
        """Who `pid` is. At most eight looks at one PID are under way, so that a flood of calls by it delays nobody else.

        Raises:
            QueueFull: 1024 calls of that PID wait already.
        """
        gate = self._gates.setdefault(pid, _Gate())
        if gate.calls >= MAX_WAITING:
            raise QueueFull(f"process {pid} has {gate.calls} calls waiting; at most {MAX_WAITING} are held")
        gate.calls += 1
        try:
            async with gate.door:
                return policy.judge_caller(await self._in_thread(lambda: self._look(pid)))
        finally:
            gate.calls -= 1
            if not gate.calls:
                del self._gates[pid]

    async def container_pids(self, binding: Binding) -> tuple[int, ...]:
        """Ascending host PIDs of the container's own cgroup and those below; () when it is empty or gone."""
        return await self._in_thread(lambda: self._procfs.cgroup_pids(binding.cgroup, binding.runtime_id))

    async def started_ticks(self, pids: Sequence[int]) -> tuple[int | None, ...]:
        """The start time of each process in clock ticks since boot, None for one that is gone."""
        return await self._in_thread(lambda: tuple(self._ticks(pid) for pid in pids))

    async def gpu_holders(self, pids: Sequence[int]) -> tuple[int, ...]:
        """Those of the first 2000 of `pids` that have a /dev/nvidia* node open, in the same order.

        Read a hundred at a time, so that the looks at other containers' processes get their turn.
        """
        holders: list[int] = []
        for first in range(0, min(len(pids), MAX_GPU_LOOKS), _GPU_LOOKS_AT_ONCE):
            holders += await self._in_thread(partial(self._with_gpu, pids[first : first + _GPU_LOOKS_AT_ONCE]))
        return tuple(holders)

    async def _in_thread(self, look: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, look)

    def _look(self, pid: int) -> Look:
        if pid == 0:
            return Look(pid=0, ticks_before=None, place=None, ticks_after=None)
        before = self._ticks(pid)
        place = self._procfs.locate(pid)
        return Look(pid=pid, ticks_before=before, place=place, ticks_after=self._ticks(pid))

    def _with_gpu(self, pids: Sequence[int]) -> list[int]:
        return [pid for pid in pids if self._procfs.holds_gpu(pid)]

    def _ticks(self, pid: int) -> int | None:
        identity = self._procfs.identify(pid)
        return None if identity is None else identity.started_ticks
