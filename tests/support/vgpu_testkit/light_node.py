"""A node for thousands of steps: the three services as processes that restart in milliseconds, a runtime that runs nothing.

Owns starting, killing and waiting for the services, and the calls that kubelet and a workload's client make. Decides nothing
about what their answers should be.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self, TypeVar

from grpclib.client import Channel
from grpclib.exceptions import StreamTerminatedError

from vgpu_proto import dra_v1
from vgpu_state.layout import Layout
from vgpu_testkit import registry_calls
from vgpu_testkit.crash_control import CrashControl
from vgpu_testkit.daemons import StackPaths, make_stack, waiting_socket
from vgpu_testkit.dra_calls import ConnectionBroke, DraCalls
from vgpu_testkit.fake_host import FakeHost
from vgpu_testkit.light_runtime import LightRuntime
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.node import build_node
from vgpu_testkit.zygote import Start, Zygote, ZygoteProcess

_MODULES = ("vgpu_dra.app", "vgpu_registry.app", "vgpu_testkit.brisk_nri")
_SETTLED_S = 10.0
_POLL_S = 0.001
_REMEMBERED_CALLS = 200  # by dra-plugin
_CALL_S = 20.0
_T = TypeVar("_T")


class KubeletWasRefused(Exception):
    """Raised when dra-plugin answers a claim with an error."""


@dataclass(slots=True, kw_only=True)
class Service:
    """One of the three. `socket` is the one that it publishes last."""

    name: str
    start_order: Start
    zygote: Zygote
    socket: Path
    debug_socket: Path
    process: ZygoteProcess | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_running

    def start(self) -> None:
        assert not self.is_up, f"{self.name} runs already"
        self.process = self.zygote.start(self.start_order)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        if self.process is not None:
            self.process.kill()
        self.process = None

    def succeed(self, *, socket: Path, **environment: str) -> ZygoteProcess:
        """Starts a second process of its kind, for which this stands from here on; the first, which goes on."""
        assert self.process is not None, f"{self.name} does not run"
        predecessor = self.process
        self.start_order = replace(self.start_order, environment={**self.start_order.environment, **environment})
        self.socket, self.process = socket, self.zygote.start(self.start_order)
        return predecessor

    async def stands_by(self) -> bool:
        """Whether it is ready while another is in charge."""
        assert self.process is not None, f"{self.name} does not run"
        try:
            return await _is_ready(waiting_socket(self.debug_socket, self.process.pid))
        except OSError:
            return False

    async def until_reachable(self) -> None:
        """Returns when it accepts connections."""

        async def is_there() -> bool:
            assert self.is_up, f"{self.name} has ended:\n{self.log_tail()}"
            return await self.is_reachable()

        await until(is_there, f"{self.name} does not listen on {self.socket}")

    async def debug(self, name: str) -> Any:
        """The JSON at /debug/<name>."""
        reader, writer = await asyncio.open_unix_connection(self.debug_socket)
        try:
            writer.write(f"GET /debug/{name} HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read(-1)
        finally:
            writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.start_order.log.read_text(errors="replace").splitlines()[-lines:])

    async def is_reachable(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            return False
        writer.close()
        return True


class LightNode:
    """The node, while its context is entered; all three services run then, and have found each other."""

    def __init__(self, native: Path) -> None:
        self._native = native
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        # A short path: a unix socket's has room for 107 bytes.
        root = Path(tempfile.mkdtemp(prefix="vs"))
        self._stack.callback(shutil.rmtree, root, ignore_errors=True)
        self.root = root
        self.node = build_node(root, native=self._native)
        self.host = FakeHost(root / "host")
        self.claims = root / "claims"
        self.claims.mkdir()
        self.layout = Layout(PurePosixPath(self.node.manager_dir))
        self.calls = DraCalls(self.node.run_dir)
        self.crash = CrashControl(root / "crash")
        nri_socket = root / "nri" / "nri.sock"
        self.runtime = LightRuntime(root / "rt", cdi_dir=self.node.cdi_dir, nri_socket=nri_socket, host=self.host)
        self.dra, self.nri, self.registry = self._make_services(nri_socket)
        await self._stack.enter_async_context(self.runtime)
        for service in self.services:
            service.start()
        await self.settle()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for service in self.services:
            service.kill()
        await self._stack.aclose()

    @property
    def services(self) -> tuple[Service, Service, Service]:
        return self.dra, self.nri, self.registry

    def spec_file(self, claim: Manifest) -> Path:
        """The claim's CDI file."""
        return self.node.cdi_dir / f"k8s.manager.nvidia.com-claim_{claim.uid}.json"

    async def settle(self) -> None:
        """Returns when every service that runs serves, they have found each other, and no release is undelivered."""
        for service in self.services:
            if service.is_up:
                await service.until_reachable()
        if self.nri.is_up:
            await until(self._is_registered, "nri-plugin is not synchronized by the runtime")
        if self.nri.is_up and self.dra.is_up:
            await until(self._is_synchronized, "nri-plugin has not synchronized dra-plugin")
        if self.registry.is_up:
            await until(partial(_is_ready, self.registry.debug_socket), "registry is not ready")

    async def roll(self, *, pod_uid: str) -> None:
        """The three are succeeded by those of the next pod, as in a rolling update: these stand by, then the others are ended."""
        predecessors = [
            self.dra.succeed(socket=self.dra.socket.with_name(f"dra-{pod_uid}.sock"), VGPU_POD_UID=pod_uid),
            *(service.succeed(socket=service.socket) for service in (self.nri, self.registry)),
        ]
        for service in self.services:
            await until(service.stands_by, f"{service} does not stand by")
        for predecessor in predecessors:
            predecessor.send_signal(signal.SIGTERM)
        await until(partial(_have_ended, predecessors), "a predecessor does not end")
        assert [predecessor.wait(0) for predecessor in predecessors] == [0, 0, 0]
        await self.settle()

    async def prepare(self, claim: Manifest) -> list[dra_v1.Device]:
        """The devices of a claim.

        Raises:
            KubeletWasRefused: the answer is an error.
            ConnectionBroke: there is no answer.
        """
        request = dra_v1.NodePrepareResourcesRequest(claims=[_dra_claim(claim)])
        answer = await self._ask_dra(lambda stub: stub.node_prepare_resources(request, timeout=_CALL_S))
        if error := answer.claims[claim.uid].error:
            raise KubeletWasRefused(error)
        return list(answer.claims[claim.uid].devices)

    async def unprepare(self, claim: Manifest) -> None:
        """As `prepare`."""
        request = dra_v1.NodeUnprepareResourcesRequest(claims=[_dra_claim(claim)])
        answer = await self._ask_dra(lambda stub: stub.node_unprepare_resources(request, timeout=_CALL_S))
        if error := answer.claims[claim.uid].error:
            raise KubeletWasRefused(error)

    async def register(self, **words: str) -> None:
        """What a workload's client does, called by this very process: what it is depends on where the fake host shows it.

        Raises:
            GRPCError: registry refused.
            ConnectionBroke: it went away, or is.
        """
        await registry_calls.register(self.layout.registry_socket, **words)

    async def _ask_dra(self, ask: Callable[[dra_v1.DraPluginStub], Coroutine[Any, Any, _T]]) -> _T:
        channel = Channel(path=str(self.dra.socket))
        try:
            return await ask(dra_v1.DraPluginStub(channel))
        except (OSError, StreamTerminatedError) as exc:
            raise ConnectionBroke(f"dra-plugin: {exc}") from exc
        finally:
            channel.close()

    def _make_services(self, nri_socket: Path) -> tuple[Service, Service, Service]:
        paths = StackPaths(
            claims=self.claims, nri_socket=nri_socket, proc_root=self.host.proc_root, cgroup_root=self.host.cgroup_root
        )
        daemons = make_stack(self.node, paths)
        crashing = self.crash.environment(self._native, [self.node.manager_dir, self.node.cdi_dir])
        zygote = self._stack.enter_context(Zygote(_MODULES))
        # One of its own, since the control is that of all who were forked from one process.
        crashing_zygote = self._stack.enter_context(Zygote(_MODULES[:1], environment=crashing))
        manager_dir, run_dir = self.node.manager_dir, self.node.run_dir
        dra_socket = self.node.kubelet_dir / "plugins/manager.nvidia.com/dra.sock"
        rows = (
            ("dra", "vgpu_dra.app:main", crashing_zygote, dra_socket),
            ("nri", "vgpu_testkit.brisk_nri:main", zygote, run_dir / "debug/nri.sock"),
            ("registry", "vgpu_registry.app:main", zygote, manager_dir / "registry/socket.sock"),
        )
        dra, nri, registry = (
            Service(
                name=name,
                start_order=Start(
                    entry=entry, log=self.root / f"{name}.log", environment={**os.environ, **daemons.dra.environment}
                ),
                zygote=from_zygote,
                socket=socket,
                debug_socket=run_dir / f"debug/{name}.sock",
            )
            for name, entry, from_zygote, socket in rows
        )
        return dra, nri, registry

    async def _is_registered(self) -> bool:
        return bool(self.runtime.nri.plugins and (await self.nri.debug("session"))["phase"] == "synchronized")

    async def _is_synchronized(self) -> bool:
        session = await self.nri.debug("session")
        known = (await self.dra.debug("state"))["nri_session"]
        if session["session"] != known or session["undelivered_releases"]:
            return False
        # The session is known before all that follows from its list is done.
        calls = await self.dra.debug("calls")
        compared = [call["session"] for call in calls if call["operation"] == "synchronize"]
        return bool(compared[-1] == known) if compared else len(calls) == _REMEMBERED_CALLS


async def _is_ready(debug_socket: Path) -> bool:
    reader, writer = await asyncio.open_unix_connection(debug_socket)
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n")
    answer = await reader.read(-1)
    writer.close()
    return b" 200 " in answer.partition(b"\r\n")[0]


async def _have_ended(processes: Sequence[ZygoteProcess]) -> bool:
    return not any(process.is_running for process in processes)


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], complaint: str) -> None:
    """Returns once the awaited `condition` holds.

    Raises:
        AssertionError: it does not within ten seconds; with the complaint.
    """
    deadline = time.monotonic() + _SETTLED_S
    while not await condition():
        assert time.monotonic() < deadline, complaint
        await asyncio.sleep(_POLL_S)


def _dra_claim(claim: Manifest) -> dra_v1.Claim:
    return dra_v1.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)
