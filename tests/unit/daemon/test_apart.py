"""A cancellation that meets grpclib's own is not lost."""

from __future__ import annotations

import asyncio

import pytest
from grpclib.exceptions import StreamTerminatedError
from grpclib.utils import Wrapper

from vgpu_daemon.apart import run_apart


async def broken_call(wrapper: Wrapper, begun: asyncio.Event) -> None:
    """What grpclib runs for a call: whatever ends it, the wrapper's error is what comes out."""
    with wrapper:
        begun.set()
        await asyncio.Event().wait()


async def test_caller_that_is_cancelled_while_its_connection_breaks_sees_that_it_is() -> None:
    wrapper, begun = Wrapper(), asyncio.Event()
    caller = asyncio.create_task(run_apart(broken_call(wrapper, begun)))
    await begun.wait()

    wrapper.cancel(StreamTerminatedError("connection lost"))
    caller.cancel()
    await asyncio.wait([caller])

    assert caller.cancelled()


async def test_without_it_the_cancellation_would_be_lost() -> None:
    """The fault that `run_apart` is for; when grpclib mends it, `run_apart` can go."""
    wrapper, begun = Wrapper(), asyncio.Event()
    caller = asyncio.create_task(broken_call(wrapper, begun))
    await begun.wait()

    wrapper.cancel(StreamTerminatedError("connection lost"))
    caller.cancel()
    await asyncio.wait([caller])

    assert not caller.cancelled()
    with pytest.raises(StreamTerminatedError):
        caller.result()


async def test_connection_that_breaks_is_the_calls_error() -> None:
    wrapper, begun = Wrapper(), asyncio.Event()
    caller = asyncio.create_task(run_apart(broken_call(wrapper, begun)))
    await begun.wait()

    wrapper.cancel(StreamTerminatedError("connection lost"))

    with pytest.raises(StreamTerminatedError, match=r"^connection lost$"):
        await caller


async def test_call_that_does_not_end_is_ended_at_its_time() -> None:
    begun = asyncio.Event()

    with pytest.raises(TimeoutError):
        await run_apart(broken_call(Wrapper(), begun), timeout_s=0.01)

    assert begun.is_set()


async def test_result_of_the_call_is_returned() -> None:
    async def call() -> int:
        return 7

    assert await run_apart(call()) == 7
