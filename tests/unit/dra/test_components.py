"""Which containers share a partition made at Prepare, what it is called, and which claims cannot have one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra.pod_claims import ConsumerContainer, ConsumerPod
from vgpu_dra.policy.components import Component, can_run_at_once, component_key, plan_components
from vgpu_state.claims import ContainerKind, EagerPartition, PodRef
from vgpu_state.errors import PreconditionFailed
from vgpu_state.ids import PodUid, RequestName
from vgpu_testkit.dra_assigned import consumer
from vgpu_testkit.dra_values import CLAIM, POD, SERVE_PARTITION, TRAIN_PARTITION

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
WHO = "claim research/two-workers (3f0c1f6e-8f0a-4f57-9d0e-6a6d1b2c7e10)"
OTHER_POD = PodRef(uid=PodUid("11111111-54f1-4c86-9b57-2f1d2b8f4c11"), namespace="research", name="another")


def init(name: str, position: int, *references: str | None) -> ConsumerContainer:
    return consumer(name, *references, kind=INIT, position=position)


def sidecar(name: str, position: int, *references: str | None) -> ConsumerContainer:
    return consumer(name, *references, kind=SIDECAR, position=position)


def plan(*containers: ConsumerContainer, requests: Collection[str] = ("a", "b")) -> list[tuple[list[str], list[str]]]:
    """By component: the names of its containers, and its requests."""
    pod, components = plan_components(CLAIM, [RequestName(r) for r in requests], [ConsumerPod(pod=POD, containers=containers)])
    assert pod == POD
    return sorted(([c.name for c in component.containers], list(component.requests)) for component in components)


def refusal(*pods: ConsumerPod, requests: Collection[str] = ("a", "b")) -> str:
    with pytest.raises(PreconditionFailed) as refused:
        plan_components(CLAIM, [RequestName(r) for r in requests], pods)
    return str(refused.value)


def refused(*containers: ConsumerContainer, requests: Collection[str] = ("a", "b")) -> str:
    return refusal(ConsumerPod(pod=POD, containers=containers), requests=requests)


class TestUpstreamsExamples:
    """Those that vgpu-manager documents, with the keys that it computes."""

    def test_container_of_the_whole_claim_has_one_partition_over_all_requests(self) -> None:
        assert plan(consumer("app", None)) == [(["app"], ["a", "b"])]

    def test_containers_with_a_request_each_have_a_partition_each(self) -> None:
        assert plan(consumer("x", "a"), consumer("y", "b")) == [(["x"], ["a"]), (["y"], ["b"])]

    def test_init_container_joins_the_app_container_that_comes_after_it(self) -> None:
        assert plan(init("warm", 0, "a"), consumer("zap", None)) == [(["zap", "warm"], ["a", "b"])]

    def test_pairs_of_init_and_app_containers_stay_apart(self) -> None:
        containers = [init("init-a", 0, "a"), init("init-b", 1, "b"), consumer("app-a", "a"), consumer("app-b", "b")]

        assert plan(*containers) == [(["app-a", "init-a"], ["a"]), (["app-b", "init-b"], ["b"])]

    def test_many_init_containers_and_one_app_container_take_turns(self) -> None:
        containers = [init("first", 0, "a"), init("second", 1, "a"), consumer("app", "a")]

        assert plan(*containers) == [(["app", "first", "second"], ["a"])]

    def test_container_of_other_requests_is_left_out(self) -> None:
        assert plan(consumer("x", "a"), consumer("whole", "gpu")) == [(["x"], ["a"])]

    def test_key_is_the_first_digits_over_containers_and_requests(self) -> None:
        component = Component(
            containers=(consumer("app-a", None), init("init-a", 0, "req-a")),
            requests=(RequestName("req-a"), RequestName("req-b")),
        )

        assert component_key(PodUid("pod-a-uid"), component) == "cg-cadb34eaeab7"


@pytest.mark.parametrize("partition", [TRAIN_PARTITION, SERVE_PARTITION])
def test_key_is_that_of_the_recorded_partition(partition: EagerPartition) -> None:
    component = Component(
        containers=tuple(consumer(c.name, kind=c.kind) for c in partition.containers), requests=partition.requests
    )

    assert component_key(POD.uid, component) == partition.name


def test_sidecar_has_the_key_of_an_init_container() -> None:
    keys = {
        component_key(POD.uid, Component(containers=(one,), requests=(RequestName("a"),)))
        for one in (init("x", 0, "a"), sidecar("x", 0, "a"), sidecar("x", 3, None))
    }

    assert len(keys) == 1


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (consumer("x"), consumer("y"), True),
        (consumer("x"), init("y", 0), False),
        (init("x", 0), init("y", 1), False),
        (sidecar("x", 0), consumer("y"), True),
        (sidecar("x", 0), sidecar("y", 1), True),
        (sidecar("x", 0), init("y", 1), True),
        (sidecar("x", 1), init("y", 0), False),
    ],
)
def test_what_can_run_at_once_is_the_pods_order(one: ConsumerContainer, other: ConsumerContainer, expected: bool) -> None:
    assert can_run_at_once(one, other) is expected
    assert can_run_at_once(other, one) is expected


def test_components_stand_in_order_of_their_keys() -> None:
    containers = tuple(consumer(name, name) for name in ("a", "b", "c", "d"))

    forth, back = (
        plan_components(CLAIM, [RequestName(r) for r in "abcd"], [ConsumerPod(pod=POD, containers=some)])[1]
        for some in (containers, containers[::-1])
    )

    assert forth == back
    assert [component_key(POD.uid, c) for c in forth] == sorted(component_key(POD.uid, c) for c in forth)


def test_sidecar_shares_with_the_init_container_before_it() -> None:
    assert plan(init("fetch", 0, "a"), sidecar("serve", 1, "a")) == [(["fetch", "serve"], ["a"])]


def test_containers_that_run_at_once_are_refused_one_request() -> None:
    assert refused(consumer("train", "a"), consumer("serve", None)) == (
        f"{WHO}: containers serve and train of pod research/two-workers-0 can run at once and share request a; one live "
        "container may hold a vGPU request, with NRI too: give each a request of its own"
    )


def test_shared_requests_are_named_up_to_a_limit() -> None:
    requests = [f"r{i}" for i in range(9)]

    message = refused(consumer("x", None), consumer("y", None), requests=requests)

    assert "can run at once and share requests r0, r1, r2, r3, r4 and 4 more; " in message


def test_containers_that_another_joins_into_one_partition_are_refused_without_nri() -> None:
    assert refused(init("warm", 0, None), consumer("train", "a"), consumer("serve", "b")) == (
        f"{WHO}: containers serve and train of pod research/two-workers-0 can run at once, and other containers join their "
        "requests into one partition, over requests a, b; without NRI its partitions are made at Prepare, once for all that "
        "share a request: use NRI on this node, or let no other container use requests of both"
    )


def test_claim_of_several_pods_is_refused_naming_two_of_them() -> None:
    first = ConsumerPod(pod=POD, containers=(consumer("train", "a"),))
    second = ConsumerPod(pod=OTHER_POD, containers=(consumer("serve", "b"),))
    third = ConsumerPod(
        pod=PodRef(uid=PodUid("22222222-54f1-4c86-9b57-2f1d2b8f4c11"), namespace="research", name="zero"),
        containers=(consumer("x", "b"),),
    )

    assert refusal(first, second) == refusal(second, first)
    assert refusal(first, second) == (
        f"{WHO}: pods research/another and research/two-workers-0 use vGPU requests of it; without NRI its partitions are made "
        "at Prepare, for one pod: use NRI on this node, or give each pod a claim of its own (resourceClaimTemplateName)"
    )
    assert "pods research/another and research/two-workers-0 and 1 more use " in refusal(third, first, second)


def test_pod_that_uses_no_vgpu_request_of_the_claim_is_no_obstacle() -> None:
    first = ConsumerPod(pod=OTHER_POD, containers=(consumer("whole", "gpu"),))
    second = ConsumerPod(pod=POD, containers=(consumer("train", "a"),))

    pod, components = plan_components(CLAIM, [RequestName("a")], [first, second])

    assert (pod, [c.requests for c in components]) == (POD, [("a",)])


def test_pod_that_uses_only_what_is_no_vgpu_needs_no_partition() -> None:
    user = ConsumerPod(pod=OTHER_POD, containers=(consumer("whole", "gpu"),))

    assert plan_components(CLAIM, [RequestName("a")], [user]) == (OTHER_POD, ())


@pytest.mark.parametrize("pods", [[], [ConsumerPod(pod=POD, containers=())]])
def test_claim_that_no_container_refers_to_is_refused(pods: list[ConsumerPod]) -> None:
    assert refusal(*pods) == (
        f"{WHO}: no container of the pods in its status.reservedFor refers to it; without NRI its partitions are made at "
        "Prepare, for those containers: use NRI on this node, or reserve the claim for the pod that uses it"
    )


REQUESTS = [RequestName(r) for r in ("a", "b", "c", "d")]


# Mostly one request, and mostly init containers, so that a fair part of the pods is not refused.
REFERENCES = st.one_of(
    st.sampled_from([("a",), ("b",), ("c",), ("d",), ("gpu",), (None,)]),
    st.lists(st.sampled_from(["a", "b", "c", "d", "gpu"]), min_size=1, max_size=2, unique=True),
)
KINDS = st.sampled_from([INIT, INIT, INIT, SIDECAR, APP, APP])


@st.composite
def pods(draw: st.DrawFn) -> ConsumerPod:
    kinds = draw(st.lists(KINDS, min_size=1, max_size=6))
    places = itertools.count()
    return ConsumerPod(
        pod=POD,
        containers=tuple(
            consumer(f"{kind}-{i}", *draw(REFERENCES), kind=kind, position=0 if kind is APP else next(places))
            for i, kind in enumerate(sorted(kinds, key=lambda kind: kind is APP))
        ),
    )


def planned(pod: ConsumerPod, requests: Collection[RequestName] = REQUESTS) -> tuple[Component, ...] | str:
    try:
        return plan_components(CLAIM, requests, [pod])[1]
    except PreconditionFailed as exc:
        return str(exc)


def edges(one: ConsumerContainer) -> set[str]:
    return {"a", "b", "c", "d"} if None in one.references else {r for r in one.references if r is not None and r != "gpu"}


def connected(pod: ConsumerPod, start: ConsumerContainer) -> set[str]:
    """The names of the containers that a walk from `start` over shared requests comes to."""
    seen, todo = {start.name}, [start]
    while todo:
        here = todo.pop()
        near = [c for c in pod.containers if c.name not in seen and edges(c) & edges(here)]
        seen |= {c.name for c in near}
        todo += near
    return {str(name) for name in seen}


@given(pods(), st.randoms(use_true_random=False))
def test_order_of_the_input_is_no_matter(pod: ConsumerPod, rng: random.Random) -> None:
    containers, requests = list(pod.containers), list(REQUESTS)
    rng.shuffle(containers)
    rng.shuffle(requests)

    assert planned(ConsumerPod(pod=POD, containers=tuple(containers)), requests) == planned(pod)


@given(pods())
def test_each_container_has_one_partition_with_all_that_it_is_connected_to(pod: ConsumerPod) -> None:
    components = planned(pod)
    if isinstance(components, str):
        return

    members = [str(c.name) for component in components for c in component.containers]
    assert sorted(members) == sorted(c.name for c in pod.containers if edges(c))
    for component in components:
        assert {str(c.name) for c in component.containers} == connected(pod, component.containers[0])
        assert set(component.requests) == set().union(*(edges(c) for c in component.containers))
    requests = [r for component in components for r in component.requests]
    assert len(requests) == len(set(requests))


@given(pods())
def test_pod_is_refused_where_two_connected_containers_can_run_at_once_and_nowhere_else(pod: ConsumerPod) -> None:
    at_once = [
        (a, b)
        for a, b in combinations(pod.containers, 2)
        if edges(a) and edges(b) and b.name in connected(pod, a) and can_run_at_once(a, b)
    ]

    answer = planned(pod)

    assert isinstance(answer, str) is bool(at_once)
    if isinstance(answer, str):
        assert any(f"containers {' and '.join(sorted((a.name, b.name)))} of pod" in _sorted_pair(answer) for a, b in at_once)


def _sorted_pair(message: str) -> str:
    """The message with the names of its two containers in order."""
    before, _, rest = message.partition("containers ")
    pair, _, after = rest.partition(" of pod")
    return f"{before}containers {' and '.join(sorted(pair.split(' and ')))} of pod{after}"
