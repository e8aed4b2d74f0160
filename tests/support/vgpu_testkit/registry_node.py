"""A node as registry sees it: a claims tree, a proc-shaped tree and cgroup files.

Knows nothing of how registry works: it writes what the kernel and dra-plugin would have written.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import aiohttp
from grpclib.client import Channel

from vgpu_proto.registry import ContainerDeviceRequest, ContainerDeviceResponse, VDeviceRegistryStub
from vgpu_state import bindings, ids, pids
from vgpu_state.claims import Binding, HolderState, PodRef
from vgpu_state.ids import ClaimUid, ContainerName, GrantKey, PartitionName, PodUid, RuntimeId
from vgpu_state.layout import Layout
from vgpu_testkit import polling

# Runs registry as a process of its own while the context lasts.
Started: TypeAlias = Callable[[], AbstractAsyncContextManager[Process]]

_CONNECTOR = """
import array, socket, sys
out = socket.socket(fileno=int(sys.argv[1]))
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[2])
out.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContainer:
    """A container of one vGPU claim, numbered: equal numbers give equal ids.

    `component` is its partition where that was made at Prepare.
    """

    claim_uid: ClaimUid
    pod_uid: PodUid
    name: ContainerName
    runtime_id: RuntimeId
    cgroup: str
    component: PartitionName | None = None

    @property
    def partition(self) -> PartitionName:
        return self.component or ids.partition_name(self.pod_uid, self.name)

    def binding(self) -> Binding:
        return Binding(
            pod=PodRef(uid=self.pod_uid, namespace="team-a", name="train-0"),
            container=self.name,
            runtime_id=self.runtime_id,
            session=1,
            cgroup=self.cgroup,
            state=HolderState.CREATED,
            grants=(GrantKey("0123456789abcdef"),),
        )


def node_container(number: int, *, name: str = "main") -> NodeContainer:
    pod_uid = PodUid(f"{number:08d}-1111-4111-8111-111111111111")
    runtime_id = RuntimeId(f"{number:064x}")
    return NodeContainer(
        claim_uid=ClaimUid(f"{number:08d}-3333-4333-8333-333333333333"),
        pod_uid=pod_uid,
        name=ContainerName(name),
        runtime_id=runtime_id,
        cgroup=f"/kubepods/burstable/pod{pod_uid}/{runtime_id}",
    )


def restarted(container: NodeContainer, number: int) -> NodeContainer:
    """Another container of the same pod and claim, with the runtime id of that number."""
    runtime_id = RuntimeId(f"{number:064x}")
    return replace(container, runtime_id=runtime_id, cgroup=f"/kubepods/burstable/pod{container.pod_uid}/{runtime_id}")


