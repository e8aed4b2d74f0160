"""DRAResourceHealth, v1 and v1alpha1, whose messages are the same: kubelet is told how each device is, for the pods that use it.

A report is sent at once, after each change, and again every ten seconds while an error would be noticed. When it would not,
kubelet hears nothing and takes the devices for unknown after `LEASE_S`; so do we.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from vgpu_daemon.crowd import Bound, Crowd
from vgpu_dra.health_monitor import UNKNOWN_S, State
from vgpu_dra.inventory import Inventory
from vgpu_dra.policy.health import Condition
from vgpu_proto import dra_health_v1, dra_health_v1alpha1
from vgpu_state.errors import NotReady
from vgpu_state.ids import DeviceName, GpuUuid

LEASE_S = int(UNKNOWN_S)
REPEAT_S = 10.0
# kubelet holds one; an open stream is a place that a Prepare could have.
MAX_STREAMS = 16
_MAX_MESSAGE = 1024

VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")


class HealthSource(Protocol):
    """How the GPUs are now. `changed` is set, and replaced, once that is another."""

    changed: asyncio.Event

    @property
    def quiet_s(self) -> float: ...
    @property
    def is_alive(self) -> bool: ...
    def state_of(self, uuid: GpuUuid) -> State: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How every device is. `as_of_s` is when this was known for certain, in seconds since 1970."""

    devices: tuple[tuple[DeviceName, State], ...]
    as_of_s: int


class HealthReports:
    """What kubelet is told. `pool` is the node's name."""

    def __init__(
        self, monitor: HealthSource, inventory: Callable[[], Inventory], *, pool: str, repeat_s: float = REPEAT_S
    ) -> None:
        self.pool = pool
        self._monitor = monitor
        self._inventory = inventory
        self._repeat_s = repeat_s
        self.open = Crowd(Bound(of_all=MAX_STREAMS, of_group=MAX_STREAMS))

    async def all(self) -> AsyncGenerator[Report, None]:
        """Reports for ever. Who is slow to take one misses those between."""
        told: Report | None = None
        while True:
            changed = self._monitor.changed
            report = self._report()
            if told is None or report.devices != told.devices or self._monitor.is_alive:
                yield report
                told = report
            try:
                async with asyncio.timeout(self._repeat_s):
                    await changed.wait()
            except TimeoutError:
                continue

    def _report(self) -> Report:
        try:
            devices = self._inventory().devices()
        except NotReady:
            devices = {}
        return Report(
            devices=tuple((name, self._monitor.state_of(device.gpu.uuid)) for name, device in devices.items()),
            as_of_s=int(time.time() - self._monitor.quiet_s),
        )


class HealthService:
    """One version of the service, over the same reports."""

    def __init__(self, reports: HealthReports, *, api: ModuleType, package: str) -> None:
        self._reports = reports
        self._api: Any = api  # Any: generated modules with the same names
        self._path = f"/{package}.DRAResourceHealth/NodeWatchResources"

    def __mapping__(self) -> dict[str, Handler]:
        request, response = self._api.NodeWatchResourcesRequest, self._api.NodeWatchResourcesResponse
        return {self._path: Handler(self._watch, Cardinality.UNARY_STREAM, request, response)}

    async def _watch(self, stream: Stream[Any, Any]) -> None:
        await stream.recv_message()
        if not self._reports.open.enter(""):
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} health streams are open already")
        try:
            async with aclosing(self._reports.all()) as reports:
                async for report in reports:
                    await stream.send_message(self._message(report))
        finally:
            self._reports.open.leave("")

    def _message(self, report: Report) -> Any:
        words = {
            Condition.HEALTHY: self._api.HealthStatus.HEALTHY,
            Condition.UNHEALTHY: self._api.HealthStatus.UNHEALTHY,
            Condition.UNKNOWN: self._api.HealthStatus.UNKNOWN,
        }
        return self._api.NodeWatchResourcesResponse(
            devices=[
                self._api.DeviceHealth(
                    device=self._api.DeviceIdentifier(pool_name=self._reports.pool, device_name=name),
                    health=words[state.condition],
                    last_updated_time=report.as_of_s,
                    health_check_timeout_seconds=LEASE_S,
                    message=state.message[:_MAX_MESSAGE],
                )
                for name, state in report.devices
            ]
        )


def services(reports: HealthReports) -> list[HealthService]:
    """Every version that a kubelet may ask for."""
    return [
        HealthService(reports, api=dra_health_v1, package="v1"),
        HealthService(reports, api=dra_health_v1alpha1, package="v1alpha1"),
    ]
