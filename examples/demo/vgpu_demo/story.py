"""What the demo does, in order: each step shows something a platform engineer asks about, and checks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vgpu_daemon.procfs import Procfs
from vgpu_demo.report import Report
from vgpu_demo.runtimes import IMAGE, Stage
from vgpu_demo.scene import GIB, DemoContainer, DemoPod, Slice
from vgpu_demo.supervisor import Supervisor
from vgpu_state.ids import RuntimeId
from vgpu_testkit.daemons import Stack
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_values import Claim
from vgpu_testkit.pods import ContainerSpec, Pod, PodSpec

DRIVER = "manager.nvidia.com"
_CLIENT = "/etc/vgpu-manager/registry/device-client"
_SOCKET = "/etc/vgpu-manager/registry/socket.sock"
# Three processes, as a training script with workers has them.
_PROCESSES = 3
_WORKLOAD = ("/bin/sh", "-c", "sleep 100000 & sleep 100000 & wait")
_PATIENCE_S = 20.0


@dataclass(slots=True, kw_only=True)
class Running:
    """A container of the story."""

    pod: DemoPod
    container: DemoContainer
    sandbox: Pod
    id: str
    register_uuid: str = ""  # of a container that NRI told nobody of


@dataclass(slots=True, kw_only=True)
class Story:
    """The node and what runs on it."""

    report: Report
    stage: Stage
    stack: Stack
    supervisor: Supervisor
    kubelet: Kubelet
    running: list[Running] = field(default_factory=list)

    async def prepare(self, pods: Sequence[DemoPod]) -> None:
        self.report.chapter("kubelet prepares the claims (DRA)")
        for pod in pods:
            devices = (await self.kubelet.prepare(DRIVER, [_claim(pod)]))[pod.claim.claim.uid]
            seen = [(d.device_name, d.request_names) for d in devices]
            expected = [(str(r.device), (str(r.request),)) for r in pod.claim.results]
            self.report.check(f"devices of claim {pod.claim.claim.name}", expected=expected, seen=seen)
            self.report.fact(f"{pod.claim.claim.name:<14} " + ", ".join(f"{r[0]} on {d}" for d, r in seen))

    async def create(self, pods: Sequence[DemoPod]) -> None:
        self.report.chapter("the runtime creates the containers; each is given its own partition (NRI)")
        for pod in pods:
            sandbox = await self.stage.runtime.run_pod(PodSpec(name=pod.name, namespace=pod.namespace, uid=pod.uid))
            for container in pod.containers:
                container_id = await self._start(pod, container, sandbox, attempt=0)
                self.running.append(Running(pod=pod, container=container, sandbox=sandbox, id=container_id))
                self.report.fact(f"{f'{pod.name}/{container.name}':<20} runs as {container_id[:12]}")

    async def inspect(self) -> None:
        self.report.chapter("what a program inside each container reads from the mounted file")
        self.report.show(f"  {'container':<20} {'claim':<14} {'asked':<38} {'found inside':<38} PIDs")
        for one in self.running:
            await self._register(one)
            found = await self._read_limits(one)
            slices = _slices(found)
            self.report.check(f"limits inside {one.pod.name}/{one.container.name}", expected=one.container.slices, seen=slices)
            pids = self._check_pids(one, found)
            who = f"{one.pod.name}/{one.container.name}"
            asked, seen = _shown(one.container.slices), _shown(slices)
            self.report.show(f"  {who:<20} {one.pod.claim.claim.name:<14} {asked:<38} {seen:<38} {pids}")
            self.report.container(
                pod=one.pod.name,
                container=one.container.name,
                claim=one.pod.claim.claim.name,
                asked=[_document(s) for s in one.container.slices],
                inside=[_document(s) for s in slices],
                pids=found["pids"],
            )

    async def kill_services(self, spare: Claim) -> None:
        for victim, daemon in (("nri-plugin", self.stack.nri), ("registry", self.stack.registry)):
            self.report.chapter(f"{victim} is killed (SIGKILL)")
            before = self.supervisor.restarts[victim]
            daemon.kill()
            await self.kubelet.prepare(DRIVER, [spare])
            await self.kubelet.unprepare(DRIVER, [spare])
            self.report.fact("meanwhile kubelet prepares and unprepares another claim: dra-plugin answers")
            await self._until(lambda v=victim, b=before: self.supervisor.restarts[v] > b, f"{victim} is started again")
            await daemon.ready()
            self.report.fact(f"the supervisor started {victim} alone")
            await self.connected()
            state = await self.stack.dra.debug("partitions")
            bound = {row["container_id"] for row in state if row["state"] == "created"}
            self.report.check("containers found again", expected={r.id for r in self.running}, seen=bound)
            await self._register(self.running[0])
            metrics = await self.stack.dra.metrics()
            self.report.check("drifted containers", expected=0.0, seen=metrics["vgpu_dra_drifted_containers_total"])
            self.report.fact(f"all {len(bound)} containers found again, drift 0, a registration from inside works")

    async def restart_in_place(self) -> None:
        self.report.chapter("a container is restarted in place: attempt 1 is created before attempt 0 is removed")
        one = self.running[0]
        old = one.id
        await self.stage.runtime.stop(old)
        one.id = await self._start(one.pod, one.container, one.sandbox, attempt=1)
        await self._register(one)
        await self.stage.runtime.remove(old)
        found = await self._read_limits(one)
        self.report.check("limits after the restart", expected=one.container.slices, seen=_slices(found))
        self.report.check_that("the new PIDs are registered", len(found["pids"]) >= _PROCESSES, seen=found["pids"])
        self.report.fact(f"{old[:12]} → {one.id[:12]}: a fresh partition under the same path, limits and PIDs right")

    async def refuse_fraud(self) -> None:
        self.report.chapter("a container shows a grant that it copied from another pod")
        victim = self.running[0]
        env = (await self.stage.runtime.exec(victim.id, "/bin/env")).stdout.splitlines()
        stolen = dict(e.split("=", 1) for e in env if e.startswith("VGPU_GRANT_"))
        self.report.check("grants found inside the victim", expected=1, seen=len(stolen))
        thief = await self.stage.runtime.run_pod(PodSpec(name="thief-0", namespace="elsewhere"))
        try:
            await self.stage.runtime.create_container(thief, ContainerSpec(name="thief", image=IMAGE, env=stolen))
        except Exception as exc:  # noqa: BLE001 - each runtime refuses in its own class
            reason = str(getattr(exc, "message", None) or exc)
        else:
            reason = "it was created"
        await self.stage.runtime.remove_pod(thief)
        self.report.check_that("the copied grant is refused", "was not given its device" in reason, seen=reason)
        self.report.fact("refused: " + reason.rpartition("desc = ")[2])

    async def arrive_without_nri(self, pod: DemoPod) -> None:
        nri = self.stack.nri
        self.report.chapter("nri-plugin stays away, and a pod arrives")
        self.supervisor.keep_away(nri)
        async with asyncio.timeout(_PATIENCE_S):
            while (await self.stack.dra.debug("state"))["is_nri_alive"]:
                await asyncio.sleep(0.2)
        await self.kubelet.prepare(DRIVER, [_claim(pod)])
        claim = (await self.stack.dra.debug("claims"))[str(pod.claim.claim.uid)]
        self.report.check("the claim's mode", expected=("eager", "nri_lost"), seen=(claim["mode"], claim.get("eager_reason")))
        self.report.fact(f"its claim is prepared without it, with a partition: {next(iter(claim['partitions']))}")
        sandbox = await self.stage.runtime.run_pod(PodSpec(name=pod.name, namespace=pod.namespace, uid=pod.uid))
        (container,) = pod.containers
        one = Running(pod=pod, container=container, sandbox=sandbox, id=await self._start(pod, container, sandbox, attempt=0))
        found = await self._read_limits(one)
        self.report.check("limits without NRI", expected=container.slices, seen=_slices(found))
        one.register_uuid = found["register_uuid"]
        await self._register(one)
        self._check_pids(one, await self._read_limits(one))
        self.report.fact(f"{pod.name}/{container.name} finds {_shown(container.slices)} and registers by its UUID")
        restarts = self.supervisor.restarts[nri.name]
        self.supervisor.let_return(nri)
        await self._until(lambda: self.supervisor.restarts[nri.name] > restarts, "nri-plugin is started again")
        await nri.ready()
        await self.connected()
        bound = {row["container_id"] for row in await self.stack.dra.debug("partitions") if row["state"] == "created"}
        self.report.check("containers known", expected={r.id for r in (*self.running, one)}, seen=bound)
        self.report.fact("nri-plugin is back: it finds this container too, and the next claims are prepared through it again")
        await self.stage.runtime.remove_pod(sandbox)
        await self.kubelet.unprepare(DRIVER, [_claim(pod)])

    async def clean_up(self, pods: Sequence[DemoPod]) -> None:
        self.report.chapter("the pods go, kubelet unprepares")
        for sandbox in {r.sandbox.id: r.sandbox for r in self.running}.values():
            await self.stage.runtime.remove_pod(sandbox)
        for pod in pods:
            await self.kubelet.unprepare(DRIVER, [_claim(pod)])
        node = self.stack.node
        await self._until(lambda: not _left(node.manager_dir, node.cdi_dir), "nothing is left")
        self.report.check("what is left of claims", expected=[], seen=_left(node.manager_dir, node.cdi_dir))
        self.report.fact("no partition, no claim directory, no CDI file is left")

    async def connected(self) -> None:
        """Returns when nri-plugin has told dra-plugin which containers live."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                mine = (await self.stack.nri.debug("session")).get("session")
                if mine and (await self.stack.dra.debug("state"))["nri_session"] == mine:
                    return
                await asyncio.sleep(0.05)

    async def _start(self, pod: DemoPod, container: DemoContainer, sandbox: Pod, *, attempt: int) -> str:
        cdi_ids = self.kubelet.container_cdi_ids(pod.claim.claim.uid, container.requests)
        spec = ContainerSpec(name=container.name, attempt=attempt, image=IMAGE, command=_WORKLOAD, cdi_devices=tuple(cdi_ids))
        container_id = await self.stage.runtime.create_container(sandbox, spec)
        await self.stage.runtime.start(container_id)
        await self._until(lambda: len(self._alive(sandbox, container_id)) >= _PROCESSES, f"{container.name} has its processes")
        return container_id

    async def _register(self, one: Running) -> None:
        arguments = ("--address", _SOCKET, "--pod-uid", one.pod.uid, "--container-name", one.container.name)
        result = await self.stage.runtime.exec(one.id, _CLIENT, *arguments, "--register-uuid", one.register_uuid)
        self.report.check(f"registration of {one.container.name} ({result.stderr})", expected=0, seen=result.exit_code)

    async def _read_limits(self, one: Running) -> dict[str, Any]:
        result = await self.stage.runtime.exec(one.id, "/bin/read-limits")
        self.report.check(f"read-limits inside {one.container.name} ({result.stderr})", expected=0, seen=result.exit_code)
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def _check_pids(self, one: Running, found: dict[str, Any]) -> str:
        """The list holds every process of the container, by the kernel's word."""
        alive = self._alive(one.sandbox, one.id)
        missing = sorted(set(alive) - set(found["pids"]))
        self.report.check(f"processes of {one.container.name} that are not in its PID list", expected=[], seen=missing)
        self.report.check_that(f"{one.container.name} has its three processes", len(alive) >= _PROCESSES, seen=alive)
        return " ".join(str(p) for p in alive)

    def _alive(self, sandbox: Pod, container_id: str) -> tuple[int, ...]:
        """The container's processes, by the kernel's word."""
        procfs = Procfs(proc_root=self.stage.proc_root, cgroup_root=self.stage.cgroup_root)
        return procfs.cgroup_pids(sandbox.cgroup_of(container_id), RuntimeId(container_id))

    async def _until(self, condition: Any, what: str) -> None:  # Any: a callable that returns a truth
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.05)
        self.report.check_that(what, bool(condition()), seen="not so")


def _claim(pod: DemoPod) -> Claim:
    ref = pod.claim.claim
    return Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)


def _slices(found: dict[str, Any]) -> tuple[Slice, ...]:
    return tuple(Slice(gpu=d["index"], memory_bytes=d["total_memory"], cores_percent=d["hard_core"]) for d in found["devices"])


def _shown(slices: Sequence[Slice]) -> str:
    return "; ".join(f"GPU {s.gpu} {s.memory_bytes / GIB:g} GiB {s.cores_percent} %" for s in slices)


def _document(part: Slice) -> dict[str, Any]:
    return {"gpu": part.gpu, "memory_bytes": part.memory_bytes, "cores_percent": part.cores_percent}


def _left(manager_dir: Path, cdi_dir: Path) -> list[str]:
    claims = manager_dir / "claims"
    found = [p for p in claims.iterdir() if not p.name.startswith(".")]
    found += list((claims / ".trash").iterdir())
    found += list(cdi_dir.iterdir())
    return sorted(p.name for p in found)
