"""The pods that a claim is reserved for, looked up where it came from: needed where partitions are made at Prepare.

Who of them uses the claim is read by `pod_claims`; what follows from that is decided elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from vgpu_dra.allocation import reserved_pods
from vgpu_dra.pod_claims import ConsumerPod, consumer_pod, has_ended
from vgpu_state.claims import ClaimRef, PodRef
from vgpu_state.errors import VgpuError
from vgpu_state.ids import PodUid

_AT_ONCE = 8  # a claim may be reserved for 256 pods, and the nodes without NRI ask one API server


class PodSource(Protocol):
    """Where pods come from. NotReady is what may be otherwise in a moment.

    None: there is no such pod any more. A pod of that name with another uid may be told of in either way.
    """

    async def fetch_pod(self, pod: PodRef) -> Mapping[str, Any] | None: ...


class ClaimConsumers:
    """Reads the pods of a claim, of one claim several at a time."""

    def __init__(self, source: PodSource) -> None:
        self._source = source

    async def pods_of(self, doc: Mapping[str, Any], claim: ClaimRef) -> tuple[ConsumerPod, ...]:
        """The pods that the claim `doc` is reserved for, in its order, without those that are gone or have ended.

        It takes as long as the source does: the caller says how long that may be.

        Raises:
            MalformedInput: the claim's status.reservedFor or a pod is not of its form.
            NotReady: a pod cannot be looked up at this moment.
            PreconditionFailed, StorageFailed: it cannot be looked up until someone acts.
        """
        reserved = reserved_pods(doc)
        found: dict[PodUid, ConsumerPod] = {}
        refusals: list[VgpuError] = []
        left = iter(reserved)

        async def look_up() -> None:
            for pod in left:
                if refusals:
                    return  # no need to learn 256 times that the API server is away
                try:
                    document = await self._source.fetch_pod(pod)
                    if document is not None and not has_ended(document):
                        consumer = consumer_pod(document, claim)
                        found[consumer.pod.uid] = consumer
                except VgpuError as exc:
                    refusals.append(exc)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(reserved))):
                group.create_task(look_up(), name=f"pods of claim {claim.uid}")
        if refusals:
            raise refusals[0]
        return tuple(found[pod.uid] for pod in reserved if pod.uid in found)
