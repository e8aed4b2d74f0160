"""Who may register: the whole table, with the words a person reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vgpu_registry import policy
from vgpu_registry.policy import Accept, Caller, Denied, Holding, Look, NotYet, PartitionRef, Question, Seen, Words
from vgpu_state.cgroup import AmbiguousCgroup, ContainerCgroup
from vgpu_state.claims import Binding, HolderState, PodRef
from vgpu_state.ids import ClaimUid, ContainerName, GrantKey, PartitionName, PodUid, RegisterUuid, RuntimeId

POD = PodUid("11111111-1111-4111-8111-111111111111")
OTHER_POD = PodUid("22222222-2222-4222-8222-222222222222")
ID = RuntimeId("a" * 64)
REF = PartitionRef(ClaimUid("33333333-3333-4333-8333-333333333333"), PartitionName(f"{POD}_main"))
BINDING = Binding(
    pod=PodRef(uid=POD, namespace="team-a", name="train-0"),
    container=ContainerName("main"),
    runtime_id=ID,
    session=1,
    cgroup=f"/kubepods/pod{POD}/{ID}",
    state=HolderState.CREATED,
    grants=(GrantKey("0123456789abcdef"),),
)
HOLDING = Holding(partition=REF, binding=BINDING)
CALLER = Caller(pid=42, started_ticks=7000, pod_uid=POD, container_id=ID)
SAID = Words(pod_uid=POD, container=ContainerName("main"))
SEEN = Seen(pids=(40, 42), caller_ticks=7000)
TAKING_TURNS = Holding(partition=REF, binding=replace(BINDING, container=ContainerName("")))
UUID = RegisterUuid("55555555-5555-4555-8555-555555555555")
REFUSED = "dra-plugin refuses the register_uuid: it is of another pod"
PLACE = ContainerCgroup(pod_uid=POD, container_id=ID, path=f"/kubepods/pod{POD}/{ID}")


@pytest.mark.parametrize(
    ("look", "expected"),
    [
        (
            Look(pid=42, ticks_before=7000, place=PLACE, ticks_after=7000),
            CALLER,
        ),
        (
            Look(pid=0, ticks_before=None, place=None, ticks_after=None),
            Denied(reason="the caller's process is not visible here: registry needs the host's PID namespace (hostPID: true)"),
        ),
        (
            Look(pid=42, ticks_before=None, place=None, ticks_after=None),
            Denied(reason="process 42 has ended, or is not in the proc file system that registry was given"),
        ),
        (
            Look(pid=42, ticks_before=7000, place=PLACE, ticks_after=9000),
            Denied(reason="process 42 ended while it was looked at; its PID may belong to another one by now"),
        ),
        (
            Look(pid=42, ticks_before=7000, place=None, ticks_after=None),
            Denied(reason="process 42 ended while it was looked at; its PID may belong to another one by now"),
        ),
        (
            Look(pid=42, ticks_before=7000, place=None, ticks_after=7000),
            Denied(reason="process 42 is not a container of a pod"),
        ),
        (
            Look(pid=42, ticks_before=7000, place=AmbiguousCgroup(("/a", "/b")), ticks_after=7000),
            Denied(reason="process 42 is in several containers at once: /a, /b"),
        ),
        (
            Look(pid=42, ticks_before=7000, place=replace(PLACE, container_id=None), ticks_after=7000),
            NotYet(reason="process 42 is in pod 11111111-1111-4111-8111-111111111111, not yet in the cgroup of a container"),
        ),
    ],
)
def test_judge_caller_believes_the_kernel_and_one_process_only(look: Look, expected: object) -> None:
    assert policy.judge_caller(look) == expected


@pytest.mark.parametrize(
    ("said", "holding", "seen", "expected"),
    [
        (SAID, HOLDING, SEEN, Accept(partition=REF, pids=(40, 42))),
        (SAID, HOLDING, replace(SEEN, pids=tuple(range(1, 1001))), Accept(partition=REF, pids=tuple(range(1, 1001)))),
        (
            SAID,
            HOLDING,
            replace(SEEN, pids=tuple(range(1, 1002))),
            Denied(reason="container main has 1001 processes; the library reads at most 1000"),
        ),
        (
            replace(SAID, pod_uid=OTHER_POD),
            HOLDING,
            SEEN,
            Denied(
                reason="the call says pod 22222222-2222-4222-8222-222222222222, "
                "but process 42 is in pod 11111111-1111-4111-8111-111111111111"
            ),
        ),
        (
            SAID,
            replace(HOLDING, binding=replace(BINDING, pod=replace(BINDING.pod, uid=OTHER_POD))),
            SEEN,
            Denied(
                reason=f"container {'a' * 64} is bound to pod 22222222-2222-4222-8222-222222222222, "
                "but process 42 is in pod 11111111-1111-4111-8111-111111111111"
            ),
        ),
        (
            replace(SAID, container=ContainerName("sidecar")),
            HOLDING,
            SEEN,
            Denied(reason="the call says container sidecar, but process 42 is in container main"),
        ),
        (Words(register_uuid=UUID), HOLDING, SEEN, Accept(partition=REF, pids=(40, 42))),
        (Words(pod_uid=POD, register_uuid=UUID), HOLDING, SEEN, Accept(partition=REF, pids=(40, 42))),
        (Words(pod_uid=POD, register_uuid=UUID), TAKING_TURNS, SEEN, Accept(partition=REF, pids=(40, 42))),
        (replace(SAID, container=ContainerName("sidecar")), TAKING_TURNS, SEEN, Accept(partition=REF, pids=(40, 42))),
        (SAID, TAKING_TURNS, replace(SEEN, pids=()), NotYet(reason=f"the cgroup of container {'a' * 64} has no process")),
        (
            SAID,
            replace(HOLDING, binding=replace(BINDING, state=HolderState.STOPPED)),
            SEEN,
            NotYet(reason="container main is stopped"),
        ),
        (
            SAID,
            replace(HOLDING, binding=replace(BINDING, cgroup="")),
            SEEN,
            NotYet(reason="the start of container main is not recorded yet"),
        ),
        (SAID, HOLDING, replace(SEEN, caller_ticks=7001), Denied(reason="process 42 is not the one that called any more")),
        (SAID, HOLDING, replace(SEEN, caller_ticks=None), Denied(reason="process 42 is not the one that called any more")),
        (SAID, HOLDING, replace(SEEN, pids=()), NotYet(reason="the cgroup of container main has no process")),
        (SAID, HOLDING, replace(SEEN, pids=(40,)), NotYet(reason="process 42 is not in the cgroup of container main")),
    ],
)
def test_judge_registration_gives_each_verdict_with_its_reason(
    said: Words, holding: Holding, seen: Seen, expected: object
) -> None:
    assert policy.judge_registration(said, caller=CALLER, holding=holding, seen=seen) == expected


@pytest.mark.parametrize(
    ("said", "uuid_refusal", "expected"),
    [
        (SAID, None, NotYet(reason=f"no partition is bound to container {'a' * 64}")),
        (Words(register_uuid=UUID), None, NotYet(reason=f"no partition is bound to container {'a' * 64}")),
        (Words(register_uuid=UUID), "it is of another pod", Denied(reason=REFUSED)),
        (Words(pod_uid=POD, register_uuid=UUID), "it is of another pod", Denied(reason=REFUSED)),
        (Words(container=ContainerName("main"), register_uuid=UUID), "it is of another pod", Denied(reason=REFUSED)),
        (
            replace(SAID, register_uuid=UUID),
            "it is of another pod",
            NotYet(reason=f"no partition is bound to container {'a' * 64}; {REFUSED}"),
        ),
    ],
)
def test_a_refused_uuid_ends_a_call_without_names_and_lets_one_with_names_wait(
    said: Words, uuid_refusal: str | None, expected: object
) -> None:
    assert policy.judge_unbound(said, caller=CALLER, uuid_refusal=uuid_refusal) == expected


def test_a_register_uuid_is_never_shown() -> None:
    said = Words(pod_uid=POD, container=None, register_uuid=UUID)

    assert said.question == Question(register_uuid=UUID, container=None)
    assert UUID not in f"{said} {said.question}"


def test_plan_list_keeps_a_short_list_and_cuts_the_gpu_holders_of_a_long_one() -> None:
    assert policy.plan_list((1, 2), gpu_holders=None) == (1, 2)
    assert policy.plan_list(tuple(range(1, 2001)), gpu_holders=(5, 9)) == (5, 9)
    assert policy.plan_list(tuple(range(1, 2001)), gpu_holders=tuple(range(1, 1501))) == tuple(range(1, 1001))
