"""The two sockets by which kubelet finds this driver, kept there: nobody tells a driver that it was unregistered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import structlog

from vgpu_daemon import sockets
from vgpu_daemon.grpc_server import GrpcServer, Limits
from vgpu_daemon.run import StartFailed
from vgpu_dra import inventory
from vgpu_dra.kubelet_service import DraNode, DraServiceV1, DraServiceV1Beta1, RegistrationService

_log = structlog.get_logger()

_LOOK_S = 1.0
_UNANSWERED_S = 30.0  # kubelet may never try a socket again whose registration failed half-way (kubernetes#133725)
_LIMITS = Limits(max_message_bytes=4 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPaths:
    """Where kubelet looks; the same path inside and outside of our container, since kubelet dials the text."""

    service: Path
    registration: Path

    @classmethod
    def below(cls, kubelet_dir: Path) -> KubeletPaths:
        return cls(
            service=kubelet_dir / "plugins" / inventory.DRIVER / "dra.sock",
            registration=kubelet_dir / "plugins_registry" / f"{inventory.DRIVER}-reg.sock",
        )


class KubeletSockets:
    """Serves the DRA service first, then the registration that leads kubelet to it."""

    def __init__(self, node: DraNode, paths: KubeletPaths, *, clock: Callable[[], float]) -> None:
        self._paths = paths
        self._clock = clock
        self._services = [DraServiceV1(node), DraServiceV1Beta1(node)]
        self.registration = RegistrationService(endpoint=str(paths.service), clock=clock)
        self._published_at_s = 0.0

    async def serve(self, stop: asyncio.Event, *, drain_s: float) -> None:
        """Serves until `stop` is set, then drains. A socket that was removed or never answered is published anew.

        Raises:
            StartFailed: a directory of kubelet's is missing or refuses.
        """
        self._make_directory()
        service, service_id = await self._publish(self._services, self._paths.service)
        registration, registration_id = await self._publish([self.registration], self._paths.registration)
        self._published_at_s = self._clock()
        try:
            while not await _is_set_within(stop, _LOOK_S):
                if _differs(self._paths.service, service_id):
                    await service.stop(drain_s)
                    service, service_id = await self._publish(self._services, self._paths.service)
                if _differs(self._paths.registration, registration_id) or self._is_unanswered():
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


def _differs(path: Path, expected: tuple[int, int]) -> bool:
    try:
        return sockets.identity(path) != expected
    except OSError:
        return True


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
