"""A fake node with one real dra-plugin process per test."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from vgpu_testkit.api_environment import cluster_environment
from vgpu_testkit.api_server import ApiServer
from vgpu_testkit.crash_control import CrashControl
from vgpu_testkit.crashing_daemon import crashing
from vgpu_testkit.dra_bench import DraBench, make_bench, make_kubelet


@pytest.fixture
def new_bench(short_dir: Path, native: Path) -> Iterator[Callable[[str], DraBench]]:
    """Makes benches by name; what still runs at the end is killed."""
    benches: list[DraBench] = []

    def make(name: str) -> DraBench:
        root = short_dir / name
        root.mkdir()
        benches.append(make_bench(root, native=native))
        return benches[-1]

    yield make
    for one in benches:
        one.dra.kill()


@pytest.fixture(scope="module")
def shared_bench(native: Path) -> Iterator[DraBench]:
    """One dra-plugin that serves all tests of a module; it was registered by a kubelet that has gone."""
    path = Path(tempfile.mkdtemp(prefix="vd"))
    bench = make_bench(path, native=native)
    asyncio.run(_start_registered(bench))
    yield bench
    bench.dra.kill()
    shutil.rmtree(path)


async def _start_registered(bench: DraBench) -> None:
    async with make_kubelet(bench.node) as bench.kubelet:
        await bench.start()
    bench.kubelet = None


@pytest.fixture
def idle_bench(new_bench: Callable[[str], DraBench]) -> DraBench:
    """dra-plugin is not started, kubelet does not run."""
    return new_bench("n")


@pytest.fixture
async def bench(idle_bench: DraBench) -> AsyncIterator[DraBench]:
    """dra-plugin is not started, kubelet runs."""
    async with make_kubelet(idle_bench.node) as kubelet:
        idle_bench.kubelet = kubelet
        yield idle_bench
        idle_bench.dra.kill()


@pytest.fixture
async def server(idle_bench: DraBench, tmp_path: Path) -> AsyncIterator[ApiServer]:
    """The API server that dra-plugin, not started yet, will find."""
    server = ApiServer(node="node-a")
    async with server.serve() as address:
        idle_bench.dra.environment |= cluster_environment(tmp_path, address, node="node-a")
        yield server
        idle_bench.dra.kill()


@pytest.fixture
def control(bench: DraBench, native: Path, short_dir: Path) -> Iterator[CrashControl]:
    """Chooses the file-system call that the bench's dra-plugin, which is forked from here on, does not survive."""
    control = CrashControl(short_dir / "control")
    executed = bench.dra
    with crashing(executed, control, native=native, roots=bench.roots) as bench.dra:
        yield control
    bench.dra = executed
