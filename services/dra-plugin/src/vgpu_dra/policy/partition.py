"""Who holds what: exclusive requests, by runtime id. Pure: who lives comes as an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from vgpu_dra import cdi
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_state import container_abi, ids
from vgpu_state.claims import Binding, ClaimRecord, HolderState, PreparedVgpu
from vgpu_state.container_abi import Mount
from vgpu_state.errors import NotReady, PreconditionFailed, Superseded
from vgpu_state.ids import PartitionName, RequestName
from vgpu_state.layout import Layout

NEVER_STARTED_GRACE_S = 120.0  # between create and start a container has no cgroup to look at


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """The partition is this runtime id's already: nothing is written."""

    binding: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """A fresh directory for `binding`; what stands under its name goes, and `evicted` holders lose their requests."""

    binding: Binding
    evicted: Mapping[PartitionName, Binding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Who holds the claim's requests now, and which of the others than the container itself live.

    `may_evict`: the runtime has told which containers live.
    """

    record: ClaimRecord
    bindings: Mapping[PartitionName, Binding]
    live: frozenset[PartitionName]
    may_evict: bool


def plan_ensure(facts: ContainerFacts, *, results: Iterable[PreparedVgpu], holders: Holders, session: int) -> Confirm | Make:
    """What EnsurePartition does for this container.

    A newer runtime id of the same (pod, container) takes over; another live holder of one of its requests refuses it; one
    that is dead, whose Stop was lost, is evicted, though not before the runtime has told which containers live (`may_evict`).

    Raises:
        Superseded: this runtime id was stopped already.
        PreconditionFailed: a live container holds a request; the message has both names.
        NotReady: a holder looks dead, and the runtime's list of containers has not come yet.
    """
    name = ids.partition_name(facts.pod.uid, facts.name)
    held = holders.bindings.get(name)
    if held is not None and held.runtime_id == facts.runtime_id:
        if held.state is HolderState.STOPPED:
            raise Superseded(f"{facts} ({facts.runtime_id[:12]}) was stopped; a new container is needed")
        return Confirm(binding=held)
    wanted = tuple(results)
    evicted: dict[PartitionName, Binding] = {}
    for other, binding in holders.bindings.items():
        shared = _shared_requests(binding, wanted, record=holders.record)
        if other == name or binding.state is HolderState.STOPPED or not shared:
            continue
        if other in holders.live:
            raise PreconditionFailed(
                f"{facts} wants request {shared[0]} of claim {holders.record.claim}, which container {binding.container} of pod "
                f"{binding.pod.namespace}/{binding.pod.name} holds; one live container may hold a vGPU request"
            )
        if not holders.may_evict:
            raise NotReady(f"{facts}: the runtime has not yet said which containers live; request {shared[0]} may still be held")
        evicted[other] = stopped(binding)
    binding = Binding(
        pod=facts.pod,
        container=facts.name,
        runtime_id=facts.runtime_id,
        session=session,
        cgroup="",
        state=HolderState.CREATED,
        grants=tuple(r.grant.key for r in wanted),
    )
    return Make(binding=binding, evicted=evicted)


def stopped(binding: Binding) -> Binding:
    return replace(binding, state=HolderState.STOPPED)


def is_holder_live(binding: Binding, *, still_runs: Callable[[], bool], age_s: float) -> bool:
    """Whether a holder still counts: by its processes, or, before its first one, by its age.

    `still_runs` is asked only where its answer decides: it may be a walk over many cgroups.
    """
    if binding.state is HolderState.STOPPED:
        return False
    return (not binding.is_started and age_s < NEVER_STARTED_GRACE_S) or still_runs()


def adjustment_mounts(record: ClaimRecord, partition: PartitionName, *, host: Layout) -> tuple[Mount, ...]:
    """What NRI adds: the container's own limits over the poison, and fresh scratch."""
    config = Mount(destination=container_abi.CONFIG_DIR, source=str(host.config(record.claim.uid, partition)))
    return (config, *container_abi.scratch_mounts())


def container_mounts(record: ClaimRecord, partition: PartitionName, *, host: Layout, library_version: str) -> tuple[Mount, ...]:
    """Every mount of ours that a started container has: CDI's, with NRI's in place of those at the same destination."""
    given = cdi.claim_mounts(record.claim.uid, host=host, library_version=library_version)
    added = adjustment_mounts(record, partition, host=host)
    return tuple({m.destination: m for m in (*given, *added)}.values())


def adjustment_env(binding: Binding) -> tuple[tuple[str, str], ...]:
    """What NRI sets: who the container is, for the library's client. An empty value shadows what an image may carry."""
    return (
        (container_abi.ENV_POD_NAME, binding.pod.name),
        (container_abi.ENV_POD_NAMESPACE, binding.pod.namespace),
        (container_abi.ENV_POD_UID, binding.pod.uid),
        (container_abi.ENV_CONTAINER_NAME, binding.container),
        (container_abi.ENV_REGISTER_UUID, ""),
    )


def _shared_requests(binding: Binding, wanted: tuple[PreparedVgpu, ...], *, record: ClaimRecord) -> list[RequestName]:
    by_key = record.vgpu_by_key()
    held = {by_key[k].request for k in binding.grants if k in by_key}
    return sorted(held & {r.request for r in wanted})
