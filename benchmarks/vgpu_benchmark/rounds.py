"""What is measured: two nodes side by side, one with all the claims and one with none, taken in turns within each round.

Times of the processes are those that they logged themselves; the others are what a caller sees, whose own work is on the same
cores. Every claim, pod and container of a measurement is a new one and gone afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from vgpu_benchmark import samples
from vgpu_benchmark.node import BenchmarkNode, Workload
from vgpu_testkit.daemons import Daemon
from vgpu_testkit.manifests import Manifest

EMPTY, FULL = "empty", "full"
_FREED_S = 2.0  # who has answered gives the memory of what was asked back


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured."""

    claims: int
    step: int
    """So many claims are added before Prepare is measured again on the way to `claims`."""
    cycles: int
    lives: int
    burst: int
    bursts: int
    restarts: int
    get_infos: int
    synchronized: int
    """Containers that the runtime tells at once."""
    synchronizes: int
    idle_s: float


@dataclass
class Measured:
    """Samples by what and on which node, in ms but where the name has another unit."""

    series: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    prepare_by_claims: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    api_writes: int = 0
    watched_s: float = 0.0

    def add(self, what: str, where: str, values: Iterable[float]) -> None:
        self.series[what][where].extend(values)


class Bench:
    """A run. Its steps are to be taken in the order in which they stand here."""

    def __init__(self, size: Size, nodes: dict[str, BenchmarkNode]) -> None:
        self.measured = Measured()
        self._size = size
        self._nodes = nodes
        self._running: list[Workload] = []
        self._cycled: dict[int, dict[str, list[Manifest]]] = {}
        self._lived: dict[str, list[Workload]] = {EMPTY: [], FULL: []}
        self._written = 0
        self._settled_at = 0.0

    async def start(self) -> None:
        for node in self._nodes.values():
            await node.start()
            await _warm_up(node)
            node.api.requests.clear()
        self._settled_at = time.monotonic()
        self._note_memory(EMPTY, "at first")

    async def fill(self) -> None:
        """Brings the full node to all of its claims; Prepare is measured on the way, in turns with the empty one."""
        for count in range(0, self._size.claims + 1, self._size.step):
            if count:
                self._running += await self._nodes[FULL].run_many(self._size.step)
            self._cycled[count] = {EMPTY: [], FULL: []}
            for where in _turns(self._size.cycles // 20):
                self._cycled[count][where] += [await _cycle(self._nodes[where]) for _ in range(20)]
        self._note_memory(FULL, f"with {self._size.claims} claims")
        for workload in self._running:
            found = self._nodes[FULL].claim_files(workload.claim)
            self.measured.add("disk of a claim with one container, bytes", FULL, [sum(s.st_blocks * 512 for s in found)])
            self.measured.add("disk of a claim with one container, inodes", FULL, [len(found)])

    async def live(self) -> None:
        """Pods from Prepare to Unprepare, one after the other."""
        for where in _turns(self._size.lives // 10):
            services = self._nodes[where].services
            self.measured.add("durable write of 1 KiB", where, [samples.sync_ms(self._nodes[where].node.root)])
            before = [samples.cpu_ms(service.pid) for service in services.daemons]
            for _ in range(10):
                self._lived[where].append(await self._life(where))
            for service, used_ms in zip(services.daemons, before, strict=True):
                took_ms = (samples.cpu_ms(service.pid) - used_ms) / 10
                self.measured.add(f"CPU time of one pod's life, {service.name}", where, [took_ms])
            calls = await services.nri.debug("calls")
            took = [c["duration_ms"] for c in calls if c["hook"] == "create" and not c["claim_uid"]]
            self.measured.add("hook of another container, in nri-plugin", where, took[:10])

    async def burst(self) -> None:
        """Pods that come at once: a call each, all under way together."""
        for where in _turns(self._size.bursts):
            node = self._nodes[where]
            claims = [node.new_claim() for _ in range(self._size.burst)]
            async with self._timed("burst of Prepare, seen by kubelet", where), asyncio.TaskGroup() as calls:
                for claim in claims:
                    calls.create_task(node.prepare(claim))
            await node.unprepare(*claims)

    async def ask_under_load(self) -> None:
        """GetInfo while as many Prepare calls as a burst has are always under way."""
        for where in (EMPTY, FULL):
            async with _prepare_load(self._nodes[where], self._size.burst):
                self.measured.add("GetInfo under Prepare load", where, await self._get_info(where))
            self.measured.add("GetInfo at rest", where, await self._get_info(where))

    async def restart(self) -> None:
        """From the start of a process to its readiness."""
        for where in _turns(self._size.restarts):
            node = self._nodes[where]
            for service in node.services.daemons:
                service.stop()
                async with self._timed(f"start to ready, {service.name}", where):
                    service.start()
                    await service.ready(timeout_s=60)
                await node.settle()
        self._note_memory(FULL, f"with {self._size.claims} claims found at the start")

    async def synchronize(self) -> None:
        """The runtime ends the session and tells all containers to the next one, half of them without a claim."""
        node = self._nodes[FULL]
        for _ in range(self._size.synchronized - len(self._running)):
            await node.create_other()
        for _ in range(self._size.synchronizes):
            await node.runtime.restart()
            await node.runtime.nri.until_plugins(1)
            await node.settle()
        took = node.runtime.nri.synchronize_s[-self._size.synchronizes :]
        await asyncio.sleep(_FREED_S)
        self._note_memory(FULL, f"after Synchronize of {self._size.synchronized}")
        self.measured.add("Synchronize, seen by the runtime", FULL, [s * 1000 for s in took])

    async def idle(self) -> None:
        """Nothing happens. Writes to the API server are counted since the slices were published."""
        began_ms = {where: {s.name: samples.cpu_ms(s.pid) for s in n.services.daemons} for where, n in self._nodes.items()}
        await asyncio.sleep(self._size.idle_s)
        for where, node in self._nodes.items():
            for service in node.services.daemons:
                used_ms = samples.cpu_ms(service.pid) - began_ms[where][service.name]
                self.measured.add(f"CPU at rest, {service.name}, percent of a core", where, [used_ms / self._size.idle_s / 10])
            self.measured.api_writes += node.api.writes
        self.measured.watched_s = time.monotonic() - self._settled_at

    def read_logs(self) -> None:
        """Takes from the logs what the processes timed themselves."""
        for where, node in self._nodes.items():
            prepared = _logged(node.services.dra, "prepare", key="claim_uid")
            unprepared = _logged(node.services.dra, "unprepare", key="claim_uid")
            ensured = _logged(node.services.dra, "ensure", key="container_id")
            hooked = _logged(node.services.nri, "hook answered", key="container_id", hook="create")
            lived = self._lived[where]
            self.measured.add("Prepare, in dra-plugin", where, [prepared[w.claim.uid] for w in lived])
            self.measured.add("Unprepare, in dra-plugin", where, [unprepared[w.claim.uid] for w in lived])
            self.measured.add("EnsurePartition, in dra-plugin", where, [ensured[w.container.id] for w in lived])
            self.measured.add("hook of a vGPU container, in nri-plugin", where, [hooked[w.container.id] for w in lived])
            for count, cycled in self._cycled.items():
                took = [prepared[claim.uid] for claim in cycled[where]]
                self.measured.prepare_by_claims.setdefault(count, {})[where] = took

    async def _life(self, where: str) -> Workload:
        node = self._nodes[where]
        claim = node.new_claim()
        async with self._timed("Prepare, seen by kubelet", where):
            await node.prepare(claim)
        await node.remove(await node.create_other())
        async with self._timed("CreateContainer with NRI, seen by the runtime", where):
            workload = await node.create(claim)
        await node.runtime.start(workload.container)
        node.enter(workload)
        async with self._timed("registration, seen by the library's client", where):
            await node.register(workload)
        node.leave(workload)
        await node.remove(workload.container)
        async with self._timed("Unprepare, seen by kubelet", where):
            await node.unprepare(claim)
        return workload

    async def _get_info(self, where: str) -> list[float]:
        probe = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "vgpu_benchmark.get_info_probe",
            str(self._nodes[where].registration_socket),
            str(self._size.get_infos),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await probe.communicate()
        took: list[float] = json.loads(printed)
        return took

    def _note_memory(self, where: str, when: str) -> None:
        for service in self._nodes[where].services.daemons:
            self.measured.add(f"RSS, {service.name}, MiB", when, [samples.rss_mib(service.pid)])

    @asynccontextmanager
    async def _timed(self, what: str, where: str) -> AsyncIterator[None]:
        began = time.perf_counter()
        yield
        self.measured.add(what, where, [(time.perf_counter() - began) * 1000])


def _turns(rounds: int) -> Iterable[str]:
    """Both nodes in each round, in an order that chance decides."""
    for _ in range(rounds):
        yield from random.sample((EMPTY, FULL), 2)


async def _cycle(node: BenchmarkNode) -> Manifest:
    claim = node.new_claim()
    await node.prepare(claim)
    await node.unprepare(claim)
    return claim


async def _warm_up(node: BenchmarkNode) -> None:
    for _ in range(20):
        await _cycle(node)


@asynccontextmanager
async def _prepare_load(node: BenchmarkNode, width: int) -> AsyncIterator[None]:
    """So many calls are always under way, Unprepare among them, until the context ends; each runs to its end."""
    is_over = asyncio.Event()

    async def keep_asking() -> None:
        while not is_over.is_set():
            await _cycle(node)

    async with asyncio.TaskGroup() as calls:
        for _ in range(width):
            calls.create_task(keep_asking())
        yield
        is_over.set()


def _logged(service: Daemon, event: str, *, key: str, **fields: str) -> dict[str, float]:
    """Durations in ms of the log lines of an event, by one of their fields."""
    lines = (line for line in service.entries() if line["event"] == event and fields.items() <= line.items())
    return {line[key]: line["duration_ms"] for line in lines}
