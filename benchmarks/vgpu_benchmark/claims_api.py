"""An API server with ResourceClaims: the stand-in's slices and nodes, and the claims that a benchmark puts there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.manifests import Manifest

_ROUTE = "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


class ClaimsApi:
    """The server; `slices` counts what is written to it."""

    def __init__(self, *, node: str) -> None:
        self.slices = ApiServer(node=node)
        self._claims: dict[tuple[str, str], dict[str, Any]] = {}

    def put(self, claim: Manifest) -> None:
        self._claims[claim.namespace, claim.name] = claim.document()

    def drop(self, claim: Manifest) -> None:
        del self._claims[claim.namespace, claim.name]

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serves on a port of its own; its address."""
        app = web.Application()
        self.slices.add_routes(app)
        app.router.add_get(_ROUTE, self._get)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _get(self, request: web.Request) -> web.Response:
        found = self._claims.get((request.match_info["namespace"], request.match_info["name"]))
        if found is None:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        return web.json_response(found)
