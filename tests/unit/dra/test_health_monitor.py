"""The monitor between NVML, the disk and those who are told; its reports as kubelet gets them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path, PurePosixPath

import pytest

from vgpu_dra.effects.health_file import HealthFile
from vgpu_dra.event_documents import Reason, Severity
from vgpu_dra.health_monitor import Ear, HealthMonitor, State
from vgpu_dra.health_service import HealthReports, Report
from vgpu_dra.inventory import Inventory
from vgpu_dra.metrics import Metrics
from vgpu_dra.policy.health import Condition, GpuHealth, NodeHealth
from vgpu_dra.policy.xids import XidList, XidRules
from vgpu_dra.readings import Event, EventKind, Look, Reading
from vgpu_dra.recorder import NoRecorder
from vgpu_dra.workers import TreeWorkers
from vgpu_state.errors import NotReady
from vgpu_state.layout import Layout
from vgpu_testkit.dra_values import INVENTORY

GPU2 = INVENTORY.gpus[2].uuid
ALL = frozenset(gpu.uuid for gpu in INVENTORY.gpus)
LOOK = Look(inventory=INVENTORY, readings={uuid: Reading() for uuid in ALL})
XID_79 = Event(gpu=GPU2, kind=EventKind.XID, code=79)


class Clock:
    """Time as the test says."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Silence:
    """A listener on whose thread nothing happens."""

    def __init__(self) -> None:
        self.asked = 0

    def start(self) -> None:
        """There is nothing to begin."""

    def ask_anew(self) -> None:
        self.asked += 1


