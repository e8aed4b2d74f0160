"""A node with one dra-plugin process, a kubelet and both private callers: claims are prepared, containers made, as on a node."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vgpu_proto import partitions
from vgpu_testkit import kubelet_wire, polling, trees
from vgpu_testkit.daemons import Daemon, StackPaths, make_stack
from vgpu_testkit.dra_calls import EARLY_SESSION, DraCalls, call
from vgpu_testkit.fake_host import FakeHost
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_rules import V1, PrepareAnswer
from vgpu_testkit.kubelet_values import Claim, Device, HealthReport, KubeletRefusal, Timings
from vgpu_testkit.manifests import Manifest, Share
from vgpu_testkit.node import Node, build_node
from vgpu_testkit.nri_companion import NriCompanion

DRIVER = "manager.nvidia.com"
_CDI_PREFIX = "k8s.manager.nvidia.com-claim_"
_POD_UID = "0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c11"


def half_a_gpu(name: str = "half", *, device: str = "vgpu-5", uid: str = "3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10") -> Manifest:
    """A claim of one share; equal arguments give equal manifests."""
    share = Share(request="gpu", device=device, cores="50", memory="8Gi", share_id=f"8a2d4a8e{uid[8:]}")
    return Manifest(name=name, shares=(share,), uid=uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of one pod. Equal attempts of one container have equal runtime ids.

    It was given the devices of these `requests`, or those of all of its claims.
    """

    name: str = "train"
    requests: tuple[str, ...] = ()
    pod_uid: str = _POD_UID
    attempt: int = 0
    pid: int = 4_000_000

    @property
    def runtime_id(self) -> str:
        return f"{self.attempt:08x}{self.pod_uid[:8]}{self.name.encode().hex():0>48}"

    @property
    def partition(self) -> str:
        return f"{self.pod_uid}_{self.name}"

    @property
    def cgroup(self) -> str:
        return f"/kubepods/burstable/pod{self.pod_uid}/{self.runtime_id}"

    def again(self) -> Container:
        """The next attempt of the same container."""
        return replace(self, attempt=self.attempt + 1)


