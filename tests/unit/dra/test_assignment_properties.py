"""For any pods, containers, kinds and references: who gets which partition, in either way, through whole lives of a node.

VGPU_ASSIGNMENT_EXAMPLES chooses how many lives are lived.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from vgpu_state.errors import PreconditionFailed
from vgpu_testkit import dra_truths
from vgpu_testkit.dra_assigned import EAGER, LAZY
from vgpu_testkit.dra_cases import APP, INIT, SIDECAR, WHOLE, Case, CaseClaim, CaseContainer, cases
from vgpu_testkit.dra_lives import Life
from vgpu_testkit.dra_moves import moves
from vgpu_testkit.dra_tree import DraTree
from vgpu_testkit.dra_values import POD

EXAMPLES = int(os.environ.get("VGPU_ASSIGNMENT_EXAMPLES", "60"))
NUMBERS = st.sampled_from(range(5040))  # not integers(): those are mostly small, and the first move would be the most frequent
TOLD, REGISTERED = "lazy, told by NRI", "eager, registered"
pytestmark = pytest.mark.timeout(3600)  # as many lives as one likes

on_disk = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@contextmanager
def a_life(case: Case) -> Iterator[Life]:
    with tempfile.TemporaryDirectory() as folder:
        yield Life(node=DraTree(root=Path(folder)), case=case)


WAYS = st.lists(st.sampled_from([EAGER, EAGER, LAZY]), min_size=3, max_size=3)


@settings(on_disk, phases=[Phase.generate, Phase.shrink])
@given(cases(), WAYS, st.booleans(), st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=20, max_size=40))
def test_each_container_has_one_partition_of_its_own_or_is_refused_with_both_names(
    case: Case, ways: list[str], is_nri_there: bool, steps: list[tuple[int, int, int]]
) -> None:
    with a_life(case) as life:
        if is_nri_there:
            life.synchronize()
        else:
            life.lose_nri()
        for claim, way in zip(case.claims, ways, strict=False):
            life.prepare(claim, way, case.containers)
        for kind, which, number in steps:
            can = [move for move in moves(life, number) for _ in range(move.weight) if move.among]
            move = can[kind % len(can)]
            life.pass_time(1)
            move.act(move.among[which % len(move.among)])
            dra_truths.check(life)


# Order


@on_disk
@given(cases(), st.randoms(use_true_random=False))
def test_partitions_made_at_prepare_do_not_depend_on_order(case: Case, rng: random.Random) -> None:
    containers = rng.sample(case.containers, len(case.containers))
    claims = tuple(replace(c, gpus=dict(rng.sample(list(c.gpus.items()), len(c.gpus)))) for c in case.claims)

    assert _prepared(Case(claims=claims, containers=tuple(containers))) == _prepared(case)


@on_disk
@given(cases(), st.sampled_from([EAGER, LAZY]), st.randoms(use_true_random=False))
def test_containers_that_fit_together_have_the_same_partitions_in_any_order(case: Case, mode: str, rng: random.Random) -> None:
    with a_life(case) as one, a_life(case) as other:
        created = _created(one, mode, case.containers)
        again = _created(other, mode, rng.sample(created, len(created)))

        assert set(again) == set(created)
        assert _held(other) == _held(one)


def _prepared(case: Case) -> object:
    """The first claim's partitions: for whom, over what, with which limits; or why it has none."""
    claim = case.claims[0]
    with a_life(case) as life:
        try:
            life.prepare(claim, EAGER, case.containers)
        except PreconditionFailed as exc:
            return str(exc)
        return {
            place: (dra_truths.limits(life, place), life.model.prepared[place[0]].shared[place[1]])
            for place in life.model.directories()
        }


def _created(life: Life, mode: str, containers: Sequence[CaseContainer]) -> list[CaseContainer]:
    """Those that there is a partition for."""
    life.synchronize()
    for claim in life.case.claims:
        life.prepare(claim, mode, life.case.containers)
    for container in [c for c in containers if life.may_create(c)]:
        life.create(container)
    return [a.of for a in life.model.attempts if a.is_alive]


