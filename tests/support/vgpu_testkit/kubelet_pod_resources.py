"""kubelet's podresources socket: what it gave the containers of a pod, told as the real one tells it.

Written from kubelet's source, without our own client: pods and their claims come from the test, devices from what was prepared.

Source: kubelet pkg/kubelet/apis/podresources/server_v1.go, cm/container_manager_linux.go (GetDynamicResources), cm/dra/manager.go
(GetContainerClaimInfos), apis/podresources/constants.go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from vgpu_proto import podresources
from vgpu_testkit.kubelet_claims import ClaimCache
from vgpu_testkit.kubelet_values import Device

_CALLS_PER_S = 100.0
_BURST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletPod:
    """A pod as kubelet knows it. Containers by name, each with the names of the ResourceClaims that it uses.

    `init` are those that run to their end before the others, which kubelet does not list; `sidecars` are restartable ones.
    """

    namespace: str
    name: str
    containers: Mapping[str, tuple[str, ...]]
    init: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sidecars: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class EndingServer(Server):
    """Closes its connections, too, when it is closed: grpclib leaves them to the end of the process."""

    _protocols: tuple[H2Protocol, ...] = ()

    def close(self) -> None:
        super().close()
        for protocol in self._protocols:
            protocol.processor.close()

    def _protocol_factory(self) -> H2Protocol:
        protocol = super()._protocol_factory()
        self._protocols += (protocol,)
        return protocol


class PodResources:
    """Serves while kubelet runs. `is_hung` keeps every call waiting, `fails_with` ends it so; `calls` counts all of them."""

    def __init__(
        self, kubelet_dir: Path, claims: ClaimCache, *, release: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.socket = kubelet_dir / "pod-resources" / "kubelet.sock"
        self.is_hung = False
        self.fails_with = Status.OK
        self.calls = 0
        self._claims = claims
        self._minor = int(release.partition(".")[2])
        self._pods: dict[tuple[str, str], KubeletPod] = {}
        self._server: Server | None = None
        self._clock = clock
        self._tokens = float(_BURST)
        self._counted_at = clock()

    def note(self, pod: KubeletPod) -> None:
        """kubelet has this pod from now on, instead of one of the same name."""
        self._pods[pod.namespace, pod.name] = pod

    async def start(self) -> None:
        self.socket.parent.mkdir(mode=0o750, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        self._server = EndingServer([self])
        await self._server.start(path=str(self.socket))

    async def stop(self) -> None:
        """Ends as a process does: the socket stays, and nobody accepts."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    def __mapping__(self) -> dict[str, Handler]:
        request, response = podresources.GetPodResourcesRequest, podresources.GetPodResourcesResponse
        return {"/v1.PodResourcesLister/Get": Handler(self._get, Cardinality.UNARY_UNARY, request, response)}

    async def _get(self, stream: Any) -> None:
        request = await stream.recv_message()
        self.calls += 1
        if self.is_hung:
            await asyncio.Event().wait()
        if self.fails_with is not Status.OK:
            raise GRPCError(self.fails_with, "an error that the test wanted")
        await stream.send_message(self._answer(request))

    def _answer(self, request: podresources.GetPodResourcesRequest) -> podresources.GetPodResourcesResponse:
        self._limit()
        if self._minor < 34:
            raise GRPCError(Status.UNKNOWN, "PodResources API Get method disabled")
        pod = self._pods.get((request.pod_namespace, request.pod_name))
        if pod is None:
            raise GRPCError(Status.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        answer = podresources.GetPodResourcesResponse()
        answer.pod_resources.name, answer.pod_resources.namespace = pod.name, pod.namespace
        for name, uses in {**pod.sidecars, **pod.containers}.items():
            answer.pod_resources.containers.add(name=name, dynamic_resources=self._dynamic_resources(pod, uses))
        return answer

    def _dynamic_resources(self, pod: KubeletPod, uses: tuple[str, ...]) -> list[podresources.DynamicResource]:
        found = []
        for claim in uses:
            devices = self._claims.devices_by_driver(pod.namespace, claim)
            if devices is None:
                return []  # the real one logs it, and says nothing of the other claims either
            resources = [r for driver, given in devices.items() for r in self._claim_resources(driver, given)]
            found.append(podresources.DynamicResource(claim_name=claim, claim_namespace=pod.namespace, claim_resources=resources))
        return found

    def _claim_resources(self, driver: str, devices: tuple[Device, ...]) -> list[podresources.ClaimResource]:
        ids: list[podresources.CDIDevice] = []
        resources = []
        for device in devices:
            ids += [podresources.CDIDevice(name=cdi_id) for cdi_id in device.cdi_device_ids]  # of all before it, too
            resource = podresources.ClaimResource(
                cdi_devices=ids, driver_name=driver, pool_name=device.pool_name, device_name=device.device_name
            )
            if device.share_id is not None and self._minor >= 35:
                resource.share_id = device.share_id
            resources.append(resource)
        return resources

    def _limit(self) -> None:
        now = self._clock()
        self._tokens = min(_BURST, self._tokens + (now - self._counted_at) * _CALLS_PER_S)
        self._counted_at = now
        if self._tokens < 1:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1
