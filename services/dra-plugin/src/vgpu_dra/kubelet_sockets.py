"""The two sockets by which kubelet finds this driver, kept there: nobody tells a driver that it was unregistered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from vgpu_daemon import sockets
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_daemon.run import StartFailed
from vgpu_dra import health_service
from vgpu_dra.health_service import HealthReports
from vgpu_dra.kubelet_paths import KubeletPaths
from vgpu_dra.kubelet_service import DraNode, DraServiceV1, DraServiceV1Beta1, RegistrationService

_log = structlog.get_logger()

_LOOK_S = 1.0
_UNANSWERED_S = 30.0  # kubelet may never try a socket again whose registration failed half-way (kubernetes#133725)
_LIMITS = Limits(max_message_bytes=4 << 20)


class KubeletSockets:
    """Serves the DRA service first, then the registration that leads kubelet to it."""

    def __init__(self, node: DraNode, health: HealthReports, paths: KubeletPaths, *, clock: Callable[[], float]) -> None:
        self._paths = paths
        self._clock = clock
        self._services = [DraServiceV1(node), DraServiceV1Beta1(node), *health_service.services(health)]
        self.registration = RegistrationService(
            endpoint=str(paths.service), further_services=health_service.VERSIONS, clock=clock
        )
        self._published_at_s = 0.0

    async def serve(self, stop: asyncio.Event, *, drain_s: float) -> None:
        """Serves until `stop` is set, then drains. A socket that was removed or never answered is published anew.

        To be called by the one writer: what another dra-plugin has left here is then a dead one's, and is cleared away.

        Raises:
            StartFailed: a directory of kubelet's is missing or refuses.
        """
        self._make_directory()
        service, service_id = await self._publish(self._services, self._paths.service)
        registration, registration_id = await self._publish([self.registration], self._paths.registration)
        self._published_at_s = self._clock()
        self._clear_away_dead()
        try:
            while not await _is_set_within(stop, _LOOK_S):
                if not sockets.is_same(self._paths.service, service_id):
                    await service.stop(drain_s)
                    service, service_id = await self._publish(self._services, self._paths.service)
                if not sockets.is_same(self._paths.registration, registration_id) or self._is_unanswered():
                    await registration.stop(drain_s)
                    registration, registration_id = await self._publish([self.registration], self._paths.registration)
                    self._published_at_s = self._clock()
        finally:
            # The registration first: its removal tells kubelet that no call comes here any more.
            sockets.withdraw(self._paths.registration, registration_id)
            await registration.stop(drain_s)
            await service.stop(drain_s)
            sockets.withdraw(self._paths.service, service_id)

    def _make_directory(self) -> None:
        try:
            self._paths.service.parent.mkdir(mode=0o750, exist_ok=True)
        except OSError as exc:
            raise StartFailed(f"cannot make {self._paths.service.parent}: {exc.strerror} (--kubelet-dir)") from exc

    def _clear_away_dead(self) -> None:
        """Sockets of a predecessor that was killed: kubelet would dial them for ever.

        After our own are published, so that kubelet is without this driver no longer than it has to be. The registration first:
        without it nobody asks for the other, and by the other it is found.
        """
        for pair in self._paths.predecessors():
            for path in (pair.registration, pair.service):
                try:
                    if sockets.remove_dead(path):
                        _log.info("removed the socket of a dead predecessor", socket=str(path))
                except OSError as exc:
                    _log.warning("cannot remove the socket of a dead predecessor", socket=str(path), reason=exc.strerror)

    async def _publish(self, services: Collection[object], path: Path) -> tuple[GrpcServer, tuple[int, int]]:
        server = GrpcServer(services, name=path.name, limits=_LIMITS)
        listener = sockets.publish(path, mode=0o600)
        await server.start(listener)
        _log.info("serving kubelet", socket=str(path))
        return server, sockets.identity(path)

    def _is_unanswered(self) -> bool:
        if self.registration.registered_at_s is not None:
            return False
        return self._clock() - self._published_at_s > _UNANSWERED_S


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
