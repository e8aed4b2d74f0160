"""Which containers are ours, and which releases are still to be said."""

from __future__ import annotations

from vgpu_nri.containers import Pod, Stage, VgpuContainer
from vgpu_nri.ledger import MAX_KEPT, Ledger


def _container(runtime_id: str, *, pid: int = 0) -> VgpuContainer:
    return VgpuContainer(runtime_id=runtime_id, name="main", pod=Pod(), grants=(("k", "v"),), pid=pid)


def test_container_is_ours_from_the_question_to_its_removal() -> None:
    ledger = Ledger()
    assert not ledger.is_ours("a")

    ledger.expect("a")
    assert ledger.is_ours("a")
    assert not ledger.live
    ledger.hold(_container("a"), session_id=1, partition="p")
    assert list(ledger.live) == ["a"]
    ledger.release("a", Stage.STOPPED)
    assert ledger.is_ours("a")
    assert not ledger.live
    ledger.release("a", Stage.REMOVED)
    assert not ledger.is_ours("a")


def test_start_adds_the_pid_and_keeps_the_partition() -> None:
    ledger = Ledger()
    ledger.hold(_container("a"), session_id=1, partition="p")

    ledger.hold(_container("a", pid=7), session_id=1)

    assert ledger.live["a"].partition == "p"
    assert ledger.live["a"].container.pid == 7


def test_list_of_a_new_session_replaces_what_an_earlier_one_knew() -> None:
    ledger = Ledger()
    ledger.hold(_container("gone"), session_id=1, partition="p")
    ledger.hold(_container("stays"), session_id=1, partition="q")

    ledger.synchronize([_container("stays", pid=7), _container("new")], session_id=2)

    assert list(ledger.live) == ["stays", "new"]
    assert [(held.session_id, held.partition) for held in ledger.live.values()] == [(2, "q"), (2, "")]


def test_container_created_while_the_list_was_made_is_not_lost() -> None:
    ledger = Ledger()
    ledger.hold(_container("created"), session_id=2, partition="p")

    ledger.synchronize([_container("listed")], session_id=2)

    assert set(ledger.live) == {"created", "listed"}


def test_removal_stands_for_an_undelivered_stop() -> None:
    ledger = Ledger()
    ledger.keep_release("a", Stage.STOPPED)
    ledger.keep_release("a", Stage.REMOVED)
    ledger.keep_release("a", Stage.STOPPED)

    assert dict(ledger.undelivered) == {"a": Stage.REMOVED}


def test_delivered_stop_leaves_the_removal_to_be_said() -> None:
    ledger = Ledger()
    ledger.keep_release("a", Stage.REMOVED)

    ledger.delivered("a", Stage.STOPPED)
    assert dict(ledger.undelivered) == {"a": Stage.REMOVED}
    ledger.delivered("a", Stage.REMOVED)
    assert dict(ledger.undelivered) == {}


def test_delivered_removal_settles_an_undelivered_stop() -> None:
    ledger = Ledger()
    ledger.keep_release("a", Stage.STOPPED)

    ledger.delivered("a", Stage.REMOVED)

    assert dict(ledger.undelivered) == {}


def test_what_is_kept_is_bounded_and_the_oldest_goes() -> None:
    ledger = Ledger()
    for number in range(MAX_KEPT + 2):
        ledger.keep_release(str(number), Stage.REMOVED)
        ledger.expect(str(number))

    assert len(ledger.undelivered) == 4096
    assert next(iter(ledger.undelivered)) == "2"
    assert not ledger.is_ours("1")
    assert ledger.is_ours("2")
