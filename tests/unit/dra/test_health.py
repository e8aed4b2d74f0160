"""What taints a GPU, and when it is well again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu_dra import health_record
from vgpu_dra.health_record import HealthUnusable
from vgpu_dra.policy import health
from vgpu_dra.policy.health import Condition, GpuHealth, NodeHealth
from vgpu_dra.policy.xids import XidClass
from vgpu_dra.readings import Reading
from vgpu_dra.taints import Taint, TaintEffect
from vgpu_state.ids import GpuUuid
from vgpu_testkit.dra_values import h100

A, B = h100(0).uuid, h100(1).uuid
WELL = NodeHealth(boot_id="boot-1", gpus={A: GpuHealth(), B: GpuHealth()})
FINE = Reading()

Step = Callable[[NodeHealth], NodeHealth]


def critical(code: int, uuid: GpuUuid = A) -> Step:
    return lambda node: health.heard_xid(node, uuid, code, rated=XidClass.CRITICAL)


def benign(code: int) -> Step:
    return lambda node: health.heard_xid(node, A, code, rated=XidClass.BENIGN)


def ecc(node: NodeHealth) -> NodeHealth:
    return health.heard_uncorrectable(node, A)


def deaf(node: NodeHealth) -> NodeHealth:
    """A tells no events."""
    return health.listening(node, [B], [A])


def look(reading: Reading | None = FINE) -> Step:
    """A look at which B is well, and A reads so; None: A was not found."""
    return lambda node: health.looked(node, {B: FINE} if reading is None else {A: reading, B: FINE})


def after(*steps: Step, node: NodeHealth = WELL) -> NodeHealth:
    for step in steps:
        node = step(node)
    return node


def taints(node: NodeHealth) -> list[str]:
    """A's taints as key=value:effect, the common part of the key left out."""
    return [f"{t.key.removeprefix('manager.nvidia.com/')}={t.value}:{t.effect.value}" for t in node.taints.get(A, ())]


@pytest.mark.parametrize(
    ("steps", "expected", "condition"),
    [
        ([], [], Condition.HEALTHY),
        ([critical(79)], ["xid=79:NoSchedule"], Condition.UNHEALTHY),
        ([benign(31)], ["xid=31:None"], Condition.HEALTHY),
        ([critical(79), benign(31)], ["xid=79:NoSchedule"], Condition.UNHEALTHY),
        ([benign(31), critical(79)], ["xid=79:NoSchedule"], Condition.UNHEALTHY),
        ([critical(79), critical(48)], ["xid=79:NoSchedule"], Condition.UNHEALTHY),
        ([ecc], ["ecc=uncorrectable:NoSchedule"], Condition.UNHEALTHY),
        ([critical(48), ecc], ["xid=48:NoSchedule", "ecc=uncorrectable:NoSchedule"], Condition.UNHEALTHY),
        ([look(None)], ["gpu-lost=:NoSchedule"], Condition.UNHEALTHY),
        ([look(Reading(recovery_action=1))], ["recovery-action=gpu-reset:NoSchedule"], Condition.UNHEALTHY),
        ([look(Reading(recovery_action=99))], ["recovery-action=action-99:NoSchedule"], Condition.UNHEALTHY),
        ([look(Reading(recovery_action=0, needs_reset=True))], [], Condition.HEALTHY),
        ([look(Reading(uncorrected_errors=2))], [], Condition.HEALTHY),
        (
            [look(Reading(uncorrected_errors=2)), look(Reading(uncorrected_errors=3))],
            ["ecc=uncorrectable:NoSchedule"],
            Condition.UNHEALTHY,
        ),
        ([look(Reading(uncorrected_errors=2)), look(Reading(uncorrected_errors=0))], [], Condition.HEALTHY),
        ([deaf], ["unmonitored=:None"], Condition.UNKNOWN),
        (
            [deaf, critical(79)],
            ["xid=79:NoSchedule", "unmonitored=:None"],
            Condition.UNHEALTHY,
        ),
        ([deaf, lambda n: health.listening(n, [A, B], [])], [], Condition.HEALTHY),
        ([health.silent], ["gpu-lost=:NoSchedule"], Condition.UNKNOWN),
        ([health.silent, look()], ["gpu-lost=:NoSchedule"], Condition.UNHEALTHY),
    ],
)
def test_taints_are_what_happened(steps: Sequence[Step], expected: list[str], condition: Condition) -> None:
    node = after(*steps)

    assert taints(node) == expected
    assert node.gpus[A].condition is condition
    assert bool(node.gpus[A].message) == bool(expected)


def test_the_other_gpus_are_none_the_worse() -> None:
    node = after(critical(79), ecc, look(None), look(Reading(recovery_action=2)))

    assert node.taints.keys() == {A}


@pytest.mark.parametrize(
    "cause",
    [
        # An event since the last look makes the look that follows it no clean one.
        [critical(79), look()],
        [benign(31), look()],
        [ecc, look()],
        [look(Reading(recovery_action=1))],
    ],
)
def test_a_taint_goes_after_three_clean_looks_in_a_row(cause: list[Step]) -> None:
    told = after(*cause)

    assert taints(after(look(), look(), node=told)) == taints(told) != []
    assert taints(after(look(), look(), look(), node=told)) == []


@pytest.mark.parametrize(
    "unclean",
    [
        look(None),
        look(Reading(recovery_action=1)),
        look(Reading(needs_reset=True)),
        look(Reading(uncorrected_errors=5)),
        lambda node: look()(critical(79)(node)),
        lambda node: look()(benign(31)(node)),
        lambda node: look()(ecc(node)),
        health.silent,
    ],
)
def test_an_unclean_look_begins_the_count_anew(unclean: Step) -> None:
    count = look(Reading(uncorrected_errors=4))

    node = after(critical(79), count, count, count, unclean, count, count)

    assert "xid=79:NoSchedule" in taints(node)
    assert taints(after(count, node=node)) == []


