"""A stand-in kubelet: does to a DRA plugin what the real one does, over real unix sockets, and refuses what it refuses.

Owns the order of calls. What is acceptable lies in `kubelet_rules`, the wire in `kubelet_wire`, registration in
`kubelet_registrar`. It knows pods only through the claims it is asked to prepare, and those that `pod_resources` is told of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from grpclib.const import Status

from vgpu_testkit import kubelet_rules as rules
from vgpu_testkit import kubelet_wire as wire
from vgpu_testkit.kubelet_claims import ClaimCache
from vgpu_testkit.kubelet_plugins import Plugin
from vgpu_testkit.kubelet_pod_resources import PodResources
from vgpu_testkit.kubelet_registrar import Registrar
from vgpu_testkit.kubelet_values import (
    Accepted,
    CallFailed,
    Changes,
    Claim,
    Device,
    HealthReport,
    Registration,
    Timings,
)


class Kubelet:
    """A kubelet of one release that watches `kubelet_dir`/plugins_registry while its context is entered."""

    def __init__(self, kubelet_dir: Path, *, release: str = "1.36", timings: Timings | None = None) -> None:
        self._registry_dir = kubelet_dir / "plugins_registry"
        self._timings = timings or Timings()
        self._changes = Changes()
        self._registrar = Registrar(self._registry_dir, release=release, timings=self._timings, changes=self._changes)
        self._claims = ClaimCache()
        self.pod_resources = PodResources(kubelet_dir, self._claims, release=release)
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._registry_dir.mkdir(parents=True, exist_ok=True)
        await self._start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop()

    async def restart(self) -> None:
        """Ends kubelet and starts it again: plugins are registered anew, prepared flags are lost, devices are kept."""
        await self._stop()
        self._claims.forget_prepared_flags()
        await self._start()

    @property
    def registrations(self) -> tuple[Registration, ...]:
        """Every verdict so far, oldest first; a repeated attempt adds its own."""
        return self._registrar.verdicts

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Returns as soon as `condition` holds, which may look at anything this object shows.

        Raises:
            TimeoutError: it did not hold within `timeout_s`; the message lists the verdicts.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._changes.until(lambda: self._has_crashed() or condition())
        except TimeoutError as exc:
            verdicts = "\n".join(str(verdict) for verdict in self.registrations) or "none"
            raise TimeoutError(f"not within {timeout_s} s; verdicts so far:\n{verdicts}") from exc
        if self._serving is not None and self._serving.done():
            self._serving.result()  # a fault of the stand-in itself, raised where a test waits for it

    async def registrations_reach(self, count: int, timeout_s: float = 10.0) -> tuple[Registration, ...]:
        """The verdicts, as soon as there are `count` of them.

        Raises:
            TimeoutError: there were fewer within `timeout_s`; the message lists them.
        """
        await self.until(lambda: len(self.registrations) >= count, timeout_s)
        return self.registrations

    async def registered(self, driver: str, timeout_s: float = 10.0) -> Accepted:
        """The registration of the driver's newest instance, waiting for the first.

        Raises:
            TimeoutError: no instance registered within `timeout_s`; the message lists the verdicts.
        """
        await self.until(lambda: bool(self._registrar.plugins.announced(driver)), timeout_s)
        return self._registrar.plugins.announced(driver)[0].registration

    def connected_endpoints(self, driver: str) -> tuple[str, ...]:
        """The endpoints of the driver's registered instances that are connected, newest registration first."""
        plugins = self._registrar.plugins.announced(driver)
        return tuple(plugin.registration.endpoint for plugin in plugins if plugin.is_connected)

    def health(self, driver: str, *, in_s: float = 0.0) -> Mapping[tuple[str, str], str]:
        """The health by (pool, device) as a pod's status shows it, `in_s` seconds from now, if nothing comes until then."""
        now_s = time.time() + in_s
        return {device: report.word_at(now_s) for device, report in self.health_reports(driver).items()}

    def health_reports(self, driver: str) -> Mapping[tuple[str, str], HealthReport]:
        """What the driver's newest instance reported last of each (pool, device)."""
        return self._registrar.plugins.announced(driver)[0].health

    def health_report_count(self, driver: str) -> int:
        """How many reports its newest instance has sent."""
        return self._registrar.plugins.announced(driver)[0].health_reports

    def health_attempts(self, driver: str) -> int:
        """How often the health stream of the driver's newest instance was opened; one that is held open counts once."""
        return self._registrar.plugins.announced(driver)[0].health_attempts

    async def prepare(self, driver: str, claims: Collection[Claim], *, sandbox_lost: bool = False) -> dict[str, list[Device]]:
        """The devices of each claim by uid, asking the plugin only for claims that are not prepared.

        `sandbox_lost` asks for all of them again, as after a reboot of the node.

        Raises:
            KubeletRefusal: the driver is not reachable or its response not acceptable; nothing is recorded then.
            CallFailed: the call itself failed, which fails all of its claims.
        """
        self._claims.note(claims)
        due = tuple(claims) if sandbox_lost else self._claims.unprepared(driver, claims)
        if due:
            plugin = await self._plugin(driver, method="NodePrepareResources")
            answers = await wire.node_prepare(plugin.channel, plugin.registration.service, due, timeout_s=self._timings.call_s)
            self._claims.record_prepared(driver, rules.judge_prepare(due, answers))
        return {claim.uid: self._claims.devices(driver, claim.uid) for claim in claims}

    async def unprepare(self, driver: str, claims: Collection[Claim]) -> None:
        """Returns once the plugin has unprepared every claim.

        The call goes out for claims kubelet does not know, too: it repeats an Unprepare whose answer it lost.

        Raises:
            KubeletRefusal: the driver is not reachable or its response not acceptable; the claims stay as they were.
            CallFailed: the call itself failed, which fails all of its claims.
        """
        plugin = await self._plugin(driver, method="NodeUnprepareResources")
        errors = await wire.node_unprepare(plugin.channel, plugin.registration.service, claims, timeout_s=self._timings.call_s)
        rules.judge_unprepare(claims, errors)
        self._claims.drop(driver, claims)

    def container_cdi_ids(self, uid: str, requests: Collection[str] | None) -> list[str]:
        """The CDI ids handed to the runtime for a container that references those requests; None means the whole claim.

        Raises:
            KubeletRefusal: the claim is not prepared.
        """
        return self._claims.cdi_device_ids(uid, requests)

    async def _plugin(self, driver: str, *, method: str) -> Plugin:
        try:
            async with asyncio.timeout(self._timings.call_s):
                return await self._registrar.plugins.usable(driver)
        except TimeoutError as exc:
            raise CallFailed(method, Status.DEADLINE_EXCEEDED, "context deadline exceeded") from exc

    async def _start(self) -> None:
        await self.pod_resources.start()
        # Not a task group: entering and leaving run in different tasks when a fixture yields the kubelet.
        self._serving = asyncio.create_task(self._registrar.serve(), name="kubelet")
        self._serving.add_done_callback(lambda _: self._changes.ring())

    def _has_crashed(self) -> bool:
        return self._serving is not None and self._serving.done()

    async def _stop(self) -> None:
        serving = self._serving
        if serving is None:
            return
        self._serving = None
        await self.pod_resources.stop()
        serving.cancel()
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
