"""What goes on beside the calls: asked for often and done once, and no fault ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from vgpu_dra.housekeeping import Housekeeping
from vgpu_dra.workers import Errand
from vgpu_state.claims import Binding
from vgpu_state.errors import StorageFailed
from vgpu_testkit.dra_tree import ALLOCATION, DraTree
from vgpu_testkit.dra_values import CLAIM_UID


class StuckTrash:
    """A trash one entry of which cannot be removed; counts the passes."""

    def __init__(self) -> None:
        self.passes = threading.Semaphore(0)

    def empty_trash(self, *, is_inhabited: Callable[[Binding], bool]) -> dict[str, StorageFailed]:
        self.passes.release()
        return {"old.00112233": StorageFailed(action="remove", path="/trash/old", error=OSError(5, "I/O error"))}


def housekeeping(node: DraTree, trash: StuckTrash | None = None) -> Housekeeping:
    return Housekeeping(trash=trash or node.tree, ledger=node.ledger, claims=node.claims, is_inhabited=node.holders.is_inhabited)


def cdi_file(node: DraTree) -> Path:
    return node.cdi_dir / f"k8s.manager.nvidia.com-claim_{CLAIM_UID}.json"


def test_errand_that_is_asked_for_while_it_runs_runs_once_more() -> None:
    begun, goes_on, runs = threading.Semaphore(0), threading.Event(), []

    def work() -> None:
        runs.append(1)
        begun.release()
        assert goes_on.wait(20)

    errand = Errand("test", work)
    errand.ask()
    assert begun.acquire(timeout=20)
    for _ in range(100):
        errand.ask()
    goes_on.set()
    assert begun.acquire(timeout=20)
    assert not begun.acquire(timeout=0.05)

    assert len(runs) == 2


def test_errand_that_fails_says_so_and_can_be_asked_again() -> None:
    done = threading.Semaphore(0)

    def work() -> None:
        done.release()
        raise RuntimeError("unforeseen")

    errand = Errand("test", work)
    with capture_logs() as lines:
        errand.ask()
        assert done.acquire(timeout=20)
        errand.ask()
        assert done.acquire(timeout=20)

    assert lines[0] == {"event": "errand failed", "errand": "test", "exc_info": True, "log_level": "error"}


def test_trash_that_cannot_be_emptied_is_logged_once(node: DraTree) -> None:
    trash = StuckTrash()
    keeper = housekeeping(node, trash)

    with capture_logs() as lines:
        for _ in range(4):
            keeper.empty_trash_soon()
            assert trash.passes.acquire(timeout=20)

    said = {"entry": "old.00112233", "reason": "cannot remove /trash/old: EIO (I/O error)", "log_level": "error"}
    assert [line for line in lines if line["event"] != "trash not emptied"] == []
    assert [{k: v for k, v in line.items() if k != "event"} for line in lines] == [said]


async def test_lost_cdi_file_comes_back_without_a_call(node: DraTree) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    content = cdi_file(node).read_bytes()
    cdi_file(node).unlink()

    serving = asyncio.create_task(housekeeping(node).serve(every_s=0.001))
    async with asyncio.timeout(20):
        while not cdi_file(node).exists():
            await asyncio.sleep(0.001)
    serving.cancel()

    assert cdi_file(node).read_bytes() == content


@pytest.mark.parametrize("faults", [1, 5])
async def test_cdi_file_that_cannot_be_restored_is_logged_once(node: DraTree, faults: int) -> None:
    node.claims.prepare(ALLOCATION, asked_at_s=1000.0)
    before = node.snapshot()
    (node.root / "driver/usr/lib64/libcuda.so.550.90.07").unlink()
    keeper = housekeeping(node)

    with capture_logs() as lines:
        for _ in range(faults):
            keeper._restore()

    assert [line["event"] for line in lines] == ["claim files not restored"]
    assert node.snapshot() == before
