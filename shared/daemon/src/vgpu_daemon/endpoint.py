"""/livez, /readyz, /metrics over TCP, and the same plus /debug/… as JSON on a unix socket.

It runs on the event loop on purpose: a loop that is blocked shows. Two instances of a process can live at a time, one in charge
and one that waits: the unix socket's plain name is that of the one in charge, and a TCP address is waited for.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from vgpu_daemon import options, sockets
from vgpu_daemon.run import BadUsage, StartFailed

_log = structlog.get_logger()

State = Callable[[], str | None]  # None: all is well; else the sentence that says what is not
Debug = Callable[[], Any]  # Any: whatever JSON can hold

_CLOSE_S = 1.0
_RETRY_S = 1.0


class DebugSocket:
    """The unix socket of one instance: `dra-4711.sock` while it waits, `dra.sock` while it is in charge."""

    def __init__(self, plain: Path) -> None:
        self._plain = plain
        self._path = plain.with_name(f"{plain.stem}-{os.getpid()}{plain.suffix}")
        sockets.check_path(self._path, option=options.RUN_DIR.name)
        self.listener = sockets.publish(self._path, mode=0o600)
        self._identity = sockets.identity(self._path)

    def take_name(self) -> None:
        """Has the plain name from here on, and clears away what instances left that were killed while they waited.

        Raises:
            StartFailed: the directory refuses.
        """
        try:
            self._path.rename(self._plain)
        except OSError as exc:
            raise StartFailed(f"cannot publish socket {self._plain}: {exc.strerror}") from exc
        self._path = self._plain
        for other in self._plain.parent.glob(f"{self._plain.stem}-*{self._plain.suffix}"):
            with suppress(OSError):
                sockets.remove_dead(other)

    def withdraw(self) -> None:
        sockets.withdraw(self._path, self._identity)


class Endpoint:
    """What a process tells of itself."""

    def __init__(self, *, live: State, ready: State, metrics: CollectorRegistry, debug: Mapping[str, Debug]) -> None:
        self._live = live
        self._ready = ready
        self._metrics = metrics
        self._debug = debug

    @asynccontextmanager
    async def serve(self, *, tcp: str, unix: Path) -> AsyncIterator[DebugSocket]:
        """Serves on `tcp` ("HOST:PORT", "" for none) and on a unix socket beside `unix`, until the context ends.

        The unix socket has the name `unix` itself from its `take_name` on. An address that another process has, as a predecessor
        on the host's network, is tried once a second until it is free.

        Raises:
            StartFailed: the address is malformed, or cannot be had.
        """
        try:
            unix.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise StartFailed(f"cannot make {unix.parent}: {exc.strerror} (--run-dir)") from exc
        async with AsyncExitStack() as running:
            debug_socket = DebugSocket(unix)
            running.callback(debug_socket.withdraw)
            private = await _set_up(self._app(with_debug=True), running)
            await web.SockSite(private, debug_socket.listener).start()
            if tcp:
                await _listen_tcp(await _set_up(self._app(with_debug=False), running), tcp, running)
            yield debug_socket

    def _app(self, *, with_debug: bool) -> web.Application:
        app = web.Application()
        app.router.add_get("/livez", _probe(self._live))
        app.router.add_get("/readyz", _probe(self._ready))
        app.router.add_get("/metrics", self._serve_metrics)
        if with_debug:
            for name, show in self._debug.items():
                app.router.add_get(f"/debug/{name}", _json(show))
        return app

    async def _serve_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics), content_type="text/plain", charset="utf-8")


def _probe(state: State) -> Callable[[web.Request], Any]:
    async def serve(_: web.Request) -> web.Response:
        reason = state()
        return web.Response(text="ok\n") if reason is None else web.Response(status=503, text=f"{reason}\n")

    return serve


def _json(show: Debug) -> Callable[[web.Request], Any]:
    async def serve(_: web.Request) -> web.Response:
        return web.json_response(show())

    return serve


async def _set_up(app: web.Application, running: AsyncExitStack) -> web.AppRunner:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_S)
    running.push_async_callback(runner.cleanup)
    await runner.setup()
    return runner


async def _listen_tcp(runner: web.AppRunner, address: str, running: AsyncExitStack) -> None:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise BadUsage(f"--http-listen is {address!r}; expected HOST:PORT")
    try:
        await _bind(runner, host.strip("[]"), int(port))
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise StartFailed(f"cannot listen on {address}: {exc.strerror}") from exc
    else:
        return
    _log.warning("http address is taken, waiting for it", socket=address)
    # Not a task group: it would wrap every error of what runs while the endpoint serves.
    waiting = asyncio.create_task(_bind_once_free(runner, host.strip("[]"), int(port)), name="http address")
    running.push_async_callback(_end, waiting)


async def _bind_once_free(runner: web.AppRunner, host: str, port: int) -> None:
    while True:
        await asyncio.sleep(_RETRY_S)
        with suppress(OSError):
            await _bind(runner, host, port)
            _log.info("http address is free, listening", socket=f"{host}:{port}")
            return


async def _bind(runner: web.AppRunner, host: str, port: int) -> None:
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError:
        await site.stop()  # or the runner would keep it for ever
        raise


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