class RegistryNode:
    """The trees below `root`, which must be a short path: sockets are made there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = Layout(PurePosixPath(root / "m"))
        self.proc = root / "proc"
        self.cgroups = root / "cgroup"
        self.run_dir = root / "run"
        for folder in (Path(self.layout.root), self.proc, self.cgroups, self.run_dir):
            folder.mkdir()

    @property
    def socket(self) -> Path:
        return Path(self.layout.registry_socket)

    @property
    def argv(self) -> list[str]:
        """The options that make registry see this node."""
        return [
            f"--manager-dir={self.layout.root}",
            f"--run-dir={self.run_dir}",
            f"--proc-root={self.proc}",
            f"--cgroup-root={self.cgroups}",
        ]

    def process(self, pid: int, cgroup: str, *, ticks: int = 1000) -> None:
        """`pid` runs in `cgroup` since `ticks`."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (a b) c) S {'0 ' * 18}{ticks} 0\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")

    def opens_gpu(self, pid: int) -> None:
        """`pid` has a GPU's device node open."""
        (self.proc / str(pid) / "fd").mkdir(parents=True, exist_ok=True)
        os.symlink("/dev/nvidia0", self.proc / str(pid) / "fd" / "3")

    def populate(self, cgroup: str, pids_there: Collection[int]) -> None:
        """The cgroup has exactly these processes."""
        folder = self.cgroups / cgroup.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "cgroup.procs", "".join(f"{pid}\n" for pid in pids_there).encode())

    def runs(self, container: NodeContainer, pids_there: Collection[int]) -> None:
        """The container runs these processes, and /proc shows them in it."""
        for pid in pids_there:
            self.process(pid, container.cgroup)
        self.populate(container.cgroup, pids_there)

    def bind(self, container: NodeContainer, /, **changes: Any) -> None:
        """dra-plugin has bound the container; `changes` to the binding of a started one."""
        self.write_binding(container, bindings.encode_binding(replace(container.binding(), **changes)))

    def write_binding(self, container: NodeContainer, raw: bytes) -> None:
        partition = Path(self.layout.partition(container.claim_uid, container.partition))
        (partition / "config").mkdir(parents=True, exist_ok=True)
        write_whole(partition / "binding.json", raw)

    def recorded(self, container: NodeContainer) -> tuple[int, ...]:
        """What pids.config of the container holds."""
        return pids.decode_pids(Path(self.layout.pids(container.claim_uid, container.partition)).read_bytes())

    @property
    def debug_socket(self) -> Path:
        return self.run_dir / "debug" / "registry.sock"

    async def debug(self, path: str, *, by: Path | None = None) -> tuple[int, Any]:
        """Status and JSON (text, where it is none) of a page of registry's debug socket; `by` is another instance's."""
        connector = aiohttp.UnixConnector(str(by or self.debug_socket))
        async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://registry{path}") as answer:
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.text())

    async def until_ready(self) -> None:
        await polling.until(lambda: self.is_ready(self.debug_socket))

    async def until_held(self, count: int, *, reason: str = "") -> None:
        """Returns once `count` calls are held for a reason that has the words."""

        async def is_held() -> bool:
            _, held = await self.debug("/debug/held")
            return sum(1 for call in held if reason in call["reason"]) >= count

        await polling.until(is_held)

    async def until_none_held(self) -> None:
        async def is_idle() -> bool:
            return not (await self.debug("/debug/held"))[1]

        await polling.until(is_idle)

    async def is_ready(self, debug_socket: Path) -> bool:
        """Whether the instance that serves there says so."""
        try:
            return (await self.debug("/readyz", by=debug_socket))[0] == 200
        except aiohttp.ClientError:
            return False


class ConnectedChannel(Channel):
    """A channel over a socket that somebody else connected."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(path="/")
        self._dialled = connected

    async def _create_connection(self) -> Any:
        _, protocol = await self._loop.create_unix_connection(self._protocol_factory, sock=self._dialled)
        return protocol


def connect_as_another(path: Path) -> tuple[socket.socket, int]:
    """A connection to `path` made by another process, whose PID the kernel will name to the server, and that PID."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [sys.executable, "-S", "-E", "-c", _CONNECTOR, str(theirs.fileno()), str(path)]
        child = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        child.wait(10)
    return socket.socket(fileno=fds[0]), child.pid


async def register(
    channel: Channel, container: NodeContainer, *, said: Mapping[str, str] | None = None, timeout_s: float = 12.0
) -> None:
    """What the container's device-client does; `said` replaces fields of what it says of itself.

    Raises:
        GRPCError: registry refused.
    """
    words = {"pod_uid": str(container.pod_uid), "container_name": str(container.name)} | dict(said or {})
    answer = await VDeviceRegistryStub(channel).register_container_device(ContainerDeviceRequest(**words), timeout=timeout_s)
    assert isinstance(answer, ContainerDeviceResponse)


def write_whole(path: Path, raw: bytes) -> None:
    """As dra-plugin writes: renamed into place."""
    staged = path.with_name(f".new-{path.name}")
    staged.write_bytes(raw)
    staged.rename(path)
