"""Which containers of a pod share a partition where it is made at Prepare: those that are connected through requests.

Containers and the claim's vGPU requests are the nodes of a graph, references its edges. A component is one partition: its
containers take turns in it, so no two of them may be able to run at once. Pure.

Source: vgpu-manager pkg/claimresolve/partitions.go; its key of a single container holds a slash and is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from vgpu_dra.pod_claims import ConsumerContainer, ConsumerPod
from vgpu_state import ids
from vgpu_state.claims import ClaimRef, ContainerKind, PodRef
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import PartitionName, PodUid, RequestName

_MOST_NAMED = 5  # requests in a message; an Event has 1024 characters
_WHY = "without NRI its partitions are made at Prepare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Containers that share a partition, and the main requests that it is over. Both are sorted, neither is empty."""

    containers: tuple[ConsumerContainer, ...]
    requests: tuple[RequestName, ...]


def component_key(pod_uid: PodUid, component: Component) -> PartitionName:
    """The name of the component's partition: the same for the same containers and requests, in whatever order they come."""
    containers = sorted(f"{pod_uid}/{_kind(c)}/{c.name}" for c in component.containers)
    text = f"{','.join(containers)}|{','.join(sorted(component.requests))}"
    return ids.component_name(hashlib.sha256(text.encode()).hexdigest())


def can_run_at_once(a: ConsumerContainer, b: ConsumerContainer) -> bool:
    """Whether there is a moment at which two containers of one pod may both run.

    Source: kubelet runs init containers one after the other and to their end, before the app containers; a sidecar runs from its
    turn among them to the end of the pod.
    """
    kinds = {a.kind, b.kind}
    if ContainerKind.INIT not in kinds:
        return True
    if ContainerKind.SIDECAR not in kinds:
        return False
    sidecar, init = (a, b) if a.kind is ContainerKind.SIDECAR else (b, a)
    return init.position > sidecar.position


def plan_components(
    claim: ClaimRef, requests: Collection[RequestName], pods: Sequence[ConsumerPod]
) -> tuple[PodRef, tuple[Component, ...]]:
    """The pod whose containers get partitions, and its components in order of their keys. The order of the input is no matter.

    `requests` are the main names of the claim's vGPU requests. Where no pod refers to one of them there is no component.

    Raises:
        PreconditionFailed: several pods use vGPU requests of the claim, two containers that can run at once would share a
            partition, or no pod refers to the claim; the message has both names.
    """
    consumers = sorted((p for p in pods if p.containers), key=lambda p: (p.pod.name, p.pod.uid))
    if not consumers:
        raise PreconditionFailed(
            f"claim {claim}: no container of the pods in its status.reservedFor refers to it; {_WHY}, for those containers: use "
            "NRI on this node, or reserve the claim for the pod that uses it"
        )
    users = [p for p in consumers if any(_edges(c, requests) for c in p.containers)]
    if len(users) > 1:
        more = f" and {len(users) - 2} more" if len(users) > 2 else ""
        raise PreconditionFailed(
            f"claim {claim}: pods {users[0].pod} and {users[1].pod}{more} use vGPU requests of it; {_WHY}, for one pod: use NRI "
            "on this node, or give each pod a claim of its own (resourceClaimTemplateName)"
        )
    user = (users or consumers)[0]
    components = sorted(_components(user.containers, requests), key=lambda c: component_key(user.pod.uid, c))
    for component in components:
        _check_turns(component, requests, claim=claim, pod=user.pod)
    return user.pod, tuple(components)


def _kind(container: ConsumerContainer) -> ContainerKind:
    """The kind as a key has it: a sidecar is an init container there."""
    return ContainerKind.APP if container.kind is ContainerKind.APP else ContainerKind.INIT


def _edges(container: ConsumerContainer, requests: Collection[RequestName]) -> set[RequestName]:
    return set(requests) if None in container.references else set(requests).intersection(r for r in container.references if r)


def _components(containers: Iterable[ConsumerContainer], requests: Collection[RequestName]) -> list[Component]:
    found: list[tuple[list[ConsumerContainer], set[RequestName]]] = []
    for container in containers:
        joined, over = [container], _edges(container, requests)
        if not over:
            continue
        apart = []
        for others, theirs in found:
            if over & theirs:
                # Those found are disjoint in requests, so what is joined on the way brings in no further one.
                joined, over = joined + others, over | theirs
            else:
                apart.append((others, theirs))
        found = [*apart, (joined, over)]
    return [
        Component(containers=tuple(sorted(members, key=lambda c: (_kind(c), c.name))), requests=tuple(sorted(over)))
        for members, over in found
    ]


def _check_turns(component: Component, requests: Collection[RequestName], *, claim: ClaimRef, pod: PodRef) -> None:
    at_once = [(a, b) for a, b in combinations(component.containers, 2) if can_run_at_once(a, b)]
    for a, b in at_once:
        if shared := _edges(a, requests) & _edges(b, requests):
            raise PreconditionFailed(
                f"claim {claim}: containers {a.name} and {b.name} of pod {pod} can run at once and share {_named(shared)}; one "
                "live container may hold a vGPU request, with NRI too: give each a request of its own"
            )
    if at_once:
        a, b = at_once[0]
        raise PreconditionFailed(
            f"claim {claim}: containers {a.name} and {b.name} of pod {pod} can run at once, and other containers join their "
            f"requests into one partition, over {_named(component.requests)}; {_WHY}, once for all that share a request: use NRI "
            "on this node, or let no other container use requests of both"
        )


def _named(requests: Iterable[RequestName]) -> str:
    names = sorted(requests)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"request{'s' if len(names) > 1 else ''} {', '.join(names[:_MOST_NAMED])}{more}"
