"""What is held while it may still succeed, and that it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from vgpu_dra.patience import held
from vgpu_dra.policy.occupancy import DeviceInUse
from vgpu_state.errors import NotReady, PreconditionFailed


def answering(*outcomes: Exception | str) -> Callable[[], Awaitable[str]]:
    left: Iterator[Exception | str] = iter(outcomes)

    async def act() -> str:
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return act


async def test_refusal_that_goes_away_is_waited_out() -> None:
    act = answering(NotReady("the API server is away"), DeviceInUse("held by another"), "prepared")

    assert await held(act, over=(NotReady, DeviceInUse), for_s=30.0) == "prepared"


async def test_last_refusal_is_told_when_a_further_try_would_be_too_late() -> None:
    act = answering(NotReady("first"), NotReady("second"), "too late")

    with pytest.raises(NotReady, match=r"^second$"):
        await held(act, over=(NotReady,), for_s=0.4)


async def test_refusal_that_stays_is_told_at_once() -> None:
    """A claim that was refused for good must not keep the others of its call waiting."""
    act = answering(PreconditionFailed("no such claim"), "never asked")

    with pytest.raises(PreconditionFailed, match=r"^no such claim$"):
        await held(act, over=(NotReady, DeviceInUse), for_s=30.0)

    assert await act() == "never asked"
