"""Whatever kubelet, the runtime, workloads and crashes do in whatever order, after each step the claims tree is as it should be.

200 examples of 50 steps in CI. VGPU_STATE_MACHINE_EXAMPLES chooses how many, VGPU_STATE_MACHINE_SEED other ones.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from vgpu_testkit import node_claims
from vgpu_testkit.light_node import Service
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.node_eager_steps import EagerSteps
from vgpu_testkit.node_model import Model, Place, Status, Tracked
from vgpu_testkit.node_stage import Stage
from vgpu_testkit.node_world import World
from vgpu_testkit.pods import ContainerState, Pod, PodSpec

STEPS = 50
EXAMPLES = int(os.environ.get("VGPU_STATE_MACHINE_EXAMPLES", "20"))
MAX_PODS = 4

DISTURBED = ("create", "start", "end", "remove", "prepare", "prepare_again", "unprepare", "register")
REPEATED = ("create", "prepare", "unprepare")  # by kubelet, when the call was cut off
References = list[tuple[Any, ...]]  # the claim's number and the requests, for each container of a pod
CONTAINERS = st.lists(st.sampled_from(sorted(node_claims.LIMITS)), min_size=1, max_size=2)
MOMENTS = st.integers(1, 8)
NUMBERS = st.integers(0, 9999)
ANYWAY = (None,)  # for a step that is on nobody


class Told(NamedTuple):
    """What else a step may want to be told."""

    number: int
    moment: int
    references: References


class Kind(NamedTuple):
    """A kind of step: how often it is chosen among those that can be done, on whom it can be done now.

    Of about 50 in all a crash has few, since it costs some five times what another step does.
    """

    weight: int
    on: Callable[[], Sequence[Any]]
    act: Callable[[Any, Told], Coroutine[Any, Any, object]]


class NodeMachine(RuleBasedStateMachine):
    """One rule, since Hypothesis leaves out half of several in each example, and nothing happens without containers."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False
        self.history: list[str] = []
        self.stage = Stage(self.world.node, Model(node_claims.manifests()), self.world.tally)
        self.steps = EagerSteps(self.stage)
        self.model = self.stage.model
        self.places: list[Place] = []
        for claim in self.model.claims:
            claim.write(self.stage.node.claims)
        self.kinds = {**self._steps_of_the_node(), **self._faults()}

    @initialize(pods=st.lists(CONTAINERS, min_size=1, max_size=3), is_nri_there=st.booleans())
    def begin(self, pods: list[References], is_nri_there: bool) -> None:
        """A node in use: some pods are there; with NRI all claims are prepared, without it those that can be."""

        async def do() -> None:
            if self.stage.is_without_nri is is_nri_there:
                await self._whole(self.stage.switch_mode())
            for pod in pods:
                await self._add_pod(pod)
            for claim in self._preparable():
                await self.steps.prepare(claim, self._consumers(claim))
            if not is_nri_there:
                await self.stage.go_down(self.stage.node.nri)

        self._run(self._whole(do()))

    @rule(kind=NUMBERS, which=NUMBERS, moment=MOMENTS, references=CONTAINERS)
    def step(self, kind: int, which: int, moment: int, references: References) -> None:
        """A step that can be done now. Numbers choose, and not Hypothesis among what there is, since what a crash does varies."""
        can = [name for name, one in self.kinds.items() for _ in range(one.weight) if one.on()]
        name = _pick(can, kind)
        on = _pick(self.kinds[name].on(), which)
        told = Told(number=which // 7, moment=moment, references=references)
        self.history.append(f"{name}: {on}")
        if name == "crash_during":
            self._crash_during(on, told)
            return
        self._run(self._whole(self.kinds[name].act(on, told)))

    def _crash_during(self, name: str, told: Told) -> None:
        """A service is killed during a step, and kubelet does again what was cut off."""
        kind = self.kinds[name]
        on = _pick(kind.on(), told.number)
        service = _pick(self.stage.node.services, told.number // 7)
        self.history.append(f"  {service.name} is killed at {told.moment}, on {on}")
        self._run(self.stage.during(kind.act(on, told), service, told.moment))
        if name in REPEATED and on in kind.on():
            self._run(self._whole(kind.act(on, told)))

    def _steps_of_the_node(self) -> dict[str, Kind]:
        steps = self.steps
        return {
            "create": Kind(8, lambda: self._free_places(is_prepared=True), lambda place, _: steps.create(place)),
            "start": Kind(10, lambda: self._in(ContainerState.CREATED), lambda one, _: steps.start(one)),
            "end": Kind(3, lambda: self._in(ContainerState.RUNNING), lambda one, _: steps.end(one)),
            "lose_processes": Kind(1, self._running, lambda one, _: steps.lose_processes(one)),
            "remove": Kind(2, self._present, lambda one, _: steps.remove(one)),
            "add_pod": Kind(4, self._rooms, lambda _, told: self._add_pod(told.references)),
            "remove_pod": Kind(1, lambda: self.places, lambda place, _: self._remove_pod(place)),
            "prepare": Kind(6, self._preparable, lambda claim, _: steps.prepare(claim, self._consumers(claim))),
            "prepare_shared": Kind(1, self._shared, lambda claim, _: steps.prepare_shared(claim, self._of(claim))),
            "prepare_again": Kind(1, lambda: self._claims(is_prepared=True), lambda claim, _: steps.prepare(claim)),
            "unprepare": Kind(3, lambda: self._claims(is_prepared=True), lambda claim, _: steps.unprepare(claim)),
            "unprepare_again": Kind(1, lambda: self._claims(is_prepared=False), lambda claim, _: steps.unprepare(claim)),
            "register": Kind(3, self._recorded, lambda one, _: steps.register(one)),
            "register_by_uuid": Kind(2, self._with_uuid, lambda one, _: steps.register_by_uuid(one)),
            "register_untold": Kind(12, self._untold, lambda one, _: steps.register_by_uuid(one)),
            "create_stranger": Kind(1, self._strangers, lambda place, _: steps.create_stranger(place)),
            "register_as_another": Kind(1, self._recorded, lambda one, _: steps.register_as_another(one)),
            "record_pids": Kind(1, self._recorded, lambda one, _: steps.record_pids(one)),
            "record_pids_late": Kind(1, self._unbound, lambda one, _: steps.record_pids_late(one)),
            "ensure_late": Kind(2, self._released, lambda one, _: steps.ensure_late(one)),
            "create_unprepared": Kind(1, self._places_of_gone_claims, lambda place, _: steps.create(place)),
            "drop_session": Kind(1, lambda: ANYWAY, lambda _, __: self.stage.drop_session()),
        }

    def _faults(self) -> dict[str, Kind]:
        stage = self.stage
        return {
            "crash_at_rest": Kind(1, self._whole_node, lambda service, _: stage.crash(service)),
            "crash_in_recovery": Kind(1, self._whole_node, lambda _, told: stage.crash_in_recovery(told.moment)),
            "switch_mode": Kind(2, lambda: ANYWAY if self._whole_node() else (), lambda _, __: stage.switch_mode()),
            "go_down": Kind(2, self._whole_node, lambda service, _: stage.go_down(service)),
            "come_back": Kind(12, self._missed, lambda service, _: stage.come_back(service)),
            "come_back_late": Kind(2, self._down, lambda service, _: stage.come_back(service)),
            "reboot": Kind(1, lambda: ANYWAY, lambda _, __: stage.reboot()),
            "crash_during": Kind(8, self._disturbed, lambda _, __: _nothing()),
        }

    def _disturbed(self) -> list[str]:
        """The kinds of steps during which a service may be killed."""
        return [name for name in DISTURBED if self._whole_node() and self.kinds[name].on()]

    async def _add_pod(self, references: References) -> None:
        uid = str(uuid.uuid4())
        pod = Pod(id=uuid.uuid4().hex * 2, spec=PodSpec(name=f"pod-{uid}", namespace="research", uid=uid))
        self.places += [
            Place(
                pod=pod,
                name=f"c{number}",
                claim=self.model.claims[reference[0]],
                requests=frozenset(reference[1:]),
                limits=node_claims.LIMITS[reference],
            )
            for number, reference in enumerate(references)
        ]

    async def _remove_pod(self, of: Place) -> None:
        self.places = [place for place in self.places if place.pod != of.pod]
        for one in [one for one in self._present() if one.place.pod == of.pod]:
            await self.steps.remove(one)

    def teardown(self) -> None:
        """Everything is ended, and nothing is left."""
        if self.is_broken:
            self.world.report("\n".join(self.history))
            self.world.discard()
            return
        self._run(self._whole(self._clear()))
        self._run(self.stage.until_nothing_is_left())
        self.world.examples_done += 1

    async def _clear(self) -> None:
        for service in self._down():
            self.stage.start(service)
        await self.stage.finish()
        for one in self._present():
            await self.steps.remove(one)

    async def _whole(self, step: Coroutine[Any, Any, object]) -> None:
        await step
        await self.stage.finish()

    def _run(self, work: Coroutine[Any, Any, object]) -> None:
        self.world.steps_done += 1
        try:
            self.world.run(work)
        except Exception as exc:
            self.is_broken = True
            self.history.append(f"  {exc!r}")
            raise

    def _free_places(self, *, is_prepared: bool) -> list[Place]:
        """Those whose last container is dead."""
        taken = {one.place.partition for one in self.model.tracked if one.container.is_alive}
        free = [place for place in self.places if place.partition not in taken]
        known = [place for place in free if not self.model.is_stranger(place)]
        return [place for place in known if (place.claim.uid in self.model.specs) is is_prepared]

    def _places_of_gone_claims(self) -> list[Place]:
        """Those whose claim was prepared once, and is not."""
        return [place for place in self._free_places(is_prepared=False) if place.claim.uid in self.model.last_specs]

    def _strangers(self) -> list[Place]:
        """Those whose claim was prepared for others, while nri-plugin is there to tell of them."""
        return [place for place in self.places if self.stage.is_whole and self.model.is_stranger(place)]

    def _rooms(self) -> Sequence[None]:
        """Whether the node has room for another pod."""
        return ANYWAY if len({place.pod.id for place in self.places}) < MAX_PODS else ()

    def _claims(self, *, is_prepared: bool) -> list[Manifest]:
        return [claim for claim in self.model.claims if (claim.uid in self.model.specs) is is_prepared]

    def _preparable(self) -> list[Manifest]:
        """Claims that are not prepared, unless a Prepare would wait for a session that nobody is there to open."""
        absent = self._claims(is_prepared=False)
        if self.stage.is_without_nri:
            return [claim for claim in absent if self._consumers(claim)]
        has_to_wait = self.stage.node.dra.is_up and not self.stage.node.nri.is_up
        return [] if has_to_wait else absent

    def _consumers(self, claim: Manifest) -> list[Place]:
        """The places of the first pod whose containers want different requests of the claim."""
        for pod in dict.fromkeys(place.pod.id for place in self._of(claim)):
            own = [place for place in self._of(claim) if place.pod.id == pod]
            if not any(a.requests & b.requests for a, b in combinations(own, 2)):
                return own
        return []

    def _shared(self) -> list[Manifest]:
        """Claims that are not prepared and cannot be without NRI, for all who want them."""
        if not (self.stage.is_without_nri and self.stage.node.dra.is_up):
            return []
        absent = self._claims(is_prepared=False)
        return [
            claim
            for claim in absent
            if self._of(claim) and sorted(map(str, self._of(claim))) != sorted(map(str, self._consumers(claim)))
        ]

    def _of(self, claim: Manifest) -> list[Place]:
        return [place for place in self.places if place.claim.uid == claim.uid]

    def _with_uuid(self) -> list[Tracked]:
        """Those that may register by UUID, told of or not."""
        can_register = self.stage.node.registry.is_up and self.stage.node.dra.is_up
        ended = (Status.STOPPED,)
        return [one for one in self._running() if can_register and self.model.may_be_adopted(one) and one.status not in ended]

    def _present(self) -> list[Tracked]:
        return [one for one in self.model.tracked if one.container.is_present]

    def _in(self, state: ContainerState) -> list[Tracked]:
        return [one for one in self._present() if one.container.state is state]

    def _running(self) -> list[Tracked]:
        return [one for one in self._present() if one.container.pids]

    def _recorded(self) -> list[Tracked]:
        """Those that may register: all others' calls are held until the deadline."""
        can_register = self.stage.node.registry.is_up and self.stage.node.dra.is_up
        return [one for one in self._running() if can_register and one.status is Status.STARTED]

    def _unbound(self) -> list[Tracked]:
        return [one for one in self.model.tracked if self.stage.node.dra.is_up and not one.is_bound]

    def _released(self) -> list[Tracked]:
        return [one for one in self.model.tracked if self.steps.may_ensure_late(one)]

    def _untold(self) -> list[Tracked]:
        """Those that may register by UUID, and of which nobody has told."""
        return [one for one in self._with_uuid() if one.status is Status.ABSENT]

    def _down(self) -> list[Service]:
        return [service for service in self.stage.node.services if not service.is_up]

    def _missed(self) -> list[Service]:
        """Those without which little goes on: nri-plugin is none where partitions were made at Prepare."""
        is_missed = not self.model.made
        return [service for service in self._down() if is_missed or service is not self.stage.node.nri]

    def _whole_node(self) -> Sequence[Service]:
        """All services, if all are up."""
        return [] if self._down() else self.stage.node.services


@pytest.fixture
def world(native: Path) -> Iterator[World]:
    one = World(native)
    yield one
    one.close()


@pytest.mark.timeout(1800)
def test_tree_is_right_after_every_step(world: World) -> None:
    NodeMachine.world = world
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize="VGPU_STATE_MACHINE_SEED" not in os.environ,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=True,
    )
    if seed := os.environ.get("VGPU_STATE_MACHINE_SEED"):
        hypothesis.seed(int(seed))(NodeMachine)
    print(f"state machine: {EXAMPLES} examples of {STEPS} steps, seed {seed or 'fixed'}")

    run_state_machine_as_test(NodeMachine, settings=settings)

    print(f"state machine: {world.examples_done} examples, {world.steps_done} steps, all ok; {dict(sorted(world.tally.items()))}")
    assert world.examples_done >= EXAMPLES


def _pick(those: Sequence[Any], number: int) -> Any:
    return those[number % len(those)]


async def _nothing() -> None:
    """A crash during a step is done by the machine."""
