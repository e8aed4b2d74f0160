"""A DRA plugin whose every answer a test chooses: real grpclib servers on real unix sockets, right unless told otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

from grpclib.const import Handler

from vgpu_proto import dra_v1, dra_v1beta1, pluginregistration
from vgpu_testkit.kubelet import Kubelet
from vgpu_testkit.kubelet_pod_resources import EndingServer
from vgpu_testkit.kubelet_values import Claim, Timings

DRIVER = "gpu.example.com"
UID_A = "11111111-1111-4111-8111-111111111111"
UID_B = "22222222-2222-4222-8222-222222222222"
CLAIM_A = Claim(namespace="team", name="claim-a", uid=UID_A)
CLAIM_B = Claim(namespace="team", name="claim-b", uid=UID_B)


class Registration(pluginregistration.RegistrationBase):
    """Answers GetInfo with `info` once `before_info` returned, and records every status it is notified of."""

    def __init__(
        self,
        info: pluginregistration.PluginInfo,
        *,
        before_info: Callable[[], Awaitable[object]] | None = None,
        before_status: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.statuses: list[tuple[bool, str]] = []
        self.info_calls = 0
        self._info = info
        self._before_info = before_info
        self._before_status = before_status

    async def get_info(self, info_request: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        self.info_calls += 1
        if self._before_info is not None:
            await self._before_info()
        return self._info

    async def notify_registration_status(
        self, registration_status: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        self.statuses.append((registration_status.plugin_registered, registration_status.error))
        if self._before_status is not None:
            await self._before_status()
        return pluginregistration.RegistrationStatusResponse()


class PrepareResponder(Protocol):
    """Makes a whole NodePrepareResources response for a request."""

    async def __call__(self, request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse: ...


class UnprepareResponder(Protocol):
    """Makes a whole NodeUnprepareResources response for a request."""

    async def __call__(self, request: dra_v1.NodeUnprepareResourcesRequest) -> dra_v1.NodeUnprepareResourcesResponse: ...


def device(uid: str, *, request: str = "gpu", name: str = "gpu-0") -> dra_v1.Device:
    """A valid device of claim `uid`, with one CDI id."""
    return dra_v1.Device(
        request_names=[request],
        pool_name="node-1",
        device_name=name,
        cdi_device_ids=[f"gpu.example.com/claim={uid}-{request}"],
    )


async def prepare_rightly(request: dra_v1.NodePrepareResourcesRequest) -> dra_v1.NodePrepareResourcesResponse:
    return dra_v1.NodePrepareResourcesResponse(
        claims={claim.uid: dra_v1.NodePrepareResourceResponse(devices=[device(claim.uid)]) for claim in request.claims}
    )


async def unprepare_rightly(request: dra_v1.NodeUnprepareResourcesRequest) -> dra_v1.NodeUnprepareResourcesResponse:
    return dra_v1.NodeUnprepareResourcesResponse(
        claims={claim.uid: dra_v1.NodeUnprepareResourceResponse() for claim in request.claims}
    )


class ServiceV1(dra_v1.DraPluginBase):
    """The v1 service; records the uids of every call before it answers."""

    def __init__(
        self,
        prepare: PrepareResponder = prepare_rightly,
        unprepare: UnprepareResponder = unprepare_rightly,
    ) -> None:
        self.prepared: list[tuple[str, ...]] = []
        self.unprepared: list[tuple[str, ...]] = []
        self._prepare = prepare
        self._unprepare = unprepare

    async def node_prepare_resources(
        self, node_prepare_resources_request: dra_v1.NodePrepareResourcesRequest
    ) -> dra_v1.NodePrepareResourcesResponse:
        self.prepared.append(tuple(claim.uid for claim in node_prepare_resources_request.claims))
        return await self._prepare(node_prepare_resources_request)

    async def node_unprepare_resources(
        self, node_unprepare_resources_request: dra_v1.NodeUnprepareResourcesRequest
    ) -> dra_v1.NodeUnprepareResourcesResponse:
        self.unprepared.append(tuple(claim.uid for claim in node_unprepare_resources_request.claims))
        return await self._unprepare(node_unprepare_resources_request)


class ServiceV1Beta1(dra_v1beta1.DraPluginBase):
    """The v1beta1 service, always right; records the uids of every Prepare."""

    def __init__(self) -> None:
        self.prepared: list[tuple[str, ...]] = []

    async def node_prepare_resources(
        self, node_prepare_resources_request: dra_v1beta1.NodePrepareResourcesRequest
    ) -> dra_v1beta1.NodePrepareResourcesResponse:
        self.prepared.append(tuple(claim.uid for claim in node_prepare_resources_request.claims))
        answer = await prepare_rightly(dra_v1.NodePrepareResourcesRequest().parse(bytes(node_prepare_resources_request)))
        return dra_v1beta1.NodePrepareResourcesResponse().parse(bytes(answer))


class Servable(Protocol):
    """What grpclib serves."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


@asynccontextmanager
async def served(path: Path, *services: Servable) -> AsyncIterator[None]:
    """The services on a unix socket, whose file goes away at the end."""
    server = EndingServer(list(services))
    with _socket_file(path):
        await server.start(path=str(path))
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()


@asynccontextmanager
async def registered(
    kubelet_dir: Path, *services: Servable, release: str = "1.36", timings: Timings | None = None
) -> AsyncIterator[Kubelet]:
    """A kubelet with one plugin of the services, registered and connected, which offers v1."""
    endpoint = kubelet_dir / "plugins" / "dra.sock"
    registration = Registration(plugin_info(endpoint, "v1.DRAPlugin"))
    async with (
        served(endpoint, *services),
        served(kubelet_dir / "plugins_registry" / "r.sock", registration),
        Kubelet(kubelet_dir, release=release, timings=timings) as kubelet,
    ):
        await kubelet.until(lambda: bool(kubelet.connected_endpoints(DRIVER)))
        yield kubelet


def plugin_info(endpoint: Path | str, *versions: str, driver: str = DRIVER) -> pluginregistration.PluginInfo:
    """GetInfo's answer of a DRA plugin."""
    return pluginregistration.PluginInfo(type="DRAPlugin", name=driver, endpoint=str(endpoint), supported_versions=list(versions))


@contextmanager
def _socket_file(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
