"""The runtime's side of NRI: plugins that register, and what each step in a pod's life asks of them.

Knows order, subscriptions, deadlines and what an error means; containers are shown to it as `ContainerView`s. Everything is
fail-open but an answer that is an error. Source: containerd/nri pkg/adaptation, containerd pkg/nri and internal/cri/nri.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from grpclib.const import Status

from vgpu_proto import nri
from vgpu_testkit.nri_container import Adjuster, Conflict, ContainerView, Templates
from vgpu_testkit.nri_plugin_link import PluginGone, PluginLink, PluginRefused, Registered, decode
from vgpu_testkit.pods import Pod

# The events of NRI 0.6 to 0.9.
_KNOWN_EVENTS = 0x7FF
# Events whose error stops what is being done; an error of any other is logged and forgotten.
_BINDING = (nri.RUN_POD_SANDBOX, nri.START_CONTAINER)


@dataclass(frozen=True, slots=True, kw_only=True)
class NriTimeouts:
    """As the runtime's configuration has them, in seconds."""

    registration_s: float = 5.0
    request_s: float = 2.0


@dataclass(slots=True, kw_only=True)
class _Plugin:
    link: PluginLink
    told: Registered
    events: int = 0

    def wants(self, event: nri.Event) -> bool:
        return bool(self.events >> (event - 1) & 1)


