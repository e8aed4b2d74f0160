"""What is to be known before a claim is prepared: the claim itself, and how its containers will come to their partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from vgpu_dra import inventory
from vgpu_dra.allocation import Allocation
from vgpu_dra.pod_claims import ConsumerPod
from vgpu_dra.policy.assigner import THROUGH_NRI, Assignment
from vgpu_state.claims import ClaimRef, EagerReason


class Source(Protocol):
    """Where ResourceClaims come from. NotReady is what may be otherwise in a moment."""

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]: ...


class Mode(Protocol):
    """Whether NRI is there. It may take seconds to say that it is not."""

    async def choose(self) -> EagerReason | None: ...


class Consumers(Protocol):
    """The pods that a claim is reserved for."""

    async def pods_of(self, doc: Mapping[str, Any], claim: ClaimRef) -> tuple[ConsumerPod, ...]: ...


class ClaimLookup:
    """Asks everyone who knows."""

    def __init__(self, source: Source, mode: Mode, consumers: Consumers) -> None:
        self._source = source
        self._mode = mode
        self._consumers = consumers

    async def fetch(self, claim: ClaimRef) -> Mapping[str, Any]:
        """The ResourceClaim.

        Raises:
            VgpuError: there is none, or it cannot be had now.
        """
        return await self._source.fetch(claim)

    async def assignment(self, doc: Mapping[str, Any], allocation: Allocation) -> Assignment:
        """Through NRI where it is there; else the reason and the claim's pods.

        Raises:
            VgpuError: the pods are needed, and cannot be had.
        """
        if not any(inventory.names_share(result.device) for result in allocation.results):
            return THROUGH_NRI  # whole GPUs and MIG devices need no partition
        reason = await self._mode.choose()
        if reason is None:
            return THROUGH_NRI
        return Assignment(reason=reason, pods=await self._consumers.pods_of(doc, allocation.claim))
