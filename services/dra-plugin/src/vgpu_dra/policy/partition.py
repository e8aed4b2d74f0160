"""Who holds what: exclusive requests, by runtime id. Pure: who lives comes as an argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.assigner import Granted, Placement
from vgpu_state.claims import Binding, HolderState
from vgpu_state.errors import NotReady, PreconditionFailed, Superseded
from vgpu_state.ids import ClaimUid, PartitionName, RequestName

NEVER_STARTED_GRACE_S = 120.0  # between create and start a container has no cgroup to look at


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """The partition is this runtime id's already: nothing is written."""

    binding: Binding


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """`binding` for the container's home, the `references` to it for its other claims; `evicted` holders lose their requests."""

    binding: Binding
    references: Mapping[ClaimUid, Binding]
    evicted: Sequence[tuple[ClaimUid, PartitionName, Binding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Who holds a claim's requests now, which of them live, and what the container was given of it."""

    granted: Granted
    bindings: Mapping[PartitionName, Binding]
    live: frozenset[PartitionName]


def plan_ensure(
    facts: ContainerFacts, *, placement: Placement, claims: Sequence[Holders], session: int, may_evict: bool
) -> Confirm | Make:
    """What EnsurePartition does for this container, whose partition is in the first of `claims`.

    A newer runtime id of the same (pod, container) takes over; another live holder of one of its requests, or of its partition,
    refuses it; one that is dead, whose Stop was lost, is evicted, though not before the runtime has told which containers live
    (`may_evict`).

    Raises:
        Superseded: this runtime id was stopped already.
        PreconditionFailed: a live container holds a request; the message has both names.
        NotReady: a holder looks dead, and the runtime's list of containers has not come yet.
    """
    name = placement.name
    held = claims[0].bindings.get(name)
    if held is not None and held.runtime_id == facts.runtime_id:
        if held.state is HolderState.STOPPED:
            raise Superseded(f"{facts} ({facts.runtime_id[:12]}) was stopped; a new container is needed")
        return Confirm(binding=held)
    evicted: list[tuple[ClaimUid, PartitionName, Binding]] = []
    for claim in claims:
        uid = claim.granted.record.claim.uid
        dead = _dead_holders(facts, claim, own=name, may_evict=may_evict)
        evicted += [(uid, other, stopped(claim.bindings[other])) for other in dead if other != name]  # its own is replaced
    binding = Binding(
        pod=facts.pod,
        container=facts.name,
        runtime_id=facts.runtime_id,
        session=session,
        cgroup="",
        state=HolderState.CREATED,
        grants=tuple(r.grant.key for claim in claims for r in claim.granted.results),
    )
    references = {
        claim.granted.record.claim.uid: replace(
            binding, home=placement.claim_uid, grants=tuple(r.grant.key for r in claim.granted.results)
        )
        for claim in claims[1:]
    }
    return Make(binding=binding, references=references, evicted=evicted)


def is_held_by(binding: Binding, facts: ContainerFacts) -> bool:
    """Whether the holder is the same container of the same pod, in whichever attempt."""
    return (binding.pod.uid, binding.container) == (facts.pod.uid, facts.name)


def stopped(binding: Binding) -> Binding:
    return replace(binding, state=HolderState.STOPPED)


def is_holder_live(binding: Binding, *, still_runs: Callable[[], bool], age_s: float) -> bool:
    """Whether a holder still counts: by its processes, or, before its first one, by its age.

    `still_runs` is asked only where its answer decides: it may be a walk over many cgroups.
    """
    if binding.state is HolderState.STOPPED:
        return False
    return (not binding.is_started and age_s < NEVER_STARTED_GRACE_S) or still_runs()


def _dead_holders(facts: ContainerFacts, claim: Holders, *, own: PartitionName, may_evict: bool) -> list[PartitionName]:
    """The holders that stand in the container's way and have ended.

    Raises:
        PreconditionFailed: one of them lives.
        NotReady: one seems to have ended, and nobody has told so.
    """
    dead: list[PartitionName] = []
    for name, binding in claim.bindings.items():
        shared = _shared_requests(binding, claim.granted)
        if binding.state is HolderState.STOPPED or is_held_by(binding, facts) or not (shared or name == own):
            continue
        request = (shared or [r.request for r in claim.granted.results])[0]
        if name in claim.live:
            raise PreconditionFailed(
                f"{facts} wants request {request} of claim {claim.granted.record.claim}, which {binding} holds; one live "
                "container may hold a vGPU request"
            )
        if not may_evict:
            raise NotReady(f"{facts}: the runtime has not yet said which containers live; request {request} may still be held")
        dead.append(name)
    return dead


def _shared_requests(binding: Binding, granted: Granted) -> list[RequestName]:
    by_key = granted.record.vgpu_by_key()
    held = {by_key[k].request for k in binding.grants if k in by_key}
    return sorted(held & {r.request for r in granted.results})
