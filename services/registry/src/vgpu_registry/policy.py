"""Who may register, and what is recorded then: pure decisions over what the kernel and the claims tree say.

Knows no files, no sockets and no wire classes. Nothing a caller says of itself is believed; it only has to agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vgpu_state.cgroup import AmbiguousCgroup, ContainerCgroup
from vgpu_state.claims import Binding, HolderState
from vgpu_state.ids import ClaimUid, ContainerName, PartitionName, PodUid, RegisterUuid, RuntimeId
from vgpu_state.pids import MAX_PIDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a caller says of itself, None where it says nothing: a register UUID, or pod and container, or more of the three."""

    pod_uid: PodUid | None = None
    container: ContainerName | None = None
    register_uuid: RegisterUuid | None = field(default=None, repr=False)

    @property
    def has_names(self) -> bool:
        """Whether they can stand without the register UUID."""
        return self.pod_uid is not None and self.container is not None

    @property
    def question(self) -> Question | None:
        """What dra-plugin is asked for a container without a binding; None without a register UUID."""
        return None if self.register_uuid is None else Question(register_uuid=self.register_uuid, container=self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May the caller's container have the partition of this register UUID? `container` is what it says its name is."""

    register_uuid: RegisterUuid = field(repr=False)
    container: ContainerName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The calling process and its container, by the kernel's word. `started_ticks` tells it from a later one of its PID."""

    pid: int
    started_ticks: int
    pod_uid: PodUid
    container_id: RuntimeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a PID: start time before and after its cgroup was read (None: no such process), and what that said."""

    pid: int
    ticks_before: int | None
    place: ContainerCgroup | AmbiguousCgroup | None
    ticks_after: int | None


@dataclass(frozen=True, slots=True, order=True)
class PartitionRef:
    """Which partition: the claim and the directory within it."""

    claim_uid: ClaimUid
    name: PartitionName

    def __str__(self) -> str:
        return f"{self.claim_uid}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A partition and who holds it."""

    partition: PartitionRef
    binding: Binding

    @property
    def is_live(self) -> bool:
        """Whether its processes are worth a look: the start is recorded and no stop is."""
        return self.binding.is_started and self.binding.state is HolderState.CREATED

    @property
    def awaits_start(self) -> bool:
        """Whether its container was created, and nobody has told of its start: NRI may have gone in between."""
        return not self.binding.is_started and self.binding.state is HolderState.CREATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The ascending PIDs of the container's cgroup, then the start time of the caller's PID after that reading."""

    pids: tuple[int, ...]
    caller_ticks: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Record `pids` for the partition, then answer the caller."""

    partition: PartitionRef
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """The answer may still change: the call is held."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The answer can never change: refused at once."""

    reason: str


def judge_caller(look: Look) -> Caller | NotYet | Denied:
    """The caller, or why it is not (yet) a container of a pod."""
    pid = look.pid
    if pid == 0:
        return Denied(reason="the caller's process is not visible here: registry needs the host's PID namespace (hostPID: true)")
    if look.ticks_before is None:
        return Denied(reason=f"process {pid} has ended, or is not in the proc file system that registry was given")
    if look.ticks_after != look.ticks_before:
        return Denied(reason=f"process {pid} ended while it was looked at; its PID may belong to another one by now")
    if look.place is None:
        return Denied(reason=f"process {pid} is not a container of a pod")
    if isinstance(look.place, AmbiguousCgroup):
        return Denied(reason=f"process {pid} is in several containers at once: {', '.join(look.place.paths)}")
    if look.place.container_id is None:
        return NotYet(reason=f"process {pid} is in pod {look.place.pod_uid}, not yet in the cgroup of a container")
    return Caller(pid=pid, started_ticks=look.ticks_before, pod_uid=look.place.pod_uid, container_id=look.place.container_id)


def judge_words(said: Words, *, caller: Caller) -> Denied | None:
    """Why the kernel alone proves wrong what was said; None where it does not."""
    if said.pod_uid not in (None, caller.pod_uid):
        return Denied(reason=f"the call says pod {said.pod_uid}, but process {caller.pid} is in pod {caller.pod_uid}")
    return None


def judge_unbound(said: Words, *, caller: Caller, uuid_refusal: str | None) -> NotYet | Denied:
    """The verdict on a caller whose container has no partition.

    `uuid_refusal` is why dra-plugin gives it none by its register UUID, None while it has not been asked. A call that has the
    names too goes on by them.
    """
    reason = f"no partition is bound to container {caller.container_id}"
    if uuid_refusal is None:
        return NotYet(reason=reason)
    refusal = f"dra-plugin refuses the register_uuid: {uuid_refusal}"
    return NotYet(reason=f"{reason}; {refusal}") if said.has_names else Denied(reason=refusal)


def judge_holding(said: Words, *, caller: Caller, holding: Holding) -> NotYet | Denied | None:
    """Why this caller cannot register with what the claims tree says of its container; None when it can."""
    if (refusal := judge_words(said, caller=caller)) is not None:
        return refusal
    binding, name = holding.binding, _called(holding.binding)
    if binding.pod.uid != caller.pod_uid:
        return Denied(
            reason=f"container {caller.container_id} is bound to pod {binding.pod.uid}, "
            f"but process {caller.pid} is in pod {caller.pod_uid}"
        )
    if binding.container and said.container not in (None, binding.container):
        return Denied(reason=f"the call says container {said.container}, but process {caller.pid} is in container {name}")
    if binding.state is HolderState.STOPPED:
        return NotYet(reason=f"container {name} is stopped")
    if not binding.is_started:
        return NotYet(reason=f"the start of container {name} is not recorded yet")
    return None


def judge_registration(said: Words, *, caller: Caller, holding: Holding, seen: Seen) -> Accept | NotYet | Denied:
    """The whole verdict, once the container's processes have been read."""
    if (refusal := judge_holding(said, caller=caller, holding=holding)) is not None:
        return refusal
    if (refusal := judge_process(caller, now_ticks=seen.caller_ticks)) is not None:
        return refusal
    name = _called(holding.binding)
    if not seen.pids:
        return NotYet(reason=f"the cgroup of container {name} has no process")
    if caller.pid not in seen.pids:
        return NotYet(reason=f"process {caller.pid} is not in the cgroup of container {name}")
    if len(seen.pids) > MAX_PIDS:
        return Denied(reason=f"container {name} has {len(seen.pids)} processes; the library reads at most {MAX_PIDS}")
    return Accept(partition=holding.partition, pids=seen.pids)


def judge_process(caller: Caller, *, now_ticks: int | None) -> Denied | None:
    """Why the caller's PID says nothing of the caller any more; None while it is the same process."""
    if now_ticks == caller.started_ticks:
        return None
    return Denied(reason=f"process {caller.pid} is not the one that called any more")


def plan_list(pids: tuple[int, ...], *, gpu_holders: tuple[int, ...] | None) -> tuple[int, ...]:
    """The PIDs to record on a re-read: all, or the first 1000 of those that have a GPU open where there are more.

    `gpu_holders` is None where nobody looked, since the list is short enough.
    """
    return (pids if gpu_holders is None else gpu_holders)[:MAX_PIDS]


def _called(binding: Binding) -> str:
    """The container as a person may know it."""
    return binding.container or binding.runtime_id
