"""Through NRI: a container's partition is made as the container is created, for it alone, and goes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vgpu_dra.cdi import Edits
from vgpu_dra.inventory import Inventory
from vgpu_dra.policy.assigner import Assignment, Granted, Placement
from vgpu_dra.policy.limits import Holder, container_limits
from vgpu_dra.rules import Ratios
from vgpu_state import container_abi, ids
from vgpu_state.claims import Binding, ClaimRecord, PodRef, PreparedVgpu
from vgpu_state.container_abi import Mount
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, RegisterUuid
from vgpu_state.layout import Layout
from vgpu_state.vgpu_config import Limits


class Lazy:
    """Decides at CreateContainer. Until then CDI gives the poison, with which no container starts."""

    keeps_directory = False

    def at_prepare(self, record: ClaimRecord, assignment: Assignment, *, mint: Callable[[], RegisterUuid]) -> ClaimRecord:
        """The record as it is: which container will use which request is not known yet, nor has it to be."""
        del assignment, mint
        return record

    def at_device(self, record: ClaimRecord, result: PreparedVgpu, *, host: Layout) -> Edits:
        """The poison: its source never exists. NRI's mount at the same destination replaces it."""
        del result
        return poisoned(record, host=host)

    def at_create(self, pod: PodRef, container: ContainerName, granted: Sequence[Granted], *, host: Layout) -> Placement:
        """A directory of the container's own, in the lowest of its claims; the limits over the poison, and fresh scratch."""
        home, name = granted[0].record.claim.uid, ids.partition_name(pod.uid, container)
        env = (*container_abi.pod_env(pod.uid, pod.namespace, pod.name), (container_abi.ENV_CONTAINER_NAME, container))
        return Placement(
            claim_uid=home,
            name=name,
            adjustment=Edits(
                mounts=partition_mounts(home, name, host=host),
                # An empty value shadows what an image may carry.
                env=(*env, (container_abi.ENV_REGISTER_UUID, "")),
            ),
        )

    def limits(self, holder: Binding, granted: Sequence[Granted], *, inventory: Inventory, ratios: Ratios) -> Limits:
        """The sum of what the container itself was given."""
        who = Holder(pod=holder.pod, container=holder.container)
        return container_limits(granted, holder=who, inventory=inventory, ratios=ratios)


def partition_mounts(uid: ClaimUid, name: PartitionName, *, host: Layout) -> tuple[Mount, ...]:
    """What a container has of its partition, whoever mounts it: the limits, and fresh scratch."""
    config = Mount(destination=container_abi.CONFIG_DIR, source=str(host.config(uid, name)))
    return (config, *container_abi.scratch_mounts())


def poisoned(record: ClaimRecord, *, host: Layout) -> Edits:
    """Edits with which a container cannot start: the source of their mount never exists."""
    return Edits(mounts=(Mount(destination=container_abi.CONFIG_DIR, source=str(host.poison(record.claim.uid))),))
