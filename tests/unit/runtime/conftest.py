"""A stand-in runtime for each test, in a folder whose path leaves room for sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from vgpu_testkit.nri_runtime import NriTimeouts
from vgpu_testkit.runtime import StandInRuntime
from vgpu_testkit.runtime_process import Isolation

Make = Callable[..., AbstractAsyncContextManager[StandInRuntime]]


@pytest.fixture
def folder(short_dir: Path) -> Path:
    """A folder with a short path, empty but for `cdi`."""
    (short_dir / "cdi").mkdir()
    return short_dir


@pytest.fixture
def make_runtime(folder: Path) -> Make:
    """Makes the runtime of that folder; its CDI files are in `cdi`, its NRI socket is `nri/nri.sock`."""

    def make(**options: Any) -> StandInRuntime:
        return StandInRuntime(folder / "runtime", cdi_dir=folder / "cdi", nri_socket=folder / "nri/nri.sock", **options)

    return make


@pytest.fixture
async def runtime(make_runtime: Make) -> AsyncIterator[StandInRuntime]:
    """A runtime that isolates its containers as well as this machine allows."""
    async with make_runtime() as made:
        yield made


@pytest.fixture
async def mapped(make_runtime: Make) -> AsyncIterator[StandInRuntime]:
    """A runtime that isolates nothing."""
    async with make_runtime(isolation=Isolation.PATHS_MAPPED) as made:
        yield made


@pytest.fixture
def socket(folder: Path) -> Path:
    """Where plugins find that runtime."""
    return folder / "nri/nri.sock"


@pytest.fixture
def timeouts() -> NriTimeouts:
    """Short, so that a test of a late plugin is; long enough for a busy machine to answer in."""
    return NriTimeouts(registration_s=0.5, request_s=0.5)


@pytest.fixture
async def node(make_runtime: Make, timeouts: NriTimeouts) -> AsyncIterator[StandInRuntime]:
    """A runtime of containerd 2.1 that calls plugins; nothing depends on how its containers are isolated."""
    async with make_runtime(isolation=Isolation.PATHS_MAPPED, timeouts=timeouts) as made:
        yield made


@pytest.fixture
async def isolated(runtime: StandInRuntime) -> StandInRuntime:
    """A runtime with namespaces."""
    if runtime.isolation is not Isolation.NAMESPACES:
        pytest.skip("this machine allows this user no user namespace: only containers with mapped paths can be tested here")
    return runtime


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits for what no event tells of: the runtime looks for new processes itself."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.005)

    return wait
