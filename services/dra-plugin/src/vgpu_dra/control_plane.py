"""What this process asks and tells the API server, put together: claims, the devices of this node, what a user must see.

Exists only with `--claims-from=api`: a directory of claims needs no cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vgpu_dra.effects.api_claims import ApiClaims
from vgpu_dra.effects.api_events import ApiEvents
from vgpu_dra.effects.api_pods import ApiPods
from vgpu_dra.effects.api_slices import ApiSlices
from vgpu_dra.effects.kube_api import KubeApi
from vgpu_dra.event_documents import Reason
from vgpu_dra.gpus import Gpus
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy import devices
from vgpu_dra.policy.devices import Offer
from vgpu_dra.policy.features import Features
from vgpu_dra.recorder import EventRecorder
from vgpu_dra.rules import OfferRules
from vgpu_dra.slice_publisher import SlicePublisher
from vgpu_dra.taints import Taints
from vgpu_state.ids import NodeName

_LOOK_S = 5.0


class ControlPlane:
    """One connection, and all that goes over it. `node` is the name by which the API server knows this node."""

    def __init__(self, *, node: NodeName, gpus: Gpus, metrics: Metrics, rules: OfferRules, taints: Callable[[], Taints]) -> None:
        def offer(features: Features) -> Offer:
            return devices.offer(gpus.inventory(), rules=rules, features=features, taints=taints())

        self._api = KubeApi()
        self._publisher = SlicePublisher(ApiSlices(self._api, node), offer, metrics, node=node)
        self.claims = ApiClaims(self._api)
        self.pods = ApiPods(self._api)
        self.recorder = EventRecorder(ApiEvents(self._api), metrics, node=node)

    @property
    def fault(self) -> str | None:
        """What a person must mend, or None."""
        return self._publisher.fault

    def offer_changed(self) -> None:
        """Has the devices published anew: the GPUs or their taints changed. To be called on the event loop."""
        self._publisher.offer_changed()

    async def serve(self) -> None:
        """Publishes and tells, until cancelled; then the connection is closed."""
        try:
            async with asyncio.TaskGroup() as running:
                running.create_task(self._publisher.serve(), name="slices")
                running.create_task(self.recorder.serve(), name="events")
                running.create_task(self._tell_faults(), name="faults")
        finally:
            await self._api.close()

    async def _tell_faults(self) -> None:
        told: str | None = None
        while True:
            if self.fault is not None and self.fault != told:
                self.recorder.node(Reason.SLICES_REFUSED, self.fault)
            told = self.fault
            await asyncio.sleep(_LOOK_S)
