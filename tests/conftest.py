"""For all tests: no task and no fault of the event loop is left behind, native programs are built, socket paths are short."""

from __future__ import annotations

import asyncio
import gc
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    """Fails a test whose event loop reported a fault or still has tasks at the end.

    Without it a leaked task and an exception that nobody retrieved pass, also with filterwarnings=error.
    """
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    faults: list[str] = []
    loop.set_exception_handler(lambda _, context: faults.append(f"{context['message']}: {context.get('exception')!r}"))
    yield
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    gc.collect(1)  # a task that failed unseen is reported when it is collected
    assert (left, faults) == ([], [])


@pytest.fixture(scope="session")
def native() -> Path:
    """The directory the Makefile of tests/native builds into, up to date."""
    subprocess.run(["make", "--silent", "-C", str(REPOSITORY / "tests/native")], check=True)
    return REPOSITORY / "build/native"


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """An empty directory whose path is short: a unix socket's has room for 107 bytes, which tmp_path alone can use up."""
    path = Path(tempfile.mkdtemp(prefix="v"))
    yield path
    shutil.rmtree(path)
