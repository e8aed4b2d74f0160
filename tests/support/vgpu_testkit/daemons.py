"""The three services as processes of their own, on one fake node: started, killed and started again one by one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from vgpu_testkit.node import Node

_READY_S = 20.0
_POLL_S = 0.02


class DaemonFailed(Exception):
    """Raised when a service ended, or did not get ready; carries the end of its log."""


@dataclass(kw_only=True)
class Daemon:
    """One service. `arguments` and `environment` are those of the next start."""

    name: str
    module: str
    debug_socket: Path
    log: Path
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process; its output is appended to the log."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
            )

    def succeed(self, **environment: str) -> Daemon:
        """Starts a second process of its kind, with that much more of an environment, for which this stands from here on.

        Returns the first, which goes on.
        """
        predecessor = replace(self)
        self.process, self.environment = None, self.environment | environment
        self.start()
        return predecessor

    async def ready(self, *, path: str = "/readyz", timeout_s: float = _READY_S) -> None:
        """Returns when the process answers 200 at `path` of its debug socket.

        Raises:
            DaemonFailed: it ended, or did not within `timeout_s`.
        """
        await self._answers(path, self.debug_socket, timeout_s)

    async def stands_by(self) -> None:
        """Returns when the process is ready while another of its kind is in charge.

        Raises:
            DaemonFailed: it ended, or is not within twenty seconds.
        """
        await self._answers("/readyz", waiting_socket(self.debug_socket, self.pid), _READY_S)

    async def _answers(self, path: str, socket: Path, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        last = ""
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                raise DaemonFailed(f"{self.name} ended with {self.process and self.process.returncode}:\n{self.log_tail()}")
            try:
                status, last = await asyncio.wait_for(read_page(socket, path), 2)
            except (OSError, aiohttp.ClientError, TimeoutError) as exc:
                last = repr(exc)
            else:
                if status == 200:
                    return
            await asyncio.sleep(_POLL_S)
        raise DaemonFailed(f"{self.name} is not ready after {timeout_s:g} s ({last.strip()}):\n{self.log_tail()}")

    async def answer(self, path: str) -> tuple[int, str]:
        """The status and the text of the debug socket's answer at `path`."""
        return await read_page(self.debug_socket, path)

    async def debug(self, name: str) -> Any:
        """The JSON at /debug/<name>."""
        _, body = await self.answer(f"/debug/{name}")
        return json.loads(body)

    async def metrics(self) -> dict[str, float]:
        """Samples by name with labels, as the exposition text has them."""
        _, body = await self.answer("/metrics")
        rows = (line.rpartition(" ") for line in body.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in rows}

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        return self.end(signal.SIGTERM)

    @property
    def has_ended(self) -> bool:
        """Whether the process was started and runs no more."""
        return self.process is not None and self.process.poll() is not None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def entries(self) -> list[dict[str, Any]]:
        """The JSON lines of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def end(self, number: signal.Signals) -> int:
        """That signal, and the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)


def waiting_socket(debug_socket: Path, pid: int) -> Path:
    """The debug socket of a process that is not in charge yet."""
    return debug_socket.with_name(f"{debug_socket.stem}-{pid}.sock")


async def read_page(socket: Path, path: str) -> tuple[int, str]:
    """The status and the text of what a debug socket answers at `path`."""
    connector = aiohttp.UnixConnector(path=str(socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://daemon{path}") as response:
        return response.status, await response.text()


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The services of a node: all three, or without nri-plugin where `has_nri` is false."""

    node: Node
    dra: Daemon
    nri: Daemon
    registry: Daemon
    has_nri: bool = True

    @property
    def daemons(self) -> tuple[Daemon, ...]:
        return (self.dra, self.nri, self.registry) if self.has_nri else (self.dra, self.registry)

    async def is_synchronized(self) -> bool:
        """Whether nri-plugin has told dra-plugin, in the session that it has now, which containers live; true without it."""
        if not self.has_nri:
            return True
        session = await self.nri.debug("session")
        known = (await self.dra.debug("state"))["nri_session"]
        return bool(session["phase"] == "synchronized" and session["session"] == known)

    async def roll(self, *, pod_uid: str, end: signal.Signals = signal.SIGTERM) -> None:
        """What a rolling update with maxSurge does: a pod of that uid comes up and stands by, then the one before is ended.

        Raises:
            DaemonFailed: a successor does not stand by, or is not ready once its predecessor is gone.
        """
        predecessors = [daemon.succeed(VGPU_POD_UID=pod_uid) for daemon in self.daemons]
        for daemon in self.daemons:
            await daemon.stands_by()
        async with asyncio.TaskGroup() as ending:
            for predecessor in predecessors:
                ending.create_task(asyncio.to_thread(predecessor.end, end))
        for daemon in self.daemons:
            await daemon.ready()

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.stop()


@dataclass(frozen=True, kw_only=True)
class StackPaths:
    """What differs between a node with real containerd and one with the stand-in runtime."""

    claims: Path
    nri_socket: Path
    proc_root: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")


def make_stack(node: Node, paths: StackPaths, *, options: Mapping[str, str] | None = None) -> Stack:
    """The services of a node, not started. `options` are further VGPU_* variables of all three."""
    logs = node.root / "logs"
    logs.mkdir(exist_ok=True)
    environment = {
        "VGPU_MANAGER_DIR": str(node.manager_dir),
        "VGPU_HOST_MANAGER_DIR": str(node.manager_dir),
        "VGPU_HOST_ROOT": "/",
        "VGPU_RUN_DIR": str(node.run_dir),
        "VGPU_KUBELET_DIR": str(node.kubelet_dir),
        "VGPU_CDI_DIR": str(node.cdi_dir),
        "VGPU_DRIVER_ROOT": str(node.driver_root),
        "VGPU_DEV_ROOT": str(node.dev_root),
        "VGPU_PROC_ROOT": str(paths.proc_root),
        "VGPU_CGROUP_ROOT": str(paths.cgroup_root),
        "VGPU_CLAIMS_FROM": str(paths.claims),
        "VGPU_NRI_SOCKET": str(paths.nri_socket),
        **(options or {}),
    }

    def daemon(name: str, module: str) -> Daemon:
        return Daemon(
            name=name,
            module=module,
            debug_socket=node.run_dir / "debug" / f"{name.partition('-')[0]}.sock",
            log=logs / f"{name}.log",
            arguments=[],
            environment=dict(environment),
        )

    return Stack(
        node=node,
        dra=daemon("dra-plugin", "vgpu_dra"),
        nri=daemon("nri-plugin", "vgpu_nri"),
        registry=daemon("registry", "vgpu_registry"),
    )
