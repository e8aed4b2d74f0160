"""/livez, /readyz, /metrics over TCP, and the same plus /debug/… as JSON on a unix socket.

It runs on the event loop on purpose: a loop that is blocked shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from vgpu_daemon import sockets
from vgpu_daemon.run import BadUsage, StartFailed

State = Callable[[], str | None]  # None: all is well; else the sentence that says what is not
Debug = Callable[[], Any]  # Any: whatever JSON can hold

_CLOSE_S = 1.0


class Endpoint:
    """What a process tells of itself."""

    def __init__(self, *, live: State, ready: State, metrics: CollectorRegistry, debug: Mapping[str, Debug]) -> None:
        self._live = live
        self._ready = ready
        self._metrics = metrics
        self._debug = debug

    @asynccontextmanager
    async def serve(self, *, tcp: str, unix: Path) -> Any:  # Any: an async context manager of nothing
        """Serves on `tcp` ("HOST:PORT", "" for none) and on the unix socket, until the context ends.

        Raises:
            StartFailed: the address is malformed or taken.
        """
        try:
            unix.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise StartFailed(f"cannot make {unix.parent}: {exc.strerror} (--run-dir)") from exc
        async with AsyncExitStack() as running:
            private = await _set_up(self._app(with_debug=True), running)
            await web.SockSite(private, sockets.publish(unix, mode=0o600)).start()
            if tcp:
                await _listen_tcp(await _set_up(self._app(with_debug=False), running), tcp)
            yield

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


async def _listen_tcp(runner: web.AppRunner, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise BadUsage(f"--http-listen is {address!r}; expected HOST:PORT")
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
    except OSError as exc:
        raise StartFailed(f"cannot listen on {address}: {exc.strerror}") from exc
