"""A gRPC server on a real socket whose one method does what the test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from vgpu_daemon import sockets
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_proto import registrations

Behaviour = Callable[[registrations.RecordPidsRequest], Awaitable[registrations.RecordPidsResponse]]
Serving = Callable[..., AbstractAsyncContextManager[GrpcServer]]


class Service(registrations.RegistrationsBase):
    """RecordPids, by whatever a test wants it to be."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    async def record_pids(self, record_pids_request: registrations.RecordPidsRequest) -> registrations.RecordPidsResponse:
        return await self._behaviour(record_pids_request)


async def say_whether_pids_came(request: registrations.RecordPidsRequest) -> registrations.RecordPidsResponse:
    return registrations.RecordPidsResponse(changed=bool(request.pids))


@pytest.fixture
def socket_path(short_dir: Path) -> Path:
    return short_dir / "s.sock"


@pytest.fixture
def serving(socket_path: Path) -> Serving:
    """Serves at `socket_path` while the context lasts."""

    @asynccontextmanager
    async def serve(behaviour: Behaviour = say_whether_pids_came, limits: Limits | None = None) -> AsyncIterator[GrpcServer]:
        server = GrpcServer([Service(behaviour)], name="test", limits=limits or Limits())
        await server.start(sockets.publish(socket_path, mode=0o600))
        try:
            yield server
        finally:
            await server.stop(1.0)

    return serve
