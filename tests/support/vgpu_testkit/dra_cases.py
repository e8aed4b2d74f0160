"""Pods, containers, kinds and references in every combination, and which of them share a partition that is made at Prepare.

`shared_at_prepare` says so by walking from container to container; the code under test joins requests instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

from hypothesis import strategies as st

from vgpu_dra.allocation import AllocatedResult, Allocation
from vgpu_dra.pod_claims import ConsumerContainer, ConsumerPod
from vgpu_state.claims import ClaimRef, ContainerKind, PodRef
from vgpu_state.ids import ClaimUid, ContainerName, DeviceName, PodUid, PoolName, RequestName, ShareId
from vgpu_testkit.dra_values import GIB

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
CORES_PERCENT, MEMORY_BYTES = 5, 2 * GIB  # of every share: all of them fit on one GPU
WHOLE = None  # a reference to all of a claim


@dataclass(frozen=True, kw_only=True)
class CaseClaim:
    """A claim: its main requests, each with the indices of its GPUs. Those in `alternatives` were met by one of several."""

    number: int
    gpus: Mapping[str, tuple[int, ...]]
    alternatives: frozenset[str] = frozenset()

    @property
    def ref(self) -> ClaimRef:
        # The lowest uid is not the first claim's.
        return ClaimRef(
            namespace="research",
            name=f"claim-{self.number}",
            uid=ClaimUid(f"{9 - self.number}a0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10"),
        )

    @property
    def uid(self) -> ClaimUid:
        return self.ref.uid

    @cached_property
    def allocation(self) -> Allocation:
        shares = [(request, gpu) for request, gpus in self.gpus.items() for gpu in gpus]
        return Allocation(claim=self.ref, results=tuple(self._result(n, r, gpu) for n, (r, gpu) in enumerate(shares)))

    def allocated(self, main: str) -> str:
        """The request as the allocation and kubelet have it."""
        return f"{main}/alt" if main in self.alternatives else main

    def _result(self, number: int, request: str, gpu: int) -> AllocatedResult:
        return AllocatedResult(
            request=RequestName(self.allocated(request)),
            pool=PoolName("node-a"),
            device=DeviceName(f"vgpu-{gpu}"),
            share_id=ShareId(f"8a2d4a8e-0c1b-4a55-8f5e-0f5b7b1e{self.number}c0{number}"),
            cores_percent=CORES_PERCENT,
            memory_bytes=MEMORY_BYTES,
            has_admin_access=False,
        )


@dataclass(frozen=True, kw_only=True)
class CaseContainer:
    """A container of a pod: which requests of which claims it refers to; `WHOLE` stands for all of a claim."""

    pod: PodRef
    name: str
    kind: ContainerKind
    position: int
    references: Mapping[int, tuple[str | None, ...]] = field(hash=False)

    def __str__(self) -> str:
        return f"container {self.name} of pod {self.pod}"

    def requests(self, claim: CaseClaim) -> frozenset[str]:
        """What it is given of the claim."""
        referred = self.references.get(claim.number, ())
        return frozenset(claim.gpus) if WHOLE in referred else frozenset(r for r in referred if r is not None)

    def as_consumer(self, claim: CaseClaim) -> ConsumerContainer:
        others = sorted(f"claim-{n}" for n in self.references if n != claim.number)
        return ConsumerContainer(
            name=ContainerName(self.name),
            kind=self.kind,
            position=self.position,
            references=tuple(
                None if r is None else RequestName(r) for r in sorted(self.references[claim.number], key=lambda r: r or "")
            ),
            other_claims=tuple(others),
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """Claims of a node, and all the containers that refer to them, by pod."""

    claims: tuple[CaseClaim, ...]
    containers: tuple[CaseContainer, ...]

    def claims_of(self, container: CaseContainer) -> tuple[CaseClaim, ...]:
        """Ascending by uid."""
        return tuple(sorted((c for c in self.claims if c.number in container.references), key=lambda c: c.uid))

    def pods_of(self, claim: CaseClaim, containers: Sequence[CaseContainer]) -> tuple[ConsumerPod, ...]:
        """The pods of these containers, which the claim is reserved for."""
        pods = dict.fromkeys(c.pod for c in containers)
        return tuple(
            ConsumerPod(
                pod=pod,
                containers=tuple(c.as_consumer(claim) for c in containers if c.pod == pod and claim.number in c.references),
            )
            for pod in pods
        )


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Containers that share a partition, and the requests that it is over."""

    containers: frozenset[CaseContainer]
    requests: frozenset[str]