def test_memory_errors_are_counted_over_a_look_that_does_not_say_how_many() -> None:
    told = after(look(Reading(uncorrected_errors=4)), look(Reading(uncorrected_errors=None)), look(Reading(uncorrected_errors=5)))

    assert taints(told) == ["ecc=uncorrectable:NoSchedule"]


def test_the_drivers_verdict_wins_over_what_waits_for_a_reset() -> None:
    clean = look(Reading(recovery_action=0, needs_reset=True))

    assert taints(after(critical(79), look(), clean, clean, clean)) == []


def test_a_lost_gpu_is_back_when_it_has_answered_three_times() -> None:
    node = after(look(None), look(), look())

    assert taints(node) == ["gpu-lost=:NoSchedule"]
    assert taints(after(look(), node=node)) == []


def test_a_gpu_that_answers_is_not_lost_for_its_xids() -> None:
    assert taints(after(look(None), *[step for _ in range(3) for step in (critical(79), look())])) == ["xid=79:NoSchedule"]


def test_memory_errors_and_the_drivers_verdict_do_not_count_where_all_checks_are_off() -> None:
    node = WELL
    for errors in (1, 2):
        reading = Reading(uncorrected_errors=errors, recovery_action=1)
        node = health.looked(node, {A: reading, B: FINE}, looks_beyond_xids=False)

    assert node.taints == {}


def test_a_reboot_clears_what_was_known_and_a_restart_does_not() -> None:
    node = after(critical(79), ecc)

    assert health.begin(node, boot_id="boot-1") == node
    assert health.begin(node, boot_id="boot-2") == NodeHealth(boot_id="boot-2", gpus={})
    assert health.begin(None, boot_id="boot-2") == NodeHealth(boot_id="boot-2", gpus={})


# Properties.

READINGS = st.builds(
    Reading,
    recovery_action=st.none() | st.integers(0, 7),
    uncorrected_errors=st.none() | st.integers(0, 3),
    needs_reset=st.booleans(),
)
EVENTS = st.one_of(
    st.sampled_from([79, 48, 94]).map(critical),
    st.sampled_from([13, 31]).map(benign),
    st.just(ecc),
    st.just(health.silent),
    st.just(deaf),
)
STEPS = st.lists(st.one_of(EVENTS, READINGS.map(look), st.just(look(None))), max_size=12)


@given(STEPS, st.lists(READINGS, min_size=1, max_size=8), st.integers(1, 7))
def test_nothing_heals_while_the_driver_asks_for_recovery(steps: list[Step], readings: list[Reading], action: int) -> None:
    node = after(*steps, critical(79), ecc)

    for reading in readings:
        asking = Reading(recovery_action=action, uncorrected_errors=reading.uncorrected_errors, needs_reset=reading.needs_reset)
        node = look(asking)(node)

    assert {health.XID, health.ECC, health.RECOVERY} <= {taint.key for taint in node.taints[A]}


@given(STEPS)
def test_a_restart_keeps_every_taint(steps: list[Step]) -> None:
    node = after(*steps)

    restarted = health.begin(health_record.decode_health(health_record.encode_health(node)), boot_id="boot-1")

    assert restarted.taints == node.taints


@given(st.permutations([critical(79), critical(48), benign(31), benign(13), ecc]))
def test_the_strongest_effect_does_not_depend_on_the_order_of_events(steps: list[Step]) -> None:
    effects = {(taint.key, taint.effect) for taint in after(*steps).taints[A]}

    assert effects == {(health.XID, TaintEffect.NO_SCHEDULE), (health.ECC, TaintEffect.NO_SCHEDULE)}


@given(STEPS)
def test_clean_looks_end_every_taint_but_that_of_missing_events(steps: list[Step]) -> None:
    node = after(*steps, *[look()] * 4)

    assert {taint.key for taint in node.taints.get(A, ())} <= {health.UNMONITORED}


@given(STEPS)
def test_no_gpu_has_two_taints_of_one_key_and_a_message_is_short(steps: list[Step]) -> None:
    node = after(*steps)

    keys = [taint.key for taint in node.taints.get(A, ())]
    assert len(keys) == len(set(keys))
    assert len(node.gpus[A].message) <= 1024


# The file.


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"schema": 2, "boot_id": "b", "gpus": {}}',
        b'{"schema": 1, "boot_id": 1, "gpus": {}}',
        b'{"schema": 1, "boot_id": "b", "gpus": {"GPU-1": {}}}',
        b'{"schema": 1, "boot_id": "b", "gpus": {"GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000000": {"critical_xid": -1}}}',
        b'{"schema": 1, "boot_id": "b", "gpus": {"GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000000": {"critical_xid": true}}}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_is_not_ours_is_refused(raw: bytes) -> None:
    with pytest.raises(HealthUnusable, match=r"^the stored health of the GPUs cannot be used: "):
        health_record.decode_health(raw)


def test_the_file_says_what_is_known_in_words() -> None:
    node = NodeHealth(boot_id="boot-1", gpus={A: GpuHealth(critical_xid=79, uncorrected_errors=0, clean_polls=2)})

    raw = health_record.encode_health(node)

    assert b'"critical_xid": 79' in raw
    assert b"clean_polls" not in raw
    assert health_record.decode_health(raw).gpus[A] == GpuHealth(critical_xid=79, uncorrected_errors=0)
    assert health_record.decode_health(raw).gpus[A].taints == (
        Taint(key="manager.nvidia.com/xid", value="79", effect=TaintEffect.NO_SCHEDULE),
    )
