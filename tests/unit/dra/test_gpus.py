"""The inventory while NVML answers, fails and hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from vgpu_dra.effects.nvml import NvmlReader
from vgpu_dra.effects.nvml_library import NvmlLibrary
from vgpu_dra.gpus import Gpus
from vgpu_dra.inventory import Inventory
from vgpu_dra.readings import Look, Reading
from vgpu_state.errors import NotReady
from vgpu_testkit.dra_values import INVENTORY


class Driver:
    """What NVML does: answers `says`, or raises it; while `hangs` is clear it hangs."""

    def __init__(self) -> None:
        self.says: Inventory | Exception = INVENTORY
        self.hangs = threading.Event()
        self.hangs.set()
        self.calls = 0

    def look(self) -> Look:
        self.calls += 1
        assert self.hangs.wait(60)
        if isinstance(self.says, Exception):
            raise self.says
        return Look(inventory=self.says, readings={gpu.uuid: Reading() for gpu in self.says.gpus})


class Witness:
    """How the looks ended, in words."""

    def __init__(self) -> None:
        self.saw: list[str] = []

    def looked(self, look: Look) -> None:
        self.saw.append(f"{len(look.readings)} answered")

    def unreachable(self, reason: str) -> None:
        self.saw.append(reason)

    def unanswered(self) -> None:
        self.saw.append("unanswered")


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.hangs.set()


@pytest.fixture
def changes() -> list[str]:
    return []


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def gpus(driver: Driver, changes: list[str], witness: Witness) -> Gpus:
    return Gpus(driver.look, on_change=lambda: changes.append("changed"), watcher=witness)


def unknown(gpus: Gpus) -> str:
    with pytest.raises(NotReady) as refusal:
        gpus.inventory()
    return str(refusal.value)


async def test_inventory_is_not_ready_before_it_was_read(gpus: Gpus) -> None:
    assert unknown(gpus) == "the GPUs of this node are not known: the GPU inventory has not been read yet"


async def test_inventory_is_what_was_read(gpus: Gpus, changes: list[str]) -> None:
    await gpus.refresh(patience_s=5)

    assert (gpus.inventory(), gpus.fault, changes) == (INVENTORY, None, ["changed"])


async def test_change_is_told_once(gpus: Gpus, driver: Driver, changes: list[str]) -> None:
    await gpus.refresh(patience_s=5)
    await gpus.refresh(patience_s=5)
    assert changes == ["changed"]

    driver.says = replace(INVENTORY, driver_version="570.00")
    await gpus.refresh(patience_s=5)
    assert changes == ["changed", "changed"]


async def test_hung_nvml_leaves_the_last_inventory_and_says_so(gpus: Gpus, driver: Driver, witness: Witness) -> None:
    await gpus.refresh(patience_s=5)
    driver.hangs.clear()

    await gpus.refresh(patience_s=0.05)

    assert gpus.inventory() == INVENTORY
    assert gpus.fault == "NVML has not answered for more than 0.05 s"
    assert witness.saw == ["8 answered", "unanswered"]


async def test_hung_nvml_is_not_called_a_second_time_and_heals(gpus: Gpus, driver: Driver) -> None:
    driver.hangs.clear()
    await gpus.refresh(patience_s=0.05)
    await gpus.refresh(patience_s=0.05)
    assert driver.calls == 1
    assert unknown(gpus) == "the GPUs of this node are not known: NVML has not answered for more than 0.05 s"

    driver.hangs.set()
    await gpus.refresh(patience_s=5)
    assert (driver.calls, gpus.fault, gpus.inventory()) == (1, None, INVENTORY)


async def test_a_look_that_was_given_up_before_it_began_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, witness: Witness
) -> None:
    """The wait for the writer lock ends at any moment, also between the asking for a look and its beginning."""
    driver.hangs.clear()
    busy = ThreadPoolExecutor(1)
    busy.submit(driver.hangs.wait, 60)
    monkeypatch.setattr("vgpu_dra.gpus.ThreadPoolExecutor", lambda *_, **__: busy)
    gpus = Gpus(driver.look, on_change=lambda: None, watcher=witness)
    waiting = asyncio.create_task(gpus.refresh(patience_s=60))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    driver.hangs.set()

    await gpus.refresh(patience_s=5)

    assert (witness.saw, gpus.inventory()) == (["8 answered"], INVENTORY)


async def test_gpus_are_kept_as_lost_while_there_is_no_driver(gpus: Gpus, driver: Driver, witness: Witness) -> None:
    await gpus.refresh(patience_s=5)
    driver.says = NotReady("NVML answered: Driver Not Loaded")

    await gpus.refresh(patience_s=5)
    assert (gpus.inventory().gpus, gpus.fault) == (INVENTORY.gpus, "NVML answered: Driver Not Loaded")
    assert gpus.inventory().lost == {gpu.uuid for gpu in INVENTORY.gpus}

    driver.says = replace(INVENTORY, driver_version="570.00")
    await gpus.refresh(patience_s=5)
    assert (gpus.inventory(), gpus.fault) == (driver.says, None)
    assert witness.saw == ["8 answered", "NVML answered: Driver Not Loaded", "8 answered"]


async def test_driver_root_that_cannot_be_read_is_said_and_ends_nothing(gpus: Gpus, driver: Driver) -> None:
    driver.says = OSError(5, "Input/output error", "/driver-root/usr")

    await gpus.refresh(patience_s=5)

    assert gpus.fault == "[Errno 5] Input/output error: '/driver-root/usr'"


async def test_lost_gpu_stays_and_is_no_fault_of_the_others(gpus: Gpus, driver: Driver, witness: Witness) -> None:
    await gpus.refresh(patience_s=5)
    driver.says = replace(INVENTORY, gpus=INVENTORY.gpus[1:], unreadable=("GPU at NVML index 0: GPU is lost",))

    with capture_logs() as lines:
        await gpus.refresh(patience_s=5)
        await gpus.refresh(patience_s=5)

    assert (gpus.fault, gpus.unreadable) == (None, ("GPU at NVML index 0: GPU is lost",))
    assert (gpus.inventory().gpus, gpus.inventory().lost) == (INVENTORY.gpus, {INVENTORY.gpus[0].uuid})
    assert witness.saw == ["8 answered", "7 answered", "7 answered"]
    assert [line["reason"] for line in lines if line["event"] == "GPU not readable"] == ["GPU at NVML index 0: GPU is lost"]


async def test_lost_gpu_goes_when_another_has_its_place(gpus: Gpus, driver: Driver) -> None:
    await gpus.refresh(patience_s=5)
    driver.says = replace(INVENTORY, gpus=(replace(INVENTORY.gpus[1], index=0, minor=0), *INVENTORY.gpus[2:]))

    await gpus.refresh(patience_s=5)

    assert gpus.inventory() == driver.says


async def test_lost_gpu_stays_in_its_place_when_the_others_move_up(gpus: Gpus, driver: Driver) -> None:
    """NVML numbers the GPUs that it finds as it is opened; their device nodes keep their minors."""
    await gpus.refresh(patience_s=5)
    moved_up = tuple(replace(gpu, index=gpu.index - 1) for gpu in INVENTORY.gpus[3:])
    driver.says = replace(INVENTORY, gpus=(*INVENTORY.gpus[:2], *moved_up))

    await gpus.refresh(patience_s=5)

    assert gpus.lost == (INVENTORY.gpus[2].uuid,)
    assert [gpu.uuid for gpu in gpus.inventory().gpus] == [gpu.uuid for gpu in INVENTORY.gpus]


async def test_a_look_is_had_at_once_when_it_is_wanted(gpus: Gpus, driver: Driver, witness: Witness) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as running:
        serving = running.create_task(gpus.serve(every_s=3600))
        gpus.look_soon()
        while not witness.saw:
            await asyncio.sleep(0.001)
        serving.cancel()

    assert driver.calls == 1


# The reader. NVML itself is read in processes of its own, in tests/system: pynvml keeps one library for good.


def test_driver_root_without_a_driver_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotReady) as refusal:
        NvmlReader(NvmlLibrary(tmp_path)).look()

    assert str(refusal.value) == (f"no libnvidia-ml.so.1 under {tmp_path} (--driver-root): is the NVIDIA driver installed?")


def test_library_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no ELF file")

    with pytest.raises(NotReady, match=rf"^cannot load {library}: "):
        NvmlReader(NvmlLibrary(tmp_path)).look()
