"""What a node's claims tree must hold, as few facts per container as there are to know; and the tree as it is, to compare.

Pure but for `look`. Says what may be on the disk after a step; knows no process and no call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from vgpu_state import layout, pids, vgpu_config
from vgpu_state.claims import Binding, ClaimRecord, ClaimState, HolderState
from vgpu_state.layout import Layout
from vgpu_state.reader import ClaimsReader
from vgpu_testkit.light_runtime import LightContainer
from vgpu_testkit.manifests import Manifest
from vgpu_testkit.pods import Pod


class Status(Enum):
    """What the tree says of a container."""

    ABSENT = "no binding"
    UNSTARTED = "bound, its start not recorded"
    STARTED = "bound and started"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What the limits file must give of one GPU, by the GPU's index."""

    memory_bytes: int
    cores_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A container of a pod, whatever its attempt, and the requests of the one claim that it references."""

    pod: Pod
    name: str
    claim: Manifest
    requests: frozenset[str]
    limits: Mapping[int, Slice] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.pod.spec.uid[:4]}/{self.name} of {self.claim.name} {'+'.join(sorted(self.requests))}"

    @property
    def partition(self) -> str:
        return f"{self.pod.spec.uid}_{self.name}"

    def shares_with(self, other: Place) -> bool:
        return self.claim.uid == other.claim.uid and bool(self.requests & other.requests)


@dataclass(slots=True, kw_only=True, eq=False)
class Tracked:
    """A container that was made: what the tree said of it after the last step, what it may say after this one.

    `preparation` numbers the Prepare whose grants it shows; `session` is the NRI session of its binding; `owed` is what
    dra-plugin has yet to hear of its end, `released_by` the dra-plugin that has heard.
    """

    place: Place
    container: LightContainer
    preparation: int
    is_adjusted: bool = False
    status: Status = Status.ABSENT
    may: frozenset[Status] = frozenset()
    session: int = 0
    owed: Status | None = None
    released_by: int | None = None
    recorded: tuple[int, ...] = ()

    def __str__(self) -> str:
        container = self.container
        return f"container {self.place}#{container.spec.attempt} ({container.id[:8]}, {container.state.name.lower()})"

    @property
    def is_bound(self) -> bool:
        """The partition is its, and its end has not been heard of."""
        return self.status in (Status.UNSTARTED, Status.STARTED)

    @property
    def is_holder(self) -> bool:
        """It keeps others from its requests: not started yet, which nobody sees end, or with processes."""
        return self.status is Status.UNSTARTED or (self.status is Status.STARTED and bool(self.container.pids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A partition with its holder."""

    claim_uid: str
    partition: str
    binding: Binding

    @property
    def status(self) -> Status:
        if self.binding.state is HolderState.STOPPED:
            return Status.STOPPED
        return Status.STARTED if self.binding.is_started else Status.UNSTARTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The claims tree and the CDI folder at one moment."""

    records: Mapping[str, ClaimRecord | None]
    held: tuple[Held, ...]
    unheld: tuple[tuple[str, str], ...]  # claim and partition
    specs: Mapping[str, bytes]


def look(tree: Layout, cdi_dir: Path) -> Disk:
    """Reads everything that a reader of the tree is to see."""
    reader = ClaimsReader(tree)
    places = [(uid, name) for uid in reader.claim_uids() for name in reader.partitions(uid)]
    bindings = {place: reader.binding(*place) for place in places}
    return Disk(
        records={uid: reader.record(uid) for uid in reader.claim_uids()},
        held=tuple(Held(claim_uid=uid, partition=name, binding=b) for (uid, name), b in bindings.items() if b is not None),
        unheld=tuple((uid, name) for (uid, name), b in bindings.items() if b is None),
        specs={path.name: path.read_bytes() for path in sorted(cdi_dir.glob("*.json"))},
    )


class Model:
    """The node as it should be. `specs` are the CDI files of prepared claims, `last_specs` also those of claims that were.

    `attempts` counts containers by partition, `preparations` by claim how often it became prepared. `made` are the partitions of
    claims that were prepared without NRI, by claim and name, each for one place.
    """

    def __init__(self, claims: tuple[Manifest, ...]) -> None:
        self.claims = claims
        self.specs: dict[str, bytes] = {}
        self.last_specs: dict[str, bytes] = {}
        self.tracked: list[Tracked] = []
        self.attempts: Counter[str] = Counter()
        self.preparations: Counter[str] = Counter()
        self.made: dict[str, Mapping[str, Place]] = {}

    def expect(self, one: Tracked, *statuses: Status) -> None:
        """After this step the tree says one of these of the container."""
        one.may = frozenset(statuses)

    def allow(self, one: Tracked, *statuses: Status) -> None:
        """As well as what it may say already."""
        one.may |= set(statuses)

    def partition_of(self, place: Place) -> str:
        """The name of the place's partition, as its claim is prepared now."""
        made = self.made.get(place.claim.uid, {})
        return next((name for name, one in made.items() if one == place), place.partition)

    def is_made_for(self, place: Place) -> bool:
        """Whether the place has a partition since Prepare."""
        return place in self.made.get(place.claim.uid, {}).values()

    def is_stranger(self, place: Place) -> bool:
        """Whether the claim was prepared without NRI, and not for this place."""
        return place.claim.uid in self.made and not self.is_made_for(place)

    def may_be_adopted(self, one: Tracked) -> bool:
        """Whether a container of which nobody told can be bound to what was there before it."""
        is_current = one.preparation == self.preparations[one.place.claim.uid]
        return one.container.is_alive and is_current and self.is_made_for(one.place)

    def running(self, claim: Manifest) -> list[Tracked]:
        """Whom an Unprepare waits for: without NRI nobody need have told of them, and the whole pod counts."""
        pods = {place.pod.spec.uid for place in self.made.get(claim.uid, {}).values()}
        known = [one for one in self.of_claim(claim) if one.status is not Status.ABSENT]
        return [one for one in self.tracked if one.container.pids and (one in known or one.place.pod.spec.uid in pods)]

    def of_claim(self, claim: Manifest) -> list[Tracked]:
        return [one for one in self.tracked if one.place.claim.uid == claim.uid]

    def predecessors(self, place: Place) -> list[Tracked]:
        """Earlier attempts that still have the place's partition."""
        return [one for one in self.tracked if one.place == place and one.status is not Status.ABSENT]

    def rivals(self, place: Place) -> list[Tracked]:
        """Containers of other places that the tree says have one of the requests."""
        return [one for one in self.tracked if one.place != place and one.place.shares_with(place) and one.is_bound]

    def begin_step(self) -> None:
        """Until something is expected nothing changes."""
        self.last_specs.update(self.specs)
        for one in self.tracked:
            one.may = frozenset({one.status})

    def check(self, disk: Disk, tree: Layout, *, is_recovered: bool) -> None:
        """Compares; what was found becomes what is known. `is_recovered`: dra-plugin runs, so that nothing may be half done.

        Raises:
            AssertionError: naming what is wrong.
        """
        self._check_holders(disk)
        self._check_statuses(disk, tree)
        self._check_vacant(disk, tree)
        if is_recovered:
            self._check_claims(disk)

    def _check_holders(self, disk: Disk) -> None:
        live = [h for h in disk.held if h.binding.state is HolderState.CREATED]
        holders = Counter((h.claim_uid, key) for h in live for key in h.binding.grants)
        twice = [place for place, count in holders.items() if count > 1]
        assert not twice, f"grants with two live bindings: {twice}"

    def _check_statuses(self, disk: Disk, tree: Layout) -> None:
        found = {str(h.binding.runtime_id): h for h in disk.held}
        assert len(found) == len(disk.held), "a container has two partitions"
        known = {one.container.id: one for one in self.tracked}
        assert set(found) <= set(known), f"partitions of containers that are not there: {set(found) - set(known)}"
        for runtime_id, one in known.items():
            held = found.get(runtime_id)
            status = Status.ABSENT if held is None else held.status
            assert status in one.may, f"{one} is {status.value}, should be {sorted(s.value for s in one.may)}"
            one.status = status
            if held is not None:
                one.session = held.binding.session
                wanted = (one.place.claim.uid, self.partition_of(one.place))
                assert (held.claim_uid, held.partition) == wanted, f"{one} has {held}"
                _check_partition(one, held, tree)

    def _check_vacant(self, disk: Disk, tree: Layout) -> None:
        """Nobody holds a partition that was made with its container; one made at Prepare has its limits, and no process."""
        made = {(uid, name): place for uid, those in self.made.items() for name, place in those.items()}
        strange = [place for place in disk.unheld if place not in made]
        assert not strange, f"partitions without a binding: {strange}"
        there = {*disk.unheld, *((h.claim_uid, h.partition) for h in disk.held)}
        assert set(made) <= there, f"partitions made at Prepare that are not there: {set(made) - there}"
        for uid, name in disk.unheld:
            folder = Path(tree.claims) / uid / name / layout.CONFIG
            _check_limits(made[uid, name], folder)
            assert not (folder / layout.PIDS).exists(), f"nobody holds {uid}/{name}, and it lists processes"

    def _check_claims(self, disk: Disk) -> None:
        without_record = [uid for uid, record in disk.records.items() if record is None]
        assert not without_record, f"claim directories without a record: {without_record}"
        states = {uid: record.state for uid, record in disk.records.items() if record is not None}
        assert states == dict.fromkeys(self.specs, ClaimState.PREPARED), f"records {states}, prepared {sorted(self.specs)}"
        wanted = {f"k8s.manager.nvidia.com-claim_{uid}.json": spec for uid, spec in self.specs.items()}
        assert dict(disk.specs) == wanted, f"CDI files {sorted(disk.specs)}, or what they hold; wanted {sorted(wanted)}"