class NriRuntime:
    """All plugins of one node. One request at a time is under way, whatever it is."""

    def __init__(
        self,
        templates: Templates,
        *,
        version: str,
        timeouts: NriTimeouts,
        now_alive: Callable[[], tuple[tuple[Pod, ...], tuple[ContainerView, ...]]],
    ) -> None:
        self._templates = templates
        self._version = version
        self._timeouts = timeouts
        self._now_alive = now_alive
        self._plugins: list[_Plugin] = []
        self._links: set[PluginLink] = set()
        self._one_request = asyncio.Lock()
        self._changed = asyncio.Condition()
        self.log: list[str] = []
        self.synchronize_s: list[float] = []
        """How long each plugin took to answer Synchronize, oldest first."""

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins that are synchronized, in the order in which they are called, as "00-name"."""
        return tuple(str(plugin.told) for plugin in self._plugins if plugin.link.is_open)

    async def until_plugins(self, count: int) -> None:
        """Returns when so many plugins are synchronized."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.plugins) == count)

    async def serve(self, socket: Path, ready: asyncio.Event) -> None:
        """Accepts plugins, until cancelled; sets `ready` when the socket can be dialled."""
        _make_place(socket)
        async with asyncio.TaskGroup() as group:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                link = PluginLink(reader, writer, request_timeout_s=self._timeouts.request_s)
                self._links.add(link)
                group.create_task(self._serve_plugin(link))

            server = await asyncio.start_unix_server(accept, path=socket)
            try:
                ready.set()
                await asyncio.Event().wait()
            finally:
                server.close()
                for link in self._links:
                    link.close("the runtime ends")
                self._links, self._plugins = set(), []

    async def create_container(self, view: ContainerView) -> None:
        """Lets every plugin that wants to adjust a container that is being made; changes the view's configuration.

        Raises:
            PluginRefused: a plugin refused, or its answer cannot be used.
        """
        adjuster = Adjuster(view.config, self._templates.knows_removal)
        async with self._one_request:
            for plugin in self._wanting(nri.CREATE_CONTAINER):
                try:
                    payload = await plugin.link.call("CreateContainer", self._templates.create(view))
                except PluginGone as exc:
                    await self._drop(plugin, str(exc))
                    continue
                answer = decode(nri.CreateContainerResponse, payload)
                try:
                    adjuster.apply(answer.adjust, plugin=str(plugin.told))
                except Conflict as exc:
                    raise PluginRefused(Status.UNKNOWN, str(exc)) from exc

    async def event(self, kind: nri.Event, *, pod: Pod, view: ContainerView | None = None) -> None:
        """Tells the plugins that want to know; StopContainer is a call of its own.

        Raises:
            PluginRefused: a plugin refused, and the event is one that may be.
        """
        async with self._one_request:
            for plugin in self._wanting(kind):
                try:
                    if kind == nri.STOP_CONTAINER:
                        assert view is not None
                        request = nri.StopContainerRequest(
                            pod=self._templates.pod(pod), container=self._templates.container(view)
                        )
                        await plugin.link.call("StopContainer", request)
                    else:
                        await plugin.link.call("StateChange", self._templates.event(kind, pod=pod, view=view))
                except PluginGone as exc:
                    await self._drop(plugin, str(exc))
                except PluginRefused as exc:
                    if kind in _BINDING:
                        raise
                    self.log.append(f"plugin {plugin.told} failed {nri.Event.Name(kind)}: {exc}")

    def _wanting(self, event: nri.Event) -> list[_Plugin]:
        return [plugin for plugin in self._plugins if plugin.wants(event)]

    async def _serve_plugin(self, link: PluginLink) -> None:
        registered = asyncio.Event()
        told_by: list[_Plugin] = []

        async def register(told: Registered) -> None:
            plugin = _Plugin(link=link, told=told)
            await self._configure(plugin)
            told_by.append(plugin)
            registered.set()

        async with asyncio.TaskGroup() as group:
            serving = group.create_task(link.serve(register, group))
            serving.add_done_callback(lambda _: registered.set())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeouts.registration_s):
                    await registered.wait()
            if told_by:
                await self._synchronize(told_by[0])
            else:
                link.close("the plugin did not register in time")
            await serving
        await self._leave(link)

    async def _configure(self, plugin: _Plugin) -> None:
        request = nri.ConfigureRequest()
        request.CopyFrom(self._templates.configure)
        if not request.runtime_version.startswith(self._version):
            request.runtime_version = self._version
        if request.request_timeout:  # NRI 0.6 does not tell it
            request.registration_timeout = int(self._timeouts.registration_s * 1000)
            request.request_timeout = int(self._timeouts.request_s * 1000)
        answer = decode(nri.ConfigureResponse, await plugin.link.call("Configure", request))
        if answer.events & ~_KNOWN_EVENTS:
            plugin.link.close(f"invalid plugin events: 0x{answer.events & ~_KNOWN_EVENTS:x}")
            raise PluginRefused(Status.UNKNOWN, plugin.link.closed_because)
        plugin.events = answer.events or _KNOWN_EVENTS

    async def _synchronize(self, plugin: _Plugin) -> None:
        async with self._one_request:
            pods, containers = self._now_alive()
            request = nri.SynchronizeRequest(
                pods=[self._templates.pod(pod) for pod in pods],
                containers=[self._templates.container(view) for view in containers],
            )
            asked = time.perf_counter()
            try:
                decode(nri.SynchronizeResponse, await plugin.link.call("Synchronize", request))
            except (PluginGone, PluginRefused) as exc:
                self.log.append(f"failed to synchronize plugin {plugin.told}: {exc}")
                if self._templates.closes_unsynchronized:
                    plugin.link.close(str(exc))
                return
            self.synchronize_s.append(time.perf_counter() - asked)
            self._plugins.append(plugin)
            self._plugins.sort(key=lambda one: one.told.index)
        await self._tell_change()

    async def _drop(self, plugin: _Plugin, reason: str) -> None:
        self.log.append(f"closing plugin {plugin.told}: {reason}")
        plugin.link.close(reason)
        await self._leave(plugin.link)

    async def _leave(self, link: PluginLink) -> None:
        link.close("the plugin closed the connection")
        self._links.discard(link)
        self._plugins = [plugin for plugin in self._plugins if plugin.link is not link]
        await self._tell_change()

    async def _tell_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _make_place(socket: Path) -> None:
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket.parent.chmod(0o700)
    socket.unlink(missing_ok=True)
