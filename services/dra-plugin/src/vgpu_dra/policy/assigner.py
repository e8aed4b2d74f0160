"""How a container comes to its partition: the interface that has two implementations, `lazy` and `eager`. Pure.

What differs between a node with NRI and one without is behind it and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from vgpu_dra.cdi import Edits
from vgpu_dra.inventory import Inventory
from vgpu_dra.pod_claims import ConsumerPod
from vgpu_dra.rules import Ratios
from vgpu_state.claims import Binding, ClaimRecord, EagerReason, PodRef, PreparedVgpu
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, RegisterUuid
from vgpu_state.layout import Layout
from vgpu_state.vgpu_config import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What is known at Prepare of how a claim's containers come to their partitions: why not through NRI, and the pods then."""

    reason: EagerReason | None = None
    pods: tuple[ConsumerPod, ...] = ()


THROUGH_NRI = Assignment()


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The shares of one claim that a container was given."""

    record: ClaimRecord
    results: tuple[PreparedVgpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A container's partition: in which claim, under which name, and what the runtime must add to the container for it."""

    claim_uid: ClaimUid
    name: PartitionName
    adjustment: Edits


class PartitionAssigner(Protocol):
    """One way to assign partitions. A claim is assigned in one way from its Prepare to its Unprepare."""

    @property
    def keeps_directory(self) -> bool:
        """Whether a partition is there from Prepare to Unprepare, whoever holds it, or comes and goes with its container."""

    def at_prepare(self, record: ClaimRecord, assignment: Assignment, *, mint: Callable[[], RegisterUuid]) -> ClaimRecord:
        """The record with the partitions that are to be made now.

        Raises:
            PreconditionFailed: the pods use the claim in a way that needs the other assigner; says what would lift it.
        """

    def at_device(self, record: ClaimRecord, result: PreparedVgpu, *, host: Layout) -> Edits:
        """What CDI gives with a share, beside the library, its grant and its device: every container of it gets this."""

    def at_create(self, pod: PodRef, container: ContainerName, granted: Sequence[Granted], *, host: Layout) -> Placement:
        """Where a container that was given these shares has its partition. `granted` ascends by claim uid.

        Raises:
            PreconditionFailed: they cannot be held together, or not by this container.
        """

    def limits(self, holder: Binding, granted: Sequence[Granted], *, inventory: Inventory, ratios: Ratios) -> Limits:
        """What the partition's limits file says, by the GPUs of now.

        Raises:
            PreconditionFailed: a GPU is not there any more, or not as it was.
        """
