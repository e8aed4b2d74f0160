"""Short socket folders, and no task left behind."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    # pytest's tmp_path alone can use up the 107 bytes of a unix socket's path.
    path = Path(tempfile.mkdtemp(prefix="vk"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    faults: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: faults.append(str(context)))
    yield
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert (left, faults) == ([], [])
