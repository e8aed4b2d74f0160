"""What can happen next on a node of a case: kinds of steps, and whom each can be done to now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vgpu_state.ids import RegisterUuid
from vgpu_testkit.dra_assigned import EAGER, LAZY
from vgpu_testkit.dra_cases import CaseContainer
from vgpu_testkit.dra_holdings import Attempt
from vgpu_testkit.dra_lives import Life

ANYWAY = (None,)  # for a step that is done to nobody


class Move(NamedTuple):
    """A kind of step: how often it is chosen, among whom, and what it does to one of them."""

    weight: int
    among: Sequence[Any]
    act: Callable[[Any], object]


def moves(life: Life, number: int) -> list[Move]:
    """`number` chooses what else a step may want to know."""
    attempts, running = life.model.attempts, [a for a in life.model.attempts if a.runs]
    registering = [a for a in running if a.runtime_id in life.uuids]
    absent = [c for c in life.case.claims if c.number not in life.model.prepared]
    known = _reserved_for(life, number)
    return [
        Move(3, absent, lambda claim: life.prepare(claim, EAGER, known)),
        Move(2, absent, lambda claim: life.prepare(claim, LAZY, ())),
        Move(1, life.case.claims, lambda claim: life.prepare(claim, EAGER if number % 2 else LAZY, known)),
        Move(1, life.case.claims, life.unprepare),
        Move(24, [c for c in life.case.containers if life.may_create(c)], life.create),
        Move(2, _heard_of(life), life.ensure),
        Move(20, [a for a in attempts if life.may_start(a)], life.start),
        Move(1, running, life.record_start),
        Move(8, registering, lambda attempt: life.register(attempt, says=attempt.of.name)),
        Move(6, registering, lambda attempt: life.register(attempt, says="")),
        Move(2, _copied(life, running), lambda both: life.register_as_another(*both)),
        Move(6, running, life.end),
        Move(4, running, life.end_untold),
        Move(3, [a for a in attempts if not a.is_removed], life.remove),
        Move(4, ANYWAY if life.is_nri_there else (), lambda _: life.lose_nri()),
        Move(1 if life.is_nri_there else 6, ANYWAY, lambda _: life.synchronize()),
        Move(1, ANYWAY, lambda _: life.pass_time(121)),
        Move(2, ANYWAY, lambda _: life.restart()),
        Move(1, ANYWAY, lambda _: life.reboot()),
    ]


def _reserved_for(life: Life, number: int) -> tuple[CaseContainer, ...]:
    """The containers of the first pods: the others join later."""
    pods = list(dict.fromkeys(c.pod for c in life.case.containers))
    return tuple(c for c in life.case.containers if c.pod in pods[: 1 + number % len(pods)])


def _heard_of(life: Life) -> list[Attempt]:
    """The last attempt of each container, and those whose end dra-plugin remembers: no other is asked for that late."""
    last = {a.of: a for a in life.model.attempts}
    return [a for a in life.model.attempts if a.runtime_id in life.model.released_at or last[a.of] is a]


def _copied(life: Life, running: Sequence[Attempt]) -> list[tuple[Attempt, RegisterUuid]]:
    """Those that run, and UUIDs of partitions that are not theirs."""
    made = [p for r in life.node.ledger.records.values() if r.eager is not None for p in r.eager.partitions]
    uuids = [(p.name, p.register_uuid) for p in made if p.register_uuid is not None]
    return [(attempt, uuid) for attempt in running for name, uuid in uuids if name != attempt.sees]
