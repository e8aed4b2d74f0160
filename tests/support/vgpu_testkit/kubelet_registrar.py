"""kubelet's plugin manager: finds registration sockets and takes each through the registration sequence.

Source: kubelet pkg/kubelet/pluginmanager (plugin_watcher.go, reconciler.go, operation_generator.go).
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vgpu_testkit import kubelet_rules as rules
from vgpu_testkit import kubelet_wire as wire
from vgpu_testkit.kubelet_plugins import Plugin, Plugins
from vgpu_testkit.kubelet_values import (
    Accepted,
    CallFailed,
    Changes,
    Deregistered,
    EndpointTaken,
    KubeletRefusal,
    Offer,
    Refused,
    Registration,
    Timings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketStamp:
    """What tells a socket file from one re-created under the same path.

    Not the ctime: a chmod after bind changes it, and kubelet's inotify watch does not take a chmod for a new socket.
    """

    device: int
    inode: int
    mtime_ns: int


def find_sockets(directory: Path) -> dict[str, SocketStamp]:
    """Every socket below `directory` by its path; names that start with a dot are ignored, directories too."""
    return dict(_walk(str(directory)))


class Registrar:
    """Follows the sockets of one plugins_registry directory."""

    def __init__(self, directory: Path, *, release: str, timings: Timings, changes: Changes) -> None:
        self.plugins = Plugins(timings=timings, changes=changes)
        self._directory = directory
        self._services = rules.services_known_to(release)
        self._health_package = rules.health_package(release)
        self._timings = timings
        self._changes = changes
        self._verdicts: list[Registration] = []
        self._followed: dict[str, _Followed] = {}
        self._backoffs: dict[str, _Backoff] = {}

    @property
    def verdicts(self) -> tuple[Registration, ...]:
        return tuple(self._verdicts)

    async def serve(self) -> None:
        """Registers and deregisters plugins until cancelled; what it knew is forgotten then, as when kubelet stops."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    sockets = find_sockets(self._directory)
                    await self._deregister_changed(sockets)
                    for path, stamp in sockets.items():
                        if path not in self._followed:
                            task = group.create_task(self._follow(path), name=f"kubelet {path}")
                            self._followed[path] = _Followed(stamp=stamp, task=task)
                    await asyncio.sleep(self._timings.poll_s)
        finally:
            self._followed.clear()
            self._backoffs.clear()
            self.plugins.clear()

    async def _deregister_changed(self, sockets: dict[str, SocketStamp]) -> None:
        for path, followed in list(self._followed.items()):
            if sockets.get(path) == followed.stamp:
                continue
            followed.task.cancel()
            await asyncio.wait([followed.task])
            del self._followed[path]
            plugin = self.plugins.remove(path)
            if plugin is not None and plugin.is_announced:
                gone = plugin.registration
                self._record(Deregistered(socket=path, driver=gone.driver, endpoint=gone.endpoint))

    async def _follow(self, socket: str) -> None:
        plugin = await self._register_persistently(socket)
        if plugin is None:
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(plugin.keep_connected())
                if self._health_package is not None:
                    group.create_task(plugin.watch_health(self._health_package))
        finally:
            await plugin.channel.aclose()

    async def _register_persistently(self, socket: str) -> Plugin | None:
        while True:
            # Kept by path across re-creation of the socket, as kubelet's map of pending operations is.
            backoff = self._backoffs.get(socket, _Backoff(delay_s=0.0, not_before=0.0))
            await asyncio.sleep(max(0.0, backoff.not_before - time.monotonic()))
            try:
                plugin = await self._register(socket)
            except EndpointTaken as refusal:
                self._record(Refused(socket=socket, reason=refusal.reason))
                return None
            except KubeletRefusal as refusal:
                delay_s = min(backoff.delay_s * 2 or self._timings.backoff_s, self._timings.backoff_max_s)
                self._backoffs[socket] = _Backoff(delay_s=delay_s, not_before=time.monotonic() + delay_s)
                self._record(Refused(socket=socket, reason=refusal.reason))
                continue
            self._backoffs.pop(socket, None)
            plugin.is_announced = True
            self._record(plugin.registration)
            return plugin

    async def _register(self, socket: str) -> Plugin:
        async with wire.dialled(socket, self._timings) as channel:
            offer = await wire.get_info(channel, socket=socket, timeout_s=self._timings.get_info_s)
            try:
                plugin = self._admit(socket, offer)
            except KubeletRefusal as refusal:
                await self._tell_refused(channel, refusal.reason)
                raise
            try:
                await wire.notify(channel, error="", timeout_s=self._timings.notify_s)
            except BaseException:
                self.plugins.remove(socket)
                raise
            return plugin

    def _admit(self, socket: str, offer: Offer) -> Plugin:
        if offer.plugin_type != rules.DRA_PLUGIN_TYPE:
            raise KubeletRefusal(
                f"RegisterPlugin error -- no handler registered for plugin type: {offer.plugin_type} at socket {socket}"
            )
        try:
            service = rules.choose_service(offer, known=self._services)
        except KubeletRefusal as exc:
            raise KubeletRefusal(f"RegisterPlugin error -- plugin validation failed with err: {exc.reason}") from exc
        registration = Accepted(socket=socket, driver=offer.name, endpoint=offer.endpoint, service=service)
        try:
            return self.plugins.add(registration)
        except EndpointTaken as exc:
            raise EndpointTaken(f"RegisterPlugin error -- plugin registration failed with err: {exc.reason}") from exc

    async def _tell_refused(self, channel: wire.KubeletChannel, reason: str) -> None:
        try:
            await wire.notify(channel, error=reason, timeout_s=self._timings.notify_s)
        except CallFailed:
            # The Go helper library answers a refusal with an error, so this says nothing; the reason stays the first.
            return

    def _record(self, verdict: Registration) -> None:
        self._verdicts.append(verdict)
        self._changes.ring()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Followed:
    stamp: SocketStamp
    task: asyncio.Task[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backoff:
    delay_s: float
    not_before: float


def _walk(directory: str) -> Iterator[tuple[str, SocketStamp]]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return  # removed between two looks
    for name in sorted(names):
        if name.startswith("."):
            continue
        path = f"{directory}/{name}"
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path)
        elif stat.S_ISSOCK(status.st_mode):
            yield path, SocketStamp(device=status.st_dev, inode=status.st_ino, mtime_ns=status.st_mtime_ns)
