"""The publishing loop at work against an API server over HTTP, and what a test does to its node meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kubernetes_asyncio import client

from vgpu_dra.effects.api_slices import ApiSlices
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.inventory import Inventory
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy import devices
from vgpu_dra.policy.features import Features
from vgpu_dra.rules import OfferRules
from vgpu_dra.slice_publisher import Pace, SlicePublisher
from vgpu_dra.taints import Taint, Taints
from vgpu_state.errors import NotReady
from vgpu_state.ids import NodeName
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.dra_values import INVENTORY, gpu_uuid

NODE = NodeName("node-a")
# Waits of a real cluster are minutes. A watch that ends has at least a second, the API's unit.
PACE = Pace(
    settle_s=0.02, calm_s=0.05, recheck_s=0.2, poll_s=600.0, watch_s=300.0, retry_s=0.02, refused_s=0.05, chance=lambda: 1.0
)


ONE_GPU = replace(INVENTORY, gpus=INVENTORY.gpus[:1])


@dataclass
class Publishing:
    """A publisher at work; `inventory` is what the node has, None while nobody knows."""

    server: ApiServer
    metrics: Metrics
    inventory: Inventory | None
    taints: Taints = field(default_factory=dict)
    publisher: SlicePublisher | None = None

    def offer(self, features: Features) -> devices.Offer:
        if self.inventory is None:
            raise NotReady("the GPUs of this node are not known")
        return devices.offer(self.inventory, rules=OfferRules(), features=features, taints=self.taints)

    def becomes(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._say()

    def falls_ill(self, index: int, *taints: Taint) -> None:
        """A GPU has these taints, and no others, from now on."""
        self.taints = {**self.taints, gpu_uuid(index): taints}
        self._say()

    def _say(self) -> None:
        assert self.publisher is not None
        self.publisher.offer_changed()

    @property
    def fault(self) -> str | None:
        assert self.publisher is not None
        return self.publisher.fault

    def devices(self) -> list[list[str]]:
        return [[d["name"] for d in s["spec"].get("devices", [])] for s in self.server.slices]

    def pools(self) -> list[tuple[int, int]]:
        pools = [s["spec"]["pool"] for s in self.server.slices]
        return [(p["generation"], p["resourceSliceCount"]) for p in pools]

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    async def until_quiet(self) -> None:
        """Returns when the publisher has looked again after its last write, and watches."""
        await self.server.until(lambda: self.server.watches == 1 and self._has_looked_again())

    def _has_looked_again(self) -> bool:
        verbs = [r.verb for r in self.server.requests if r.status < 300]
        after = list(itertools.takewhile(lambda verb: verb not in ("create", "update", "delete"), reversed(verbs)))
        return len(after) < len(verbs) and "list" in after


@asynccontextmanager
async def publishing(server: ApiServer, *, pace: Pace = PACE, inventory: Inventory | None = ONE_GPU) -> AsyncIterator[Publishing]:
    metrics = Metrics()
    async with server.serve() as address:

        async def connect() -> Any:
            return client.ApiClient(client.Configuration(host=address))

        api = KubeApi(connect)
        bench = Publishing(server, metrics, inventory)
        bench.publisher = SlicePublisher(ApiSlices(api, NODE), bench.offer, metrics, node=NODE, pace=pace)
        serving = asyncio.get_running_loop().create_task(bench.publisher.serve())
        try:
            yield bench
        finally:
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            await api.close()


def gpus(number: int) -> Inventory:
    return replace(INVENTORY, gpus=INVENTORY.gpus[:number])