def request_of_env(entries: Iterable[str]) -> str | None:
    """The request that a CDI device's env grants."""
    values = [entry.partition("=")[2] for entry in entries if entry.startswith("VGPU_GRANT_")]
    return values[0].split("/")[1] if values else None


def cdi_ids_by_request(spec: bytes) -> dict[str, str]:
    """The qualified names of a CDI file's devices, by the request that each grants."""
    document = json.loads(spec)
    rows = ((request_of_env(d["containerEdits"]["env"]), d["name"]) for d in document["devices"])
    return {request: f"{document['kind']}={name}" for request, name in rows if request is not None}


def _check_partition(one: Tracked, held: Held, tree: Layout) -> None:
    binding, place = held.binding, one.place
    folder = Path(tree.claims) / held.claim_uid / held.partition / layout.CONFIG
    _check_limits(place, folder)
    assert len(binding.grants) == len(place.requests)
    if held.status is Status.STARTED:
        _check_pids(one, folder / layout.PIDS)


def _check_limits(place: Place, folder: Path) -> None:
    limits = vgpu_config.decode_limits((folder / layout.LIMITS).read_bytes())
    slots = {index: Slice(memory_bytes=s.memory_bytes, cores_percent=s.cores_percent) for index, s in limits.slots.items()}
    assert slots == place.limits, f"{place} has limits {slots}, should have {place.limits}"
    assert (limits.pod_uid, limits.container_name) == (place.pod.spec.uid, place.name)


def _check_pids(one: Tracked, file: Path) -> None:
    """Registry's own re-read may come between any two steps: then the list is that of the cgroup."""
    assert file.exists(), f"{one} is started and has no PID list"
    listed = pids.decode_pids(file.read_bytes())
    assert listed, f"{one} is started and has an empty PID list"
    if one.container.pids:
        assert one.container.pids[0] in listed, f"{one} lists {listed}, its first process is {one.container.pids[0]}"
        assert listed in (one.recorded, tuple(sorted(one.container.pids))), f"{one} lists {listed}, not {one.recorded}"
    one.recorded = listed
