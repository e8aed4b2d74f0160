"""The inventory while NVML answers, fails and hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from vgpu_dra.effects.nvml import NvmlReader
from vgpu_dra.gpus import Gpus
from vgpu_dra.inventory import Inventory
from vgpu_state.errors import NotReady
from vgpu_testkit.dra_values import INVENTORY


class Driver:
    """What NVML does: answers `says`, or raises it; while `hangs` is clear it hangs."""

    def __init__(self) -> None:
        self.says: Inventory | Exception = INVENTORY
        self.hangs = threading.Event()
        self.hangs.set()
        self.calls = 0

    def read(self) -> Inventory:
        self.calls += 1
        assert self.hangs.wait(60)
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.hangs.set()


@pytest.fixture
def changes() -> list[str]:
    return []


@pytest.fixture
def gpus(driver: Driver, changes: list[str]) -> Gpus:
    return Gpus(driver.read, on_change=lambda: changes.append("changed"))


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


async def test_hung_nvml_leaves_the_last_inventory_and_says_so(gpus: Gpus, driver: Driver) -> None:
    await gpus.refresh(patience_s=5)
    driver.hangs.clear()

    await gpus.refresh(patience_s=0.05)

    assert gpus.inventory() == INVENTORY
    assert gpus.fault == "NVML has not answered for more than 0.05 s"


async def test_hung_nvml_is_not_called_a_second_time_and_heals(gpus: Gpus, driver: Driver) -> None:
    driver.hangs.clear()
    await gpus.refresh(patience_s=0.05)
    await gpus.refresh(patience_s=0.05)
    assert driver.calls == 1
    assert unknown(gpus) == "the GPUs of this node are not known: NVML has not answered for more than 0.05 s"

    driver.hangs.set()
    await gpus.refresh(patience_s=5)
    assert (driver.calls, gpus.fault, gpus.inventory()) == (1, None, INVENTORY)


async def test_error_of_nvml_leaves_the_last_inventory_and_says_so(gpus: Gpus, driver: Driver) -> None:
    await gpus.refresh(patience_s=5)
    driver.says = NotReady("NVML answered: GPU is lost")

    await gpus.refresh(patience_s=5)
    assert (gpus.inventory(), gpus.fault) == (INVENTORY, "NVML answered: GPU is lost")

    driver.says = INVENTORY
    await gpus.refresh(patience_s=5)
    assert gpus.fault is None


async def test_lost_gpu_is_said_once_and_is_no_fault_of_the_others(gpus: Gpus, driver: Driver) -> None:
    driver.says = replace(INVENTORY, gpus=INVENTORY.gpus[1:], unreadable=("GPU at NVML index 0: GPU is lost",))

    with capture_logs() as lines:
        await gpus.refresh(patience_s=5)
        await gpus.refresh(patience_s=5)

    assert (gpus.fault, gpus.unreadable) == (None, ("GPU at NVML index 0: GPU is lost",))
    assert gpus.inventory().gpus == INVENTORY.gpus[1:]
    assert [line["reason"] for line in lines if line["event"] == "GPU left out"] == ["GPU at NVML index 0: GPU is lost"]


# The reader. NVML itself is read in processes of its own, in tests/system: pynvml keeps one library for good.


def test_driver_root_without_a_driver_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotReady) as refusal:
        NvmlReader(tmp_path).read()

    assert str(refusal.value) == (f"no libnvidia-ml.so.1 under {tmp_path} (--driver-root): is the NVIDIA driver installed?")


def test_library_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"no ELF file")

    with pytest.raises(NotReady, match=rf"^cannot load {library}: "):
        NvmlReader(tmp_path).read()
