"""The DRA plugins kubelet has registered, in order, each with its watched connection.

Source: kubelet pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from vgpu_testkit import kubelet_rules as rules
from vgpu_testkit import kubelet_wire as wire
from vgpu_testkit.kubelet_values import (
    Accepted,
    CallFailed,
    Changes,
    EndpointTaken,
    HealthReport,
    KubeletRefusal,
    Timings,
)


class Connectivity(Enum):
    """grpc-go's connectivity states, as far as kubelet looks at them."""

    CONNECTING = "connecting"
    READY = "ready"
    TRANSIENT_FAILURE = "transient failure"


class Plugin:
    """One registered instance of a driver."""

    def __init__(self, registration: Accepted, *, timings: Timings, changes: Changes) -> None:
        self.registration = registration
        self.channel = wire.KubeletChannel(registration.endpoint, on_change=changes.ring)
        self.is_announced = False
        self.health_attempts = 0
        self._health: dict[tuple[str, str], HealthReport] = {}
        self.health_reports = 0
        self._connectivity = Connectivity.CONNECTING
        self._timings = timings
        self._changes = changes

    @property
    def is_connected(self) -> bool:
        return self._connectivity is Connectivity.READY and self.channel.is_ready

    @property
    def is_connecting(self) -> bool:
        # A ready connection that was lost a moment ago is being redialled: grpc-go makes calls wait for that.
        return self._connectivity is not Connectivity.TRANSIENT_FAILURE and not self.is_connected

    @property
    def health(self) -> Mapping[tuple[str, str], HealthReport]:
        """What was reported last, by (pool, device)."""
        return MappingProxyType(self._health)

    async def keep_connected(self) -> None:
        """Holds the connection to the endpoint, dialling again for ever, until cancelled."""
        while True:
            self._become(Connectivity.CONNECTING)
            try:
                async with asyncio.timeout(self._timings.connect_s):
                    await self.channel.connect()
            except OSError:
                self._become(Connectivity.TRANSIENT_FAILURE)
                await asyncio.sleep(self._timings.reconnect_s)
                continue
            self._become(Connectivity.READY)
            await self.channel.wait_lost()

    async def watch_health(self, package: str) -> None:
        """Holds the health stream open, opening it again 5 s after each end, until cancelled.

        Raises:
            KubeletRefusal: a report that kubelet could make nothing of; it is the plugin's fault, so the test's to see.
        """
        while True:
            self.health_attempts += 1
            try:
                async for report in wire.watch_health(self.channel, package):
                    rules.judge_health(report)
                    self._health |= report
                    self.health_reports += 1
                    self._changes.ring()
            except CallFailed:
                # kubelet logs it and tries again: a plugin without the service costs a line every 5 s.
                self._changes.ring()
            await asyncio.sleep(self._timings.health_retry_s)

    def _become(self, connectivity: Connectivity) -> None:
        self._connectivity = connectivity
        self._changes.ring()


class Plugins:
    """Every plugin whose registration socket exists, oldest registration first."""

    def __init__(self, *, timings: Timings, changes: Changes) -> None:
        self._plugins: list[Plugin] = []
        self._timings = timings
        self._changes = changes

    def add(self, registration: Accepted) -> Plugin:
        """The newest plugin of its driver.

        Raises:
            EndpointTaken: another instance of the driver has that endpoint.
        """
        for plugin in self.of_driver(registration.driver):
            if plugin.registration.endpoint == registration.endpoint:
                raise EndpointTaken(
                    f"endpoint {registration.endpoint} already registered for DRA driver plugin {registration.driver}"
                )
        plugin = Plugin(registration, timings=self._timings, changes=self._changes)
        self._plugins.append(plugin)
        return plugin

    def remove(self, socket: str) -> Plugin | None:
        """The plugin that had registered through `socket` and is forgotten, if there was one."""
        for plugin in self._plugins:
            if plugin.registration.socket == socket:
                self._plugins.remove(plugin)
                self._changes.ring()
                return plugin
        return None

    def clear(self) -> None:
        self._plugins.clear()

    def of_driver(self, driver: str) -> tuple[Plugin, ...]:
        return tuple(plugin for plugin in self._plugins if plugin.registration.driver == driver)

    def announced(self, driver: str) -> tuple[Plugin, ...]:
        """The instances that were told that they are registered, newest first."""
        return tuple(plugin for plugin in reversed(self.of_driver(driver)) if plugin.is_announced)

    async def usable(self, driver: str) -> Plugin:
        """The most recently registered connected instance, waiting for one that is being dialled.

        Raises:
            KubeletRefusal: the driver is not registered, or no instance can be reached.
        """
        await self._changes.until(lambda: not self._is_undecided(driver))
        plugins = self.announced(driver)
        if not plugins:
            raise KubeletRefusal(f"DRA driver {driver} is not registered")
        for plugin in plugins:
            if plugin.is_connected:
                return plugin
        raise KubeletRefusal(f"DRA driver {driver} has no connected plugin instance")

    def _is_undecided(self, driver: str) -> bool:
        plugins = self.announced(driver)
        return not any(p.is_connected for p in plugins) and any(p.is_connecting for p in plugins)
