"""What dra-plugin is told outside hooks, while a session lives: its containers once, then every two seconds that it lives.

The live set is the source of every Synchronize, so that a dra-plugin which was restarted gets what the runtime would say.
Releases that could not be delivered are said again here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import structlog

from vgpu_daemon import backoff, context, memory
from vgpu_daemon.grpc_status import PeerFailed
from vgpu_nri.containers import Stage, SynchronizeReport, VgpuContainer
from vgpu_nri.ledger import Ledger
from vgpu_nri.session import Session
from vgpu_nri.telemetry import Telemetry
from vgpu_state.errors import NotReady, VgpuError

_log = structlog.get_logger()
_RELEASE_S = 1.0


class Partitions(Protocol):
    """dra-plugin, as far as a session's upkeep needs it."""

    async def synchronize(self, containers: Collection[VgpuContainer], *, session_id: int) -> SynchronizeReport: ...

    async def renew(self, session: Session) -> bool: ...

    async def release(self, runtime_id: str, stage: Stage, *, deadline_s: float) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between renewals, and the first and longest pause between attempts to synchronize."""

    renew_s: float = 2.0
    first_retry_s: float = 0.2
    longest_retry_s: float = 2.0


class Lease:
    """Owns no state but whether dra-plugin answered last time, to log changes only."""

    def __init__(self, partitions: Partitions, *, ledger: Ledger, telemetry: Telemetry, pace: Pace) -> None:
        self._partitions = partitions
        self._ledger = ledger
        self._telemetry = telemetry
        self._pace = pace
        self._complaint = ""

    async def serve(self, session: Session) -> None:
        """Keeps a synchronized session known to dra-plugin until cancelled."""
        while True:
            await self._synchronize(session)
            while await self._renew(session):
                await self._redeliver()
                # One that is away is a dra-plugin that is being replaced: the next knows nothing until it is synchronized.
                await asyncio.sleep(self._pace.first_retry_s if self._complaint else self._pace.renew_s)

    async def _synchronize(self, session: Session) -> None:
        for pause_s in backoff.delays_s(first_s=self._pace.first_retry_s, longest_s=self._pace.longest_retry_s):
            context.op_id.set(context.new_op_id())
            containers = [held.container for held in self._ledger.live.values()]
            try:
                report = await self._partitions.synchronize(containers, session_id=session.id)
            except VgpuError as exc:
                self._complain("synchronize failed", exc)
                await asyncio.sleep(pause_s)
                continue
            self._complaint = ""
            self._tell(report, reported=len(containers))
            memory.give_back()  # both lists, the runtime's and ours, were megabytes
            return

    async def _renew(self, session: Session) -> bool:
        """False when dra-plugin must be synchronized again."""
        context.op_id.set(context.new_op_id())
        try:
            is_known = await self._partitions.renew(session)
        except VgpuError as exc:
            self._complain("renewal failed", exc)
            return True
        self._complaint = ""
        return is_known

    async def _redeliver(self) -> None:
        for runtime_id, stage in list(self._ledger.undelivered.items()):
            try:
                await self._partitions.release(runtime_id, stage, deadline_s=_RELEASE_S)
            except NotReady:
                break  # it is away: the others would be refused as well
            except PeerFailed:
                continue  # its log says why; this one is said again with the next renewal
            except VgpuError as exc:
                _log.warning("release refused", container_id=runtime_id, stage=stage.value, reason=str(exc))
            else:
                _log.info("release delivered late", container_id=runtime_id, stage=stage.value, op_id=context.op_id.get())
            self._ledger.delivered(runtime_id, stage)
        self._telemetry.undelivered.set(len(self._ledger.undelivered))

    def _tell(self, report: SynchronizeReport, *, reported: int) -> None:
        unbound, drifted = len(report.unbound), len(report.drifted)
        self._telemetry.synchronized(reported=reported, unbound=unbound, drifted=drifted)
        op_id = context.op_id.get()
        _log.info(
            "synchronized", op_id=op_id, containers=reported, unbound=unbound, drifted=drifted, released=len(report.released)
        )
        for runtime_id in report.unbound:
            _log.error("container runs without a binding", container_id=runtime_id, op_id=op_id)
        for runtime_id in report.drifted:
            _log.error("limits file differs from the grants", container_id=runtime_id, op_id=op_id)

    def _complain(self, event: str, error: VgpuError) -> None:
        """Once per reason: the same attempt is made again every few seconds."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            _log.warning(event, reason=self._complaint)
