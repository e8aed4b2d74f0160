"""Who may hold which partition: what dra-plugin is to know of a node's claims and containers, as a few tables.

Says of each operation whether it is to succeed, and which refusals are right where it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from vgpu_state.errors import NotReady, PermissionRefused, PreconditionFailed, Superseded
from vgpu_testkit.dra_assigned import EAGER, LAZY
from vgpu_testkit.dra_cases import Case, CaseClaim, CaseContainer
from vgpu_testkit.dra_holdings import Attempt, Bound, Place, Prepared, Refusal

GRACE_S, BUSY_S, REMEMBERED_S = 120.0, 60.0, 600.0


@dataclass(kw_only=True)
class Model:
    """`session` is NRI's session as dra-plugin has compared it last, 0 before."""

    case: Case
    prepared: dict[int, Prepared] = field(default_factory=dict)
    bound: dict[Place, Bound] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    released_at: dict[str, float] = field(default_factory=dict)
    bound_at: dict[str, float] = field(default_factory=dict)
    busy_since: dict[int, float] = field(default_factory=dict)
    session: int = 0
    now_s: float = 0.0

    def claims_of(self, attempt: Attempt) -> tuple[CaseClaim, ...]:
        return self.case.claims_of(attempt.of)

    def is_prepared_for(self, container: CaseContainer) -> bool:
        return all(c.number in self.prepared for c in self.case.claims_of(container))

    def is_current(self, attempt: Attempt) -> bool:
        """Whether the container was given what its claims are prepared with now."""
        return all(
            (p := self.prepared.get(number)) is not None and p.generation == generation
            for number, generation in attempt.claims.items()
        )

    def home_of(self, attempt: Attempt) -> tuple[Place, Bound] | None:
        return next(((p, b) for p, b in self.bound.items() if b.attempt is attempt and b.home is None), None)

    def all_of(self, attempt: Attempt) -> list[Place]:
        """Its binding and the references to it."""
        return [place for place, b in self.bound.items() if b.attempt is attempt]

    def is_live(self, bound: Bound) -> bool:
        age_s = self.now_s - self.bound_at.get(bound.attempt.runtime_id, 0.0)
        return not bound.is_stopped and ((not bound.is_started and age_s < GRACE_S) or bound.attempt.runs)

    # EnsurePartition

    def ensure_refusals(self, attempt: Attempt, *, session: int) -> list[Refusal]:
        """What EnsurePartition may be refused with; none: it succeeds."""
        if not self.is_current(attempt):
            return [Refusal(kind=PermissionRefused, names=(str(attempt.of),))]
        if (names := self._misfits(attempt)) is not None:
            return [Refusal(kind=PreconditionFailed, names=(str(attempt.of), *names))]
        if self._was_released(attempt):
            return [Refusal(kind=Superseded)]
        if (home := self.home_of(attempt)) is not None:
            return [Refusal(kind=Superseded)] if home[1].is_stopped else []
        return self._conflicts(attempt, may_evict=session == self.session != 0)

    def _misfits(self, attempt: Attempt) -> list[str] | None:
        """Which claims do not go with this container, or with each other."""
        claims = self.claims_of(attempt)
        prepared = [self.prepared[c.number] for c in claims]
        if len({p.mode for p in prepared}) > 1 or (prepared[0].mode == EAGER and len(claims) > 1):
            return [str(c.ref) for c in claims]
        if prepared[0].mode == EAGER and prepared[0].partition_of(attempt.of) is None:
            return [str(claims[0].ref)]
        return None

    def _conflicts(self, attempt: Attempt, *, may_evict: bool) -> list[Refusal]:
        others, who = [other for _, other in self._in_the_way(attempt)], str(attempt.of)
        live = [Refusal(kind=PreconditionFailed, names=(who, other.who)) for other in others if self.is_live(other)]
        if not may_evict and len(live) < len(others):
            live.append(Refusal(kind=NotReady, names=(who,)))
        return live

    def ensured(self, attempt: Attempt, *, session: int) -> None:
        """EnsurePartition succeeded."""
        if self.home_of(attempt) is not None:
            return
        for place, other in list(self._in_the_way(attempt)):
            if place not in self.places(attempt):
                self.bound[place] = replace(other, is_stopped=True)
        (home, *others) = self.places(attempt)
        for place in (*others, home):
            claim = next(c for c in self.case.claims if c.number == place[0])
            self._bind(
                place,
                Bound(
                    attempt=attempt,
                    who=str(attempt.of),
                    requests=attempt.of.requests(claim),
                    session=session,
                    home=None if place == home else home[0],
                ),
            )

    def places(self, attempt: Attempt) -> list[Place]:
        """Where the container's binding and the references to it are, its home first."""
        return [
            (
                claim.number,
                self.prepared[claim.number].partition_of(attempt.of) or f"{attempt.of.pod.uid}_{attempt.of.name}",
            )
            for claim in self.claims_of(attempt)
        ]

    def _in_the_way(self, attempt: Attempt) -> Iterator[tuple[Place, Bound]]:
        """Bindings of other containers over a request of this one, or in its partition."""
        own = self.places(attempt)
        for claim in self.claims_of(attempt):
            for place, b in self.bound.items():
                if place[0] != claim.number or b.is_stopped or b.who == str(attempt.of):
                    continue
                if b.requests & attempt.of.requests(claim) or place in own:
                    yield place, b

    # RecordStart

    def start_refusals(self, attempt: Attempt) -> list[Refusal]:
        home = self.home_of(attempt)
        if home is None:
            return [Refusal(kind=PermissionRefused)]
        return [Refusal(kind=Superseded)] if home[1].is_stopped else []

    def started(self, attempt: Attempt) -> None:
        for place in self.all_of(attempt):
            self.bound[place] = replace(self.bound[place], is_started=True)

    # BindPartition

    def bind_refusals(self, attempt: Attempt, *, says: str) -> list[Refusal]:
        """Of a registration with the UUID that the container was given."""
        if not self.is_current(attempt):
            return [Refusal(kind=PermissionRefused)]
        place = self.eager_place(attempt)
        holder = self.bound.get(place)
        if holder is not None and holder.attempt is attempt and (holder.is_stopped or holder.is_started):
            return [Refusal(kind=Superseded)] if holder.is_stopped else []
        if attempt.of not in self.prepared[place[0]].shared[place[1]].containers:
            return [Refusal(kind=PermissionRefused, names=(attempt.of.pod.uid, attempt.runtime_id[:12]))]
        if self._was_released(attempt):
            return [Refusal(kind=Superseded)]
        if holder is None or holder.attempt is attempt:
            return []
        newcomer = self._named(attempt, says)
        if newcomer == holder.who:  # its earlier attempt
            earlier = Refusal(kind=NotReady, names=(newcomer, holder.attempt.runtime_id[:12]))
            return [earlier] if holder.attempt.runs else []
        return [Refusal(kind=PreconditionFailed, names=(newcomer, holder.who))] if self.is_live(holder) else []

    def registered(self, attempt: Attempt, *, says: str) -> None:
        place = self.eager_place(attempt)
        holder = self.bound.get(place)
        if holder is not None and holder.attempt is attempt and holder.is_started:
            return
        who = holder.who if holder is not None and holder.attempt is attempt and not says else self._named(attempt, says)
        requests = self.prepared[place[0]].shared[place[1]].requests
        self._bind(place, Bound(attempt=attempt, who=who, requests=requests, session=0, is_started=True))

    def eager_place(self, attempt: Attempt) -> Place:
        """Of the partition that CDI gave it, whether that was made for it or not."""
        (number,) = attempt.claims
        return number, attempt.sees

    def _named(self, attempt: Attempt, says: str) -> str:
        number, name = self.eager_place(attempt)
        if says or len(self.prepared[number].shared[name].containers) == 1:
            return str(attempt.of)
        return f"a container ({attempt.runtime_id[:12]}) of pod {attempt.of.pod}"

    # Ends

    def stopped(self, attempt: Attempt) -> None:
        self.released_at[attempt.runtime_id] = self.now_s
        for place in self.all_of(attempt):
            self.bound[place] = replace(self.bound[place], is_stopped=True)

    def removed(self, attempt: Attempt) -> None:
        self.released_at[attempt.runtime_id] = self.now_s
        for place in self.all_of(attempt):
            self._forget(place)

    def unprepared(self, claim: CaseClaim) -> None:
        self.prepared.pop(claim.number, None)
        self.busy_since.pop(claim.number, None)
        for place in [p for p in self.bound if p[0] == claim.number]:
            self._forget(place)

    def unprepare_refusals(self, claim: CaseClaim) -> list[Refusal]:
        if not self._is_used(claim):
            return []
        if self.now_s - self.busy_since.setdefault(claim.number, self.now_s) < BUSY_S:
            return [Refusal(kind=NotReady, names=(claim.uid,))]
        return []

    def restarted(self) -> None:
        """Another process: what is on disk counts from now on, released ids are forgotten."""
        self.session = 0
        self.released_at.clear()
        self.busy_since.clear()
        self.bound_at = {b.attempt.runtime_id: self.now_s for b in self.bound.values()}

    def rebooted(self) -> None:
        self.bound.clear()
        for attempt in self.attempts:
            attempt.runs, attempt.has_ended = False, True
        self.restarted()

    # Synchronize

    def absent_and_dead(self, session: int, present: Iterable[Attempt]) -> list[Attempt]:
        """Whose bindings a Synchronize releases."""
        there = set(present)
        return [
            b.attempt
            for b in self.bound.values()
            if b.home is None and b.session < session and b.attempt not in there and not self.is_live(b)
        ]

    def may_be_adopted(self, attempt: Attempt) -> bool:
        return all((p := self.prepared.get(number)) is not None and p.mode == EAGER for number in attempt.claims)

    def slots(self, place: Place) -> dict[int, int]:
        """Of the partition's limits file: how many shares of each GPU."""
        bound, prepared = self.bound.get(place), self.prepared[place[0]]
        claims = {c.number: c for c in self.case.claims}
        if prepared.mode == EAGER:
            over = [(claims[place[0]], prepared.shared[place[1]].requests)]
        else:
            assert bound is not None
            over = [(claims[n], bound.attempt.of.requests(claims[n])) for n in bound.attempt.claims]
        found: dict[int, int] = {}
        for gpu in [gpu for claim, requests in over for r in requests for gpu in claim.gpus[r]]:
            found[gpu] = found.get(gpu, 0) + 1
        return found

    def directories(self) -> set[Place]:
        """Every partition's directory."""
        made = {(n, name) for n, p in self.prepared.items() for name in p.shared}
        return made | {place for place in self.bound if self.prepared[place[0]].mode == LAZY}

    def _was_released(self, attempt: Attempt) -> bool:
        at = self.released_at.get(attempt.runtime_id)
        return at is not None and self.now_s - at <= REMEMBERED_S

    def _is_used(self, claim: CaseClaim) -> bool:
        if any(b.attempt.runs for place, b in self.bound.items() if place[0] == claim.number):
            return True
        prepared = self.prepared.get(claim.number)
        pods = {c.pod for shared in prepared.shared.values() for c in shared.containers} if prepared else set()
        return any(a.runs and a.of.pod in pods for a in self.attempts)

    def _bind(self, place: Place, bound: Bound) -> None:
        previous = self.bound.get(place)
        if previous is not None and previous.attempt is not bound.attempt:
            self._forget(place)
        self.bound[place] = bound
        self.bound_at.setdefault(bound.attempt.runtime_id, self.now_s)

    def _forget(self, place: Place) -> None:
        bound = self.bound.pop(place)
        if bound.home is None:
            self.bound_at.pop(bound.attempt.runtime_id, None)
            self.released_at[bound.attempt.runtime_id] = self.now_s