@dataclass(kw_only=True)
class DraBench:
    """`dra` is not started by making the bench. There is no nri-plugin, but `nri` says that it lives before each Prepare."""

    node: Node
    host: FakeHost
    dra: Daemon
    calls: DraCalls
    claims: Path
    nri: NriCompanion
    kubelet: Kubelet | None = None
    _mounts: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def _dra_socket(self) -> Path:
        return self.node.kubelet_dir / f"plugins/{DRIVER}/dra.sock"

    @property
    def roots(self) -> tuple[Path, Path]:
        """Where dra-plugin writes what lasts."""
        return self.node.manager_dir, self.node.cdi_dir

    async def start(self) -> None:
        """Starts dra-plugin; returns when it is ready, which it is when kubelet, if there is one, has connected to it."""
        self.dra.start()
        await self.serving()

    async def serving(self) -> None:
        if self.kubelet is None:
            await self.until_phase("serving")
            return
        await self.dra.ready()
        await self.kubelet.until(lambda: bool(self.kubelet and self.kubelet.connected_endpoints(DRIVER)))

    async def until_phase(self, phase: str) -> None:
        async def is_there() -> bool:
            try:
                return bool((await self.dra.debug("state"))["phase"] == phase)
            except (OSError, json.JSONDecodeError):
                return False

        await polling.until(is_there)

    async def prepare(self, *manifests: Manifest) -> list[Device]:
        """The devices of all claims in order; kubelet asks anew for each."""
        assert self.kubelet is not None
        await self.nri.live()
        claims = [kubelet_claim(m) for m in manifests]
        answers = await self.kubelet.prepare(DRIVER, claims, sandbox_lost=True)
        return [device for claim in claims for device in answers[claim.uid]]

    async def unprepare(self, *manifests: Manifest) -> None:
        assert self.kubelet is not None
        await self.kubelet.unprepare(DRIVER, [kubelet_claim(m) for m in manifests])

    async def unprepare_patiently(self, *manifests: Manifest) -> None:
        """As kubelet's reconciler: where the plugin is just being registered again, it asks again."""
        try:
            await self.unprepare(*manifests)
        except KubeletRefusal:
            await self.serving()
            await self.unprepare(*manifests)

    async def answers(self, *claims: Claim) -> Mapping[str, PrepareAnswer]:
        """What NodePrepareResources answers each claim, no kubelet judging it."""
        await self.nri.live()
        return await self.answers_without_nri(*claims)

    async def answers_without_nri(self, *claims: Claim) -> Mapping[str, PrepareAnswer]:
        """As `answers`, where nobody says that nri-plugin lives."""
        async with kubelet_wire.dialled(str(self._dra_socket), Timings()) as channel:
            return await kubelet_wire.node_prepare(channel, V1, claims, timeout_s=20)

    async def unprepare_answers(self, *claims: Claim) -> Mapping[str, str]:
        """What NodeUnprepareResources answers each claim, no kubelet judging it."""
        async with kubelet_wire.dialled(str(self._dra_socket), Timings()) as channel:
            return await kubelet_wire.node_unprepare(channel, V1, claims, timeout_s=20)

    async def watch_health(self) -> AsyncGenerator[Mapping[tuple[str, str], HealthReport], None]:
        """Another health stream, on a connection of its own, no kubelet judging it."""
        async with (
            kubelet_wire.dialled(str(self._dra_socket), Timings()) as channel,
            aclosing(kubelet_wire.watch_health(channel, "v1")) as reports,
        ):
            async for report in reports:
                yield report

    async def call_dra(self, method: str, request: object, response: type) -> object:
        """A call of the DRA service with any message, GRPCError for a refusal."""
        return await call(self._dra_socket, f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}", request, response)

    def cdi_file(self, manifest: Manifest) -> Path:
        return self.node.cdi_dir / f"{_CDI_PREFIX}{manifest.uid}.json"

    def claim_dir(self, manifest: Manifest) -> Path:
        return self.node.manager_dir / "claims" / manifest.uid

    def shown(self, manifest: Manifest, container: Container, *further: Manifest) -> partitions.Container:
        """The container as nri-plugin reports it after the runtime has applied the CDI edits of its devices."""
        edits = [one for m in (manifest, *further) for one in self._edits(m, container)]
        env = [entry.partition("=") for one in edits for entry in one["env"]]
        mounts = {m["containerPath"]: m for one in edits for m in one["mounts"]}
        nodes = {n["path"] for one in edits for n in one["deviceNodes"]}
        return partitions.Container(
            runtime_id=container.runtime_id,
            name=container.name,
            pod=partitions.Pod(uid=container.pod_uid, namespace="research", name="two-workers-0"),
            grants=[
                partitions.Grant(key=name.removeprefix("VGPU_GRANT_"), value=value)
                for name, _, value in env
                if name.startswith("VGPU_GRANT_")
            ],
            mounts=[
                partitions.Mount(destination=path, source=m["hostPath"], type=m.get("type", "bind"), options=m["options"])
                for path, m in mounts.items()
            ],
            devices=[partitions.Device(path=path, type="c", major=195, minor=_minor(path)) for path in sorted(nodes)],
        )

    def _edits(self, manifest: Manifest, container: Container) -> list[Any]:
        """What CDI gives the container of one claim, by device."""
        devices = json.loads(self.cdi_file(manifest).read_bytes())["devices"]
        given = tuple(f"{manifest.uid}-{request}-" for request in container.requests) or ("",)
        return [device["containerEdits"] for device in devices if device["name"].startswith(given)]

    def create(self, manifest: Manifest, container: Container) -> None:
        """The runtime makes the container without NRI: `mounts_of` it are what the CDI file gives."""
        self._mounts[container.runtime_id] = {m.destination: m.source for m in self.shown(manifest, container).mounts}

    async def register(self, manifest: Manifest, container: Container) -> tuple[str, str]:
        """BindPartition with the UUID that CDI gives the container; the claim and partition that it has from then on."""
        prefix = "MANAGER_CLIENT_REGISTER_UUID="
        env = [entry for one in self._edits(manifest, container) for entry in one["env"]]
        (register_uuid,) = {entry.removeprefix(prefix) for entry in env if entry.startswith(prefix)}
        return await self.calls.bind_partition(
            register_uuid, runtime_id=container.runtime_id, pod_uid=container.pod_uid, pid=container.pid
        )

    async def ensure(
        self, manifest: Manifest, container: Container, *further: Manifest, session: int = EARLY_SESSION
    ) -> partitions.EnsurePartitionResponse:
        """EnsurePartition; `mounts_of` the container are what it answers and what the CDI files give."""
        shown = self.shown(manifest, container, *further)
        answer = await self.calls.ensure(shown, session=session)
        self._mounts[container.runtime_id] = {m.destination: m.source for m in (*shown.mounts, *answer.mounts)}
        return answer

    def mounts_of(self, container: Container) -> Mapping[str, str]:
        """Host path by destination of what CDI and `ensure`'s answer mount into the container, "tmpfs" for a fresh one."""
        return self._mounts[container.runtime_id]

    def run(self, container: Container) -> None:
        """The container's first process is there: in its cgroup, with its mounts."""
        self.host.populate(container.cgroup, [container.pid])
        self.host.show_process(container.pid, cgroup=container.cgroup, mounts=self.mounts_of(container))

    def end(self, container: Container) -> None:
        """The container has no process any more."""
        self.host.populate(container.cgroup, [])

    async def record_start(self, container: Container) -> None:
        await self.calls.record_start(container.runtime_id, container.pid)

    async def record_pids(self, manifest: Manifest, container: Container, *pids: int) -> bool:
        return await self.calls.record_pids(manifest.uid, container.partition, container.runtime_id, pids)

    async def until_trash_is_empty(self) -> None:
        async def is_empty() -> bool:
            return not any((self.node.manager_dir / "claims/.trash").iterdir())

        await polling.until(is_empty)

    def picture(self) -> dict[str, trees.Entry]:
        return trees.picture(*self.roots)


def make_bench(root: Path, *, native: Path, options: Mapping[str, str] | None = None) -> DraBench:
    """A node of eight GPUs below `root`, a short path since sockets are made there. `options` are VGPU_* variables."""
    node = build_node(root, native=native)
    host = FakeHost(root / "host")
    (host.proc_root / "driver").symlink_to(node.proc_root / "driver")  # what the NVIDIA driver shows is in the same /proc
    claims = root / "claims"
    claims.mkdir()
    paths = StackPaths(claims=claims, nri_socket=root / "nri.sock", proc_root=host.proc_root, cgroup_root=host.cgroup_root)
    stack = make_stack(node, paths, options=options)
    calls = DraCalls(node.run_dir)
    return DraBench(node=node, host=host, dra=stack.dra, calls=calls, claims=claims, nri=NriCompanion(node.run_dir))


def make_kubelet(node: Node, *, release: str = "1.36") -> Kubelet:
    return Kubelet(node.kubelet_dir, release=release, timings=Timings(backoff_s=0.05, reconnect_s=0.02))


def kubelet_claim(manifest: Manifest) -> Claim:
    return Claim(namespace=manifest.namespace, name=manifest.name, uid=manifest.uid)


def _minor(path: str) -> int:
    digits = path.removeprefix("/dev/nvidia")
    return int(digits) if digits.isdigit() else 255
