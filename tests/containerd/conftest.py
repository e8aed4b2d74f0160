"""A real containerd of each line of releases for every test below this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from vgpu_testkit.containerd import Containerd, find_containerds
from vgpu_testkit.cri import Cri

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies below this folder: it needs root and `make containerd`."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.containerd)


@pytest.fixture(scope="session", params=["1.7", "2"])
def containerd_process(request: pytest.FixtureRequest) -> Iterator[Containerd]:
    """A containerd that lives as long as the run; tests use `containerd`, which leaves none of their pods behind."""
    program = find_containerds().get(request.param)
    if program is None:
        pytest.fail(f"containerd {request.param} is not installed: run make containerd")
    if os.geteuid() != 0:
        pytest.fail("containerd runs as root only: run the tests marked containerd as root")
    # Not pytest's own folder: a socket's path has room for 107 bytes.
    root = Path(tempfile.mkdtemp(prefix=f"vgpu-ctd-{request.param}-"))
    process = Containerd(program, root)
    try:
        process.start()
        yield process
    finally:
        process.stop()
        shutil.rmtree(root)


@pytest.fixture
async def containerd(containerd_process: Containerd) -> AsyncIterator[Containerd]:
    """A containerd that runs and has no pods, with an empty CDI folder."""
    containerd_process.start()
    yield containerd_process
    containerd_process.start()
    async with Cri(containerd_process.socket) as cri:
        await cri.wipe()
    for spec in containerd_process.cdi_dir.iterdir():
        spec.unlink()


@pytest.fixture
async def cri(containerd: Containerd) -> AsyncIterator[Cri]:
    """A client of that containerd."""
    async with Cri(containerd.socket) as client:
        yield client
