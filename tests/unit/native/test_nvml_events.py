"""What a health watcher hears from the NVML mock."""

from __future__ import annotations

from collections.abc import Callable

from vgpu_testkit.node import Node
from vgpu_testkit.nvml_scenario import Program

Start = Callable[[Node, str], Program]

GPU0 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000000"
GPU1 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001"


LISTENER = """
    n.nvmlInit()
    events = n.nvmlEventSetCreate()
    for index in (0, 1):
        h = n.nvmlDeviceGetHandleByIndex(index)
        n.nvmlDeviceRegisterEvents(h, n.nvmlEventTypeXidCriticalError | n.nvmlEventTypeDoubleBitEccError, events)
    def listen(timeout_ms):
        try:
            e = n.nvmlEventSetWait(events, timeout_ms)
        except n.NVMLError as error:
            return error.value
        return [n.nvmlDeviceGetIndex(e.device), e.eventType, e.eventData, e.gpuInstanceId, e.computeInstanceId]
"""


def test_an_event_is_heard_once_when_its_gpu_and_type_are_registered(start: Start, node: Node) -> None:
    program = start(node, LISTENER + "    tell(listen(0))\n    while True: tell(listen(10000)); tell(listen(0))\n")
    assert program.hear() == 10

    node.inject_event(GPU1, 4, 0)
    node.inject_event("GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000002", 8, 31)
    node.inject_event(GPU1, 8, 79)
    assert [program.hear(), program.hear()] == [[1, 8, 79, 4294967295, 4294967295], 10]

    node.heal()
    node.inject_event(GPU0, 2, 0)
    assert [program.hear(), program.hear()] == [[0, 2, 0, 4294967295, 4294967295], 10]


def test_each_event_set_hears_every_event_in_the_order_of_their_ids(start: Start, node: Node) -> None:
    for xid in (13, 31, 43):
        node.inject_event(GPU0, 8, xid)
    program = start(node, LISTENER + "    tell([listen(0)[2] for _ in range(3)])\n" + LISTENER + "    tell(listen(0)[2])\n")

    assert program.hear() == [13, 31, 43]
    assert program.hear() == 13


def test_a_wait_tells_of_the_lost_gpu_after_its_events(start: Start, node: Node) -> None:
    node.inject_event(GPU1, 8, 79)
    program = start(
        node, LISTENER + "    tell('ready')\n    wait()\n    tell([n.nvmlEventSetWait(events, 0).eventData, listen(10000)])\n"
    )
    assert program.hear() == "ready"

    node.lose_gpu(GPU1)
    program.go_on()
    assert program.hear() == [79, 15]


def test_a_wait_lasts_until_its_timeout_when_nothing_happens(start: Start, node: Node) -> None:
    program = start(
        node,
        "    import time\n"
        + LISTENER
        + "    began = time.monotonic()\n    tell([listen(150), 0.15 <= time.monotonic() - began < 5])\n",
    )

    assert program.hear() == [10, True]


def test_event_calls_are_refused_when_they_are_made_wrongly(start: Start, node: Node) -> None:
    node.update_nvml(lambda state: state["gpus"][1].update(supported_events=0x8))
    program = start(
        node,
        """
        n.nvmlInit()
        h, events, gone = n.nvmlDeviceGetHandleByIndex(1), n.nvmlEventSetCreate(), n.nvmlEventSetCreate()
        n.nvmlEventSetFree(gone)
        tell([n.nvmlDeviceGetSupportedEventTypes(h), n.nvmlDeviceGetSupportedEventTypes(n.nvmlDeviceGetHandleByIndex(0))])
        tell([code(n.nvmlDeviceRegisterEvents, h, 0x8, events), code(n.nvmlDeviceRegisterEvents, h, 0x2, events),
              code(n.nvmlDeviceRegisterEvents, h, 0, events), code(n.nvmlDeviceRegisterEvents, h, 0x8, gone),
              code(n.nvmlEventSetWait, gone, 0), code(n.nvmlEventSetFree, gone), code(n.nvmlEventSetFree, events)])
        """,
    )

    assert program.hear() == [8, 287]
    assert program.hear() == [0, 3, 2, 2, 2, 2, 0]


def test_the_listener_keeps_one_event_set_however_often_a_wait_fails(start: Start, node: Node) -> None:
    node.fail("nvmlEventSetWait_v2", 4)
    program = start(
        node,
        """
        import structlog
        from contextlib import nullcontext
        from vgpu_dra.effects import nvml_events
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        n.nvmlInit()
        nvml_events._PAUSE_S = 0.0
        made, freed = [], []
        create, free = n.nvmlEventSetCreate, n.nvmlEventSetFree
        n.nvmlEventSetCreate = lambda: made.append(create()) or made[-1]
        n.nvmlEventSetFree = lambda events: freed.append(free(events))
        class Library:
            def borrowed(self):
                return nullcontext(1)
            def check_open(self, session): pass
        class Ear:
            def beat(self): pass
            def listening(self, monitored, unmonitored): pass
            def failed(self, reason): tell(len(made) - len(freed))
            def heard(self, event): tell(event.code)
        nvml_events.EventListener(Library(), Ear()).start()
        wait()
        """,
    )
    assert [program.hear() for _ in range(20)] == [1] * 20

    node.heal()
    node.inject_event(GPU1, 8, 79)
    heard = program.hear()
    while heard != 79:
        assert heard == 1
        heard = program.hear()
