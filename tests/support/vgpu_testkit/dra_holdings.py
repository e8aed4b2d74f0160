"""Containers of a case, what they hold, and right refusals, as values of the model that says who may hold what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vgpu_state.claims import ClaimRecord
from vgpu_state.errors import VgpuError
from vgpu_state.ids import RegisterUuid
from vgpu_testkit.dra_cases import CaseClaim, CaseContainer, Shared, shared_at_prepare

Place = tuple[int, str]  # the claim's number, the partition's name


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A right refusal: its class, and texts of which the message has all."""

    kind: type[VgpuError]
    names: tuple[str, ...] = ()

    def fits(self, error: VgpuError) -> bool:
        return type(error) is self.kind and all(name in str(error) for name in self.names)


@dataclass(kw_only=True, eq=False)
class Attempt:
    """A container as the runtime has it: one runtime id. `claims` say which preparation of each claim its grants are of.

    `sees` is the partition that CDI gives it, "" for none.
    """

    of: CaseContainer
    runtime_id: str
    claims: dict[int, int]
    sees: str = ""
    runs: bool = False
    was_started: bool = False
    has_ended: bool = False
    is_removed: bool = False

    @property
    def is_alive(self) -> bool:
        """As the runtime lists it: created or running."""
        return not self.has_ended and not self.is_removed


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A binding. `requests` are those that it holds; `who` is how a message names it."""

    attempt: Attempt
    who: str
    requests: frozenset[str]
    session: int
    home: int | None = None
    is_started: bool = False
    is_stopped: bool = False


@dataclass(kw_only=True)
class Prepared:
    """A claim on the node. `shared` are its partitions by name where it is prepared without NRI."""

    mode: str
    generation: int
    shared: dict[str, Shared] = field(default_factory=dict)

    def partition_of(self, container: CaseContainer) -> str | None:
        return next((name for name, shared in self.shared.items() if container in shared.containers), None)


def uuids_by_partition(record: ClaimRecord) -> list[tuple[str, RegisterUuid]]:
    """By partition made at Prepare."""
    made = record.eager.partitions if record.eager is not None else ()
    return [(p.name, p.register_uuid) for p in made if p.register_uuid is not None]


def shared_by_partition(claim: CaseClaim, known: Sequence[CaseContainer], record: ClaimRecord) -> dict[str, Shared]:
    """The partitions of the record by their names; they are those that a walk over the pod's containers comes to."""
    assert record.eager is not None
    named = {p.name: ({c.name for c in p.containers}, set(p.requests)) for p in record.eager.partitions}
    shared = shared_at_prepare(claim, known)
    assert sorted(map(repr, ((sorted(c), sorted(r)) for c, r in named.values()))) == sorted(
        repr((sorted(c.name for c in s.containers), sorted(s.requests))) for s in shared
    )
    return {str(name): next(s for s in shared if s.requests == requests) for name, (_, requests) in named.items()}
