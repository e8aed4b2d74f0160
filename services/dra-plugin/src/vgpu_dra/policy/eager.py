"""Without NRI: the partitions of a claim are made at Prepare, from which containers of its pod refer to which requests.

Who shares a request shares a partition. CDI gives it, whole, with each of its devices; a container that registers, or that NRI
tells of later, binds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from vgpu_dra.cdi import Edits
from vgpu_dra.inventory import Inventory
from vgpu_dra.policy import components
from vgpu_dra.policy.assigner import Assignment, Granted, Placement
from vgpu_dra.policy.components import Component
from vgpu_dra.policy.lazy import partition_mounts, poisoned
from vgpu_dra.policy.limits import Holder, container_limits
from vgpu_dra.rules import Ratios
from vgpu_state import container_abi, ids
from vgpu_state.claims import (
    Binding,
    ClaimRecord,
    EagerAssignment,
    EagerContainer,
    EagerPartition,
    PodRef,
    PreparedVgpu,
)
from vgpu_state.container_abi import CompatibilityMode
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import ContainerName, PodUid, RegisterUuid
from vgpu_state.layout import Layout
from vgpu_state.vgpu_config import Limits

_REMEDY = "NRI on this node would lift this (feature gate NRISupport, nri-plugin connected to the runtime)"


class Eager:
    """Decides at Prepare. What comes later has to fit."""

    keeps_directory = True

    def at_prepare(self, record: ClaimRecord, assignment: Assignment, *, mint: Callable[[], RegisterUuid]) -> ClaimRecord:
        """The record with a partition for each connected component of the pod's containers and requests."""
        if assignment.reason is None:
            raise ValueError("without a reason the claim is not assigned at Prepare")
        requests = {ids.main_request(r.request) for r in record.vgpus}
        pod, found = components.plan_components(record.claim, requests, assignment.pods)
        registers = record.compatibility is CompatibilityMode.CLIENT
        partitions = tuple(_partition(pod, component, mint() if registers else None) for component in found)
        return replace(record, eager=EagerAssignment(reason=assignment.reason, pod=pod, partitions=partitions))

    def at_device(self, record: ClaimRecord, result: PreparedVgpu, *, host: Layout) -> Edits:
        """The partition itself. A request that no container refers to has none, and comes with the poison."""
        eager = _eager(record)
        partition = eager.partition_of(result.request)
        if partition is None:
            return poisoned(record, host=host)
        pod, container = eager.pod, partition.sole_container
        named = ((container_abi.ENV_CONTAINER_NAME, container),) if container else ()
        return Edits(
            mounts=partition_mounts(record.claim.uid, partition.name, host=host),
            env=(
                *container_abi.pod_env(pod.uid, pod.namespace, pod.name),
                *named,
                (container_abi.ENV_REGISTER_UUID, partition.register_uuid or ""),
            ),
        )

    def at_create(self, pod: PodRef, container: ContainerName, granted: Sequence[Granted], *, host: Layout) -> Placement:
        """The partition that was made for it; there is nothing to add."""
        del host
        who = f"container {container} of pod {pod}"
        if len(granted) > 1:
            names = " and ".join(str(g.record.claim) for g in granted)
            raise PreconditionFailed(
                f"{who} has shares of claims {names}, and partitions of one of them at least were made without NRI, each for "
                f"one claim alone; {_REMEDY} for pods that are created then"
            )
        record, results = granted[0].record, granted[0].results
        partition = _eager(record).partition_of(results[0].request)
        is_one = all(_eager(record).partition_of(r.request) is partition for r in results)
        if partition is None or not is_one or not is_candidate(record, partition, pod.uid, container):
            raise PreconditionFailed(
                f"{who} has request {results[0].request} of claim {record.claim}, whose partition was made without NRI for "
                f"{candidates(record, partition)}; {_REMEDY} for claims that are prepared then"
            )
        return Placement(claim_uid=record.claim.uid, name=partition.name, adjustment=Edits())

    def limits(self, holder: Binding, granted: Sequence[Granted], *, inventory: Inventory, ratios: Ratios) -> Limits:
        """What the file has said since Prepare: the sum over the partition's requests, whichever of them the holder was given."""
        record, results = granted[0].record, granted[0].results
        partition = _eager(record).partition_of(results[0].request)
        if partition is None:
            raise PreconditionFailed(f"{holder}: request {results[0].request} of claim {record.claim} has no partition")
        return partition_limits(record, partition, inventory=inventory, ratios=ratios)


def partition_limits(record: ClaimRecord, partition: EagerPartition, *, inventory: Inventory, ratios: Ratios) -> Limits:
    """The limits file of a partition that is made at Prepare.

    Raises:
        PreconditionFailed: as for `container_limits`.
    """
    pod = _eager(record).pod
    holder = Holder(pod=pod, container=partition.sole_container, register_uuid=partition.register_uuid or "")
    granted = Granted(record=record, results=partition_results(record, partition))
    return container_limits((granted,), holder=holder, inventory=inventory, ratios=ratios)


def partition_results(record: ClaimRecord, partition: EagerPartition) -> tuple[PreparedVgpu, ...]:
    """The shares that a partition is over."""
    return tuple(r for r in record.vgpus if ids.main_request(r.request) in partition.requests)


def is_candidate(record: ClaimRecord, partition: EagerPartition, pod_uid: PodUid, container: ContainerName) -> bool:
    """Whether the partition was made for this container among others. "" is one that does not say which it is."""
    return pod_uid == _eager(record).pod.uid and container in {"", *(c.name for c in partition.containers)}


def candidates(record: ClaimRecord, partition: EagerPartition | None) -> str:
    """For whom the partition was made, for a message."""
    if partition is None:
        return "no container"
    return f"{', '.join(c.name for c in partition.containers)} of pod {_eager(record).pod}"


def check_sole_claim(record: ClaimRecord, assignment: Assignment, *, others: Collection[ClaimRecord]) -> None:
    """Returns when no container of the claim uses another claim of ours too.

    Raises:
        PreconditionFailed: naming the container and both claims.
    """
    shared = {(other.claim.namespace, other.claim.name): other.claim for other in others if other.vgpus}
    for pod in assignment.pods:
        for container in pod.containers:
            for name in container.other_claims:
                if (other := shared.get((pod.pod.namespace, name))) is not None:
                    raise PreconditionFailed(
                        f"claim {record.claim} cannot be prepared without NRI: container {container.name} of pod {pod.pod} uses "
                        f"claim {other} too, and one container has the shares of one claim then; use one claim with several "
                        f"requests, or {_REMEDY}"
                    )


def _partition(pod: PodRef, component: Component, register_uuid: RegisterUuid | None) -> EagerPartition:
    return EagerPartition(
        name=components.component_key(pod.uid, component),
        containers=tuple(EagerContainer(name=c.name, kind=c.kind) for c in component.containers),
        requests=component.requests,
        register_uuid=register_uuid,
    )


def _eager(record: ClaimRecord) -> EagerAssignment:
    if record.eager is None:
        raise ValueError(f"the partitions of claim {record.claim} were not made at Prepare")
    return record.eager