def shared_at_prepare(claim: CaseClaim, containers: Sequence[CaseContainer]) -> list[Shared]:
    """Each set of containers that a walk over shared requests comes to."""
    left = [c for c in containers if c.requests(claim)]
    found: list[Shared] = []
    while left:
        reached, fringe = {left[0]}, [left[0]]
        while fringe:
            here = fringe.pop()
            near = [c for c in left if c not in reached and c.requests(claim) & here.requests(claim)]
            reached.update(near)
            fringe += near
        left = [c for c in left if c not in reached]
        requests = frozenset(r for c in reached for r in c.requests(claim))
        found.append(Shared(containers=frozenset(reached), requests=requests))
    return found


def clashes(case: Case, claim: CaseClaim, containers: Sequence[CaseContainer], recorded: set[int]) -> list[tuple[str, str]]:
    """The two names of every reason for which the claim cannot be prepared without NRI; `recorded` claims are on the node."""
    users = [c for c in containers if claim.number in c.references]
    if not users:
        return [(str(claim.ref), "no container")]
    pods = sorted({str(c.pod) for c in users})
    return [
        *combinations(pods, 2),
        *(
            (one.name, other.name)
            for shared in shared_at_prepare(claim, users)
            for one, other in combinations(sorted(shared.containers, key=lambda c: c.name), 2)
            if runs_beside(one, other)
        ),
        *(
            (user.name, str(other.ref))
            for user in users
            for other in case.claims_of(user)
            if other.number in recorded and other is not claim
        ),
    ]


def runs_beside(one: CaseContainer, other: CaseContainer) -> bool:
    """Whether both can be running: a table of what kubelet does, for containers of one pod."""
    if one.pod != other.pod:
        return True
    first, then = sorted((one, other), key=lambda c: (c.kind is APP, c.position))
    return {
        (INIT, INIT): False,
        (INIT, SIDECAR): False,
        (INIT, APP): False,
        (SIDECAR, INIT): True,
        (SIDECAR, SIDECAR): True,
        (SIDECAR, APP): True,
        (APP, APP): True,
    }[first.kind, then.kind]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to three claims of up to three requests, up to three pods of up to four containers. Half of them are one pod with one
    claim and many init containers, so that a fair part of the claims can be prepared in either way, and is contended for.
    """
    is_dense = draw(st.booleans())
    claims = tuple(draw(_claim(n)) for n in range(1 if is_dense else draw(st.sampled_from([1, 2, 3]))))
    kinds = st.sampled_from([INIT, INIT, INIT, SIDECAR, APP] if is_dense else [INIT, SIDECAR, APP, APP])
    containers: list[CaseContainer] = []
    for number in range(1 if is_dense else draw(st.sampled_from([1, 2, 3]))):
        pod = PodRef(uid=PodUid(f"0b9c2a3e-54f1-4c86-9b57-2f1d2b8f4c1{number}"), namespace="research", name=f"pod-{number}")
        drawn = draw(st.lists(kinds, min_size=3 if is_dense else 1, max_size=4))
        containers += [
            CaseContainer(
                pod=pod, name=f"{kind}-{i}", kind=kind, position=0 if kind is APP else i, references=draw(_references(claims))
            )
            for i, kind in enumerate(sorted(drawn, key=lambda kind: kind is APP))
        ]
    return Case(claims=claims, containers=tuple(containers))


@st.composite
def _claim(draw: st.DrawFn, number: int) -> CaseClaim:
    names = [f"{number}{letter}" for letter in "abc"[: draw(st.integers(1, 3))]]
    gpus = st.lists(st.integers(0, 7), min_size=1, max_size=draw(st.sampled_from([1, 1, 2]))).map(tuple)
    return CaseClaim(
        number=number, gpus={name: draw(gpus) for name in names}, alternatives=frozenset(n for n in names if draw(st.booleans()))
    )


@st.composite
def _references(draw: st.DrawFn, claims: Sequence[CaseClaim]) -> dict[int, tuple[str | None, ...]]:
    used = draw(
        st.lists(st.sampled_from(range(len(claims))), min_size=1, max_size=draw(st.sampled_from([1, 1, 1, 3])), unique=True)
    )
    return {n: draw(_of_claim(claims[n])) for n in sorted(used)}


def _of_claim(claim: CaseClaim) -> st.SearchStrategy[tuple[str | None, ...]]:
    one = st.sampled_from(sorted(claim.gpus)).map(lambda r: (r,))
    several = st.lists(st.sampled_from([WHOLE, *sorted(claim.gpus)]), min_size=1, max_size=3, unique=True).map(tuple)
    return st.one_of(one, one, several)
