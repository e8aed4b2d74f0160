"""The order in which a runtime may call, and what the parts of a Synchronize add up to."""

from __future__ import annotations

import pytest

from vgpu_nri.containers import Pod, VgpuContainer
from vgpu_nri.session import TRANSITIONS, Input, OutOfOrder, Session, State


def _container(name: str) -> VgpuContainer:
    return VgpuContainer(runtime_id=name, name=name, pod=Pod(), grants=())


def _configured() -> Session:
    session = Session()
    session.register(at_ns=5)
    session.configure(runtime_name="containerd", runtime_version="v2.1.9")
    return session


def test_session_is_named_by_when_it_registered() -> None:
    session = _configured()

    assert (session.id, session.runtime_name, session.runtime_version) == (5, "containerd", "v2.1.9")


def test_subscription_is_create_start_stop_and_remove() -> None:
    session = Session()
    session.register(at_ns=5)

    mask = session.configure(runtime_name="", runtime_version="")

    assert [event for event in range(1, 32) if mask >> (event - 1) & 1] == [4, 6, 10, 11]


def test_whole_synchronize_is_its_containers() -> None:
    session = _configured()

    assert session.finish((_container("a"),), at_ns=9) == (_container("a"),)
    assert session.state is State.SYNCHRONIZED
    assert session.synchronized_since == 9


def test_parts_add_up_in_order() -> None:
    session = _configured()
    session.add_part((_container("a"), _container("b")))
    session.add_part(())
    assert session.state is State.CONFIGURED

    assert session.finish((_container("c"),), at_ns=9) == (_container("a"), _container("b"), _container("c"))


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        (State.NEW, {Input.REGISTER, Input.CLOSE}),
        (State.REGISTERED, {Input.CONFIGURE, Input.CLOSE}),
        (State.CONFIGURED, {Input.SYNCHRONIZE_PART, Input.SYNCHRONIZE_LAST, Input.HOOK, Input.CLOSE}),
        (State.SYNCHRONIZED, {Input.HOOK, Input.CLOSE}),
        (State.CLOSED, {Input.CLOSE}),
    ],
)
def test_each_state_takes_these_calls_and_no_others(state: State, allowed: set[Input]) -> None:
    assert set(TRANSITIONS[state]) == allowed


def test_second_synchronize_is_out_of_order_and_changes_nothing() -> None:
    session = _configured()
    session.finish((), at_ns=9)

    with pytest.raises(OutOfOrder, match="Synchronize in state synchronized"):
        session.finish((), at_ns=10)

    assert session.synchronized_since == 9


def test_closed_session_admits_no_hook() -> None:
    session = _configured()
    session.close()
    session.close()

    with pytest.raises(OutOfOrder, match="a hook in state closed"):
        session.admit_hook()
