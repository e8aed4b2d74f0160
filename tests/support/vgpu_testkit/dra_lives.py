"""Claims and containers of a case on a real claims/ tree, step by step; each step ends as the model says.

kubelet makes a container anew only when the last one has no process; beyond that every order is tried, also such as no kubelet
comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from vgpu_dra.assignments import Registrant, Replayed
from vgpu_dra.policy.admission import ContainerFacts
from vgpu_dra.policy.assigner import THROUGH_NRI, Assignment
from vgpu_state.claims import EagerReason
from vgpu_state.container_abi import Mount
from vgpu_state.errors import PreconditionFailed, VgpuError
from vgpu_state.ids import ClaimUid, ContainerName, RegisterUuid, RuntimeId
from vgpu_testkit.dra_assigned import EAGER, shown
from vgpu_testkit.dra_cases import Case, CaseClaim, CaseContainer, clashes
from vgpu_testkit.dra_holdings import Attempt, Place, Prepared, Refusal, shared_by_partition, uuids_by_partition
from vgpu_testkit.dra_model import Model
from vgpu_testkit.dra_tree import DraTree

T = TypeVar("T")
POISON = "created-without-nri"
_CONFIG = "/etc/vgpu-manager/config"


@dataclass(kw_only=True, eq=False)
class Life:
    """One node, and what is to be true of it."""

    node: DraTree
    case: Case
    is_nri_there: bool = True
    session: int = 1
    generation: int = 0
    facts: dict[str, ContainerFacts] = field(default_factory=dict)
    mounts: dict[str, tuple[Mount, ...]] = field(default_factory=dict)
    uuids: dict[str, RegisterUuid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = Model(case=self.case, now_s=self.node.now_s)

    def pass_time(self, seconds: float) -> None:
        self.node.now_s += seconds
        self.model.now_s = self.node.now_s

    # Claims

    def prepare(self, claim: CaseClaim, mode: str, known: Sequence[CaseContainer]) -> None:
        """Prepare, in this mode where it is the first; `known` are the containers of the pods that the claim is reserved for."""
        assignment = THROUGH_NRI
        if mode == EAGER:
            assignment = Assignment(reason=EagerReason.NRI_LOST, pods=self.case.pods_of(claim, known))
        before = self.model.prepared.get(claim.number)
        others = set(self.model.prepared) - {claim.number}
        clashing = clashes(self.case, claim, known, others) if mode == EAGER and before is None else []

        record = self._expect(
            lambda: self.node.claims.prepare(claim.allocation, asked_at_s=self.node.now_s, assignment=assignment),
            [Refusal(kind=PreconditionFailed, names=pair) for pair in clashing],
        )

        if record is None:
            return
        self.model.busy_since.pop(claim.number, None)
        if before is None:
            self.generation += 1
            self.model.prepared[claim.number] = Prepared(
                mode=mode, generation=self.generation, shared=shared_by_partition(claim, known, record) if mode == EAGER else {}
            )

    def unprepare(self, claim: CaseClaim) -> None:
        refusals = self.model.unprepare_refusals(claim)
        if self._expect(lambda: _done(self.node.claims.unprepare, claim.uid), refusals):
            self.model.unprepared(claim)

    # Containers

    def may_create(self, container: CaseContainer) -> bool:
        return self.model.is_prepared_for(container) and not any(
            a.of == container and (a.runs or (a.is_alive and not a.was_started)) for a in self.model.attempts
        )

    def create(self, container: CaseContainer) -> None:
        """The runtime makes the next container of this name; with NRI only where dra-plugin agrees."""
        attempt = Attempt(
            of=container,
            runtime_id=f"{len(self.model.attempts):012x}{'c0' * 26}",
            claims={c.number: self.model.prepared[c.number].generation for c in self.case.claims_of(container)},
        )
        self._give(attempt)
        self.model.attempts.append(attempt)
        if self.is_nri_there and not self.ensure(attempt):
            attempt.has_ended = True
            self._release(attempt, removed=True)

    def ensure(self, attempt: Attempt) -> bool:
        """EnsurePartition for the first time, again, or late; whether it succeeded."""
        refusals = self.model.ensure_refusals(attempt, session=self.session)
        facts = self.facts[attempt.runtime_id]
        answer = self._expect(lambda: self.node.partitions.ensure(facts, session=self.session), refusals)
        if answer is None:
            return False
        self.model.ensured(attempt, session=self.session)
        place = self.model.home_of(attempt)
        assert place is not None
        assert (self.number(answer.claim_uid), answer.partition) == place[0]
        by_destination = {m.destination: m for m in (*facts.mounts, *answer.mounts)}
        self.mounts[attempt.runtime_id] = tuple(by_destination.values())
        return True

    def may_start(self, attempt: Attempt) -> bool:
        """Whether it is created, and comes without a poison. What CDI gives of two claims at once is not tried."""
        is_clean = self.seen(attempt) != POISON and (len(attempt.claims) == 1 or self.model.home_of(attempt) is not None)
        return attempt.is_alive and not attempt.was_started and is_clean

    def start(self, attempt: Attempt) -> None:
        """Its first process is there; with NRI only where dra-plugin agrees."""
        attempt.was_started = attempt.runs = True
        self._run(attempt)
        if self.is_nri_there and not self.record_start(attempt):
            self.end(attempt)

    def record_start(self, attempt: Attempt) -> bool:
        """As a nri-plugin tells of it that says whom it is about."""
        facts, session = self.facts[attempt.runtime_id], self.session
        if self.model.home_of(attempt) is None and self.model.may_be_adopted(attempt):
            refusals = self.model.ensure_refusals(attempt, session=session)
            if self._expect(lambda: _done(self.node.synchronization.adopt, facts, session), refusals) is None:
                return False
            self.model.ensured(attempt, session=session)
        refusals = self.model.start_refusals(attempt)
        started = self._expect(lambda: self.node.partitions.record_start(facts.runtime_id, self._pid(attempt)), refusals)
        if started is None:
            return False
        self.model.started(attempt)
        return True

    def register(self, attempt: Attempt, *, says: str) -> None:
        """With the UUID that it was given; it says its name, or nothing."""
        refusals = self.model.bind_refusals(attempt, says=says)
        if self._expect(lambda: self._bind(attempt, self.uuids[attempt.runtime_id], says), refusals):
            self.model.registered(attempt, says=says)

    def register_as_another(self, attempt: Attempt, uuid: RegisterUuid) -> None:
        """With the UUID of another partition, copied from there: never."""
        with pytest.raises(VgpuError):
            self._bind(attempt, uuid, "")

    def end(self, attempt: Attempt) -> None:
        """It has no process any more; with NRI its stop is told."""
        self.end_untold(attempt)
        if self.is_nri_there:
            self._release(attempt, removed=False)

    def end_untold(self, attempt: Attempt) -> None:
        """It has no process any more, and its stop is lost."""
        if attempt.runs:
            self.node.end_container(RuntimeId(attempt.runtime_id), attempt.of.pod)
        attempt.runs, attempt.has_ended = False, True

    def remove(self, attempt: Attempt) -> None:
        self.end(attempt)
        attempt.is_removed = True
        if self.is_nri_there:
            self._release(attempt, removed=True)

    # The node

    def synchronize(self) -> None:
        """NRI is there, in another session, and has told which containers live."""
        self.session += 1
        self.is_nri_there = True
        present = sorted(
            (a for a in self.model.attempts if a.is_alive), key=lambda a: not a.runs
        )  # as those that run count first
        replayed = [
            Replayed(runtime_id=RuntimeId(a.runtime_id), facts=self.facts[a.runtime_id], pid=self._pid(a) if a.runs else 0)
            for a in present
        ]
        gone = self.model.absent_and_dead(self.session, present)

        found = self.node.synchronization.synchronize(self.session, replayed)

        for attempt in gone:
            self.model.removed(attempt)
        self.model.session = self.session
        unbound = set()
        for attempt in present:
            if self.model.home_of(attempt) is None and not (self.model.may_be_adopted(attempt) and self._adopt(attempt)):
                unbound.add(attempt.runtime_id)
        for attempt in [a for a in present if a.runs and a.runtime_id not in unbound and not self.model.start_refusals(a)]:
            self.model.started(attempt)
        assert set(found.released) == {a.runtime_id for a in gone}
        assert set(found.unbound) == unbound
        lacking = {a.runtime_id for a in present if a.runtime_id not in unbound and len(self.model.all_of(a)) < len(a.claims)}
        assert set(found.drifted) == lacking

    def lose_nri(self) -> None:
        self.is_nri_there = False

    def restart(self) -> None:
        """dra-plugin is another process, which no session has told of anything yet."""
        self.node.restart(boot_id=self.node.node.boot_id)
        self.model.restarted()

    def reboot(self) -> None:
        for attempt in [a for a in self.model.attempts if a.runs]:
            self.node.end_container(RuntimeId(attempt.runtime_id), attempt.of.pod)
        self.node.restart(boot_id=f"{self.node.node.boot_id}+")
        self.model.rebooted()

    def seen(self, attempt: Attempt) -> str:
        """The partition whose limits the container finds, or the poison."""
        (source,) = [m.source for m in self.mounts[attempt.runtime_id] if m.destination == _CONFIG]
        return POISON if source.endswith(POISON) else source.split("/")[-2]

    def number(self, uid: ClaimUid) -> int:
        return next(c.number for c in self.case.claims if c.uid == uid)

    def uid(self, place: Place) -> ClaimUid:
        return next(c.uid for c in self.case.claims if c.number == place[0])

    def _give(self, attempt: Attempt) -> None:
        """What the runtime shows of the container after the CDI edits."""
        claims = self.case.claims_of(attempt.of)
        records = [self.node.ledger.records[c.uid] for c in claims]
        requests = tuple(c.allocated(r) for c in claims for r in attempt.of.requests(c))
        runtime_id = RuntimeId(attempt.runtime_id)
        facts = shown(*records, name=attempt.of.name, runtime_id=runtime_id, requests=requests, pod=attempt.of.pod)
        self.facts[runtime_id], self.mounts[runtime_id] = facts, facts.mounts
        if len(records) == 1 and self.seen(attempt) != POISON:
            attempt.sees = self.seen(attempt)
            (self.uuids[runtime_id],) = [uuid for name, uuid in uuids_by_partition(records[0]) if name == attempt.sees]

    def _adopt(self, attempt: Attempt) -> bool:
        """What is to become of a container that nobody told of, when NRI does."""
        is_bound = not self.model.ensure_refusals(attempt, session=self.session)
        if is_bound:
            self.model.ensured(attempt, session=self.session)
        return is_bound

    def _release(self, attempt: Attempt, *, removed: bool) -> None:
        runtime_id = RuntimeId(attempt.runtime_id)
        self.node.partitions.stop(runtime_id)
        self.model.stopped(attempt)
        if removed:
            self.node.partitions.remove(runtime_id)
            self.model.removed(attempt)

    def _run(self, attempt: Attempt) -> None:
        mounts = self.mounts[attempt.runtime_id]
        self.node.run_container(RuntimeId(attempt.runtime_id), attempt.of.pod, [self._pid(attempt)], mounts=mounts)

    def _bind(self, attempt: Attempt, uuid: RegisterUuid, says: str) -> object:
        who = Registrant(
            runtime_id=RuntimeId(attempt.runtime_id),
            pod_uid=attempt.of.pod.uid,
            pid=self._pid(attempt),
            container=ContainerName(says),
        )
        return self.node.eager_bindings.bind(uuid, who)

    def _expect(self, act: Callable[[], T], refusals: Sequence[Refusal]) -> T | None:
        """What came of it; None where it was refused, as it is to be, and has changed nothing."""
        if not refusals:
            return act()
        before = self.node.snapshot()
        with pytest.raises(VgpuError) as refusal:
            act()
        assert any(right.fits(refusal.value) for right in refusals), f"{refusal.value!r}; right were {refusals}"
        assert self.node.snapshot() == before
        return None

    def _pid(self, attempt: Attempt) -> int:
        return 1000 + self.model.attempts.index(attempt)


def _done(act: Callable[..., object], *arguments: object) -> bool:
    act(*arguments)
    return True
