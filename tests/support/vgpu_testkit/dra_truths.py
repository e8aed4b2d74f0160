"""What is true of a node at any moment: the disk has what the model says, and each container has limits of its own."""

from __future__ import annotations

from vgpu_state import vgpu_config
from vgpu_state.claims import Binding, HolderState
from vgpu_state.ids import PartitionName
from vgpu_testkit.dra_cases import CORES_PERCENT, MEMORY_BYTES
from vgpu_testkit.dra_holdings import Bound, Place
from vgpu_testkit.dra_lives import Life

Picture = tuple[object, ...]


def check(life: Life) -> None:
    """Returns when disk, memory and model are one, and nothing half is there."""
    reader, model = life.node.reader, life.model
    places = {(life.number(uid), str(name)) for uid in reader.claim_uids() for name in reader.partitions(uid)}
    assert places == model.directories()
    found = {place: b for place in places if (b := reader.binding(life.uid(place), PartitionName(place[1]))) is not None}
    assert {place: _on_disk(b) for place, b in found.items()} == {place: _said(life, b) for place, b in model.bound.items()}
    assert {(life.number(uid), str(name)): b for uid, name, b in life.node.ledger.all_bindings()} == found
    assert life.node.ledger.conflicts() == 0
    assert [path for path in life.node.files() if ".new" in path] == []
    for place in places:
        if (bound := model.bound.get(place)) is None or bound.home is None:
            assert limits(life, place) == model.slots(place)
    _check_those_that_run(life)


def limits(life: Life, place: Place) -> dict[int, int]:
    """How many shares of each GPU a partition's limits file has."""
    raw = life.node.tree.read_limits(life.uid(place), PartitionName(place[1]))
    assert raw is not None
    slots = vgpu_config.decode_limits(raw).slots
    counts = {gpu: slot.cores_percent // CORES_PERCENT for gpu, slot in slots.items()}
    assert {gpu: (s.cores_percent, s.memory_bytes) for gpu, s in slots.items()} == {
        gpu: (count * CORES_PERCENT, count * MEMORY_BYTES) for gpu, count in counts.items()
    }
    return counts


def _check_those_that_run(life: Life) -> None:
    """Each container that is bound and runs finds the limits of its own partition, and no other one finds the same."""
    runs = [(a, home) for a in life.model.attempts if a.runs and (home := life.model.home_of(a)) is not None]
    living = [(a, place) for a, (place, bound) in runs if not bound.is_stopped]
    assert [life.seen(a) for a, _ in living] == [name for _, (_, name) in living]
    assert len({place for _, place in living}) == len(living)


def _on_disk(binding: Binding) -> Picture:
    return binding.runtime_id, str(binding), binding.home, binding.state, binding.is_started, binding.session


def _said(life: Life, bound: Bound) -> Picture:
    home = None if bound.home is None else life.uid((bound.home, ""))
    state = HolderState.STOPPED if bound.is_stopped else HolderState.CREATED
    return bound.attempt.runtime_id, bound.who, home, state, bound.is_started, bound.session