def _held(life: Life) -> dict[object, object]:
    places = {place for place, bound in life.model.bound.items() if bound.home is None}
    return {place: (life.model.bound[place].who, dra_truths.limits(life, place)) for place in places}


# The examples that upstream documents, and those in which it goes wrong


def app(name: str, *references: str | None) -> CaseContainer:
    return CaseContainer(pod=POD, name=name, kind=APP, position=0, references={0: references})


def init(name: str, position: int, *references: str | None) -> CaseContainer:
    return replace(app(name, *references), kind=INIT, position=position)


def sidecar(name: str, position: int, *references: str | None) -> CaseContainer:
    return replace(app(name, *references), kind=SIDECAR, position=position)


A, B, BOTH = {1: 1}, {5: 1}, {1: 1, 5: 1}
DOCUMENTED = {
    "one container of the whole claim": ([app("app", WHOLE)], {"app": BOTH}, {"app": BOTH}),
    "a request each": ([app("x", "a"), app("y", "b")], {"x": A, "y": B}, {"x": A, "y": B}),
    "several requests by name in one container": ([app("app", "a", "b")], {"app": BOTH}, {"app": BOTH}),
    "init container and app container": (
        [init("warm", 0, "a"), app("app", WHOLE)],
        {"warm": A, "app": BOTH},
        {"warm": BOTH, "app": BOTH},
    ),
    "pairs that stay apart": (
        [init("init-a", 0, "a"), init("init-b", 1, "b"), app("app-a", "a"), app("app-b", "b")],
        {"init-a": A, "init-b": B, "app-a": A, "app-b": B},
        {"init-a": A, "init-b": B, "app-a": A, "app-b": B},
    ),
    "three containers whose requests are partly disjoint": (
        [init("first", 0, "a"), init("second", 1, "b"), app("app", WHOLE)],
        {"first": A, "second": B, "app": BOTH},
        {"first": BOTH, "second": BOTH, "app": BOTH},
    ),
    "sidecar after an init container": (
        [init("fetch", 0, "a"), sidecar("serve", 1, "a"), app("app", "b")],
        {"fetch": A, "serve": A, "app": B},
        {"fetch": A, "serve": A, "app": B},
    ),
}


@pytest.mark.parametrize("way", [TOLD, "eager, told by NRI", REGISTERED])
@pytest.mark.parametrize("example", DOCUMENTED)
def test_containers_of_a_documented_example_find_their_limits_in_kubelets_order(example: str, way: str) -> None:
    containers, own, joined = DOCUMENTED[example]
    claim = CaseClaim(number=0, gpus={"a": (1,), "b": (5,)})
    found: dict[str, dict[int, int]] = {}
    with a_life(Case(claims=(claim,), containers=tuple(containers))) as life:
        life.synchronize()
        if way == REGISTERED:
            life.lose_nri()
        life.prepare(claim, LAZY if way == TOLD else EAGER, containers)
        for container in containers:
            life.create(container)
            attempt = life.model.attempts[-1]
            life.start(attempt)
            if way == REGISTERED:
                life.register(attempt, says="")
            dra_truths.check(life)
            found[container.name] = dra_truths.limits(life, (0, life.seen(attempt)))
            if container.kind is INIT:
                life.end(attempt)

    assert found == (own if way == TOLD else joined)


@pytest.mark.parametrize(("way", "is_refused"), [(LAZY, False), (EAGER, True)])
def test_containers_that_only_a_third_one_joins_are_kept_apart_where_they_share_a_partition(way: str, is_refused: bool) -> None:
    """kubelet runs them one after the other; where the first has not ended yet the second has no limits of its own."""
    containers = (init("first", 0, "a"), init("second", 1, "b"), app("app", WHOLE))
    claim = CaseClaim(number=0, gpus={"a": (1,), "b": (5,)})
    with a_life(Case(claims=(claim,), containers=containers)) as life:
        life.synchronize()
        life.prepare(claim, way, containers)
        life.create(containers[0])
        life.start(life.model.attempts[-1])

        life.create(containers[1])

        assert life.model.attempts[-1].is_alive is not is_refused
        dra_truths.check(life)
