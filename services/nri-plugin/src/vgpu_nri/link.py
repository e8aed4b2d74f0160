"""The connection to the runtime, kept up for ever: dial, register, watch, and begin again when it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from vgpu_daemon import backoff
from vgpu_nri import transport, wire
from vgpu_nri.health import Health
from vgpu_nri.lease import Lease
from vgpu_nri.plugin_service import Notices, PluginService, Surroundings
from vgpu_nri.session import PLUGIN_INDEX, PLUGIN_NAME, Session
from vgpu_nri.transport import Closed, CloseReason, Trunk
from vgpu_nri.ttrpc.envelope import Request
from vgpu_state.errors import VgpuError

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTiming:
    """Seconds. containerd 1.7 goes silent when Synchronize failed; without the watchdog nobody would notice.

    While a runtime is restarted its containers cannot start, or start unadjusted once it is back and before we are. So for
    `brisk_for_s` after a session ended, and at the start, an absent socket is dialled every `brisk_retry_s`, which costs the
    runtime nothing. A runtime that answers and then fails is met by the slow schedule, and one that stays away too.
    """

    watchdog_s: float = 10.0
    stable_s: float = 30.0  # a session that lived this long begins the reconnect schedule anew
    first_retry_s: float = backoff.FIRST_S
    longest_retry_s: float = backoff.LONGEST_S
    brisk_retry_s: float = 0.2
    brisk_for_s: float = 10.0


class RuntimeLink:
    """One session after another; never two at a time."""

    def __init__(self, socket_path: str, *, surroundings: Surroundings, lease: Lease, health: Health, timing: LinkTiming) -> None:
        self._socket_path = socket_path
        self._surroundings = surroundings
        self._lease = lease
        self._health = health
        self._timing = timing
        self._session = Session()
        self._trunk: Trunk | None = None
        self._brisk_until = float("-inf")

    async def serve(self) -> None:
        """Runs sessions until cancelled."""
        clock, telemetry = self._surroundings.clock, self._surroundings.telemetry
        delays = self._delays()
        self._brisk_until = clock() + self._timing.brisk_for_s
        while True:
            begun = clock()
            closed = await self._run_session()
            lived_s = clock() - begun
            pause_s = next(delays)
            if lived_s >= self._timing.stable_s:
                delays = self._delays()
                pause_s = self._timing.brisk_retry_s
            if closed.reason is not CloseReason.UNREACHABLE:
                self._brisk_until = clock() + self._timing.brisk_for_s
            telemetry.closes.labels(closed.reason.value).inc()
            self._log_end(closed, lived_s=lived_s, pause_s=pause_s)
            await asyncio.sleep(pause_s)
            telemetry.reconnects.inc()

    async def drain(self, grace_s: float) -> None:
        """Lets the hooks that are under way be answered, for at most `grace_s` seconds."""
        if self._trunk is not None and self._trunk.in_flight:
            await asyncio.wait(self._trunk.in_flight, timeout=grace_s)

    def describe_session(self) -> dict[str, Any]:
        """The session as JSON can hold it."""
        session = self._session
        return {
            "phase": self._health.phase.value,
            "state": session.state.value,
            "session": session.id,
            "runtime": f"{session.runtime_name} {session.runtime_version}".strip(),
            "synchronized_since": session.synchronized_since,
            "socket": self._socket_path,
            "undelivered_releases": {key: stage.value for key, stage in self._surroundings.ledger.undelivered.items()},
        }

    def _log_end(self, closed: Closed, *, lived_s: float, pause_s: float) -> None:
        said = {"socket": self._socket_path, "reason": closed.detail, "next_try_s": pause_s}
        if closed.reason is CloseReason.UNREACHABLE:
            _log.warning("runtime unreachable", **said)
            return
        _log.warning("session ended", status=closed.reason.value, lived_s=round(lived_s, 1), **said)

    def _delays(self) -> Iterator[float]:
        return backoff.delays_s(first_s=self._timing.first_retry_s, longest_s=self._timing.longest_retry_s)

    async def _run_session(self) -> Closed:
        try:
            sock = await self._dial()
        except OSError as exc:
            return Closed(reason=CloseReason.UNREACHABLE, detail=self._note_unreachable(exc))
        self._health.connected()
        session = self._session = Session()
        async with asyncio.TaskGroup() as tasks:
            synchronized = asyncio.Event()
            notices = Notices(
                synchronized=synchronized.set,
                late=partial(self._end_soon, CloseReason.NOT_SYNCHRONIZED, "Synchronize was answered too late to count"),
                shutdown=partial(self._end_soon, CloseReason.SHUTDOWN, "the runtime asked for it"),
            )
            service = PluginService(session, surroundings=self._surroundings, notices=notices)
            trunk = self._trunk = await transport.open_trunk(sock, serve=service.serve, spawn=tasks.create_task)
            tending = tasks.create_task(self._tend(trunk, session, synchronized), name="session")
            try:
                closed = await trunk.wait_closed()
            finally:
                trunk.abort()
                self._surroundings.telemetry.session_up.set(0)
            session.close()
            self._health.closed(closed.detail)
            for task in (tending, *trunk.in_flight):
                task.cancel()
        return closed

    async def _dial(self) -> socket.socket:
        while True:
            try:
                return await transport.dial(self._socket_path)
            except (ConnectionRefusedError, FileNotFoundError) as exc:
                if self._surroundings.clock() >= self._brisk_until:
                    raise
                self._note_unreachable(exc)
            await asyncio.sleep(self._timing.brisk_retry_s)

    def _note_unreachable(self, error: OSError) -> str:
        detail = f"NRI socket {self._socket_path}: {error.strerror or error}; is NRI enabled in the runtime?"
        self._health.unreachable(detail)
        return detail

    async def _tend(self, trunk: Trunk, session: Session, synchronized: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(self._timing.watchdog_s):
                await self._register(trunk, session)
                await synchronized.wait()
        except TimeoutError:
            trunk.close(CloseReason.NOT_SYNCHRONIZED, f"registered, and not synchronized within {self._timing.watchdog_s:g} s")
            return
        except VgpuError as exc:
            trunk.close(CloseReason.REGISTRATION_REFUSED, f"RegisterPlugin failed: {exc}")
            return
        self._health.synchronized()
        self._surroundings.telemetry.session_up.set(1)
        await self._lease.serve(session)

    async def _register(self, trunk: Trunk, session: Session) -> None:
        session.register(at_ns=self._surroundings.boottime_ns())
        deadline_s = self._timing.watchdog_s
        request = Request(
            service=wire.RUNTIME_SERVICE,
            method="RegisterPlugin",
            payload=wire.encode_register(PLUGIN_NAME, PLUGIN_INDEX),
            timeout_ns=int(deadline_s * 1e9),
        )
        await trunk.call(request, deadline_s=deadline_s)
        _log.info(
            "registered with the runtime", socket=self._socket_path, session=session.id,
            runtime=session.runtime_name, version=session.runtime_version,
        )  # fmt: skip

    def _end_soon(self, reason: CloseReason, detail: str) -> None:
        """After the answer that is being made has been written."""
        if self._trunk is not None:
            asyncio.get_running_loop().call_soon(self._trunk.close, reason, detail)
