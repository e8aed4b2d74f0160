"""How the NVML mock fails, hangs and changes while a program uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vgpu_testkit.node import Node
from vgpu_testkit.nvml_scenario import Program

Start = Callable[[Node, str], Program]

GPU1 = "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001"


def _missing(node: Node) -> None:
    node.nvml_state.unlink()


def _torn(node: Node) -> None:
    node.nvml_state.write_text(node.nvml_state.read_text()[:-5])


def _misspelt(node: Node) -> None:
    node.update_nvml(lambda state: state["faults"].append({"funktion": "*", "error": 15}))


def _half(node: Node) -> None:
    node.update_nvml(lambda state: state["gpus"][0].pop("minor"))


def _overfull(node: Node) -> None:
    node.update_nvml(lambda state: state["gpus"][0].update(used_mib=81560))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_missing, ""),
        (_torn, "value expected at byte "),
        (_misspelt, "function: missing"),
        (_half, "minor: missing"),
        (_overfull, "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000000: more memory used than there is"),
    ],
)
def test_init_finds_no_driver_when_the_state_is_no_state(
    start: Start, node: Node, spoil: Callable[[Node], None], complaint: str
) -> None:
    spoil(node)
    program = start(node, "tell(code(n.nvmlInit))")

    assert program.hear() == 9
    assert complaint in program.complaint()


def test_state_comes_from_the_environment_when_it_names_a_file(
    start: Start, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.json"
    other.write_text(node.nvml_state.read_text().replace("550.90.07", "580.65.06"))
    monkeypatch.setenv("VGPU_MOCK_NVML", str(other))
    program = start(node, "n.nvmlInit(); tell(n.nvmlSystemGetDriverVersion())")

    assert program.hear() == "580.65.06"


def test_a_function_fails_until_healed_when_it_has_a_fault(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        while True:
            tell([code(n.nvmlDeviceGetCount), code(n.nvmlSystemGetDriverVersion)])
            wait()
        """,
    )
    assert program.hear() == [0, 0]

    node.fail("nvmlDeviceGetCount_v2", 999)
    program.go_on()
    assert program.hear() == [999, 0]

    node.heal()
    program.go_on()
    assert program.hear() == [0, 0]


def test_init_fails_until_healed_when_every_function_has_a_fault(start: Start, node: Node) -> None:
    node.fail("*", 18)
    program = start(node, "tell(code(n.nvmlInit)); wait(); tell(code(n.nvmlInit))")
    assert program.hear() == 18

    node.heal()
    program.go_on()
    assert program.hear() == 0


def test_a_lost_gpu_fails_every_call_about_it_and_no_other(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        h0, h1 = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
        tell("ready")
        while True:
            wait()
            tell([code(n.nvmlDeviceGetUUID, h1), code(n.nvmlDeviceGetMemoryInfo, h1), code(n.nvmlDeviceGetHandleByIndex, 1),
                  code(n.nvmlDeviceGetHandleByUUID, "GPU-5e5a3bb1-7d0c-4d58-9c1a-000000000001"),
                  code(n.nvmlDeviceGetUUID, h0), n.nvmlDeviceGetCount()])
        """,
    )
    assert program.hear() == "ready"

    node.lose_gpu(GPU1)
    program.go_on()
    assert program.hear() == [15, 15, 15, 15, 0, 8]

    node.heal()
    program.go_on()
    assert program.hear() == [0, 0, 0, 0, 0, 8]


def test_a_handle_is_of_a_lost_gpu_when_its_gpu_left_the_list(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        h0, h1 = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(1)
        tell(n.nvmlDeviceGetIndex(h1))
        wait()
        tell([code(n.nvmlDeviceGetIndex, h0), n.nvmlDeviceGetIndex(h1), n.nvmlDeviceGetCount()])
        """,
    )
    assert program.hear() == 1

    node.update_nvml(lambda state: state["gpus"].pop(0))
    program.go_on()
    assert program.hear() == [15, 0, 7]


def test_a_hanging_call_stops_no_other_and_returns_when_healed(start: Start, node: Node) -> None:
    node.hang("nvmlDeviceGetMemoryInfo")
    program = start(
        node,
        """
        n.nvmlInit()
        h = n.nvmlDeviceGetHandleByIndex(0)
        caller = threading.Thread(target=n.nvmlDeviceGetMemoryInfo, args=(h,), daemon=True)
        caller.start()
        caller.join(0.1)
        tell([n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).total >> 20, caller.is_alive()])
        caller.join()
        tell("returned")
        """,
    )
    assert program.hear() == [81559, True]

    node.heal()
    assert program.hear() == "returned"


def test_many_threads_read_while_the_state_changes(start: Start, node: Node) -> None:
    program = start(
        node,
        """
        n.nvmlInit()
        h, totals, stop = n.nvmlDeviceGetHandleByIndex(0), set(), threading.Event()
        def read():
            while not stop.is_set():
                m = n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2)
                totals.add((m.used >> 20, (m.total - m.free) >> 20))
        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers: reader.start()
        tell("reading")
        wait()
        stop.set()
        for reader in readers: reader.join()
        tell([all(a == b for a, b in totals), max(totals)[0]])
        """,
    )
    assert program.hear() == "reading"

    for used_mib in range(50):
        node.update_nvml(lambda state, used_mib=used_mib: state["gpus"][0].update(used_mib=used_mib))  # type: ignore[misc]
    program.go_on()
    consistent, most = program.hear()
    assert consistent
    assert most <= 49