class Told(NoRecorder):
    """Keeps what the node was told."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str, str]] = []

    def node(self, reason: Reason, note: str, severity: Severity = Severity.WARNING) -> None:
        self.words.append((reason.value, severity.value, note))


class SlowFile(HealthFile):
    """A disk that hangs until it is let go."""

    def __init__(self, agent: Layout) -> None:
        super().__init__(agent)
        self.goes_on = threading.Event()

    def save(self, current: Callable[[], NodeHealth]) -> NodeHealth:
        assert self.goes_on.wait(60)
        return super().save(current)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> HealthFile:
    return HealthFile(Layout(PurePosixPath(tmp_path)))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def monitor(file: HealthFile, metrics: Metrics, clock: Clock) -> HealthMonitor:
    monitor = HealthMonitor(file, XidRules(), metrics, poll_s=10, clock=clock)
    await monitor.load(TreeWorkers(), boot_id="boot-1")
    return monitor


@pytest.fixture
async def serving(monitor: HealthMonitor) -> AsyncIterator[Silence]:
    """The monitor serves; what it listens with."""
    silence = Silence()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        task = group.create_task(monitor.serve(lambda _: silence, TreeWorkers()))
        await asyncio.sleep(0)
        yield silence
        task.cancel()


async def until_tainted(monitor: HealthMonitor) -> None:
    async with asyncio.timeout(10):
        while not monitor.taints():
            await monitor.changed.wait()


def value(metrics: Metrics, name: str) -> float:
    return metrics.registry.get_sample_value(name) or 0.0


@pytest.mark.usefixtures("serving")
async def test_a_gpu_that_gets_no_claims_is_told_to_the_node_and_what_only_informs_is_not(monitor: HealthMonitor) -> None:
    monitor.recorder = told = Told()

    monitor.heard(Event(gpu=INVENTORY.gpus[3].uuid, kind=EventKind.XID, code=13))
    await until_tainted(monitor)
    assert told.words == []
    monitor.heard(XID_79)
    async with asyncio.timeout(10):
        while not told.words:
            await monitor.changed.wait()

    ((reason, severity, note),) = told.words
    assert (reason, severity) == ("VgpuGpuUnhealthy", "Warning")
    assert note.startswith(f"GPU {GPU2} gets no new claims (manager.nvidia.com/xid): ")


@pytest.mark.usefixtures("serving")
async def test_a_taint_is_on_disk_before_anyone_is_told(monitor: HealthMonitor, file: HealthFile) -> None:
    seen: list[NodeHealth | None] = []
    monitor.on_change = lambda: seen.append(file.load())

    monitor.heard(XID_79)
    await until_tainted(monitor)

    assert [node.gpus[GPU2].critical_xid for node in seen if node] == [79]


async def test_a_disk_that_hangs_keeps_no_taint_back_and_gets_it_later(
    tmp_path: Path, metrics: Metrics, clock: Clock, file: HealthFile
) -> None:
    slow = SlowFile(Layout(PurePosixPath(tmp_path)))
    monitor = HealthMonitor(slow, XidRules(), metrics, poll_s=10, clock=clock)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        task = group.create_task(monitor.serve(lambda _: Silence(), TreeWorkers()))
        await asyncio.sleep(0)
        monitor.heard(XID_79)
        await until_tainted(monitor)
        assert value(metrics, "vgpu_dra_health_file_failures_total") == 1
        assert file.load() is None

        slow.goes_on.set()
        while (stored := file.load()) is None:
            await asyncio.sleep(0.001)
        task.cancel()

    assert stored.gpus[GPU2].critical_xid == 79


async def test_a_disk_that_refuses_is_tried_again_after_the_next_look(
    tmp_path: Path, serving: Silence, monitor: HealthMonitor, metrics: Metrics, file: HealthFile
) -> None:
    obstacle = tmp_path / "health.json"
    obstacle.mkdir()
    monitor.heard(XID_79)
    await until_tainted(monitor)
    assert value(metrics, "vgpu_dra_health_file_failures_total") == 1
    obstacle.rmdir()

    monitor.looked(LOOK)

    while (stored := file.load()) is None:
        await asyncio.sleep(0.001)
    assert stored.gpus[GPU2].critical_xid == 79
    assert serving.asked == 0


@pytest.mark.usefixtures("serving")
async def test_looks_at_healthy_gpus_write_one_file_and_tell_nobody(
    tmp_path: Path, monitor: HealthMonitor, file: HealthFile
) -> None:
    told: list[None] = []
    monitor.on_change = lambda: told.append(None)
    monitor.looked(LOOK)
    while file.load() is None:
        await asyncio.sleep(0.001)
    before = (tmp_path / "health.json").stat()

    for _ in range(5):
        monitor.looked(LOOK)
        await asyncio.sleep(0.01)

    assert (tmp_path / "health.json").stat() == before
    assert told == []


async def test_what_the_ear_hears_on_its_thread_reaches_the_monitor(serving: Silence, monitor: HealthMonitor) -> None:
    ear = Ear(monitor, asyncio.get_running_loop())
    looks: list[None] = []
    monitor.look_soon = lambda: looks.append(None)

    def listen() -> None:
        ear.listening(ALL - {GPU2}, frozenset({GPU2}))
        ear.heard(XID_79)
        ear.failed("GPU is lost")

    await asyncio.to_thread(listen)
    await until_tainted(monitor)

    assert [taint.key for taint in monitor.taints()[GPU2]] == ["manager.nvidia.com/xid", "manager.nvidia.com/unmonitored"]
    assert len(looks) == 1


async def test_ear_of_a_process_that_ends_hears_nothing(monitor: HealthMonitor) -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    Ear(monitor, loop).heard(XID_79)

    assert monitor.taints() == {}


async def test_what_was_seen_while_another_process_served_is_known(file: HealthFile, metrics: Metrics, clock: Clock) -> None:
    standby = HealthMonitor(file, XidRules(), metrics, poll_s=10, clock=clock)
    standby.looked(Look(inventory=INVENTORY, readings={**LOOK.readings, GPU2: Reading(recovery_action=1)}))
    file.save(lambda: NodeHealth(boot_id="boot-1", gpus={GPU2: GpuHealth(critical_xid=79)}))

    await standby.load(TreeWorkers(), boot_id="boot-1")
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        task = group.create_task(standby.serve(lambda _: Silence(), TreeWorkers()))
        await standby.changed.wait()
        task.cancel()

    assert [taint.value for taint in standby.taints()[GPU2]] == ["79", "gpu-reset"]


async def test_changed_gpus_have_events_asked_for_anew(serving: Silence, monitor: HealthMonitor) -> None:
    monitor.gpus_changed()

    assert serving.asked == 1


@pytest.mark.usefixtures("serving")
async def test_a_deaf_listener_leaves_the_gpus_unmonitored_until_it_is_heard_again(monitor: HealthMonitor, clock: Clock) -> None:
    monitor.listening(ALL, frozenset())
    clock.now += 16
    monitor.looked(LOOK)
    await until_tainted(monitor)
    assert {taint.key for taints in monitor.taints().values() for taint in taints} == {"manager.nvidia.com/unmonitored"}
    assert len(monitor.taints()) == 8

    monitor.beat()
    monitor.looked(LOOK)
    while monitor.taints():
        await monitor.changed.wait()


async def test_where_no_event_counts_no_gpu_is_unmonitored_whatever_was_known(
    file: HealthFile, metrics: Metrics, clock: Clock
) -> None:
    file.save(lambda: NodeHealth(boot_id="boot-1", gpus={GPU2: GpuHealth(is_unmonitored=True)}))
    monitor = HealthMonitor(file, XidRules(disabled=XidList(is_everything=True)), metrics, poll_s=10, clock=clock)
    await monitor.load(TreeWorkers(), boot_id="boot-1")
    assert monitor.taints()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        task = group.create_task(monitor.serve(lambda _: Silence(), TreeWorkers()))
        monitor.listening(ALL - {GPU2}, frozenset({GPU2}))
        while monitor.taints():
            await monitor.changed.wait()
        task.cancel()


async def test_proof_of_life_is_the_older_of_looks_and_beats(serving: Silence, monitor: HealthMonitor, clock: Clock) -> None:
    assert (monitor.quiet_s, monitor.is_alive) == (0, True)

    clock.now += 12
    monitor.beat()
    assert (monitor.quiet_s, monitor.is_alive) == (2, True)

    clock.now += 14
    monitor.looked(LOOK)
    assert (monitor.quiet_s, monitor.is_alive) == (14, True)

    clock.now += 17
    assert (monitor.quiet_s, monitor.is_alive) == (31, False)
    assert monitor.state_of(GPU2) == State(condition=Condition.UNKNOWN, message="NVML has not answered for more than 30 s")
    assert serving.asked == 0


# Reports.


def reports_of(monitor: HealthMonitor, *, repeat_s: float) -> HealthReports:
    return HealthReports(monitor, lambda: INVENTORY, pool="node-a", repeat_s=repeat_s)


def condition(report: Report, name: str) -> Condition:
    return next(state.condition for device, state in report.devices if device == name)


@pytest.mark.usefixtures("serving")
async def test_reports_come_at_once_and_after_each_change(monitor: HealthMonitor) -> None:
    async with aclosing(reports_of(monitor, repeat_s=3600).all()) as reports:
        first = await anext(reports)
        monitor.heard(XID_79)
        second = await anext(reports)

    assert [condition(report, "vgpu-2") for report in (first, second)] == [Condition.HEALTHY, Condition.UNHEALTHY]
    assert [condition(report, "gpu-3") for report in (first, second)] == [Condition.HEALTHY, Condition.HEALTHY]
    assert len(first.devices) == 16


@pytest.mark.usefixtures("serving")
async def test_reports_are_repeated_only_while_the_monitor_lives(monitor: HealthMonitor, clock: Clock) -> None:
    async with aclosing(reports_of(monitor, repeat_s=0.01).all()) as reports:
        first, again = await anext(reports), await anext(reports)
        assert first.devices == again.devices
        clock.now += 28  # 18 s after the next look was due, 28 after the last beat
        waiting = asyncio.ensure_future(anext(reports))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done

        clock.now += 3

        unknown = await waiting
    assert {state.condition for _, state in unknown.devices} == {Condition.UNKNOWN}


@pytest.mark.usefixtures("serving")
async def test_report_says_until_when_it_was_known(monitor: HealthMonitor, clock: Clock) -> None:
    async with aclosing(reports_of(monitor, repeat_s=3600).all()) as reports:
        fresh = await anext(reports)
    clock.now += 20
    async with aclosing(reports_of(monitor, repeat_s=3600).all()) as reports:
        stale = await anext(reports)

    assert fresh.as_of_s - stale.as_of_s in (18, 19, 20)


@pytest.mark.usefixtures("serving")
async def test_report_is_empty_while_the_gpus_are_not_known(monitor: HealthMonitor) -> None:
    def unknown() -> Inventory:
        raise NotReady("not yet")

    async with aclosing(HealthReports(monitor, unknown, pool="node-a").all()) as reports:
        assert (await anext(reports)).devices == ()
